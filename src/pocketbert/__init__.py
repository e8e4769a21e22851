"""Distil, export, quantize, verify and measure BERT-family encoders for phones.

App developers import from here: `load` opens an artefact folder, `api` has the verbs of the command line, and the
options, results and errors of the verbs are here too. Researchers import from `pocketbert.distill`.
Names are imported when they are first used, so that ``import pocketbert`` loads neither numpy nor an engine.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from pocketbert.core.host.quiet import switch_off_telemetry
from pocketbert.core.plugins import make_facade_dir, make_facade_getattr, register_before_lookup

if TYPE_CHECKING:
    __version__: str
    from pocketbert import api, distill, plugins, runtime
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
    from pocketbert.core.compare.differences import ModelDiff
    from pocketbert.core.data_report import DataReport
    from pocketbert.core.errors import (
        ExitCode,
        GateError,
        InputError,
        MachineError,
        MissingBackendError,
        PocketBertError,
        Problem,
    )
    from pocketbert.core.families import Family, all_families, family_of, register_family
    from pocketbert.core.predict.answers import (
        Answer,
        Choice,
        Embedding,
        Excerpt,
        Filled,
        FoundSpan,
        Guess,
        Labelling,
        Prediction,
        Spans,
        Value,
    )
    from pocketbert.core.predict.inputs import Text, with_columns
    from pocketbert.core.recipe.budget import BudgetSection
    from pocketbert.core.recipe.planned import StudentPlan
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.pipeline.doctor import Diagnosis
    from pocketbert.pipeline.learn.augmenting import AugmentCounts
    from pocketbert.pipeline.options import (
        AnswerOptions,
        BudgetOptions,
        CalibrationOptions,
        DiffOptions,
        ExportOptions,
        PlannedStep,
        PlanOptions,
        TeachOptions,
    )
    from pocketbert.pipeline.results import Gate, Verification
    from pocketbert.pipeline.run_folder.folder import RunResult
    from pocketbert.pipeline.teach.writing import TeachReport
    from pocketbert.runtime.model import Model, load

__all__ = [
    "Answer",
    "AnswerOptions",
    "AugmentCounts",
    "BenchmarkOptions",
    "BenchmarkResult",
    "BudgetOptions",
    "BudgetSection",
    "CalibrationOptions",
    "Choice",
    "DataReport",
    "Diagnosis",
    "DiffOptions",
    "Embedding",
    "Excerpt",
    "ExitCode",
    "ExportOptions",
    "Family",
    "Filled",
    "FoundSpan",
    "Gate",
    "GateError",
    "Guess",
    "InputError",
    "Labelling",
    "MachineError",
    "MissingBackendError",
    "Model",
    "ModelDiff",
    "PlanOptions",
    "PlannedStep",
    "PocketBertError",
    "Prediction",
    "Problem",
    "Recipe",
    "RunResult",
    "Spans",
    "StudentPlan",
    "TeachOptions",
    "TeachReport",
    "Text",
    "Value",
    "Verification",
    "all_families",
    "api",
    "distill",
    "family_of",
    "load",
    "plugins",
    "register_family",
    "runtime",
    "with_columns",
]

_PLACES = {
    "api": ("PlannedStep",),
    "benchmarks.measurement": ("BenchmarkOptions", "BenchmarkResult"),
    "core.compare.differences": ("ModelDiff",),
    "core.data_report": ("DataReport",),
    "core.errors": (
        "ExitCode",
        "GateError",
        "InputError",
        "MachineError",
        "MissingBackendError",
        "PocketBertError",
        "Problem",
    ),
    "core.families": ("Family", "all_families", "family_of", "register_family"),
    "core.predict.answers": (
        "Answer",
        "Choice",
        "Embedding",
        "Excerpt",
        "Filled",
        "FoundSpan",
        "Guess",
        "Labelling",
        "Prediction",
        "Spans",
        "Value",
    ),
    "core.predict.inputs": ("Text", "with_columns"),
    "core.recipe.budget": ("BudgetSection",),
    "core.recipe.planned": ("StudentPlan",),
    "core.recipe.recipe": ("Recipe",),
    "pipeline.doctor": ("Diagnosis",),
    "pipeline.learn.augmenting": ("AugmentCounts",),
    "pipeline.options": (
        "AnswerOptions",
        "BudgetOptions",
        "CalibrationOptions",
        "DiffOptions",
        "ExportOptions",
        "PlanOptions",
        "TeachOptions",
    ),
    "pipeline.results": ("Gate", "Verification"),
    "pipeline.run_folder.folder": ("RunResult",),
    "pipeline.teach.writing": ("TeachReport",),
    "runtime.model": ("Model", "load"),
}
"""Names by the module that defines them."""


def _register_checkpoint_code() -> None:
    """Import the module that registers code for checkpoints: core uses the code, and may not import the wing."""
    from pocketbert.distill.students import checkpoints  # noqa: F401


register_before_lookup("checkpoints", _register_checkpoint_code)
# MKL, which torch multiplies matrices with, gives the same sums in each run only if asked; without it a resumed training on
# an AMD processor ends with other weights than one that was never interrupted. MKL reads the variable at its first product.
os.environ.setdefault("MKL_CBWR", "AUTO")
switch_off_telemetry()  # before any submodule can import a library that reads the variables when it is imported

_import = make_facade_getattr(__name__, _PLACES, modules=("api", "distill", "plugins", "runtime"))


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from pocketbert.core.host.system import version_of

        return version_of("pocketbert")
    return _import(name)


__dir__ = make_facade_dir(__name__, [*__all__, "__version__"])
