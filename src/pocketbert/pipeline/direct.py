"""Verbs that start from a folder instead of a recipe: the same steps, in a work folder beside the output."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from pocketbert.core.artefacts import FILE_NAME, integrity_problems, read_artefacts, strangers
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.files import check_writable, digests, write_json
from pocketbert.core.disk.ownership import is_marked, refuse_strangers
from pocketbert.core.disk.workspace import building, remove_interrupted, workspace
from pocketbert.core.errors import GateError, InputError, MissingBackendError, Problem, nearest
from pocketbert.core.families import check_exported
from pocketbert.core.formats import FORMATS, format_with
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.file import load_recipe, recipe_of
from pocketbert.core.recipe.recipe import VerifySection
from pocketbert.core.tasks import TaskName, task_of
from pocketbert.core.types import Format, Runtime, Scheme, Status
from pocketbert.pipeline.gates.verify import Verification, report_gates, verify_artefacts
from pocketbert.pipeline.phone.pack import make_pack
from pocketbert.pipeline.run import RECIPE_FILE, Run
from pocketbert.pipeline.run_folder import KIND, Permission

_WORK = "export"
"""What the workspace of an export remembers, so that a later one finds it."""
DEFAULT_FORMATS = tuple(f.value for f in Format)


def export_model(
    model: str,
    output: Path,
    *,
    task: str | None,
    revision: str | None,
    scheme: str,
    opset: int,
    atol: float | None,
    max_length: int | None,
    labels: Sequence[str] | None,
    overwrite: bool,
    formats: Sequence[str] = DEFAULT_FORMATS,
    targets: Sequence[str] = (),
    lengths: Sequence[int] | None = None,
    coreml: Mapping[str, object] | None = None,
    ready: Mapping[str, Path] | None = None,
    answer: Mapping[str, object] | None = None,
) -> Path:
    """See `pocketbert.api.export`; `ready` are fp32 files to use instead of exporting anew."""
    if task is not None:
        task_of(task, "--task")
    _check_choices(scheme, formats, targets)
    folder = open_model_folder(model, revision, "--model")
    check_exported(folder.family, "--model")
    task = task or known_task(folder)
    recipe = recipe_of(
        {
            "schema": 1,
            "name": _name(folder),
            "task": task,
            "data": {"max_length": max_length, "labels": list(labels) if labels else None},
            "teacher": {
                "model": str(folder.path.resolve()) if Path(model).expanduser().is_dir() else model,
                "revision": revision,
            },
            "export": {
                "formats": list(formats),
                "opset": opset,
                "atol": atol,
                "coreml": dict(coreml or {}),
                **({"lengths": list(lengths)} if lengths else {}),
            },
            "quantize": {"scheme": scheme, "targets": list(targets)},
            "answer": dict(answer or {}),
        },
        "command line",
    )
    made_before = _made_before(output, Run(recipe, output, ready=ready))
    if made_before and not (damage := integrity_problems(output, read_artefacts(output))):
        remove_interrupted(output, _WORK)  # a process killed after its last rename leaves it
        say(f"{output}: finished before with the same model and settings, skipped")
        return output
    _refuse_existing(output, overwrite, folder.path, damage=damage if made_before else ())
    check_writable(output.parent)
    with workspace(output, resume=_WORK) as own:
        if own.resumed:
            say(f"continuing the interrupted work in {own.path}")
        try:
            Run(recipe, own.path / "run", Permission(overwrite=True), ready).execute()
        except (InputError, MissingBackendError):
            if not own.resumed:
                own.discard()  # nothing in it could be continued
            raise
        own.install(own.path / "run" / "phone", strangers)
    return output


def known_task(folder: ModelFolder) -> str:
    """The task that a model says it was trained for.

    Raises:
        InputError: If it does not say.
    """
    found = folder.task
    if found is None:
        made = ", ".join(map(str, folder.config.get("architectures") or [])) or "no class"
        raise InputError(
            Problem("--task", f"config.json names {made} and tells no task.", f"Say it: --task {' | '.join(TaskName)}")
        )
    return found.value


def _made_before(output: Path, run: Run) -> bool:
    """Whether `output` was written from the same recipe, model and library versions as `run`; it may be damaged."""
    if not (output / FILE_NAME).is_file():
        return False
    try:
        return read_artefacts(output).made_from == run.origin.everything
    except InputError:
        return False


def _refuse_existing(output: Path, overwrite: bool, *sources: Path, damage: Sequence[str] = ()) -> None:
    """Refuse to replace anything but an artefact folder, and never what is being read."""
    another = "Choose another -o/--output."
    for source in sources:
        if source.resolve().is_relative_to(output.resolve()):
            raise InputError(
                Problem(str(output), f"is or contains {source}, which is read; nothing was written.", another)
            )
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        if not overwrite:
            fix = "Choose another -o/--output, or --overwrite to replace it."
            raise InputError(
                [Problem(f"{output}/{what}", "nothing was written.", fix) for what in damage]
                or Problem(str(output), "exists and holds something else; nothing was written.", fix)
            )
        if not (output / FILE_NAME).is_file():
            what = "exists and is no artefact folder: --overwrite does not replace it; nothing was written."
            raise InputError(Problem(str(output), what, another))
    if output.is_dir():
        refuse_strangers(output, strangers)


def _check_choices(scheme: str, formats: Sequence[str], targets: Sequence[str]) -> None:
    """Name every wrong flag at once, in the words of the command line."""
    problems = []
    for flag, values, known in (
        ("--format", formats, [f.value for f in Format]),
        ("--scheme", [scheme], [s.value for s in Scheme]),
        ("--target", targets, [t.value for t in Runtime]),
    ):
        problems += [Problem(flag, f"'{v}' is not one of them; {nearest(v, known)}.") for v in values if v not in known]
    if not formats:
        problems.append(Problem("--format", f"names no format; known: {', '.join(Format)}."))
    if problems:
        raise InputError(problems)
    for name in formats:
        info = FORMATS[Format(name)]
        if not info.takes(Scheme(scheme)):
            problems.append(
                Problem(
                    "--scheme",
                    f"{info.title} has no '{scheme}' in this version, only {', '.join(info.schemes)}.",
                    f"Leave {name} out of --format, or choose another scheme.",
                )
            )
    for target in targets:
        format = format_with(Runtime(target))
        if target == Runtime.OPENVINO:
            problems.append(
                Problem(
                    "--target",
                    f"'{target}' measures ranges on training texts, which only a recipe names.",
                    "Set quantize.targets: [openvino] and data.train in one: pocketbert run RECIPE",
                )
            )
        elif scheme != Scheme.INT8 or format not in formats:
            problems.append(
                Problem(
                    "--target",
                    f"'{target}' is a form of {format} int8.",
                    f"Add --format {format} --scheme int8.",
                )
            )
    if problems:
        raise InputError(problems)


def _name(folder: ModelFolder) -> str:
    # a Hub name stands for itself; its local copy is called after a commit
    local = Path(folder.title).expanduser()
    title = local.resolve().name if local.is_dir() else folder.title.rsplit("/", 1)[-1]
    cleaned = "".join(c if c.isalnum() or c in "._-" else "-" for c in title).lstrip("._-")
    return cleaned[:64] or "model"


def quantize_folder(model: Path, output: Path, *, scheme: str, targets: Sequence[str], overwrite: bool) -> Path:
    """See `pocketbert.api.quantize`."""
    artefacts = read_artefacts(model)
    exported = [r for r in artefacts.models() if r.scheme in (Scheme.FP32, FORMATS[r.format or Format.ONNX].base)]
    formats = list(dict.fromkeys(str(r.format) for r in exported))
    _check_choices(scheme, formats or DEFAULT_FORMATS, targets)
    problems = []
    if not exported:
        problems.append(Problem(str(model), "has no fp32 file (Core ML: fp16) to quantize."))
    if exported and all(FORMATS[Format(f)].smaller(Scheme(scheme)) is None for f in formats):
        problems.append(
            Problem("--scheme", f"'{scheme}' makes no further file of {', '.join(formats)}.", "Choose int8 or w8.")
        )
    if not (model / "model.safetensors").is_file():
        problems.append(
            Problem(
                str(model),
                "has no model.safetensors to compare the quantized file with.",
                "Export the model again: pocketbert export -m MODEL -o FOLDER",
            )
        )
    if model.resolve() == output.resolve():
        problems.append(Problem("--output", "is the folder that is read.", "Choose another folder."))
    if problems:
        raise InputError(problems)
    lengths = sorted({n for r in exported if r.signature for n in r.signature.lengths})
    resolved = model / RECIPE_FILE
    coreml = load_recipe(resolved).export.coreml.model_dump(mode="json") if resolved.is_file() else None
    return export_model(
        str(model),
        output,
        task=artefacts.task,
        revision=None,
        scheme=scheme,
        opset=20,
        atol=None,
        max_length=artefacts.processing.max_length,
        labels=None,
        overwrite=overwrite,
        formats=formats,
        targets=targets,
        lengths=lengths,
        coreml=coreml,
        ready={r.path: model / r.path for r in exported},
        answer=artefacts.processing.settings().model_dump(mode="json"),
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
                f"is no run folder: it has no {RECIPE_FILE} with steps.",
                "Make one: pocketbert run RECIPE -o FOLDER",
            )
        )
    return Run(load_recipe(folder / RECIPE_FILE), folder)


def verify_folder(
    model: Path, data: Path | None, *, text: str, text_pair: str | None, label: str, max_drop: float
) -> Verification:
    """See `pocketbert.api.verify`."""
    if is_marked(model, KIND):
        if data is not None:
            raise InputError(
                Problem(
                    "--data",
                    "a run folder is verified with its recipe's data.",
                    f"Leave --data out, or verify the artefact folder: -m {model}/phone",
                )
            )
        return _verify_run(model)
    artefacts = read_artefacts(model)
    sets = []
    if data is not None:
        source, head = (
            DataSource(path=str(data), text=text, text_pair=text_pair, label=label),
            artefacts.head(),
        )
        rows = read_examples(source, kind=head.task.labels)
        prepared = head.prepare(rows, TextTokenizer(model, artefacts.processing.max_length), source.title)
        if not len(prepared.truth):
            raise InputError(
                Problem(
                    "--data",
                    f"{data.name} has no scored pairs; vectors without scores are compared on golden rows.",
                    "Give --text-pair and --label, or leave --data out.",
                )
            )
        sets = [EvalSet(data.name, head, prepared)]
    result = verify_artefacts(model, sets, VerifySection(max_drop=max_drop))
    report_gates(result)
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


def pack_run(run_folder: Path, output: Path, overwrite: bool) -> Path:
    """See `pocketbert.api.pack`."""
    run = open_run(run_folder)
    _refuse_existing(output, overwrite, run_folder)
    check_writable(output.parent)
    with run.folder.locked():
        steps = {s.name for s in run.steps()}  # an earlier recipe may have left others
        for mark in run.folder.marks.all():
            if mark.name in steps and mark.status is Status.FAILED:
                raise GateError([*mark.failures, f"Step {mark.name} failed; nothing was packed."])
        with building(output, strangers) as target:
            make_pack(run.recipe, run_folder, run.weights, run.length, run.data.pair, run.origin, target)
    return output
