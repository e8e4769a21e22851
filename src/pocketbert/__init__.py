"""Distil, export, quantize, verify and measure BERT-family encoders for phones.

App developers import from here: `load` opens an artefact folder, `api` has the verbs of the command line, and the
options, results and errors of the verbs are here too. Researchers import from `pocketbert.distill`.
Names are imported when they are first used, so that ``import pocketbert`` loads neither numpy nor an engine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pocketbert.core.host.telemetry import switch_off_telemetry
from pocketbert.core.loading.facade import importer, listing
from pocketbert.core.loading.registry import add_wing

if TYPE_CHECKING:
    __version__: str
    from pocketbert import api, distill, plugins, runtime
    from pocketbert.api import PlannedStep
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.options import BenchmarkOptions
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
    from pocketbert.core.predict.columns import with_columns
    from pocketbert.core.predict.encoded import Text
    from pocketbert.core.recipe.budget import BudgetSection
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.pipeline.doctor import Diagnosis
    from pocketbert.pipeline.formats.gate import Gate
    from pocketbert.pipeline.gates.verification import Verification
    from pocketbert.pipeline.learn.augmenting import AugmentCounts
    from pocketbert.pipeline.options import AnswerOptions, BudgetOptions, CalibrationOptions, ExportOptions
    from pocketbert.pipeline.run_folder.result import RunResult
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
    "DataReport",
    "Diagnosis",
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
    "PlannedStep",
    "PocketBertError",
    "Prediction",
    "Problem",
    "Recipe",
    "RunResult",
    "Spans",
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
    "runtime.model": ("load", "Model"),
    "core.predict.answers": (
        "Answer",
        "Prediction",
        "Labelling",
        "Value",
        "Spans",
        "FoundSpan",
        "Excerpt",
        "Filled",
        "Guess",
        "Embedding",
    ),
    "core.predict.columns": ("with_columns",),
    "core.predict.encoded": ("Text",),
    "core.recipe.budget": ("BudgetSection",),
    "core.recipe.recipe": ("Recipe",),
    "pipeline.options": ("ExportOptions", "AnswerOptions", "BudgetOptions", "CalibrationOptions"),
    "api": ("PlannedStep",),
    "pipeline.run_folder.result": ("RunResult",),
    "pipeline.gates.verification": ("Verification",),
    "pipeline.formats.gate": ("Gate",),
    "benchmarks.measurement": ("BenchmarkResult",),
    "benchmarks.options": ("BenchmarkOptions",),
    "core.data_report": ("DataReport",),
    "pipeline.learn.augmenting": ("AugmentCounts",),
    "pipeline.doctor": ("Diagnosis",),
    "core.errors": (
        "PocketBertError",
        "InputError",
        "Problem",
        "GateError",
        "MachineError",
        "MissingBackendError",
        "ExitCode",
    ),
    "core.families": ("Family", "register_family", "family_of", "all_families"),
}
"""Names by the module that defines them."""


def _checkpoints_of_distill() -> None:
    from pocketbert.distill.students import checkpoints  # noqa: F401 - core reads them, and may not import the wing


add_wing("checkpoints", _checkpoints_of_distill)
switch_off_telemetry()  # before any submodule can import a library that reads the variables when it is imported

_import = importer(__name__, _PLACES, modules=("api", "distill", "plugins", "runtime"))


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from pocketbert.core.host.versions import version_of

        return version_of("pocketbert")
    return _import(name)


__dir__ = listing(__name__, [*__all__, "__version__"])
