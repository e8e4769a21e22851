"""What a run needs installed, asked before its first step and not after its last."""

from __future__ import annotations

from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.versions import extras, installed
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format

EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch", "transformers", "accelerate", "safetensors", "datasets"),
    "tflite-runtime": ("ai-edge-litert",),
    "coreml-runtime": ("protobuf",),
    "openvino": ("openvino",),
    "qnn": ("onnxruntime-qnn",),
    "vela": ("ethos-u-vela", "ai-edge-litert", "flatbuffers"),
    "report": ("jinja2", "matplotlib"),
}
"""Distributions of each extra of pyproject.toml that a command can miss; those of formats are in the table of formats."""


def distributions(extra: str) -> tuple[str, ...]:
    """Distributions of an extra; the extra of a format bears its name."""
    if extra in Format:
        return ("torch", "transformers", "safetensors", *FORMATS[Format(extra)].needs)
    return EXTRAS[extra]


def missing(extra: str) -> list[str]:
    """Distributions of an extra that are not installed."""
    wanted = distributions(extra)
    have = installed(wanted)
    return [name for name in wanted if name not in have]


def require(*wanted: str) -> None:
    """Fail with one installing command for everything that is missing.

    Raises:
        MissingBackendError: Naming the distributions.
    """
    lacking = [e for e in wanted if missing(e)]
    if lacking:
        names = dict.fromkeys(n for e in lacking for n in missing(e))
        raise MissingBackendError(", ".join(names), _command(lacking))


def _command(lacking: list[str]) -> str:
    """The command that installs what is missing; PocketBERT has no extra for a format of an installed plug-in."""
    known = extras()
    own = [e for e in lacking if e in known]
    others = dict.fromkeys(n for e in lacking if e not in own for n in missing(e))
    wanted = [f"'pocketbert[{','.join(own)}]'"] if own else []
    return " ".join(["pip install", *wanted, *others])


def require_for(recipe: Recipe, until: str | None = None, report: bool = True) -> None:
    """Check what a recipe needs.

    Args:
        recipe: What will be done.
        until: Last step, when not all are run.
        report: Whether an HTML page will be written.

    Raises:
        InputError: If the recipe has a budget that was not searched: its files are not known.
        MissingBackendError: Naming the distributions that are missing.
    """
    if recipe.quantize.budget is not None and until is None:
        what = "is searched by `pocketbert run` of a recipe file only."
        raise InputError(
            Problem("quantize.budget", what, "Leave it out, then: pocketbert quantize -m FOLDER --budget ...")
        )
    training = recipe.teacher.finetune is not None or recipe.student is not None
    exporting = until not in ("teacher", "student")
    wanted = [
        ("train", training),
        *((f.value, exporting and f in recipe.export.formats) for f in Format),
        *((f.runtime.own_engine, exporting) for f in recipe.quantize.wanted if f.runtime and f.runtime.own_engine),
        ("report", report and exporting and recipe.benchmark is not None),
    ]
    require(*(name for name, needed in wanted if needed))
