"""What is here and what is missing, with the command that installs it."""

from __future__ import annotations

from dataclasses import dataclass

import psutil
from pydantic import BaseModel

from pocketbert.core.errors import InputError, MissingBackendError, PocketBertError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import Machine, load_average, machine
from pocketbert.core.host.system import extras, installed
from pocketbert.core.models.folder import DEMO_INSTALL, DEMO_TEACHER, DEMO_VERSION, open_model_folder
from pocketbert.core.plugins import plugins, tolerated
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format

# --- requirements ---
# What a run needs installed, asked before its first step and not after its last.


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


class Backend(BaseModel):
    """One optional part.

    Attributes:
        name: What it is for.
        present: Whether it can be used.
        versions: What is installed.
        command: What installs it.
    """

    name: str
    present: bool
    versions: str
    command: str


class PluginReport(BaseModel):
    """One entry point of an installed package.

    Attributes:
        name: Name of the entry point.
        package: The package and its version.
        registered: What it has registered, such as ``family camembert``.
        error: Why it could not be loaded and what to do; empty if it was.
    """

    name: str
    package: str
    registered: list[str]
    error: str


class Diagnosis(BaseModel):
    """Result of `pocketbert doctor`.

    Attributes:
        machine: CPU and ISA.
        memory_gib: Main memory.
        load: Load average of the last minute.
        training: The number type training will use, and why.
        backends: Optional parts.
        plugins: Installed packages that add families, methods, formats or devices.
        notes: What the user should know.
    """

    machine: Machine
    memory_gib: float
    load: float
    training: str
    backends: list[Backend]
    plugins: list[PluginReport]
    notes: list[str]


@dataclass(frozen=True)
class _Part:
    name: str
    distributions: tuple[str, ...]
    command: str
    alternatives: bool = False
    """Whether one of the distributions is enough."""


_PARTS = (
    _Part("predict (ONNX Runtime)", ("onnxruntime", "tokenizers", "numpy"), "pip install pocketbert"),
    _Part("train and distil", EXTRAS["train"], "pip install 'pocketbert[train]'"),
    _Part("export to ONNX, quantize", distributions("onnx"), "pip install 'pocketbert[onnx]'"),
    _Part("export to TFLite, quantize", distributions("tflite"), "pip install 'pocketbert[tflite]'"),
    _Part(
        "run TFLite files",
        FORMATS[Format.TFLITE].engines,
        "pip install 'pocketbert[tflite-runtime]'",
        alternatives=True,
    ),
    _Part("export to Core ML, compress", distributions("coreml"), "pip install 'pocketbert[coreml]'"),
    _Part(
        "check Core ML packages (on macOS: run them)",
        EXTRAS["coreml-runtime"],
        "pip install 'pocketbert[coreml-runtime]'",
    ),
    _Part("run files for OpenVINO", EXTRAS["openvino"], "pip install 'pocketbert[openvino]'"),
    _Part("compile for Qualcomm's NPU", EXTRAS["qnn"], "pip install 'pocketbert[qnn]'"),
    _Part("compile for Arm's Ethos-U", EXTRAS["vela"], "pip install 'pocketbert[vela]'"),
    _Part("HTML report", EXTRAS["report"], "pip install 'pocketbert[report]'"),
)


def diagnose() -> Diagnosis:
    """Look at machine, libraries and the demo teacher."""
    backends = []
    for part in _PARTS:
        have = installed(part.distributions)
        missing = [d for d in part.distributions if d not in have]
        if part.alternatives:
            missing = [] if have else missing[:1]
        versions = ", ".join(f"{k} {v}" for k, v in have.items()) + (
            f"; missing: {', '.join(missing)}" if missing else ""
        )
        backends.append(Backend(name=part.name, present=not missing, versions=versions, command=part.command))
    backends.append(_teacher())
    notes = []
    load, cores = load_average(), machine().cores
    if load > cores:
        notes.append(f"load {load:.1f} on {cores} cores: latencies measured now are those of a busy machine")
    training, present = _training(), {b.name: b.present for b in backends}
    if not present["train and distil"]:
        notes.append(
            "PyTorch from PyPI brings 4.7 GB of CUDA libraries; without a GPU install it from PyTorch's CPU "
            "index (uv: UV_TORCH_BACKEND=cpu)"
        )
    return Diagnosis(
        machine=machine(),
        memory_gib=psutil.virtual_memory().total / 2**30,
        load=load,
        training=training,
        backends=backends,
        plugins=[
            PluginReport(
                name=p.name,
                package=f"{p.distribution} {p.version}",
                registered=p.registered,
                error=p.complaint if p.error else "",
            )
            for p in plugins()
        ],
        notes=notes,
    )


def _teacher() -> Backend:
    try:
        with tolerated():  # a plug-in that fails has a line of its own
            folder = open_model_folder(DEMO_TEACHER)
    except PocketBertError as error:
        return Backend(
            name=f"demo teacher {DEMO_TEACHER}",
            present=False,
            versions=str(error).split(". Install")[0],
            command=DEMO_INSTALL,
        )
    return Backend(
        name=f"demo teacher {DEMO_TEACHER}",
        present=True,
        versions=f"{DEMO_VERSION}, sha256 {folder.sha256[:12]} as pinned",
        command=DEMO_INSTALL,
    )


def _training() -> str:
    if "torch" not in installed(("torch",)):
        return "not possible here: torch is not installed"
    import torch

    from pocketbert.distill.training.loop import training_dtype

    dtype = str(training_dtype()).removeprefix("torch.")
    where = f"on {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "on the CPU"
    reason = "the hardware computes in bf16" if dtype == "bfloat16" else "no avx512_bf16 or AMX: bf16 would be slower"
    return f"in {dtype} {where} ({reason}), {torch.get_num_threads()} threads"
