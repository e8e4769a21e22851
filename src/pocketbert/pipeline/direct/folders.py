"""Commands on a finished folder, which may be a run folder or an artefact folder.

- `verify_folder` checks its files again,
- `measure_folders` measures the latency and the answers of several folders,
- `write_report` writes its report page, or one that compares it with an earlier result,
- `pack_run` writes the artefact folder of a run, or the files that an app on one platform needs.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pocketbert.core.artefacts import ARTEFACTS_FILE, SEARCH_FILE, BudgetSearch, list_foreign_files, read_artefacts
from pocketbert.core.compare.golden import read_library
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import remove_new_folders_on_error, resolve_output_file, resolve_output_folder
from pocketbert.core.disk.files import file_digests, read_json, write_json
from pocketbert.core.disk.ownership import is_marked, temporary_folder
from pocketbert.core.disk.workspace import add_files, build_folder, finish_interrupted, remove_interrupted
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.host.progress import print_note
from pocketbert.core.predict.inputs import Text
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.types import Status
from pocketbert.pipeline.direct.budgeted_run import STUDENTS_FOLDER
from pocketbert.pipeline.direct.exporting import is_finished
from pocketbert.pipeline.gates.verify import report_gates, verify_artefacts
from pocketbert.pipeline.make.measuring import benchmark_folders, labelled_rows, only_compile
from pocketbert.pipeline.phone.pack import check_packable, make_pack
from pocketbert.pipeline.phone.platforms import earlier_pack, is_packed, platform_named, write_pack
from pocketbert.pipeline.phone.recording import read_facts, record_benchmark, record_verification
from pocketbert.pipeline.phone.tokenizers.sources import java_gates
from pocketbert.pipeline.results import Verification
from pocketbert.pipeline.run import RECIPE_FILE, Run
from pocketbert.pipeline.run_folder import RUN_FOLDER_KIND

if TYPE_CHECKING:
    from pocketbert.benchmarks.imported.saved_texts import Fact
    from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult


def verify_folder(model: Path, source: DataSource | None, max_drop: float, record: bool = False) -> Verification:
    """Verify the model files of a run folder or an artefact folder; see `pocketbert.api.verify`.

    Args:
        model: The folder.
        source: Labelled rows to score an artefact folder's files on; None to score nothing. A run folder is scored on
            the rows of its recipe.
        max_drop: Largest allowed loss of a quantized file against the exported file, as a fraction of the metric. For a
            run folder its recipe decides.
        record: Whether to write the scores into the artefact folder.

    Raises:
        InputError: If the folder is neither kind, if its run is not finished, or if an option does not apply.
        GateError: If the scores are to be recorded and a gate failed.
    """
    if is_marked(model, RUN_FOLDER_KIND):
        if record:
            fix = f"Name the artefact folder: -m {model}/phone"
            raise InputError(Problem("--record", "a run folder records what its own recipe measures.", fix))
        if source is not None:
            fix = f"Leave --data out, or verify the artefact folder: -m {model}/phone"
            raise InputError(Problem("--data", "a run folder is verified with its recipe's data.", fix))
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
    """Verify the files of a run folder again, and write the result to its ``verify.json`` and to the mark of step `verify`, if any.

    Raises:
        InputError: If a file was not exported yet, or the golden rows are not there.
    """
    run = _open_run(folder)
    with run.folder.locked():
        missing = [name for name in (*run.recipe.export.formats, "golden") if run.folder.marks.read(name) is None]
        if missing:
            fix = f"Continue: pocketbert run ... -o {folder}"
            raise InputError(Problem(str(folder), f"step {missing[0]} is not finished.", fix))
        result = run.verify()
        write_json(folder / "verify.json", json.loads(result.model_dump_json()))
        mark = run.folder.marks.read("verify")
        if mark is not None:
            outcome = {
                "status": result.status,
                "failures": result.failures,
                "files": file_digests(folder / "verify.json"),
            }
            run.folder.marks.write(mark.model_copy(update=outcome))
    report_gates(result)
    return result


def _open_run(folder: Path) -> Run:
    """Open a run folder with its recipe.

    If a budget search chose a smaller student, the folder of that student's run is opened instead.

    Raises:
        InputError: If the folder is no run folder.
    """
    if not (folder / RECIPE_FILE).is_file() or not is_marked(folder, RUN_FOLDER_KIND):
        what = f"is not a run folder: it has no {RECIPE_FILE} of a run."
        raise InputError(Problem(str(folder), what, "Make one: pocketbert run RECIPE -o FOLDER"))
    search = read_json(folder / SEARCH_FILE) if (folder / SEARCH_FILE).is_file() else None
    if search is not None:
        student = BudgetSearch.model_validate(search).student
        if student is not None and is_marked(folder / STUDENTS_FOLDER / student, RUN_FOLDER_KIND):
            folder = folder / STUDENTS_FOLDER / student
    return Run(load_recipe(folder / RECIPE_FILE), folder)


def measure_folders(
    models: Sequence[Path],
    options: BenchmarkOptions | None,
    texts: Sequence[Text],
    imports: Sequence[Path],
    record: bool,
    facts: Sequence[Fact] = (),
) -> BenchmarkResult:
    """Measure latencies and answers of the model files in several folders; see `pocketbert.api.benchmark`.

    Args:
        models: Run folders or artefact folders.
        options: What to measure; None for the default options of folders.
        texts: Texts to measure on; empty for the project's own sentences.
        imports: Result files of measuring tools on other machines.
        record: Whether to write the results into the artefact folder, which must be the only folder then. Nothing is
            written if a file gave wrong answers.
        facts: What the user states about saved outputs, such as the device.

    Raises:
        InputError: If there is nothing to measure or to record, or more than one folder to record in.
    """
    if record and (len(models) != 1 or is_marked(models[0], RUN_FOLDER_KIND)):
        what = "writes into one artefact folder" + ("." if len(models) != 1 else f", and {models[0]} is a run folder.")
        raise InputError(
            Problem("--record", what, "Name one artefact folder, such as runs/NAME/phone, with -m/--model.")
        )
    if record and options is not None and not imports and only_compile(options.devices):
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
    """Write the HTML report of a folder, or its comparison with an earlier result; see `pocketbert.api.report`.

    Args:
        folder: A run folder or an artefact folder; for a comparison with `baseline` also a result file of a benchmark.
        output: Path of the HTML page.
        overwrite: Whether an existing file may be replaced.
        baseline: An earlier result, with which the page compares the folder; None for the report of the folder.

    Returns:
        The path of the page.

    Raises:
        InputError: If the folder is of no such kind, or the page cannot be written there.
    """
    if baseline is not None:
        from pocketbert.benchmarks.report.comparison import write_comparison

        output = resolve_output_file(output, overwrite, folder, baseline)
        write_comparison(folder, baseline, output)
        return output
    output = resolve_output_file(output, overwrite)
    if is_marked(folder, RUN_FOLDER_KIND):
        run = _open_run(folder)
        output.parent.mkdir(parents=True, exist_ok=True)
        run.report(output)
        return output
    from pocketbert.benchmarks.report import write_report as write_page_of

    if not (folder / ARTEFACTS_FILE).is_file():
        what = f"is not a run folder or an artefact folder: it has no {RECIPE_FILE} of a run and no {ARTEFACTS_FILE}."
        fix = "Make one: pocketbert run RECIPE -o FOLDER"
        if folder.is_file():
            fix = "The result of a benchmark is compared with an earlier one: --baseline FILE"
        raise InputError(Problem(str(folder), what, fix))
    facts = read_facts(folder)
    output.parent.mkdir(parents=True, exist_ok=True)
    write_page_of(facts, output)
    return output


# --- packing ----------------------------------------------------------------------------------------------------------


def pack_run(run_folder: Path, output: Path, overwrite: bool, platform: str | None = None) -> Path:
    """Write the artefact folder of a run, or the files of a folder for one platform; see `pocketbert.api.pack`.

    Args:
        run_folder: The run folder. If a platform is given, it may also be an artefact folder.
        output: The folder to write.
        overwrite: Whether existing files may be replaced.
        platform: The platform of the app; None to write the artefact folder.

    Raises:
        InputError: If the folder is of no such kind, or holds files that may not be replaced.
        GateError: If a step failed, a file did not pass or changed since, or the packed folder gives other answers than
            the library that the checkpoint was made for.
    """
    if platform is not None:
        return _pack_for_platform(run_folder, output, platform, overwrite)
    run = _open_run(run_folder)
    output = resolve_output_folder(output, run_folder)
    finish_interrupted(output)
    with run.folder.locked(), remove_new_folders_on_error(output):
        _check_steps(run)
        if is_finished(output, run, overwrite):
            remove_interrupted(output)  # a process killed after its last rename leaves it
        else:
            with build_folder(output, list_foreign_files, ARTEFACTS_FILE) as target:
                _write_artefacts(run, target)
    return output


def _pack_for_platform(model: Path, output: Path, name: str, overwrite: bool) -> Path:
    """Write the files that apps on one platform need of an artefact folder to `output`, unless it has them already.

    Raises:
        InputError: If `output` has other packed files and `overwrite` is not set, or the folder lacks a needed file.
    """
    platform = platform_named(name)
    output = resolve_output_folder(output, model)
    finish_interrupted(output)
    with remove_new_folders_on_error(output), _artefact_folder(model) as folder:
        artefacts, earlier = read_artefacts(folder), earlier_pack(platform, output)
        choice = platform.choose(folder, artefacts)
        if earlier is not None and is_packed(platform, output, earlier, artefacts, choice):
            remove_interrupted(output)
            print_note(f"{output}: finished before with the same files, skipped")
            return output
        if earlier is not None and not overwrite:
            what = "holds files that were packed before; nothing was written."
            raise InputError(Problem(str(output), what, "Choose another -o/--output, or --overwrite to replace them."))
        replaced = [ARTEFACTS_FILE, *(r.path for r in earlier.files)] if earlier is not None else []
        with add_files(output, replaced, ARTEFACTS_FILE) as target:
            write_pack(platform, folder, artefacts, choice, target)
    return output


@contextlib.contextmanager
def _artefact_folder(model: Path) -> Iterator[Path]:
    """Yield the artefact folder `model`. If it is a run folder, a temporary artefact folder is packed from it."""
    if not is_marked(model, RUN_FOLDER_KIND):
        yield model
        return
    run = _open_run(model)
    with run.folder.locked(), temporary_folder(model) as folder:
        _check_steps(run)
        (folder / "phone").mkdir()
        _write_artefacts(run, folder / "phone")
        yield folder / "phone"


def _check_steps(run: Run) -> None:
    """Check that no step of a run has failed, and that its files passed and did not change since.

    Raises:
        GateError: If a step failed, or a file did not pass or changed since.
    """
    steps = {s.name for s in run.steps()}  # an earlier recipe may have left others
    for mark in run.folder.marks.all():
        if mark.name in steps and mark.status is Status.FAILED:
            raise GateError([*mark.failures, f"Step {mark.name} failed; nothing was packed."])
    check_packable(run.exported)


def _write_artefacts(run: Run, destination: Path) -> None:
    """Write the artefact folder of a run into an empty folder.

    Raises:
        GateError: If the packed folder gives other answers than the library of the checkpoint.
    """
    failures = make_pack(run.exported, run.data.pair, run.origin, destination, run.confusions)
    if failures:
        raise GateError(failures)
