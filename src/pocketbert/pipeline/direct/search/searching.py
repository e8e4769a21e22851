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
from pocketbert.pipeline.direct.search.bench import FOLDER
from pocketbert.pipeline.direct.search.finding import Finding
from pocketbert.pipeline.direct.search.ledger import Ledger
from pocketbert.pipeline.direct.search.material import Material
from pocketbert.pipeline.direct.search.role_trials import RoleTrial, role_trials
from pocketbert.pipeline.direct.search.trial import Trial
from pocketbert.pipeline.direct.search.wording import figures_line
from pocketbert.pipeline.direct.search.workbench import Workbench, every_candidate

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
        errors: RMS differences of the recipe's own student's files, by name; the errors of a smaller student's are predicted
            from them. None for the own student.
    """
    out, ledger = [], Ledger(folder / FIGURES)
    for format in material.bases:
        wanted = {FORMATS[format].smaller(s) for s in schemes if FORMATS[format].takes(s)}  # int8 means w8 in Core ML
        trials = [Trial(f) for f in every_candidate(format) if f.scheme in wanted or not schemes]
        say(f"{format}: {len(trials)} candidates inside {budget.text}?")
        out.append(_Hunt(Workbench(material, format, folder, ledger), budget, trials, errors or {}).find())
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
    """The search in one format; candidates by name, their figures filled in as they are measured."""

    def __init__(
        self, bench: Workbench, budget: BudgetSection, trials: Sequence[Trial], errors: Mapping[str, float]
    ) -> None:
        self.bench, self.budget, self.errors = bench, budget, errors
        self.expected = {t.name: bench.expected_bytes(t) for t in trials}
        self.trials = {t.name: t for t in sorted(trials, key=lambda t: self.expected[t.name])}
        self.found: dict[str, Candidate] = {}

    def find(self) -> Finding:
        for number, trial in enumerate(self.trials.values()):
            self.found[trial.name] = self._ranked(trial, least=number == 0)
        chosen = self._measured()
        if self._with_roles(chosen):
            chosen = self._measured()
        if chosen is None:  # what would have been enough, whatever its size
            self._measure([c.name for c in self.found.values() if c.sound])
        else:
            self._update(chosen.name, chosen=True)
            say(f"  {chosen.name}: chosen", style="green")
        listed = list(self.found.values())
        nearest = choosing.nearest_outside(listed, self.budget) if chosen is None else None
        return Finding(self.bench.format, self.bench.metric, listed, chosen and self.found[chosen.name], nearest)

    def _measured(self) -> Candidate | None:
        """Measure the candidates that are small enough, and return the best."""
        sound = [c for c in self.found.values() if c.sound]
        self._measure([c.name for c in sound if choosing.fits(c, self.budget, "max_size_mb")])
        return choosing.best(list(self.found.values()), self.budget)

    def _with_roles(self, chosen: Candidate | None) -> bool:
        """Add files that leave the most sensitive roles float, where one may be better than the best whole scheme.

        Nothing of a smaller student is added: its files are compared with those of another one, which hides single roles.
        """
        if self.bench.reference is not self.bench:
            return False
        sound = [self.trials[c.name] for c in self.found.values() if c.sound]
        limit = None if self.budget.max_size_mb is None else self.budget.max_size_mb * 1e6
        smaller = chosen.bytes if chosen is not None and self.budget.smallest_wins else None
        most = min((b for b in (limit, smaller) if b is not None), default=math.inf)
        written = 0
        for role in role_trials(self.bench, sound, most):
            self.trials[role.trial.name], self.expected[role.trial.name] = role.trial, role.bytes
            note = self._beaten(role, chosen)
            if note:
                self.found[role.trial.name] = self._candidate(role.trial).model_copy(update={"note": note})
                continue
            self.found[role.trial.name] = self._ranked(role.trial, least=False)
            written += 1
        return written > 0

    def _beaten(self, role: RoleTrial, chosen: Candidate | None) -> str:
        """Say why a file with roles left float need not be written; empty where it must be."""
        told = (
            f"not written: about {role.bytes / 1e6:.1f} MB and an RMS difference of about {role.rel:.3g} are predicted"
        )
        if chosen is not None and chosen.rel is not None and not self.budget.smallest_wins and chosen.rel <= role.rel:
            return f"{told}, and {chosen.name} is closer"
        for other in self.found.values():
            if other.sound and (other.bytes or 0) <= role.bytes and other.rel is not None and other.rel <= role.rel:
                return f"{told}, and {other.name} is smaller and closer"
        return ""

    def _candidate(self, trial: Trial) -> Candidate:
        file = trial.file
        return Candidate(
            path=file.path,
            format=file.format,
            scheme=file.scheme,
            runtime=file.runtime,
            left=[*trial.left],
            student=self.bench.material.student,
            inside=False,
        )

    def _ranked(self, trial: Trial, least: bool) -> Candidate:
        """Write and rank a candidate, unless it is surely too large; of all, the one that should be the smallest is written."""
        candidate = self._candidate(trial)
        limit, expected = self.budget.max_size_mb, self.expected[trial.name] / 1e6
        if limit is not None and expected > MARGIN * limit and not least:
            return candidate.model_copy(update={"note": f"not written: about {expected:.1f} MB"})
        if closer := self._closer(trial):
            return candidate.model_copy(update={"note": closer})
        written = self.bench.written(trial)
        if written.failure:
            say(f"  {trial.name}: {written.failure}", style="red")
            return candidate.model_copy(update={"note": written.failure})
        ranked = self.bench.ranked(trial)
        known: dict[str, object] = {"sha256": written.sha256, "bytes": written.bytes}
        if not math.isfinite(ranked.rel):
            say(f"  {trial.name}: {_NO_NUMBERS}", style="red")
            return candidate.model_copy(update={**known, "note": _NO_NUMBERS})
        known |= {"rel": ranked.rel, "agreement": ranked.agreement}
        candidate = candidate.model_copy(update=known)
        say(f"  {figures_line(candidate)}")
        return candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})

    def _closer(self, trial: Trial) -> str:
        """Say why a smaller student's candidate need not be written; empty where it must be.

        The errors of a student and of a scheme are independent, so their squares add. A file that is slower has to be timed.
        """
        if self.errors.get(trial.name) is None or self.budget.max_p90_ms is not None:
            return ""
        predicted = math.hypot(self.bench.ranked(self.bench.base).rel, self.errors[trial.name])
        for other in self.found.values():
            smaller = other.sound and (other.bytes or 0) <= self.expected[trial.name]
            if smaller and other.rel is not None and other.rel * PREDICTION < predicted:
                megabytes = self.expected[trial.name] / 1e6
                return (
                    f"not written: about {megabytes:.1f} MB and an RMS difference of about {predicted:.3g} are predicted, and "
                    f"{other.name} is smaller and closer"
                )
        return ""

    def _measure(self, names: Sequence[str]) -> None:
        """Time candidates where time is limited, then check and score those of them that no other one dominates."""
        if self.budget.max_p90_ms is not None and names:
            for name, p90 in self.bench.timed([self.trials[n] for n in names]).items():
                self._update(name, p90_ms=p90)
        while True:
            pool = [self.found[n] for n in names if self.found[n].sound]
            fast = [c for c in pool if choosing.fits(c, self.budget, "max_p90_ms")] or pool
            new = [c.name for c in choosing.front(fast) if not c.front or c.drop is None]
            if not new:
                return
            for name in new:
                self._verify(name)

    def _verify(self, name: str) -> None:
        """Check and score one candidate; one that fails a gate leaves the front, and others come forward."""
        failure = self.bench.checked(self.trials[name]).failure
        drop = math.nan if failure else self.bench.drop(self.trials[name])
        if failure or math.isnan(drop):
            failure = failure or _NO_NUMBERS
            self._update(name, note=failure)
            say(f"  {name}: {failure}", style="red")
            return
        self._update(name, front=True, drop=drop)
        say(f"  {figures_line(self.found[name], self.bench.metric)}")

    def _update(self, name: str, **figures: object) -> None:
        candidate = self.found[name].model_copy(update=figures)
        self.found[name] = candidate.model_copy(update={"inside": choosing.is_inside(candidate, self.budget)})
