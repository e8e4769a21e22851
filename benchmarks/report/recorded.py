"""Scores of the files that a benchmark's page shows: those that artefact folders record, else those of its labelled rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.report.data import ModelRow
from pocketbert.core.artefacts import FILE_NAME, Artefacts
from pocketbert.core.predict.score import Score
from pocketbert.core.types import Provenance

EVAL = "eval"


@dataclass(frozen=True)
class FileScores:
    """Scores of files, all by one metric.

    Attributes:
        rows: Name of the rows that were scored.
        source: Where the scores come from, in words; empty where there are none.
        by_digest: Score by sha256 of the file.
        emulated: Digests of files that the project's evaluator computed, since their engine runs elsewhere.
    """

    rows: str = EVAL
    source: str = ""
    by_digest: Mapping[str, Score] = field(default_factory=dict)
    emulated: frozenset[str] = frozenset()

    def scored(self, row: ModelRow) -> ModelRow:
        """A row with the score of its file, where there is one."""
        score = self.by_digest.get(row.sha256)
        if score is None:
            return row
        provenance = Provenance.EMULATED if row.sha256 in self.emulated else Provenance.MEASURED
        return row.model_copy(update={"eval_score": score, "provenance": provenance})


def file_scores(folders: Mapping[Path, Artefacts], result: BenchmarkResult) -> FileScores:
    """The scores that there are; figures of two sets of rows are not mixed.

    Args:
        folders: The lists of the measured folders.
        result: What was measured.
    """
    return _recorded(folders) or _of_emulated_rows(result) or FileScores()


def _recorded(folders: Mapping[Path, Artefacts]) -> FileScores | None:
    """What `pocketbert run` and `verify --record` have written into the folders' lists."""
    records = [record for artefacts in folders.values() for record in artefacts.models()]
    sets = Counter(name for record in records for name in record.scores)
    if not sets:
        return None
    rows = EVAL if EVAL in sets else sets.most_common(1)[0][0]
    scored = [(record, record.scores[rows]) for record in records if rows in record.scores]
    metric = scored[0][1].metric
    machines = dict.fromkeys(artefacts.machine for artefacts in folders.values() if artefacts.machine)
    return FileScores(
        rows=rows,
        source=" · ".join([Provenance.MEASURED, f"recorded in {FILE_NAME}", *machines]),
        by_digest={record.sha256: score for record, score in scored if score.metric == metric},
        emulated=frozenset(record.sha256 for record, _ in scored if record.emulated),
    )


def _of_emulated_rows(result: BenchmarkResult) -> FileScores | None:
    """The scores of `benchmark --data` on this machine's CPU, each on the rows that there was time to emulate."""
    found: dict[str, Score] = {}
    for one in result.compilations:
        here = one.answers.score_here if one.answers is not None else None
        if here is not None and (one.sha256 not in found or here.rows > found[one.sha256].rows):
            found[one.sha256] = here
    if not found:
        return None
    source = f"{Provenance.MEASURED} on the rows of --data that were emulated · {result.machine.summary}"
    return FileScores("rows of --data", source, found)
