"""Verbs that start from a folder instead of a recipe: the same steps, in a work folder next to the output."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pocketbert.core.artefacts import (
    FILE_NAME,
    Artefacts,
    ModelRecord,
    artefact_folder,
    integrity_problems,
    read_artefacts,
    strangers,
)
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.destination import file_destination, folder_destination, leaving_nothing
from pocketbert.core.disk.files import digests, write_json
from pocketbert.core.disk.marker import is_marked
from pocketbert.core.disk.ownership import refuse_strangers, temporary_folder
from pocketbert.core.disk.workspace import (
    adding,
    beside_workspaces,
    building,
    finish_interrupted,
    occupants,
    remove_interrupted,
    workspace,
)
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.recipe.file import load_recipe
from pocketbert.core.recipe.recipe import CoremlSection, VerifySection
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.pipeline.export_recipe import export_recipe, found_columns, naming_flags, option_problems
from pocketbert.pipeline.gates.verification import Verification
from pocketbert.pipeline.gates.verify import report_gates, verify_artefacts
from pocketbert.pipeline.inputs import Inputs
from pocketbert.pipeline.learn.data import check_files
from pocketbert.pipeline.make.measuring import benchmark_folders
from pocketbert.pipeline.options import AnswerOptions, ExportOptions
from pocketbert.pipeline.phone.pack import check_packable, make_pack
from pocketbert.pipeline.phone.platforms.table import platform_named
from pocketbert.pipeline.phone.platforms.writing import earlier_pack, is_packed, write_pack
from pocketbert.pipeline.phone.recording import record_benchmark, record_verification, write_page
from pocketbert.pipeline.phone.report_facts import read_facts
from pocketbert.pipeline.run import RECIPE_FILE, Run
from pocketbert.pipeline.run_folder import KIND, Permission
from pocketbert.pipeline.teacher import say_row

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult
    from pocketbert.benchmarks.options import BenchmarkOptions

_WORK = "export"
"""What the workspace of an export remembers, so that a later one finds it."""


def export_model(
    model: str,
    output: Path,
    options: ExportOptions,
    *,
    overwrite: bool,
    ready: Mapping[str, Path] | None = None,
) -> Path:
    """See `pocketbert.api.export`; `ready` are fp32 files of the same model to use instead of exporting anew."""
    recipe, folder = export_recipe(model, options)
    say_row(folder)
    output = folder_destination(output, folder.path)
    inputs = Inputs(recipe, ready or {}, folder)  # of both runs, so that each file is hashed once
    finish_interrupted(output)
    with naming_flags():
        if _is_finished(output, Run(recipe, output, inputs=inputs), overwrite):
            remove_interrupted(output, _WORK)  # a process killed after its last rename leaves it
            return output
    with leaving_nothing(output), workspace(output, resume=_WORK) as own:
        if own.resumed:
            say(f"continuing the interrupted work in {own.path}")
        with naming_flags():
            Run(recipe, own.path / "run", Permission(overwrite=True), inputs).execute()
        if options.data is not None or options.benchmark:
            write_page(own.path / "run" / "phone")
        own.install(own.path / "run" / "phone", strangers, FILE_NAME)
    return output


def plan_export(model: str, output: Path, options: ExportOptions, *, overwrite: bool) -> list[tuple[str, str]]:
    """See `pocketbert.api.plan_export`: each step and its state."""
    recipe, folder = export_recipe(model, options)
    output = folder_destination(output, folder.path)
    run = Run(recipe, output, inputs=Inputs(recipe, {}, folder))
    with naming_flags():
        check_files(recipe.data)
        state = "finished" if _is_finished(output, run, overwrite) else "to do"
        return [(step.title, state) for step in run.steps()]


def _is_finished(output: Path, run: Run, overwrite: bool) -> bool:
    """Whether `output` was written from the same recipe, model and versions as `run`, and is whole.

    Raises:
        InputError: If it holds something else, which may not be replaced.
    """
    damage: list[str] = []
    if _made_before(output, run):
        damage = integrity_problems(output, read_artefacts(output))
        if not damage:
            say(f"{output}: finished before with the same model and settings, skipped")
            return True
    _refuse_existing(output, overwrite, damage)
    return False


def _made_before(output: Path, run: Run) -> bool:
    """Whether `output` was written from the same recipe, model and library versions as `run`; it may be damaged."""
    if not (output / FILE_NAME).is_file():
        return False
    try:
        return read_artefacts(output).made_from == run.origin.everything
    except InputError:
        return False


def _refuse_existing(output: Path, overwrite: bool, damage: Sequence[str]) -> None:
    """Refuse to replace anything but an artefact folder."""
    if output.is_dir() and occupants(output):
        if not overwrite:
            fix = "Choose another -o/--output, or --overwrite to replace it."
            raise InputError(
                [Problem(f"{output}/{what}", "nothing was written.", fix) for what in damage]
                or Problem(str(output), "exists and holds something else; nothing was written.", fix)
            )
        if not (output / FILE_NAME).is_file():
            what = "exists and is not an artefact folder: --overwrite does not replace it; nothing was written."
            raise InputError(Problem(str(output), what, "Choose another -o/--output."))
    if output.is_dir():
        refuse_strangers(output, beside_workspaces(strangers))


def quantize_folder(
    model: Path, output: Path, *, schemes: Sequence[str], runtimes: Sequence[str], overwrite: bool
) -> Path:
    """See `pocketbert.api.quantize`."""
    model = artefact_folder(model)
    artefacts = read_artefacts(model)
    exported = [r for r in artefacts.models() if r.scheme in (Scheme.FP32, FORMATS[r.format].base)]
    options = _as_exported(model, artefacts, exported, schemes, runtimes)
    problems = option_problems(str(model), options)
    if not exported:
        problems.append(Problem(str(model), "has no fp32 file (Core ML: fp16) to quantize."))
    elif not problems and all(FORMATS[Format(f)].smaller(Scheme(s)) is None for f in options.formats for s in schemes):
        what = f"{' and '.join(map(repr, schemes))} makes no further file of {', '.join(options.formats)}."
        problems.append(Problem("--scheme", what, "Choose int8 or w8."))
    if not (model / "model.safetensors").is_file():
        problems.append(
            Problem(
                str(model),
                "has no model.safetensors to compare the quantized file with.",
                "Export the model again: pocketbert export -m MODEL -o FOLDER",
            )
        )
    if problems:
        raise InputError(problems)
    ready = {r.path: model / r.path for r in exported}
    return export_model(str(model), output, options, overwrite=overwrite, ready=ready)


def _as_exported(
    model: Path,
    artefacts: Artefacts,
    exported: Sequence[ModelRecord],
    schemes: Sequence[str],
    runtimes: Sequence[str],
) -> ExportOptions:
    """Options that export the files of an artefact folder as they were exported, and quantize them."""
    resolved = model / RECIPE_FILE
    packages = load_recipe(resolved).export.coreml if resolved.is_file() else CoremlSection()
    defaults = ExportOptions()
    return ExportOptions(
        task=artefacts.task,
        form=artefacts.form,
        formats=list(dict.fromkeys(str(r.format) for r in exported)) or defaults.formats,
        schemes=schemes,
        runtimes=runtimes,
        lengths=sorted({n for r in exported if r.signature for n in r.signature.lengths}) or defaults.lengths,
        max_length=artefacts.processing.max_length,
        ios=packages.ios,
        shapes=packages.shapes,
        precision=packages.precision,
        layout=packages.layout,
        answer=cast(AnswerOptions, artefacts.processing.settings().model_dump(mode="json")),
    )


def open_run(folder: Path) -> Run:
    """A run folder with the recipe it was made with.

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
    artefacts = read_artefacts(model)
    sets = []
    if source is not None:
        head, name = artefacts.head(), Path(source.title).name
        source = found_columns(source, head.task)
        tokenizer = TextTokenizer(model, artefacts.processing.max_length)
        reader = tokenizer.reader
        rows = read_examples(source, kind=head.task.labels, columns=reader.form.columns if reader else ())
        if reader is not None:
            reader.check([row.input for row in rows], f"{name} row")
        prepared = head.prepare(rows, tokenizer, source.title)
        if not len(prepared.truth):
            raise InputError(
                Problem(
                    "--data",
                    f"{name} has no scored pairs; vectors without scores are compared on golden rows.",
                    "Give --text-pair and --label, or leave --data out.",
                )
            )
        sets = [EvalSet(name, head, prepared)]
    result = verify_artefacts(model, sets, VerifySection(max_drop=max_drop))
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
) -> BenchmarkResult:
    """See `pocketbert.api.benchmark`."""
    if record and (len(models) != 1 or is_marked(models[0], KIND)):
        what = "writes into one artefact folder" + ("." if len(models) != 1 else f", and {models[0]} is a run folder.")
        raise InputError(
            Problem("--record", what, "Name one artefact folder, such as runs/NAME/phone, with -m/--model.")
        )
    result = benchmark_folders(models, options, texts, imports)
    if record and all(a.passed for s in result.sessions for a in s.answers):
        record_benchmark(models[0], result)
    return result


def pack_run(run_folder: Path, output: Path, overwrite: bool, platform: str | None = None) -> Path:
    """See `pocketbert.api.pack`."""
    if platform is not None:
        return _pack_assets(run_folder, output, platform, overwrite)
    run = open_run(run_folder)
    output = folder_destination(output, run_folder)
    finish_interrupted(output)
    with run.folder.locked(), leaving_nothing(output):
        _check_steps(run)
        if _is_finished(output, run, overwrite):
            remove_interrupted(output)  # a process killed after its last rename leaves it
        else:
            with building(output, strangers, FILE_NAME) as target:
                make_pack(run.exported, run.data.pair, run.origin, target, run.confusions)
    return output


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
        make_pack(run.exported, run.data.pair, run.origin, place / "phone", run.confusions)
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


def write_report(folder: Path, output: Path, overwrite: bool) -> Path:
    """See `pocketbert.api.report`."""
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


def _artefacts_only(folder: Path) -> Path:
    """An artefact folder.

    Raises:
        InputError: If it is none.
    """
    if not (folder / FILE_NAME).is_file():
        what = f"is not a run folder or an artefact folder: it has no {RECIPE_FILE} of a run and no {FILE_NAME}."
        raise InputError(Problem(str(folder), what, "Make one: pocketbert run RECIPE -o FOLDER"))
    return folder
