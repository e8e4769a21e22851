"""The script that measures on a Mac, as text: artefact folders with Core ML packages get a copy."""

from __future__ import annotations

from importlib import resources

FILE_NAME = "benchmark_on_mac.py"


def mac_script() -> str:
    """Content of ``coreml/benchmark_on_mac.py``."""
    return resources.files(__package__).joinpath(FILE_NAME).read_text(encoding="utf-8")
