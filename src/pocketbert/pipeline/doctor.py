"""Check what is installed: what a run needs, and everything for `pocketbert doctor`.

`require` and `require_for` raise before the first step of a run, not after its last; the error names one installing command.
`missing` lists what an extra of pyproject.toml lacks. `diagnose` looks at the machine, the optional libraries and the plug-ins.
"""

from __future__ import annotations

from typing import NamedTuple

import psutil
from pydantic import BaseModel

from pocketbert.core.errors import InputError, MissingBackendError, PocketBertError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import Machine, describe_machine, load_average
from pocketbert.core.host.system import installed_versions, list_extras
from pocketbert.core.models.folder import DEMO_INSTALL, DEMO_TEACHER, DEMO_VERSION, open_model_folder
from pocketbert.core.plugins import list_plugins, tolerate_failed_plugins
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.types import Format

_EXTRAS: dict[str, tuple[str, ...]] = {
    "train": ("torch", "transformers", "accelerate", "safetensors", "datasets"),
    "tflite-runtime": ("ai-edge-litert",),
    "coreml-runtime": ("protobuf",),
    "openvino": ("openvino",),
    "qnn": ("onnxruntime-qnn",),
    "vela": ("ethos-u-vela", "ai-edge-litert", "flatbuffers"),
    "report": ("jinja2", "matplotlib"),
    "serve": ("starlette", "uvicorn"),
    "ray": ("ray",),
}
"""Distributions of each extra of pyproject.toml that a command can miss; those of formats are in the table of formats."""


def missing(extra: str) -> list[str]:
    """Return the Python packages of an extra (such as ``train`` or ``onnx``) that are not installed."""
    names = _distributions(extra)
    present = installed_versions(names)
    return [name for name in names if name not in present]


def _distributions(extra: str) -> tuple[str, ...]:
    """Return the Python packages that the commands of an extra need; for a file format, those that export to it."""
    if extra in Format:
        return ("torch", "transformers", "safetensors", *FORMATS[Format(extra)].needs)
    return _EXTRAS[extra]


def require(*needed: str) -> None:
    """Raise an error if a package of one of the named extras (optional dependencies) is not installed.

    A format that an installed plug-in adds has no extra of PocketBERT: the command in the error names its distributions.

    Raises:
        MissingBackendError: Naming all missing distributions and one command that installs them.
    """
    lacking = [extra for extra in needed if missing(extra)]
    if not lacking:
        return
    names = dict.fromkeys(name for extra in lacking for name in missing(extra))
    known = list_extras()
    own = [extra for extra in lacking if extra in known]
    others = dict.fromkeys(name for extra in lacking if extra not in own for name in missing(extra))
    own_packages = [f"'pocketbert[{','.join(own)}]'"] if own else []
    raise MissingBackendError(", ".join(names), " ".join(["pip install", *own_packages, *others]))


def require_for(recipe: Recipe, until: str | None = None, report: bool = True) -> None:
    """Check that the Python packages are installed that a run of a recipe needs.

    Args:
        recipe: The recipe; only packages for the formats, runtimes and trackers that it asks for are checked.
        until: Last step that will be run, such as ``student``, after which nothing is exported; None if all are run.
        report: Whether an HTML report will be written, which needs packages only if the recipe measures latency.

    Raises:
        InputError: If all steps will be run and the recipe has a budget that was not searched yet, so that its
            quantized files are not known.
        MissingBackendError: Naming the distributions that are missing, and a command that installs them.
    """
    if recipe.quantize.budget is not None and until is None:
        what = "is searched by `pocketbert run` of a recipe file only."
        fix = "Leave it out, then: pocketbert quantize -m FOLDER --budget ..."
        raise InputError(Problem("quantize.budget", what, fix))
    training = recipe.teacher.finetune is not None or recipe.student is not None
    exporting = until not in ("teacher", "student")
    parts = [
        ("train", training),
        *((f.value, exporting and f in recipe.export.formats) for f in Format),
        *((f.runtime.own_engine, exporting) for f in recipe.quantize.wanted if f.runtime and f.runtime.own_engine),
        ("report", report and exporting and recipe.benchmark is not None),
    ]
    require(*(extra for extra, needed in parts if needed))
    if training and recipe.training.trackers:
        from pocketbert.distill.training.monitor import check_trackers

        check_trackers(recipe.training.trackers)


class Backend(BaseModel):
    """An optional capability, such as exporting to ONNX: whether its packages are installed and how to install them.

    Attributes:
        name: The capability in words.
        present: Whether it can be used.
        versions: The installed packages with their versions, and the missing ones; for the demo teacher its version, or
            why it cannot be used.
        command: The command that installs the packages.
    """

    name: str
    present: bool
    versions: str
    command: str


class PluginReport(BaseModel):
    """One plug-in (entry point of an installed package): what it registered, or why it failed to load.

    Attributes:
        name: Name of the entry point.
        package: The package and its version.
        registered: What it has registered, such as ``family roformer``.
        error: Why it could not be loaded and what to do; empty if it was.
    """

    name: str
    package: str
    registered: list[str]
    error: str


class Diagnosis(BaseModel):
    """The result of `pocketbert doctor`: the machine, the installed optional parts and the plug-ins.

    Attributes:
        machine: CPU and ISA.
        memory_gib: Main memory.
        load: Load average of the last minute.
        training: The number type that training will use, and why.
        backends: The optional capabilities, installed or not.
        plugins: Installed packages that add families, methods, formats or devices.
        notes: Remarks for the user, such as that the machine is busy.
    """

    machine: Machine
    memory_gib: float
    load: float
    training: str
    backends: list[Backend]
    plugins: list[PluginReport]
    notes: list[str]


class _Part(NamedTuple):
    """A capability, its distributions (with `any_one` one of them is enough), and the command that installs them."""

    name: str
    distributions: tuple[str, ...]
    command: str
    any_one: bool = False


_TRAINING = "train and distil"
_PARTS = (
    _Part("predict (ONNX Runtime)", ("onnxruntime", "tokenizers", "numpy"), "pip install pocketbert"),
    _Part(_TRAINING, _EXTRAS["train"], "pip install 'pocketbert[train]'"),
    _Part("export to ONNX, quantize", _distributions("onnx"), "pip install 'pocketbert[onnx]'"),
    _Part("export to TFLite, quantize", _distributions("tflite"), "pip install 'pocketbert[tflite]'"),
    _Part("run TFLite files", FORMATS[Format.TFLITE].engines, "pip install 'pocketbert[tflite-runtime]'", any_one=True),
    _Part("export to Core ML, compress", _distributions("coreml"), "pip install 'pocketbert[coreml]'"),
    _Part(
        "check Core ML packages (on macOS: run them)",
        _EXTRAS["coreml-runtime"],
        "pip install 'pocketbert[coreml-runtime]'",
    ),
    _Part("run files for OpenVINO", _EXTRAS["openvino"], "pip install 'pocketbert[openvino]'"),
    _Part("compile for Qualcomm's NPU", _EXTRAS["qnn"], "pip install 'pocketbert[qnn]'"),
    _Part("compile for Arm's Ethos-U", _EXTRAS["vela"], "pip install 'pocketbert[vela]'"),
    _Part("HTML report", _EXTRAS["report"], "pip install 'pocketbert[report]'"),
)


def diagnose() -> Diagnosis:
    """Return a report on the machine, the installed optional packages, the plug-ins and the demo teacher."""
    backends = [*map(_check_part, _PARTS), _check_demo_teacher()]
    notes = []
    load, cores = load_average(), describe_machine().cores
    if load > cores:
        notes.append(f"load {load:.1f} on {cores} cores: latencies measured now are those of a busy machine")
    training = _describe_training()
    if not next(b.present for b in backends if b.name == _TRAINING):
        notes.append(
            "PyTorch from PyPI brings 4.7 GB of CUDA libraries; without a GPU install it from PyTorch's CPU "
            "index (uv: UV_TORCH_BACKEND=cpu)"
        )
    return Diagnosis(
        machine=describe_machine(),
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
            for p in list_plugins()
        ],
        notes=notes,
    )


def _check_part(part: _Part) -> Backend:
    """Check whether a capability's packages are installed; return their versions and the missing ones.

    If one package of several is enough and none is installed, only the first is named as missing.
    """
    present = installed_versions(part.distributions)
    lacking = [name for name in part.distributions if name not in present]
    if part.any_one:
        lacking = [] if present else lacking[:1]
    versions = ", ".join(f"{name} {version}" for name, version in present.items())
    if lacking:
        versions += f"; missing: {', '.join(lacking)}"
    return Backend(name=part.name, present=not lacking, versions=versions, command=part.command)


def _check_demo_teacher() -> Backend:
    """Check whether the demo teacher is installed with the expected checksum; return its version, or what is wrong."""
    name = f"demo teacher {DEMO_TEACHER}"
    try:
        with tolerate_failed_plugins():  # a plug-in that fails has a line of its own
            folder = open_model_folder(DEMO_TEACHER)
    except PocketBertError as error:
        reason = str(error).split(". Install")[0]
        return Backend(name=name, present=False, versions=reason, command=DEMO_INSTALL)
    versions = f"{DEMO_VERSION}, sha256 {folder.sha256[:12]} as pinned"
    return Backend(name=name, present=True, versions=versions, command=DEMO_INSTALL)


def _describe_training() -> str:
    """Return a text on how training will run here: number type, device, threads, and why this number type.

    Without torch the text says that training is not possible.
    """
    if "torch" not in installed_versions(("torch",)):
        return "not possible here: torch is not installed"
    import torch

    from pocketbert.distill.training.machine import lack_of_bf16, training_dtype

    dtype = str(training_dtype()).removeprefix("torch.")
    where = f"on {torch.cuda.get_device_name()}" if torch.cuda.is_available() else "on the CPU"
    reason = "the hardware computes in bf16" if dtype == "bfloat16" else f"the {lack_of_bf16()}: bf16 would be slower"
    return f"in {dtype} {where} ({reason}), {torch.get_num_threads()} threads"
