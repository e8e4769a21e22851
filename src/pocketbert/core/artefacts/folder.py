"""Reads and writes ``artifacts.json``, and compares a folder with it. Written last, readable for ever."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pocketbert.core.artefacts.records import FILE_NAME as FOLDER_FILE_NAME
from pocketbert.core.artefacts.records import SCHEMA_VERSION, Artefacts, FileRecord, Kind, ModelRecord, Processing
from pocketbert.core.disk.files import check_schema, path_bytes, read_json, safe_join, sha256_path, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import FORM_KEY, all_families
from pocketbert.core.families.config import FILE_NAME, label_names, read_config
from pocketbert.core.formats import FORMATS
from pocketbert.core.tasks import TASKS, ScoreFunction, TaskName
from pocketbert.core.types import Scheme

# --- consistency ---
# Whether the entries of ``artifacts.json`` can be true together.


_OF_TASK: dict[str, tuple[TaskName, ...]] = {
    "thresholds": (TaskName.MULTI_LABEL,),
    "unknown": (TaskName.TEXT_CLASSIFICATION,),
    "unknown_accuracy": (TaskName.TEXT_CLASSIFICATION,),
    "stride": (TaskName.QUESTION_ANSWERING,),
    "answer_length": (TaskName.QUESTION_ANSWERING,),
    "null_answers": (TaskName.QUESTION_ANSWERING,),
    "pooling": (TaskName.FEATURE_EXTRACTION,),
    "normalize": (TaskName.FEATURE_EXTRACTION,),
    "similarity": (TaskName.FEATURE_EXTRACTION,),
}
"""Tasks that read an entry of `Processing`; the others are read by all."""


def contradictions(
    task: TaskName, processing: Processing, labels: Sequence[str], files: Sequence[FileRecord] = ()
) -> list[str]:
    """List what processing, labels and files say that the task cannot mean, one sentence each."""
    own = TASKS[task]
    out = [
        f"processing.{key} has no meaning for {task}"
        for key, tasks in _OF_TASK.items()
        if getattr(processing, key) is not None and task not in tasks
    ]
    one_output = task is TaskName.REGRESSION and processing.score is ScoreFunction.SIGMOID
    if processing.score is not own.score and not one_output:
        out.append(f"processing.score is {processing.score}, of {task} it is {own.score}")
    if processing.thresholds is not None and len(processing.thresholds) != len(labels):
        out.append(f"processing.thresholds has {len(processing.thresholds)} numbers for {len(labels)} labels")
    if processing.default_prompt is not None and processing.default_prompt not in processing.prompts:
        out.append(f"processing.default_prompt is '{processing.default_prompt}', which is not among its prompts")
    if task is not TaskName.TEXT_CLASSIFICATION:
        certain = [f.path for f in files if isinstance(f, ModelRecord) and f.confidence is not None]
        out += [f"{path} has a temperature, which has no meaning for {task}" for path in certain[:1]]
    if own.names_labels and not labels:
        out.append(f"names no labels; {task} has some")
    if not own.names_labels and labels:
        out.append(f"names {len(labels)} labels; {task} has none")
    return out


def list_problems(files: Sequence[FileRecord]) -> list[str]:
    """What is wrong with the paths of the list: names that occur twice, aliases that equal nothing, several defaults."""
    by_path = {f.path: f for f in files}
    out = [] if len(by_path) == len(files) else ["a path is listed twice"]
    for record in files:
        if not isinstance(record, ModelRecord) or record.alias_of is None:
            continue
        target = by_path.get(record.alias_of)
        if not isinstance(target, ModelRecord) or target.alias_of is not None:
            out.append(f"{record.path} is an alias of {record.alias_of}, which is not a model file of the list")
        elif (target.sha256, target.bytes, target.format) != (record.sha256, record.bytes, record.format):
            out.append(f"{record.path} is an alias of {record.alias_of}, but another file by its digest")
    if sum(isinstance(f, ModelRecord) and f.default for f in files) > 1:
        out.append("several model files are marked as default")
    return out


# --- contents ---
# Compares artifacts.json with config.json: a folder that contradicts itself is refused when it is opened.


_AGAIN = "Copy the folder again."


def checked_config(folder: Path, artefacts: Artefacts) -> dict[str, Any] | None:
    """Read config.json of an artefact folder and compare it with the folder's list, labels left out.

    Args:
        folder: The folder.
        artefacts: Its list.

    Returns:
        The content; None where the folder has no such file.

    Raises:
        InputError: If it is no configuration, or of another model than the list says.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    family = next((f for f in all_families() if f.name == artefacts.family), None)
    config = read_config(path, family.bounds) if family else read_config(path)
    task, length, problems = TASKS[artefacts.task], artefacts.processing.max_length, []
    if family and config.get("model_type") not in (None, *family.model_types):
        problems.append(f"model_type is {config.get('model_type')!r:.40}, the folder's list says {family.name}.")
    rows = config.get("max_position_embeddings")
    if family and rows is not None and rows - family.position_offset < length:
        problems.append(f"its position table has {rows} rows, too few for the folder's max_length ({length}).")
    if config.get("problem_type") not in (None, task.problem_type):
        problems.append(f"problem_type is {config['problem_type']!r:.60}, the folder's task is {task.name}.")
    named = config.get("architectures") or []
    head = family.head_suffixes.get(task.head, task.head) if family else task.head
    if named and not any(n.endswith(head) for n in named):
        problems.append(f"architectures is {named[0]!r:.60}, the folder's task is {task.name}.")
    if config.get(FORM_KEY) != artefacts.form:
        problems.append(f"{FORM_KEY} is {config.get(FORM_KEY)!r:.40}, the folder's list says {artefacts.form!r:.40}.")
    if problems:
        raise InputError([Problem(str(path), what, _AGAIN) for what in problems])
    return config


def check_label_names(folder: Path, artefacts: Artefacts, config: dict[str, Any] | None) -> None:
    """Refuse labels of artifacts.json that are not those of config.json.

    Args:
        folder: The folder.
        artefacts: Its list.
        config: What `checked_config` returned.

    Raises:
        InputError: Naming the first difference.
    """
    names = label_names(config) if config and TASKS[artefacts.task].names_labels else None
    if names is None or names == artefacts.labels:
        return
    pairs = enumerate(zip(names, artefacts.labels, strict=False))
    first = next((f"output {i} is {b!r:.40} instead of {a!r:.40}" for i, (a, b) in pairs if a != b), None)
    what = first or f"{len(artefacts.labels)} labels instead of {len(names)}"
    raise InputError(Problem(f"{folder}/artifacts.json labels", f"differ from those of config.json: {what}.", _AGAIN))


MAX_MIB = 16
"""A folder with the most labels that are allowed has a list of a few MiB."""

CARD = "README.md"
"""The model card, which people edit."""
PACKED = "phone"
"""Name of the artefact folder in a run folder."""


def artefact_folder(folder: Path) -> Path:
    """The artefact folder that is meant: a run folder's own where a run folder is named."""
    packed = folder / PACKED
    inside = not (folder / FOLDER_FILE_NAME).is_file() and (packed / FOLDER_FILE_NAME).is_file()
    return packed if inside else folder


def read_artefacts(folder: Path) -> Artefacts:
    """Read and check ``artifacts.json``.

    Raises:
        InputError: If it is missing, of another major schema, wrong, or names paths outside the folder.
    """
    path = folder / FOLDER_FILE_NAME
    if not path.is_file():
        raise InputError(
            Problem(
                str(folder),
                f"is not an artefact folder: it has no {FOLDER_FILE_NAME}.",
                "Make one with: pocketbert export -m MODEL -o FOLDER",
            )
        )
    content = read_json(path, MAX_MIB)
    check_schema(path, content, SCHEMA_VERSION, "Update PocketBERT.")
    try:
        artefacts = Artefacts.model_validate(content)
    except ValidationError as error:
        raise InputError(
            [
                Problem(f"{path} {'.'.join(map(str, e['loc']))}", f"{e['msg']}.")
                for e in error.errors(include_url=False, include_input=False)[:20]
            ]
        ) from error
    own = contradictions(artefacts.task, artefacts.processing, artefacts.labels, artefacts.files)
    wrong = [*own, *list_problems(artefacts.files)]
    if wrong:
        raise InputError([Problem(str(path), f"{what}.", "Copy the folder again.") for what in wrong])
    for record in artefacts.files:
        safe_join(folder, record.path, str(path))
    return artefacts


def write_artefacts(folder: Path, artefacts: Artefacts) -> None:
    """Write ``artifacts.json``, the last file of a folder."""
    write_json(folder / FOLDER_FILE_NAME, artefacts.model_dump(mode="json", exclude_none=True))


def unopened(folder: Path, relative: str) -> str | None:
    """Tell why a listed path must not be opened: a FIFO would be waited for, a link could lead out of the folder.

    Args:
        folder: The artefact folder.
        relative: Path of a file or package in it, which is there.

    Returns:
        A few words, or None for a regular file and for a folder of regular files; links to regular files inside are followed.
    """
    path, inside = folder / relative, folder.resolve()
    below = sorted(path.rglob("*")) if path.is_dir() else []
    for entry in (path, *below):
        if not entry.exists():
            return "is or contains a link to nothing"
        if not (entry.is_file() or entry.is_dir()):
            return f"is or contains {_kind(entry)}, which is never opened"
        if entry.is_symlink() and not entry.resolve().is_relative_to(inside):
            return "is or contains a link that leaves the folder"
    return None


def _kind(path: Path) -> str:
    """What a path is that is neither a file nor a folder; of a link, what it leads to."""
    try:
        mode = path.stat().st_mode
    except (OSError, RuntimeError):
        return "a link in a circle, or to nothing"
    kinds = {stat.S_ISFIFO: "a FIFO", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "no regular file")


def changed_files(folder: Path, artefacts: Artefacts) -> list[str]:
    """Paths of listed files that are there, but not as they were listed. They are not safe to open."""
    there = [r for r in artefacts.files if (folder / r.path).exists()]
    return [
        r.path
        for r in there
        if unopened(folder, r.path)
        or path_bytes(folder / r.path) != r.bytes
        or sha256_path(folder / r.path) != r.sha256
    ]


def integrity_problems(folder: Path, artefacts: Artefacts, changed: Sequence[str] | None = None) -> list[str]:
    """What differs between the folder and its list: missing, changed and unlisted files, links, FIFOs and the like.

    Documents may be edited and deleted; `edited_documents` lists those.

    Args:
        folder: The folder.
        artefacts: Its list.
        changed: What `changed_files` returned, where the caller has it already.
    """
    differing = set(changed_files(folder, artefacts) if changed is None else changed)
    out = []
    free = {r.path for r in artefacts.files if r.kind is Kind.DOCUMENT and _is_users(folder / r.path)}
    for record in (r for r in artefacts.files if r.path not in free):
        path = folder / record.path
        if not path.exists():
            out.append(f"{record.path}: listed, but not there")
        elif (why := unopened(folder, record.path)) is not None:
            out.append(f"{record.path}: {why}")
        elif record.path in differing:
            out.append(f"{record.path}: changed since it was packed (sha256 differs)")
        elif path.is_symlink() or (path.is_dir() and any(p.is_symlink() for p in path.rglob("*"))):
            out.append(f"{record.path}: is or contains a link; PocketBERT writes none")
    return out + [f"{name}: there, but not listed{_what(folder / name)}" for name in _unlisted(folder, artefacts)]


def _is_users(path: Path) -> bool:
    """Whether a document is as a user may leave it: a plain file, or gone."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def edited_documents(folder: Path, artefacts: Artefacts) -> list[str]:
    """List the documents, such as the card, that a user edited or deleted, one sentence each."""
    documents = [r for r in artefacts.files if r.kind is Kind.DOCUMENT and _is_users(folder / r.path)]
    changed = changed_files(folder, artefacts.model_copy(update={"files": documents}))
    return [
        f"{r.path}: {'edited' if r.path in changed else 'deleted'} since it was packed"
        for r in documents
        if r.path in changed or not (folder / r.path).exists()
    ]


def _what(path: Path) -> str:
    """In brackets what an unlisted path is, where it is no regular file."""
    if path.is_symlink():
        return " (a link)"
    return "" if path.is_file() else f" ({_kind(path)})"


def _unlisted(folder: Path, artefacts: Artefacts) -> list[str]:
    listed = {f.path for f in artefacts.files} | {FOLDER_FILE_NAME}
    out = []
    for path in sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()):
        inside = [path.relative_to(folder), *path.relative_to(folder).parents]  # a package is listed as one
        if not any(p.as_posix() in listed for p in inside):
            out.append(inside[0].as_posix())
    return out


def strangers(folder: Path) -> list[str]:
    """Paths in a folder that a user wrote: those that its list does not name, and edited documents; all of them without a list."""
    try:
        artefacts = read_artefacts(folder)
        documents = artefacts.model_copy(update={"files": [r for r in artefacts.files if r.kind is Kind.DOCUMENT]})
        return sorted([*_unlisted(folder, artefacts), *changed_files(folder, documents)])
    except InputError:
        return sorted(p.name for p in folder.iterdir())


# --- choice ---
# Which of several files of a folder to take: the one that corresponds to the folder's default file.


def wanted_scheme(default: ModelRecord) -> Scheme:
    """The scheme that a recipe asks for where the folder's default file has its own, such as int8 where Core ML has w8."""
    info = FORMATS[default.format]
    if default.scheme is info.base:
        return Scheme.FP32
    return next((wish for wish, given in info.instead.items() if given is default.scheme), default.scheme)


def best_of(files: Sequence[ModelRecord], wanted: Scheme) -> ModelRecord:
    """The file of the scheme that is wanted, or of what its format has instead; else int8, else the last one.

    Args:
        files: Files of one or several formats; at least one.
        wanted: A scheme, as `wanted_scheme` returns it.
    """

    def fits(record: ModelRecord, wish: Scheme) -> bool:
        info = FORMATS[record.format]
        return record.scheme is (info.base if wish is Scheme.FP32 else info.instead.get(wish, wish))

    return next((r for wish in (wanted, Scheme.INT8) for r in files if fits(r, wish)), files[-1])
