"""Profile one file on a phone of Qualcomm AI Hub by its client, in a separate process.

``python -m pocketbert.benchmarks.devices.qai_hub_worker FOLDER``
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

# --- job ---
# What the measuring process and the one that runs the service's client tell each other, as files of one folder.


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


TARGET = "--target_runtime onnx"


def profile(job: HubJob, token: str) -> HubTold:
    """Upload a file, have its shapes fixed if needed, profile it, and wait for the result.

    Args:
        job: What to profile.
        token: Token of the service; empty for the one in the file of the service's client.
    """
    import qai_hub

    phone, model = qai_hub.Device(job.phone), job.model
    client: Any = qai_hub.Client(config=qai_hub.ClientConfig(api_token=token)) if token else qai_hub
    if job.specs:
        compiled = client.submit_compile_job(model=model, device=phone, input_specs=job.specs, options=TARGET)
        model = compiled.get_target_model()
        if model is None:
            return HubTold(failed=f"the service does not compile it: {compiled.get_status().message}")
    made = client.submit_profile_job(model=model, device=phone)
    content: Any = made.download_profile()
    if not content:
        return HubTold(failed=f"the service does not profile it: {made.get_status().message}")
    summary = content["execution_summary"]
    times = list(summary.get("all_inference_times") or [])
    return HubTold(
        inference_us=times or [summary["estimated_inference_time"]],
        estimated=not times,
        load_us=summary.get("first_load_time") or None,
        nodes=content.get("execution_detail") or [],
        url=str(getattr(made, "url", "")),
    )


def without_secrets(text: str) -> str:
    """A message without anything that may be a token."""
    return re.sub(r"[A-Za-z0-9_-]{24,}", "…", text)


def _hidden(text: str, token: str) -> str:
    return text.replace(token, "…") if token else text


def main(folder: Path) -> None:
    """Do the job of a folder."""
    job = HubJob.model_validate_json((folder / JOB_FILE).read_text(encoding="utf-8"))
    token = os.environ.pop(VARIABLE, "").strip()  # what the client starts need not have it
    try:
        told = profile(job, token)
    except Exception as error:
        words = " ".join(without_secrets(_hidden(str(error), token)).split()) or "no message"
        told = HubTold(failed=f"{type(error).__name__}: {words}"[:400])
    (folder / TOLD_FILE).write_text(_hidden(told.model_dump_json(), token), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
