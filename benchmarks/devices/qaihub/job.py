"""What the measuring process and the one that runs the service's client tell each other, as files of one folder."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

JOB_FILE = "job.json"
TOLD_FILE = "told.json"
VARIABLE = "QAI_HUB_API_TOKEN"
"""Environment variable with the token of the service; nothing but the process of the client uses it."""
Microseconds = Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)]


class HubJob(BaseModel):
    """What to profile.

    Attributes:
        model: The file.
        phone: Name of the phone, as the service lists it.
        specs: Shapes and dtypes of the inputs, where the service has to fix them first; empty where the file has them.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    phone: str
    specs: dict[str, tuple[tuple[int, ...], str]] = {}


class HubNode(BaseModel):
    """An operator of the profile: its type, and the unit that computed it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str = Field(max_length=200)
    compute_unit: str = Field(max_length=40)


class HubTold(BaseModel):
    """What the service answered.

    Attributes:
        inference_us: Time of each inference, or only the service's estimate.
        estimated: Whether it is the estimate.
        load_us: Time of the first load; None where it is not told.
        nodes: Operators and where they ran.
        url: Page of the job.
        failed: Why there is nothing; empty where there is.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    inference_us: list[Microseconds] = Field([], max_length=100_000)
    estimated: bool = False
    load_us: Microseconds | None = None
    nodes: list[HubNode] = Field([], max_length=1_000_000)
    url: str = Field("", max_length=400)
    failed: str = ""
