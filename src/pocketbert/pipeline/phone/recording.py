"""Record measured figures in an artefact folder: in its list, its model card and its report.

`record_verification`, `record_benchmark` and `record_sensitivities` change the three together: the new files replace the old
ones only when all are written. `write_facts` and `read_facts` keep what the report shows in the folder, so that the report can
be made again without the run.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from pocketbert.core.artefacts import (
    ARTEFACTS_FILE,
    CARD_FILE,
    Artefacts,
    FileRecord,
    Kind,
    ModelRecord,
    Sensitivities,
    list_changed_files,
    read_artefacts,
    write_artefacts,
)
from pocketbert.core.disk.files import copy_path, read_json, write_json
from pocketbert.core.disk.ownership import lock_folder
from pocketbert.core.disk.workspace import add_files, finish_interrupted
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.progress import print_note
from pocketbert.pipeline.doctor import missing
from pocketbert.pipeline.make.measuring import with_relative_paths
from pocketbert.pipeline.make.model_files import PARITY_FILE
from pocketbert.pipeline.phone.card_figures import (
    BENCHMARK_FILE,
    measured_figures,
    render_figures,
    render_headline,
    replace_figures,
)
from pocketbert.pipeline.results import Verification

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult, Variant
    from pocketbert.benchmarks.report.figures import ReportData


FACTS_FILE = "report.json"
"""What the report shows, apart from `benchmark.json` and `recipe.resolved.yaml`, which lie in the same folder."""
_PAGE_FILE = "report.html"
_RECIPE_FILE = "recipe.resolved.yaml"
_LARGEST_MIB = 32


def write_facts(data: ReportData, folder: Path) -> None:
    """Write what an artefact folder's report shows to `FACTS_FILE`, without what other files of the folder hold."""
    stored_elsewhere = {"benchmark", "recipe", "command"}
    write_json(folder / FACTS_FILE, json.loads(data.model_dump_json(exclude=stored_elsewhere)))


def read_facts(folder: Path) -> ReportData:
    """Read what an artefact folder's report shows, from `FACTS_FILE` and the files beside it.

    Raises:
        InputError: If the folder has no `FACTS_FILE`, or its content is not that of a report.
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
        first = error.errors(include_url=False, include_input=False)[0]
        what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}."
        raise InputError(Problem(str(path), what, "Export the model again.")) from error
    stored_elsewhere = {
        "benchmark": BenchmarkResult.read(measured) if measured.is_file() else None,
        "recipe": recipe.read_text(encoding="utf-8") if recipe.is_file() else "",
    }
    return data.model_copy(update=stored_elsewhere)


_CHANGED_FILES = (CARD_FILE, FACTS_FILE, _PAGE_FILE, BENCHMARK_FILE, PARITY_FILE)
_KINDS = {CARD_FILE: Kind.DOCUMENT, _PAGE_FILE: Kind.DOCUMENT}


def record_verification(folder: Path, result: Verification) -> None:
    """Write the scores of a verification into the verified artefact folder: artifacts.json, model card and report.

    Args:
        folder: The artefact folder.
        result: The result of `verify_artefacts`.

    Raises:
        GateError: If a gate failed.
        InputError: If no file was scored, or a model file has changed since it was verified.
    """
    if result.failures:
        raise GateError([*result.failures, "Nothing was recorded."])
    from pocketbert.benchmarks.report import GateRow

    if not any(result.scores.values()):
        raise InputError(Problem("--record", "nothing was scored.", "Give labelled rows: --data FILE."))
    with _change_figures(folder) as change:
        _check_digests(change.artefacts, result.files)
        change.artefacts = _add_scores(change.artefacts, result)
        # not the integrity gate: recording changes the files that it counts
        gates = [GateRow(**g.model_dump()) for g in result.gates if g.name != "integrity"]
        rows = [
            row.model_copy(update={"eval_score": next(iter(result.scores.get(row.path, {}).values()), None)})
            for row in change.facts.rows
            if not row.is_teacher  # it was not scored on these rows
        ]
        scored = next(iter(next(iter(result.scores.values()), {})), change.facts.scored_on)
        change.facts = change.facts.model_copy(update={"rows": rows, "gates": gates, "scored_on": scored})
    print_note(f"recorded in {folder}: {', '.join(change.written)}")


def record_benchmark(folder: Path, result: BenchmarkResult) -> None:
    """Write the latencies of a benchmark into an artefact folder: artifacts.json, model card and report.

    Args:
        folder: The artefact folder of the measured files.
        result: The measurements of this folder's files only.

    Raises:
        InputError: If a model file has changed since it was measured.
    """
    with _change_figures(folder) as change:
        # a variant of a browser is a file with an accelerator behind its name
        digests = {_listed_path(folder, v): v.sha256 for s in result.sessions for v in s.variants}
        _check_digests(change.artefacts, digests)
        result = with_relative_paths(result, folder)
        result.write(change.target / BENCHMARK_FILE)
        rows = [row if row.is_teacher else row.model_copy(update={"name": row.path}) for row in change.facts.rows]
        change.facts = change.facts.model_copy(update={"rows": rows, "benchmark": result})
    print_note(f"recorded in {folder}: {', '.join(change.written)}")


def _listed_path(folder: Path, variant: Variant) -> str:
    """Return a measured file's path in the artefact folder; the variant's name if it was measured elsewhere."""
    path = variant.path
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else variant.name


def record_sensitivities(folder: Path, sensitivities: Sensitivities) -> None:
    """Write how much the quantization of each role costs into an artefact folder's report."""
    with _change_figures(folder) as change:
        change.facts = change.facts.model_copy(update={"sensitivity": sensitivities})
    print_note(f"recorded in {folder}: {', '.join(change.written)}")


def write_page(folder: Path) -> None:
    """Write the HTML report of a new artefact folder, which no other process uses yet, and list it there."""
    from pocketbert.benchmarks.report import write_report

    write_report(read_facts(folder), folder / _PAGE_FILE)
    write_artefacts(folder, _with_records(read_artefacts(folder), folder, [_PAGE_FILE]))


@dataclass
class _Change:
    """Content of an artefact folder that is being changed, and the folder for its new files.

    Attributes:
        artefacts: Content of ``artifacts.json``; the caller replaces it by the changed one.
        facts: Content of the report; the caller replaces it by the changed one.
        target: Temporary folder with the new files.
        written: Names of the files that changed; set at the end.
    """

    artefacts: Artefacts
    facts: ReportData
    target: Path
    written: Sequence[str] = ()


@contextlib.contextmanager
def _change_figures(folder: Path) -> Iterator[_Change]:
    """Lock an artefact folder and yield its content to be changed; then write artifacts.json, card and report anew.

    The HTML page is written only if the packages for reports are installed. Nothing is written if the `with` block raises an
    error. The new files replace the old ones one by one: if the
    process is killed meanwhile, the next command on the folder finishes the work.
    """
    with lock_folder(folder):
        finish_interrupted(folder)
        names = [n for n in _CHANGED_FILES if (folder / n).is_file()]
        with add_files(folder, [ARTEFACTS_FILE, *names], "") as target:
            for name in names:
                copy_path(folder / name, target / name)
            change = _Change(read_artefacts(folder), read_facts(folder), target)
            yield change
            write_facts(change.facts, target)
            _update_card(target, change.artefacts)
            if not missing("report"):
                from pocketbert.benchmarks.report import write_report

                write_report(change.facts, target / _PAGE_FILE)
            replaced = [r for r in change.artefacts.files if r.path in names]
            edited = list_changed_files(folder, change.artefacts.model_copy(update={"files": replaced}))
            change.written = [
                new.name
                for new in sorted(target.iterdir())
                if not ((old := folder / new.name).is_file() and new.read_bytes() == old.read_bytes())
            ]
            new = [name for name in change.written if name not in edited]  # an edited file keeps its old record
            write_artefacts(target, _with_records(change.artefacts, target, new))


def _update_card(target: Path, artefacts: Artefacts) -> None:
    """Replace the headline and the measured numbers in a folder's model card. The rest of the card stays as it is.

    Without the comment lines around the numbers nothing is replaced, and a note is printed.
    """
    card = target / CARD_FILE
    if not card.is_file():
        return
    measured = measured_figures(target, artefacts)
    text = replace_figures(card.read_text(encoding="utf-8"), render_figures(artefacts, measured))
    if text is None:
        print_note(f"{CARD_FILE}: the comment lines around its figures are gone; the card stays as it is")
        return
    headline = render_headline(artefacts, measured)
    card.write_text((headline and replace_figures(text, headline)) or text, encoding="utf-8")


def _with_records(artefacts: Artefacts, folder: Path, names: Sequence[str]) -> Artefacts:
    """Return the content of ``artifacts.json`` with new records of the named files of a folder."""
    new = [FileRecord.of(folder, name, _KINDS.get(name, Kind.FIGURES)) for name in names]
    kept = [r for r in artefacts.files if r.path not in names]
    return artefacts.model_copy(update={"files": sorted([*kept, *new], key=lambda r: r.path)})


def _check_digests(artefacts: Artefacts, digests: Mapping[str, str]) -> None:
    """Check that the measured files are those that artifacts.json lists.

    Args:
        artefacts: Content of ``artifacts.json``.
        digests: sha256 of each measured file, by its path.

    Raises:
        InputError: Naming the files that differ.
    """
    listed = {r.path: r.sha256 for r in artefacts.models()}
    differing = [name for name, digest in digests.items() if listed.get(name) != digest]
    if differing:
        what = f"{', '.join(differing)}: not the file that was measured; nothing was recorded."
        raise InputError(
            Problem(ARTEFACTS_FILE, what, "Start the command again while nothing else writes to the folder.")
        )


def _add_scores(artefacts: Artefacts, result: Verification) -> Artefacts:
    """Return the content of ``artifacts.json`` with the scores of a verification in the model files' records."""
    files = [
        r.model_copy(update={"scores": {**r.scores, **result.scores.get(r.path, {})}})
        if isinstance(r, ModelRecord) and r.alias_of is None
        else r
        for r in artefacts.files
    ]
    return artefacts.model_copy(update={"files": files})
