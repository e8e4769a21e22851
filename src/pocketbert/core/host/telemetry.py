"""Telemetry of the libraries that PocketBERT uses: switched off before they are imported.

PocketBERT sends nothing itself. Some of its dependencies report to their vendors unless they are told not to, and read
what they are told when they are imported or first used. `docs/telemetry.md` lists all of them and how they were checked.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, MutableMapping

SWITCHES = {
    # onnxruntime 1.29 and newer: a device id below the user's cache folder, and reports to Microsoft
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub, transformers and hf_xet: their telemetry, and details of the machine in every request
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # datasets: a request to Amazon S3 for each `load_dataset`, of local files too, that only counts it
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}
"""Environment variables and the values with which a library sends nothing."""

OPENVINO_REPORTER = "openvino_telemetry"
"""The package by which openvino and nncf report to Google Analytics. It has no variable; they do without it."""


def switch_off_telemetry(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment variables that switch off the telemetry of dependencies; child processes inherit them.

    Called when `pocketbert` is imported. A variable that the user has set keeps its value, so ``ORT_DISABLE_TELEMETRY=0``
    asks for ONNX Runtime's telemetry. An empty one counts as not set: the libraries would read it as consent.

    Args:
        environment: Where to set the variables.
    """
    for name, value in SWITCHES.items():
        if not environment.get(name):
            environment[name] = value
    loaded = sys.modules.get("onnxruntime")
    if loaded is not None and environment["ORT_DISABLE_TELEMETRY"].strip().lower() in (
        "1",
        "true",
        "yes",
        "on",
    ):
        # It read the variable when the program imported it. What it reports of its start can no longer be stopped; its
        # vendor documents this call as holding back what follows.
        with contextlib.suppress(Exception):
            loaded.disable_telemetry_events()


@contextlib.contextmanager
def without_openvino_telemetry() -> Iterator[None]:
    """Import openvino inside, and it uses its own stub in place of the package that reports every import.

    Without it, ``import openvino`` writes two files into the folder ``intel`` of the user's home folder and reports to
    Google Analytics, without asking. Where the program has imported openvino before, that has happened already.
    """
    absent = object()
    before = sys.modules.get(OPENVINO_REPORTER, absent)
    sys.modules[OPENVINO_REPORTER] = None  # type: ignore[assignment]  # makes `import` raise ImportError
    try:
        yield
    finally:
        if before is absent:
            del sys.modules[OPENVINO_REPORTER]
        else:
            sys.modules[OPENVINO_REPORTER] = before  # type: ignore[assignment]
