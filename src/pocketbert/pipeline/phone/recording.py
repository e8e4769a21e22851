"""Writing measured figures into an artefact folder: its list, its model card and its report."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pocketbert.core.artefacts import (
    CARD,
    FILE_NAME,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    Sensitivities,
    changed_files,
    read_artefacts,
    write_artefacts,
)
from pocketbert.core.disk.files import copy_path, read_json, write_json
from pocketbert.core.disk.ownership import folder_locked
from pocketbert.core.disk.workspace import adding, finish_interrupted
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.pipeline.doctor import missing
from pocketbert.pipeline.make.measuring import without_paths
from pocketbert.pipeline.make.model_files import PARITY_FILE
from pocketbert.pipeline.phone.card_figures import BENCHMARK_FILE, measured_figures, render_figures, replace_figures
from pocketbert.pipeline.results import Verification

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.report.figures import ReportData


# --- report_facts ---
# What a report shows of an artefact folder: kept in the folder, so that the report can be made again without the run.


FACTS_FILE = "report.json"
"""The facts; `benchmark.json` and `recipe.resolved.yaml` lie beside it and are not repeated in it."""
PAGE_FILE = "report.html"
_RECIPE_FILE = "recipe.resolved.yaml"
_LARGEST_MIB = 32


def write_facts(data: ReportData, folder: Path) -> None:
    """Write what a report shows, without the figures and settings that other files of the folder have.

    Args:
        data: What it shows.
        folder: The artefact folder.
    """
    stored_elsewhere = {"benchmark", "recipe", "command"}
    write_json(folder / FACTS_FILE, json.loads(data.model_dump_json(exclude=stored_elsewhere)))


def read_facts(folder: Path) -> ReportData:
    """Read what a report shows of an artefact folder.

    Args:
        folder: The folder, its files as they are listed.

    Raises:
        InputError: If the folder has none, or what it has is no facts of a report.
    """
    from pocketbert.benchmarks.measurement import FILE_NAME, BenchmarkResult
    from pocketbert.benchmarks.report.figures import ReportData

    path, measured, recipe = folder / FACTS_FILE, folder / FILE_NAME, folder / _RECIPE_FILE
    if not path.is_file():
        fix = "Export the model again: pocketbert export -m MODEL -o FOLDER"
        raise InputError(Problem(str(folder), f"has no {FACTS_FILE}, which a report is made of.", fix))
    try:
        data = ReportData.model_validate(read_json(path, _LARGEST_MIB))
    except ValidationError as error:
        found = error.errors(include_url=False, include_input=False)[0]
        what = f"{'.'.join(map(str, found['loc']))}: {found['msg']}."
        raise InputError(Problem(str(path), what, "Export the model again.")) from error
    stored_elsewhere = {
        "benchmark": BenchmarkResult.read(measured) if measured.is_file() else None,
        "recipe": recipe.read_text(encoding="utf-8") if recipe.is_file() else "",
    }
    return data.model_copy(update=stored_elsewhere)


_WRITTEN = (CARD, FACTS_FILE, PAGE_FILE, BENCHMARK_FILE, PARITY_FILE)
_KINDS = {CARD: Kind.DOCUMENT, PAGE_FILE: Kind.DOCUMENT}


def record_verification(folder: Path, result: Verification) -> None:
    """Write the scores of a verification into the folder that was verified.

    Args:
        folder: The artefact folder.
        result: What `verify_artefacts` found.

    Raises:
        GateError: If a gate failed: such scores are not those of a whole folder.
        InputError: If a model file changed since it was verified.
    """
    if result.failures:
        raise GateError([*result.failures, "Nothing was recorded."])
    from pocketbert.benchmarks.report import GateRow

    if not any(result.scores.values()):
        raise InputError(Problem("--record", "nothing was scored.", "Give labelled rows: --data FILE."))
    with _changing(folder) as change:
        _check_same(change.artefacts, result.files)
        change.artefacts = _scored(change.artefacts, result)
        # whether the folder is as listed is true of this moment only, and the recording itself changes the count
        gates = [GateRow(**g.model_dump()) for g in result.gates if g.name != "integrity"]
        rows = [
            row.model_copy(update={"eval_score": next(iter(result.scores.get(row.path, {}).values()), None)})
            for row in change.facts.rows
            if not row.is_teacher  # it was not scored on these rows
        ]
        scored = next(iter(next(iter(result.scores.values()), {})), change.facts.scored_on)
        change.facts = change.facts.model_copy(update={"rows": rows, "gates": gates, "scored_on": scored})
    say(f"recorded in {folder}: {', '.join(change.written)}")


def record_benchmark(folder: Path, result: BenchmarkResult) -> None:
    """Write the latencies of a benchmark into the folder of the measured files.

    Args:
        folder: The artefact folder.
        result: What was measured, of this folder alone.

    Raises:
        InputError: If a model file changed since it was measured.
    """
    with _changing(folder) as change:
        _check_same(change.artefacts, {v.name: v.sha256 for s in result.sessions for v in s.variants})
        result = without_paths(result, folder)
        result.write(change.target / BENCHMARK_FILE)
        rows = [row if row.is_teacher else row.model_copy(update={"name": row.path}) for row in change.facts.rows]
        change.facts = change.facts.model_copy(update={"rows": rows, "benchmark": result})
    say(f"recorded in {folder}: {', '.join(change.written)}")


def record_sensitivities(folder: Path, found: Sensitivities) -> None:
    """Write sensitivities into the report of the folder that they are of.

    Args:
        folder: The artefact folder.
        found: What was measured.
    """
    with _changing(folder) as change:
        change.facts = change.facts.model_copy(update={"sensitivity": found})
    say(f"recorded in {folder}: {', '.join(change.written)}")


def write_page(folder: Path) -> None:
    """Write the report of a folder that no other process knows yet, and list it."""
    from pocketbert.benchmarks.report import write_report

    write_report(read_facts(folder), folder / PAGE_FILE)
    write_artefacts(folder, _listed(read_artefacts(folder), folder, [PAGE_FILE]))


@dataclass
class _Change:
    """What of a folder is changed.

    Attributes:
        artefacts: Its list.
        facts: What its report shows.
        target: Where new files are written.
        written: Names of the files that were written, at the end.
    """

    artefacts: Artefacts
    facts: ReportData
    target: Path
    written: Sequence[str] = ()


@contextlib.contextmanager
def _changing(folder: Path) -> Iterator[_Change]:
    """Change list and facts of a folder; card and report are made anew of them when the block ends without an error.

    The new files replace the old ones one by one: a process that is killed meanwhile leaves work that the next command
    finishes.
    """
    with folder_locked(folder):
        finish_interrupted(folder)
        names = [n for n in _WRITTEN if (folder / n).is_file()]
        with adding(folder, [FILE_NAME, *names], "") as target:
            for name in names:
                copy_path(folder / name, target / name)
            change = _Change(read_artefacts(folder), read_facts(folder), target)
            yield change
            write_facts(change.facts, target)
            _renew_card(target, change.artefacts)
            if not missing("report"):
                from pocketbert.benchmarks.report import write_report

                write_report(change.facts, target / PAGE_FILE)
            replaced = [r for r in change.artefacts.files if r.path in names]
            edited = changed_files(folder, change.artefacts.model_copy(update={"files": replaced}))
            change.written = [p.name for p in sorted(target.iterdir()) if not _same(p, folder / p.name)]
            new = [name for name in change.written if name not in edited]  # what a user wrote stays known as such
            write_artefacts(target, _listed(change.artefacts, target, new))


def _renew_card(target: Path, artefacts: Artefacts) -> None:
    """Put the new figures into the card; what else a user wrote into it stays."""
    card = target / CARD
    if not card.is_file():
        return
    figures = render_figures(artefacts, measured_figures(target, artefacts))
    text = replace_figures(card.read_text(encoding="utf-8"), figures)
    if text is None:
        say(f"{CARD}: the comment lines around its figures are gone; the card stays as it is")
        return
    card.write_text(text, encoding="utf-8")


def _listed(artefacts: Artefacts, folder: Path, names: Sequence[str]) -> Artefacts:
    """The list with the files of these names as they are in a folder."""
    new = [FileRecord.of(folder, name, _KINDS.get(name, Kind.FIGURES)) for name in names]
    kept = [r for r in artefacts.files if r.path not in names]
    return artefacts.model_copy(update={"files": sorted([*kept, *new], key=lambda r: r.path)})


def _same(new: Path, old: Path) -> bool:
    return old.is_file() and new.read_bytes() == old.read_bytes()


def _check_same(artefacts: Artefacts, digests: Mapping[str, str]) -> None:
    """Refuse figures of other files than the folder's."""
    listed = {r.path: r.sha256 for r in artefacts.models()}
    strange = [name for name, digest in digests.items() if listed.get(name) != digest]
    if strange:
        what = f"{', '.join(strange)}: not the file that was measured; nothing was recorded."
        raise InputError(Problem(FILE_NAME, what, "Start the command again while nothing else writes to the folder."))


def _scored(artefacts: Artefacts, result: Verification) -> Artefacts:
    """The list with the scores of a verification beside those it has."""
    files = [
        r.model_copy(update={"scores": {**r.scores, **result.scores.get(r.path, {})}})
        if isinstance(r, ModelRecord) and r.alias_of is None
        else r
        for r in artefacts.files
    ]
    return artefacts.model_copy(update={"files": files})
