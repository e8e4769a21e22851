"""The search: write, rank, verify the front, choose; format by format."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from pocketbert.core.artefacts import Candidate
from pocketbert.core.disk.ownership import remove
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.types import Scheme
from pocketbert.pipeline.direct.search import choosing
from pocketbert.pipeline.direct.search.finding import Finding
from pocketbert.pipeline.direct.search.ledger import Ledger
from pocketbert.pipeline.direct.search.material import Material
from pocketbert.pipeline.direct.search.wording import figures_line
from pocketbert.pipeline.direct.search.workbench import FOLDER, Workbench, every_candidate
from pocketbert.pipeline.formats.model_files import ModelFile

_NO_NUMBERS = "its answers are no finite numbers, or of another shape than those of the exported file"
FIGURES = "figures.json"
"""Where the figures stay."""
MARGIN = 1.25
"""A candidate is written where its expected size is at most this many times the limit: the estimate was never 10 % off."""

PREDICTION = 1.2
"""A predicted error may be this much too large (10 % was measured), so that another file must be closer by this factor."""


def search(
    material: Material,
    budget: BudgetSection,
    schemes: Sequence[Scheme],
    folder: Path,
    errors: Mapping[str, float] | None = None,
) -> list[Finding]:
    """Find the best file of each format.

    Args:
        material: Exported files and rows.
        budget: The limits.
        schemes: The schemes to consider; empty for all.
        folder: A folder that this process holds. Candidates are written below it and removed at the end; the figures stay.
        errors: RMS differences of the recipe's own student's files, by path; the errors of a smaller student's are predicted
            from them. None for the own student.
    """
    out, ledger = [], Ledger(folder / FIGURES)
    for format in material.bases:
        wanted = {FORMATS[format].smaller(s) for s in schemes if FORMATS[format].takes(s)}  # int8 means w8 in Core ML
        files = [f for f in every_candidate(format) if f.scheme in wanted or not schemes]
        say(f"{format}: {len(files)} candidates inside {budget.text}?")
        out.append(_Hunt(Workbench(material, format, folder, ledger), budget, files, errors or {}).find())
    remove(folder / FOLDER)
    return out


def exported_error(material: Material, folder: Path) -> float:
    """Compare the exported file of a smaller student with that of the own student, in the first format.

    Args:
        material: The smaller student's.
        folder: Where the figures are kept.

    Returns:
        RMS difference of their answers on calibration rows, relative to their spread.
    """
    bench = Workbench(material, next(iter(material.bases)), folder, Ledger(folder / FIGURES))
    return bench.ranked(bench.base).rel


class _Hunt:
    """The search in one format; candidates by path, their figures filled in as they are measured."""

    def __init__(
        self, bench: Workbench, budget: BudgetSection, files: Sequence[ModelFile], errors: Mapping[str, float]
    ) -> None:
        self.bench, self.budget, self.errors = bench, budget, errors
        expected = {f.path: bench.expected_bytes(f) for f in files}
        self.files = {f.path: f for f in sorted(files, key=lambda f: expected[f.path])}
        self.expected = expected
        self.found: dict[str, Candidate] = {}

    def find(self) -> Finding:
        for number, file in enumerate(self.files.values()):
            self.found[file.path] = self._ranked(file, least=number == 0)
        sound = [c for c in self.found.values() if c.sound]
        pool = [c for c in sound if choosing.fits(c, self.budget, "max_size_mb")]
        self._measure([c.path for c in pool])
        chosen = choosing.best(list(self.found.values()), self.budget)
        if chosen is None:  # what would have been enough, whatever its size
            self._measure([c.path for c in sound])
        else:
            self._update(chosen.path, chosen=True)
            say(f"  {chosen.path}: chosen", style="green")
        listed = list(self.found.values())
        nearest = choosing.nearest_outside(listed, self.budget) if chosen is None else None
        return Finding(self.bench.format, self.bench.metric, listed, chosen and self.found[chosen.path], nearest)

    def _ranked(self, file: ModelFile, least: bool) -> Candidate:
        """Write and rank a candidate, unless it is surely too large; of all, the one that should be the smallest is written."""
        candidate = Candidate(
            path=file.path,
            format=file.format,
            scheme=file.scheme,
            runtime=file.runtime,
            student=self.bench.material.student,
            inside=False,
        )
        limit, expected = self.budget.max_size_mb, self.expected[file.path] / 1e6
        if limit is not None and expected > MARGIN * limit and not least:
            return candidate.model_copy(update={"note": f"not written: about {expected:.1f} MB"})
        if closer := self._closer(file):
            return candidate.model_copy(update={"note": closer})
        written = self.bench.written(file)
        if written.failure:
            say(f"  {file.path}: {written.failure}", style="red")
            return candidate.model_copy(update={"note": written.failure})
        ranked = self.bench.ranked(file)
        known: dict[str, object] = {"sha256": written.sha256, "bytes": written.bytes}
        if not math.isfinite(ranked.rel):
            say(f"  {file.path}: {_NO_NUMBERS}", style="red")
            return candidate.model_copy(update={**known, "note": _NO_NUMBERS})
        known |= {"rel": ranked.rel, "agreement": ranked.agreement}
        candidate = candidate.model_copy(update=known)
        say(f"  {figures_line(candidate)}")
        return candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})

    def _closer(self, file: ModelFile) -> str:
        """Say why a smaller student's candidate need not be written; empty where it must be.

        The errors of a student and of a scheme are independent, so their squares add. A file that is slower has to be timed.
        """
        if self.errors.get(file.path) is None or self.budget.max_p90_ms is not None:
            return ""
        predicted = math.hypot(self.bench.ranked(self.bench.base).rel, self.errors[file.path])
        for other in self.found.values():
            smaller = other.sound and (other.bytes or 0) <= self.expected[file.path]
            if smaller and other.rel is not None and other.rel * PREDICTION < predicted:
                megabytes = self.expected[file.path] / 1e6
                return (
                    f"not written: about {megabytes:.1f} MB and an RMS difference of about {predicted:.3g} are predicted, and "
                    f"{other.path} is smaller and closer"
                )
        return ""

    def _measure(self, paths: Sequence[str]) -> None:
        """Time candidates where time is limited, then check and score those of them that no other one dominates."""
        if self.budget.max_p90_ms is not None and paths:
            for path, p90 in self.bench.timed([self.files[p] for p in paths]).items():
                self._update(path, p90_ms=p90)
        while True:
            pool = [self.found[p] for p in paths if self.found[p].sound]
            fast = [c for c in pool if choosing.fits(c, self.budget, "max_p90_ms")] or pool
            new = [c.path for c in choosing.front(fast) if not c.front or c.drop is None]
            if not new:
                return
            for path in new:
                self._verify(path)

    def _verify(self, path: str) -> None:
        """Check and score one candidate; one that fails a gate leaves the front, and others come forward."""
        failure = self.bench.checked(self.files[path]).failure
        drop = math.nan if failure else self.bench.drop(self.files[path])
        if failure or math.isnan(drop):
            failure = failure or _NO_NUMBERS
            self._update(path, note=failure)
            say(f"  {path}: {failure}", style="red")
            return
        self._update(path, front=True, drop=drop)
        say(f"  {figures_line(self.found[path], self.bench.metric)}")

    def _update(self, path: str, **figures: object) -> None:
        candidate = self.found[path].model_copy(update=figures)
        self.found[path] = candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})
