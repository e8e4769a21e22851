"""`verify`, `benchmark` and `report` of a folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import FILE_NAME, SEARCH_FILE, BudgetSearch, read_artefacts, strangers
from pocketbert.core.compare.golden import read_library
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import file_destination, folder_destination, leaving_nothing
from pocketbert.core.disk.files import digests, read_json, write_json
from pocketbert.core.disk.ownership import is_marked, temporary_folder
from pocketbert.core.disk.workspace import adding, building, finish_interrupted, remove_interrupted
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.progress import say
from pocketbert.core.predict.tokenization import Text
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.types import Status
from pocketbert.pipeline.direct.budgeted_run import FOLDER as STUDENTS
from pocketbert.pipeline.direct.exporting import is_finished
from pocketbert.pipeline.gates.verify import report_gates, verify_artefacts
from pocketbert.pipeline.make.measuring import benchmark_folders, labelled_rows, only_compiled
from pocketbert.pipeline.phone.pack import check_packable, make_pack
from pocketbert.pipeline.phone.platforms import earlier_pack, is_packed, platform_named, write_pack
from pocketbert.pipeline.phone.recording import read_facts, record_benchmark, record_verification
from pocketbert.pipeline.phone.tokenizers.sources import java_gates
from pocketbert.pipeline.results import Verification
from pocketbert.pipeline.run import RECIPE_FILE, Run
from pocketbert.pipeline.run_folder import KIND

if TYPE_CHECKING:
    from pocketbert.benchmarks.imported.saved_texts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult


def open_run(folder: Path) -> Run:
    """A run folder with the recipe it was made with: where a budget chose a smaller student, that of this student.

    Raises:
        InputError: If it is none.
    """
    if not (folder / RECIPE_FILE).is_file() or not is_marked(folder, KIND):
        raise InputError(
            Problem(
                str(folder),
                f"is not a run folder: it has no {RECIPE_FILE} of a run.",
                "Make one: pocketbert run RECIPE -o FOLDER",
            )
        )
    search = read_json(folder / SEARCH_FILE) if (folder / SEARCH_FILE).is_file() else None
    student = BudgetSearch.model_validate(search).student if search is not None else None
    if student is not None and is_marked(folder / STUDENTS / student, KIND):
        folder = folder / STUDENTS / student
    return Run(load_recipe(folder / RECIPE_FILE), folder)


def verify_folder(model: Path, source: DataSource | None, max_drop: float, record: bool = False) -> Verification:
    """See `pocketbert.api.verify`."""
    if is_marked(model, KIND):
        if record:
            fix = f"Name the artefact folder: -m {model}/phone"
            raise InputError(Problem("--record", "a run folder records what its own recipe measures.", fix))
        if source is not None:
            raise InputError(
                Problem(
                    "--data",
                    "a run folder is verified with its recipe's data.",
                    f"Leave --data out, or verify the artefact folder: -m {model}/phone",
                )
            )
        return _verify_run(model)
    finish_interrupted(model)  # a process that was killed while it recorded figures
    sets = [labelled_rows(model, source)] if source is not None else []
    result = verify_artefacts(model, sets, VerifySection(max_drop=max_drop))
    if all(gate.passed for gate in result.gates if gate.name == "integrity"):
        java = java_gates(model, read_artefacts(model), read_library(model))
        status = result.status if all(gate.passed for gate in java) else Status.FAILED
        result = result.model_copy(update={"gates": [*result.gates, *java], "status": status})
    report_gates(result)
    if record:
        record_verification(model, result)
    return result


def _verify_run(folder: Path) -> Verification:
    run = open_run(folder)
    with run.folder.locked():
        missing = [name for name in (*run.recipe.export.formats, "golden") if run.folder.marks.read(name) is None]
        if missing:
            raise InputError(
                Problem(
                    str(folder),
                    f"step {missing[0]} is not finished.",
                    f"Continue: pocketbert run ... -o {folder}",
                )
            )
        result = run.verify()
        write_json(folder / "verify.json", json.loads(result.model_dump_json()))
        mark = run.folder.marks.read("verify")
        if mark is not None:
            changed = {
                "status": result.status,
                "failures": result.failures,
                "files": digests(folder / "verify.json"),
            }
            run.folder.marks.write(mark.model_copy(update=changed))
    report_gates(result)
    return result


def measure_folders(
    models: Sequence[Path],
    options: BenchmarkOptions | None,
    texts: Sequence[Text],
    imports: Sequence[Path],
    record: bool,
    facts: Sequence[Fact] = (),
) -> BenchmarkResult:
    """See `pocketbert.api.benchmark`."""
    if record and (len(models) != 1 or is_marked(models[0], KIND)):
        what = "writes into one artefact folder" + ("." if len(models) != 1 else f", and {models[0]} is a run folder.")
        raise InputError(
            Problem("--record", what, "Name one artefact folder, such as runs/NAME/phone, with -m/--model.")
        )
    if record and options is not None and not imports and only_compiled(options.devices):
        what = "writes latencies into the folder, and files are only compiled for the devices named."
        raise InputError(Problem("--record", what, "Name a device that runs files as well, such as --device local."))
    result = benchmark_folders(models, options, texts, imports, facts)
    if record and not result.sessions:
        what = "writes latencies of devices into the folder, and texts only were imported."
        raise InputError(Problem("--record", what, "Leave --record away, or measure on a device as well."))
    if record and all(a.passed for s in result.sessions for a in s.answers):
        record_benchmark(models[0], result)
    return result


def write_report(folder: Path, output: Path, overwrite: bool, baseline: Path | None = None) -> Path:
    """See `pocketbert.api.report`."""
    if baseline is not None:
        return _write_comparison(folder, baseline, output, overwrite)
    output = file_destination(output, overwrite)
    if is_marked(folder, KIND):
        run = open_run(folder)
        output.parent.mkdir(parents=True, exist_ok=True)
        run.report(output)
        return output
    from pocketbert.benchmarks.report import write_report as write_page_of

    facts = read_facts(_artefacts_only(folder))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_page_of(facts, output)
    return output


def _write_comparison(later: Path, earlier: Path, output: Path, overwrite: bool) -> Path:
    from pocketbert.benchmarks.report.comparison import write_comparison

    output = file_destination(output, overwrite, later, earlier)
    write_comparison(later, earlier, output)
    return output


def _artefacts_only(folder: Path) -> Path:
    """An artefact folder.

    Raises:
        InputError: If it is none.
    """
    if not (folder / FILE_NAME).is_file():
        what = f"is not a run folder or an artefact folder: it has no {RECIPE_FILE} of a run and no {FILE_NAME}."
        fix = "Make one: pocketbert run RECIPE -o FOLDER"
        if folder.is_file():
            fix = "The result of a benchmark is compared with an earlier one: --baseline FILE"
        raise InputError(Problem(str(folder), what, fix))
    return folder


# --- packing ---
# `pack`: the files of a run, or what an app needs of them.


def pack_run(run_folder: Path, output: Path, overwrite: bool, platform: str | None = None) -> Path:
    """See `pocketbert.api.pack`."""
    if platform is not None:
        return _pack_assets(run_folder, output, platform, overwrite)
    run = open_run(run_folder)
    output = folder_destination(output, run_folder)
    finish_interrupted(output)
    with run.folder.locked(), leaving_nothing(output):
        _check_steps(run)
        if is_finished(output, run, overwrite):
            remove_interrupted(output)  # a process killed after its last rename leaves it
        else:
            with building(output, strangers, FILE_NAME) as target:
                _make_checked(run, target)
    return output


def _make_checked(run: Run, destination: Path) -> None:
    """Write the artefact folder of a run.

    Raises:
        GateError: If the packed folder answers otherwise than the library of the checkpoint.
    """
    failures = make_pack(run.exported, run.data.pair, run.origin, destination, run.confusions)
    if failures:
        raise GateError(failures)


def _pack_assets(model: Path, output: Path, name: str, overwrite: bool) -> Path:
    platform = platform_named(name)
    output = folder_destination(output, model)
    finish_interrupted(output)
    with leaving_nothing(output), _artefact_folder(model) as folder:
        artefacts, earlier = read_artefacts(folder), earlier_pack(platform, output)
        choice = platform.choose(folder, artefacts)
        if earlier is not None and is_packed(platform, output, earlier, artefacts, choice):
            remove_interrupted(output)
            say(f"{output}: finished before with the same files, skipped")
            return output
        if earlier is not None and not overwrite:
            what = "holds files that were packed before; nothing was written."
            raise InputError(Problem(str(output), what, "Choose another -o/--output, or --overwrite to replace them."))
        names = [r.path for r in earlier.files] if earlier is not None else []
        with adding(output, [FILE_NAME, *names] if earlier is not None else [], FILE_NAME) as target:
            write_pack(platform, folder, artefacts, choice, target)
    return output


@contextlib.contextmanager
def _artefact_folder(model: Path) -> Iterator[Path]:
    """An artefact folder; of a run folder the one that `pack_run` would write, for as long as the block lasts."""
    if not is_marked(model, KIND):
        yield model
        return
    run = open_run(model)
    with run.folder.locked(), temporary_folder(model) as place:
        _check_steps(run)
        (place / "phone").mkdir()
        _make_checked(run, place / "phone")
        yield place / "phone"


def _check_steps(run: Run) -> None:
    """Refuse a run with a failed step.

    Raises:
        GateError: If a step failed, or a file did not pass or changed since.
    """
    steps = {s.name for s in run.steps()}  # an earlier recipe may have left others
    for mark in run.folder.marks.all():
        if mark.name in steps and mark.status is Status.FAILED:
            raise GateError([*mark.failures, f"Step {mark.name} failed; nothing was packed."])
    check_packable(run.exported)
