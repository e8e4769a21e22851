"""Profile one file on a phone of Qualcomm AI Hub by its client, in a separate process.

The measuring process and this one exchange the files of a folder: `HubJob`, then `HubResponse`. The token of the
service is in no file and no message. ``python -m pocketbert.benchmarks.devices.qai_hub_worker FOLDER``
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

JOB_FILE = "job.json"
RESPONSE_FILE = "told.json"
TOKEN_VARIABLE = "QAI_HUB_API_TOKEN"  # noqa: S105 - the name of a variable
"""Environment variable with the token of the service; nothing but the process of the client uses it."""
_COMPILE_OPTIONS = "--target_runtime onnx"
_Microseconds = Annotated[float, Field(gt=0, le=1e10, allow_inf_nan=False)]


class HubJob(BaseModel):
    """The file to profile on a phone of the service.

    Attributes:
        model: Path of the model file.
        phone: Name of the phone, as the service lists it.
        specs: Shapes and dtypes of the inputs, if the service has to fix them; empty if the file has fixed shapes.
    """

    model_config = ConfigDict(frozen=True)

    model: str
    phone: str
    specs: dict[str, tuple[tuple[int, ...], str]] = {}


class _HubNode(BaseModel):
    """An operator of the profile: its type, and the unit that computed it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    type: str = Field(max_length=200)
    compute_unit: str = Field(max_length=40)


class HubResponse(BaseModel):
    """The service's profile of one file, or why there is none.

    Attributes:
        inference_us: Times of all inferences in µs, or only the service's estimate.
        estimated: Whether `inference_us` is the service's estimate.
        load_us: Time of the first load in µs; None if the service does not report it.
        nodes: The operators, and the unit that ran each.
        url: Web page of the job.
        failed: Why there is no profile; empty if there is.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    inference_us: list[_Microseconds] = Field([], max_length=100_000)
    estimated: bool = False
    load_us: _Microseconds | None = None
    nodes: list[_HubNode] = Field([], max_length=1_000_000)
    url: str = Field("", max_length=400)
    failed: str = ""


def main(folder: Path) -> None:
    """Read the job file in a folder, profile its model on the service, and write the answer next to it."""
    job = HubJob.model_validate_json((folder / JOB_FILE).read_text(encoding="utf-8"))
    token = os.environ.pop(TOKEN_VARIABLE, "").strip()  # processes that the client starts need not have it

    def hide_token(text: str) -> str:
        return text.replace(token, "…") if token else text

    try:
        response = _profile(job, token)
    except Exception as error:
        # anything else that may be a token is removed from the message, too
        message = re.sub(r"[A-Za-z0-9_-]{24,}", "…", hide_token(str(error)))
        failed = f"{type(error).__name__}: {' '.join(message.split()) or 'no message'}"
        response = HubResponse(failed=failed[:400])
    (folder / RESPONSE_FILE).write_text(hide_token(response.model_dump_json()), encoding="utf-8")


def _profile(job: HubJob, token: str) -> HubResponse:
    """Upload a model, have its shapes fixed if needed, profile it on the phone, and wait for the result.

    Args:
        job: The model file, and the phone to profile it on.
        token: Token of the service; empty to use the token that the service's client has stored.
    """
    import qai_hub

    phone, model = qai_hub.Device(job.phone), job.model
    client: Any = qai_hub.Client(config=qai_hub.ClientConfig(api_token=token)) if token else qai_hub
    if job.specs:
        compiled = client.submit_compile_job(model=model, device=phone, input_specs=job.specs, options=_COMPILE_OPTIONS)
        model = compiled.get_target_model()
        if model is None:
            return HubResponse(failed=f"the service does not compile it: {compiled.get_status().message}")
    profile_job = client.submit_profile_job(model=model, device=phone)
    content: Any = profile_job.download_profile()
    if not content:
        return HubResponse(failed=f"the service does not profile it: {profile_job.get_status().message}")
    summary = content["execution_summary"]
    times = list(summary.get("all_inference_times") or [])
    return HubResponse(
        inference_us=times or [summary["estimated_inference_time"]],
        estimated=not times,
        load_us=summary.get("first_load_time") or None,
        nodes=content.get("execution_detail") or [],
        url=str(getattr(profile_job, "url", "")),
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
