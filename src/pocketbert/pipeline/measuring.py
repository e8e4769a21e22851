"""The benchmark stage: a run's files, and its teacher's, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.recipe import BenchmarkSection
from pocketbert.core.sample_texts import SENTENCES
from pocketbert.core.tokenization import Text
from pocketbert.core.types import Scheme
from pocketbert.pipeline.exporting import ModelFile

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult, Length, Variant

TEACHER = "teacher fp32"
TEACHER_FILE = "onnx-teacher/model.onnx"
BUDGET_S = 60.0
"""Most seconds a run's benchmark takes; `pocketbert benchmark --budget` has its own."""


def row_name(scheme: Scheme, distilled: bool) -> str:
    """What tables call a file: ``student int8``, or ``model int8`` where nothing was distilled."""
    return f"{'student' if distilled else 'model'} {scheme}"


def run_variants(
    run: Path, files: Sequence[ModelFile], weights: Path, length: int, distilled: bool
) -> list[Variant]:
    """A run's files as the benchmark takes them, the teacher's first."""
    from pocketbert.benchmarks.measurement import Variant

    out = []
    if (run / TEACHER_FILE).is_file():
        out.append(Variant.of(TEACHER, run / TEACHER_FILE, run / "teacher", length, Scheme.FP32))
    for file in files:
        name = row_name(file.scheme, distilled)
        out.append(Variant.of(name, run / file.source, weights, length, file.scheme))
    return out


def folder_variants(folders: Sequence[Path]) -> list[Variant]:
    """Every model file of some artefact folders."""
    from pocketbert.benchmarks.measurement import Variant

    out = []
    for folder in folders:
        artefacts = read_artefacts(folder)
        for record in artefacts.models():
            # several folders are told apart by their paths: their names may be equal
            prefix = f"{folder} " if len(folders) > 1 else ""
            out.append(Variant.of(f"{prefix}{record.path}", folder / record.path, folder,
                                  artefacts.processing.max_length, record.scheme))  # fmt: skip
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
    local = [v.model_copy(update={"path": _relative(v.path, root), "tokenizer": _relative(v.tokenizer, root)})
             for v in result.variants]  # fmt: skip
    return result.model_copy(update={"variants": local})


def _relative(path: Path, root: Path) -> Path:
    return path.relative_to(root) if path.is_relative_to(root) else Path(path.name)
