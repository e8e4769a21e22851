"""Reading and writing ``artifacts.json``, the list of an artefact folder, and comparing the folder with it.

1. `read_artefacts` reads the list and refuses entries that contradict each other; `write_artefacts` writes it, last
   of all files,
2. `read_checked_config` and `check_label_names` compare it with config.json,
3. `list_integrity_problems`, `list_changed_files`, `list_edited_documents` and `list_foreign_files` compare it with the files of the folder,
4. `choose_file` chooses among model files by scheme.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pocketbert.core.artefacts.listing import ARTEFACTS_FILE, find_unsafe_entry, name_special_kind
from pocketbert.core.artefacts.records import SCHEMA_VERSION, Artefacts, FileRecord, Kind, ModelRecord
from pocketbert.core.disk.files import check_schema, path_bytes, read_json, safe_join, sha256_path, write_json
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import FORM_KEY, all_families
from pocketbert.core.families.config import CONFIG_FILE, label_names, read_config
from pocketbert.core.formats import FORMATS
from pocketbert.core.tasks import HEADS_KEY, ScoreFunction, TaskName
from pocketbert.core.types import Scheme

CARD_FILE = "README.md"
"""The model card, which people edit."""
_MAX_LIST_MIB = 16
"""A folder with the largest allowed number of labels has a list of a few MiB."""
_COPY_AGAIN = "Copy the folder again."
_TASKS_OF_ENTRY: dict[str, tuple[TaskName, ...]] = {
    "thresholds": (TaskName.MULTI_LABEL,),
    "unknown": (TaskName.TEXT_CLASSIFICATION,),
    "unknown_accuracy": (TaskName.TEXT_CLASSIFICATION,),
    "stride": (TaskName.QUESTION_ANSWERING,),
    "answer_length": (TaskName.QUESTION_ANSWERING,),
    "null_answers": (TaskName.QUESTION_ANSWERING,),
    "splits_punctuation": (TaskName.TOKEN_CLASSIFICATION, TaskName.SEVERAL),
    "pooling": (TaskName.FEATURE_EXTRACTION,),
    "normalize": (TaskName.FEATURE_EXTRACTION,),
    "similarity": (TaskName.FEATURE_EXTRACTION,),
    "dimensions": (TaskName.FEATURE_EXTRACTION,),
}
"""Tasks that use an entry of `Processing`; all tasks use the others."""


def _folder_fix(folder: Path) -> str:
    """Return what to do about a folder that is not there.

    That is another option for a name like FOLDER:FILE, else the path that was probably meant, else how to make a folder.
    """
    from difflib import get_close_matches  # only where something is wrong

    part = next(p for p in (*reversed(folder.parents), folder) if not p.exists())
    if (part.parent / part.name.partition(":")[0]).exists():
        return "Choose a file of a folder with --scheme, --format or --model-file."
    beside = [p.name for p in part.parent.iterdir() if p.is_dir()] if part.parent.is_dir() else []
    if near := get_close_matches(part.name, beside, n=1):
        return f"Did you mean {part.parent / near[0] / folder.relative_to(part)}?"
    return "Make one with: pocketbert export -m MODEL -o FOLDER"


def read_artefacts(folder: Path) -> Artefacts:
    """Read and check the ``artifacts.json`` of an artefact folder (exported files, tokenizer, golden rows).

    Raises:
        InputError: If the file is missing, of another major schema version, or invalid, or if it names paths outside the folder.
    """
    path = folder / ARTEFACTS_FILE
    if not folder.exists():
        raise InputError(Problem(str(folder), "there is no such folder.", _folder_fix(folder)))
    if not path.is_file():
        what = f"is not an artefact folder: it has no {ARTEFACTS_FILE}."
        raise InputError(Problem(str(folder), what, "Make one with: pocketbert export -m MODEL -o FOLDER"))
    content = read_json(path, _MAX_LIST_MIB)
    check_schema(path, content, SCHEMA_VERSION, "Update PocketBERT.")
    try:
        artefacts = Artefacts.model_validate(content)
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)[:20]
        problems = [Problem(f"{path} {'.'.join(map(str, e['loc']))}", f"{e['msg']}.") for e in details]
        raise InputError(problems) from error
    wrong = [*_contradictions(artefacts), *_path_problems(artefacts.files)]
    if wrong:
        raise InputError([Problem(str(path), f"{what}.", _COPY_AGAIN) for what in wrong])
    for record in artefacts.files:
        safe_join(folder, record.path, str(path))
    return artefacts


def write_artefacts(folder: Path, artefacts: Artefacts) -> None:
    """Write ``artifacts.json``, the list of an artefact folder's files and settings, as the folder's last file."""
    write_json(folder / ARTEFACTS_FILE, artefacts.model_dump(mode="json", exclude_none=True))


# --- contradictions in the list ------------------------------------------------------------


def _contradictions(artefacts: Artefacts) -> list[str]:
    """Return what in an artifacts.json contradicts its task or its other entries: sentences, empty if nothing does."""
    task, processing, labels = artefacts.task, artefacts.processing, artefacts.labels
    row = artefacts.task_row
    problems = [
        f"processing.{key} has no meaning for {task}"
        for key, tasks in _TASKS_OF_ENTRY.items()
        if getattr(processing, key) is not None and task not in tasks
    ]
    one_output = task is TaskName.REGRESSION and processing.score is ScoreFunction.SIGMOID
    if processing.score is not row.score and not one_output:
        problems.append(f"processing.score is {processing.score}, of {task} it is {row.score}")
    if processing.thresholds is not None and len(processing.thresholds) != len(labels):
        problems.append(f"processing.thresholds has {len(processing.thresholds)} numbers for {len(labels)} labels")
    if processing.default_prompt is not None and processing.default_prompt not in processing.prompts:
        problems.append(f"processing.default_prompt is '{processing.default_prompt}', which is not among its prompts")
    if task is not TaskName.TEXT_CLASSIFICATION:
        paths = [f.path for f in artefacts.files if isinstance(f, ModelRecord) and f.confidence is not None]
        problems += [f"{path} has a temperature, which has no meaning for {task}" for path in paths[:1]]
    if row.names_labels and not labels:
        problems.append(f"names no labels; {task} has some")
    columns = [column for head in row.heads for column in range(head.start, head.stop)]
    if row.heads and columns != [*range(len(labels))]:
        problems.append(f"heads ({', '.join(artefacts.heads or ())}) do not fit the labels")
    if not row.names_labels and labels:
        problems.append(f"names {len(labels)} labels; {task} has none")
    return problems


def _path_problems(files: Sequence[FileRecord]) -> list[str]:
    """List what is wrong with the paths of artifacts.json: a path twice, a broken alias, or a second default file.

    An alias is broken if it names no model file, or one of another size, digest or format.
    """
    by_path = {f.path: f for f in files}
    problems = [] if len(by_path) == len(files) else ["a path is listed twice"]
    for record in files:
        if not isinstance(record, ModelRecord) or record.alias_of is None:
            continue
        target = by_path.get(record.alias_of)
        if not isinstance(target, ModelRecord) or target.alias_of is not None:
            problems.append(f"{record.path} is an alias of {record.alias_of}, which is not a model file of the list")
        elif (target.sha256, target.bytes, target.format) != (record.sha256, record.bytes, record.format):
            problems.append(f"{record.path} is an alias of {record.alias_of}, but another file by its digest")
    if sum(isinstance(f, ModelRecord) and f.default for f in files) > 1:
        problems.append("several model files are marked as default")
    return problems


# --- config.json ------------------------------------------------------------


def read_checked_config(folder: Path, artefacts: Artefacts) -> dict[str, Any] | None:
    """Read config.json of an artefact folder, and check that it belongs to the model in artifacts.json.

    Returns:
        The content of config.json; None if the folder has no config.json.

    Raises:
        InputError: If config.json is no configuration, or describes another model than artifacts.json.
    """
    path = folder / CONFIG_FILE
    if not path.is_file():
        return None
    family = next((f for f in all_families() if f.name == artefacts.family), None)
    config = read_config(path, family.bounds) if family else read_config(path)
    task, length, problems = artefacts.task_row, artefacts.processing.max_length, []
    if family and config.get("model_type") not in (None, *family.model_types):
        problems.append(f"model_type is {config.get('model_type')!r:.40}, the folder's list says {family.name}.")
    rows = config.get("max_position_embeddings")
    if family and rows is not None and rows - family.position_offset < length:
        problems.append(f"its position table has {rows} rows, too few for the folder's max_length ({length}).")
    if config.get("problem_type") not in (None, task.problem_type):
        problems.append(f"problem_type is {config['problem_type']!r:.60}, the folder's task is {task.name}.")
    classes = config.get("architectures") or []
    head = family.head_suffixes.get(task.head, task.head) if family else task.head
    if classes and not any(c.endswith(head) for c in classes):
        problems.append(f"architectures is {classes[0]!r:.60}, the folder's task is {task.name}.")
    heads = None if artefacts.heads is None else {name: own.value for name, own in artefacts.heads.items()}
    if config.get(HEADS_KEY) != heads:
        problems.append(f"{HEADS_KEY} is {config.get(HEADS_KEY)!r:.80}, the folder's list says {heads!r:.80}.")
    if config.get(FORM_KEY) != artefacts.form:
        problems.append(f"{FORM_KEY} is {config.get(FORM_KEY)!r:.40}, the folder's list says {artefacts.form!r:.40}.")
    if problems:
        raise InputError([Problem(str(path), what, _COPY_AGAIN) for what in problems])
    return config


def check_label_names(folder: Path, artefacts: Artefacts, config: dict[str, Any] | None) -> None:
    """Raise InputError if the labels in artifacts.json differ from those in config.json.

    Nothing is compared for a task without labels, or if config.json is missing or has no label names.

    Raises:
        InputError: Naming the first difference.
    """
    names = label_names(config) if config and artefacts.task_row.names_labels else None
    if names is None or names == artefacts.labels:
        return
    pairs = enumerate(zip(names, artefacts.labels, strict=False))
    first = next((f"output {i} is {b!r:.40} instead of {a!r:.40}" for i, (a, b) in pairs if a != b), None)
    what = first or f"{len(artefacts.labels)} labels instead of {len(names)}"
    raise InputError(
        Problem(f"{folder}/artifacts.json labels", f"differ from those of config.json: {what}.", _COPY_AGAIN)
    )


# --- files ------------------------------------------------------------


def list_changed_files(folder: Path, artefacts: Artefacts) -> list[str]:
    """Return the paths of existing files whose size or sha256 is not that of artifacts.json, or that are unsafe to open."""
    existing = [r for r in artefacts.files if (folder / r.path).exists()]
    return [
        r.path
        for r in existing
        if find_unsafe_entry(folder, r.path)
        or path_bytes(folder / r.path) != r.bytes
        or sha256_path(folder / r.path) != r.sha256
    ]


def list_integrity_problems(folder: Path, artefacts: Artefacts, changed: Sequence[str] | None = None) -> list[str]:
    """List how a folder's files differ from its artifacts.json: missing, changed, unlisted or unsafe, one sentence each.

    The list is empty if nothing differs. Documents may be edited and deleted; `list_edited_documents` lists those.

    Args:
        folder: The artefact folder.
        artefacts: The content of the folder's artifacts.json.
        changed: The result of `list_changed_files`, if the caller has it already; by default it is computed.
    """
    differing = set(list_changed_files(folder, artefacts) if changed is None else changed)
    problems = []
    for record in artefacts.files:
        path = folder / record.path
        if record.kind is Kind.DOCUMENT and _is_plain_or_missing(path):
            continue
        if not path.exists():
            problems.append(f"{record.path}: listed, but not there")
        elif (why := find_unsafe_entry(folder, record.path)) is not None:
            problems.append(f"{record.path}: {why}")
        elif record.path in differing:
            problems.append(f"{record.path}: changed since it was packed (sha256 differs)")
        elif path.is_symlink() or (path.is_dir() and any(p.is_symlink() for p in path.rglob("*"))):
            problems.append(f"{record.path}: is or contains a link; PocketBERT writes none")
    for name in _unlisted_files(folder, artefacts):
        path = folder / name
        kind = " (a link)" if path.is_symlink() else "" if path.is_file() else f" ({name_special_kind(path)})"
        problems.append(f"{name}: there, but not listed{kind}")
    return problems


def _is_plain_or_missing(path: Path) -> bool:
    """Return whether a document is a regular file or does not exist; both are allowed."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


def list_edited_documents(folder: Path, artefacts: Artefacts) -> list[str]:
    """List the documents of a folder, such as the model card, that a user edited or deleted, one sentence each."""
    documents = [r for r in artefacts.files if r.kind is Kind.DOCUMENT and _is_plain_or_missing(folder / r.path)]
    changed = list_changed_files(folder, artefacts.model_copy(update={"files": documents}))
    return [
        f"{r.path}: {'edited' if r.path in changed else 'deleted'} since it was packed"
        for r in documents
        if r.path in changed or not (folder / r.path).exists()
    ]


def list_foreign_files(folder: Path) -> list[str]:
    """List the files in a folder that are the user's own: those not in artifacts.json, and documents that were edited.

    Without a valid artifacts.json everything counts as the user's: then the names directly in the folder are returned.
    """
    try:
        artefacts = read_artefacts(folder)
        documents = artefacts.model_copy(update={"files": [r for r in artefacts.files if r.kind is Kind.DOCUMENT]})
        return sorted([*_unlisted_files(folder, artefacts), *list_changed_files(folder, documents)])
    except InputError:
        return sorted(p.name for p in folder.iterdir())


def _unlisted_files(folder: Path, artefacts: Artefacts) -> list[str]:
    """List the files of an artefact folder that its artifacts.json does not list."""
    listed = {f.path for f in artefacts.files} | {ARTEFACTS_FILE}
    names = []
    for path in sorted(p for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()):
        relative = path.relative_to(folder)
        if not any(p.as_posix() in listed for p in (relative, *relative.parents)):  # a package is listed as one
            names.append(relative.as_posix())
    return names


# --- choosing a file ------------------------------------------------------------


def requested_scheme(default: ModelRecord) -> Scheme:
    """Return the scheme to write in a recipe to get a folder's default file.

    It is fp32 for a file as its format exports it, the requested scheme for one that the format stores instead of it
    (int8 for a w8 Core ML file), and otherwise the file's own scheme.
    """
    info = FORMATS[default.format]
    if default.scheme is info.base:
        return Scheme.FP32
    return next((asked for asked, made in info.instead.items() if made is default.scheme), default.scheme)


def choose_file(files: Sequence[ModelRecord], wanted: Scheme) -> ModelRecord:
    """Choose the model file that has the scheme a recipe asked for, or the scheme that its format stores instead of it.

    If no file has it, choose the first int8 file; if there is no int8 file either, the last file.

    Args:
        files: Files of one or several formats; at least one.
        wanted: The scheme as a recipe writes it, see `requested_scheme`.
    """

    def fits(record: ModelRecord, scheme: Scheme) -> bool:
        info = FORMATS[record.format]
        return record.scheme is (info.base if scheme is Scheme.FP32 else info.instead.get(scheme, scheme))

    return next((r for scheme in (wanted, Scheme.INT8) for r in files if fits(r, scheme)), files[-1])
