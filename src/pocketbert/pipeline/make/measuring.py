"""The benchmark stage: a run's files, and its teacher's, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say
from pocketbert.core.host.versions import version_of
from pocketbert.core.predict.tokenization import Text
from pocketbert.core.recipe.recipe import BenchmarkSection, Recipe
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.place import place_of

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult, Length, Variant

TEACHER = "teacher fp32"
BUDGET_S = 60.0
"""Most seconds a run's benchmark takes; `pocketbert benchmark --budget` has its own."""


def row_name(file: ModelFile, recipe: Recipe) -> str:
    """What tables call a file: ``student ONNX int8``, or ``model ONNX int8`` where nothing was distilled."""
    return f"{'student' if recipe.student is not None else 'model'} {file.title}"


def is_timed(recipe: Recipe) -> bool:
    """Whether the run measures latency: the recipe asks for it, and one of its formats has its own engine here."""
    return recipe.benchmark is not None and any(FORMATS[f].timed for f in recipe.export.formats)


def teacher_file(recipe: Recipe) -> ModelFile:
    """The teacher as a file of the first format timed here: what sizes and latencies are compared with."""
    format = next((f for f in recipe.export.formats if FORMATS[f].timed), recipe.export.formats[0])
    path = f"{format}-teacher/{FORMATS[format].stem}{FORMATS[format].suffix}"
    return ModelFile(path, path, format, place_of(format).exported_scheme(recipe))


def run_variants(recipe: Recipe, run: Path, files: Sequence[ModelFile], weights: Path, length: int) -> list[Variant]:
    """A run's files as the benchmark takes them, the teacher's first.

    Files for one client or one older runtime are left out, the same graph opened by something else than is timed here,
    and Core ML off macOS, where an evaluator stands in for the engine: its time is nobody's latency.
    """
    from pocketbert.benchmarks.measurement import Variant

    out, teacher = [], teacher_file(recipe)
    if (run / teacher.source).exists():
        out.append(Variant.of(TEACHER, run / teacher.source, run / "teacher", length, teacher.scheme, teacher.format))
    timed = (f for f in files if f.for_toolkit and FORMATS[f.format].timed)
    return [
        *out,
        *(
            Variant.of(row_name(f, recipe), run / f.source, weights, length, f.scheme, f.format, f.runtime)
            for f in timed
        ),
    ]


def folder_variants(folders: Sequence[Path]) -> list[Variant]:
    """Every model file of some artefact folders."""
    from pocketbert.benchmarks.measurement import Variant

    out = []
    for folder in folders:
        artefacts = read_artefacts(folder)
        for record in artefacts.models():
            if not FORMATS[record.format].timed:
                continue
            own = record.runtime.own_engine if record.runtime else None
            if own is not None and version_of(own) is None:
                say(f"  {folder / record.path}: left out, {own} is not installed (pip install 'pocketbert[{own}]')")
                continue
            # several folders are told apart by their paths: their names may be equal
            prefix = f"{folder} " if len(folders) > 1 else ""
            lengths = record.signature.lengths if record.signature else []
            longest = min(artefacts.processing.max_length, max(lengths, default=artefacts.processing.max_length))
            out.append(
                Variant.of(
                    f"{prefix}{record.path}",
                    folder / record.path,
                    folder,
                    longest,
                    record.scheme,
                    record.format,
                    record.runtime,
                )
            )
    return out


def measure(
    variants: Sequence[Variant],
    texts: Sequence[Text],
    section: BenchmarkSection,
    lengths: Sequence[int],
    budget_s: float = BUDGET_S,
    root: Path | None = None,
) -> BenchmarkResult:
    """Run the protocol.

    Args:
        variants: Files to measure.
        texts: Real texts; the project's own sentences where there are none.
        section: Threads, runs, repeats.
        lengths: Lengths in tokens, measured beside real text.
        budget_s: Seconds it may take.
        root: Folder that the paths in the result are relative to.
    """
    from pocketbert.benchmarks.latency import benchmark

    both: list[Length] = ["text", *lengths]
    result = benchmark(
        variants,
        list(texts) or list(SENTENCES),
        section.threads,
        both,
        section.runs,
        section.repeats,
        budget_s=budget_s,
    )
    if root is None:
        return result
    # paths of this machine have no place in a folder that others read
    local = [
        v.model_copy(update={"path": _relative(v.path, root), "tokenizer": _relative(v.tokenizer, root)})
        for v in result.variants
    ]
    return result.model_copy(update={"variants": local})


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
