"""What prediction needs of an artefact folder: its settings and its model files, as plain values without pydantic's records.

`FolderListing.of` takes them from validated records; `to_dict` and `from_dict` keep them on disk, where a process that loads the same folder
again finds them. `find_artefact_folder` and `find_unsafe_entry` look at the folder itself.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from pocketbert.core.data.labels import Labels
from pocketbert.core.heads import Head, make_head
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.tasks import ScoreFunction, Task, TaskName, several_task, task_of
from pocketbert.core.types import Format, Runtime, Scheme, Status

if TYPE_CHECKING:
    from pocketbert.core.artefacts.records import Artefacts, ModelRecord
    from pocketbert.core.heads.settings import AnswerSettings

ARTEFACTS_FILE = "artifacts.json"
_PACKED_FOLDER = "phone"
"""Name of the artefact folder in a run folder."""
_SETTINGS = ("thresholds", "stride", "answer_length", "null_answers", "similarity", "dimensions")
"""Answer settings that a head reads."""


@dataclass(frozen=True)
class ListedFile:
    """A file of an artefact folder that prediction reads.

    Attributes:
        path: Path relative to the folder.
        sha256: The digest that artifacts.json lists.
        bytes: The size that artifacts.json lists.
    """

    path: str
    sha256: str
    bytes: int


@dataclass(frozen=True)
class ListedModel(ListedFile):
    """A model file of an artefact folder, as `ModelRecord` describes it.

    Attributes:
        format: Format of the file.
        scheme: How the file stores the model's numbers.
        default: Whether the file is the folder's default file.
        plain: Whether any client app and runtime of its format may open it.
        for_toolkit: Whether PocketBERT itself can run it.
        runtime: The runtime that the file is made for; None for any.
        failed: Whether the file failed the gates (checks of its outputs and scores).
        temperature: Number that the model's logits are divided by.
        unknown_below: Probability below which an answer counts as unknown; None if no answer does.
    """

    format: Format
    scheme: Scheme
    default: bool
    plain: bool
    for_toolkit: bool
    runtime: Runtime | None
    failed: bool
    temperature: float
    unknown_below: float | None

    @staticmethod
    def of(record: ModelRecord, artefacts: Artefacts) -> ListedModel:
        """Build a `ListedModel` from the fields of a model file's record that prediction needs."""
        return ListedModel(
            record.path,
            record.sha256,
            record.bytes,
            record.format,
            record.scheme,
            record is artefacts.default_model(),
            record.plain,
            record.for_toolkit,
            record.runtime,
            record.status is Status.FAILED,
            record.temperature,
            artefacts.unknown_below(record),
        )


@dataclass(frozen=True)
class FolderListing:
    """The settings and files of an artefact folder that prediction needs.

    Attributes:
        name: Name of the run or model.
        task: Hub task name.
        score: Function from logits to scores.
        labels: Label names in order of their ids.
        max_length: Longest input in tokens.
        prompts: Texts to put in front of a text, by name.
        settings: The answer settings that a head reads, by name.
        heads: The task of each of several heads by its name; None for one head.
        models: The model files, without aliases.
        described: tokenizer.json and config.json, as far as they are listed.
    """

    name: str
    task: TaskName
    score: ScoreFunction
    labels: tuple[str, ...]
    max_length: int
    prompts: Mapping[str, str]
    settings: Mapping[str, Any]
    heads: Mapping[str, str] | None
    models: tuple[ListedModel, ...]
    described: tuple[ListedFile, ...]

    @staticmethod
    def of(artefacts: Artefacts) -> FolderListing:
        """Build a `FolderListing` from the fields of artifacts.json that prediction needs."""
        artefacts.default_model()  # refuses a list without model files
        settings = artefacts.processing.settings()
        described = [f for f in artefacts.files if f.path in ("tokenizer.json", "config.json")]
        return FolderListing(
            artefacts.name,
            artefacts.task,
            artefacts.processing.score,
            tuple(artefacts.labels),
            artefacts.processing.max_length,
            artefacts.processing.prompts,
            {name: getattr(settings, name) for name in _SETTINGS},
            None if artefacts.heads is None else {name: task.value for name, task in artefacts.heads.items()},
            tuple(ListedModel.of(record, artefacts) for record in artefacts.models()),
            tuple(ListedFile(f.path, f.sha256, f.bytes) for f in described),
        )

    @property
    def default(self) -> ListedModel:
        """The model file that `pocketbert.load` opens."""
        return next(model for model in self.models if model.default)

    @property
    def task_row(self) -> Task:
        """The task of the folder's model; with several heads their joint task."""
        return task_of(self.task) if self.heads is None else several_task(self.heads, self.labels)

    def head(self) -> Head:
        """Build the task's head with the folder's labels and settings."""
        similarity = self.settings["similarity"]
        values = {**self.settings, "similarity": None if similarity is None else Similarity(similarity)}
        settings = cast("AnswerSettings", SimpleNamespace(**values))
        return make_head(replace(self.task_row, score=self.score), Labels(self.labels), settings)

    def to_dict(self) -> dict[str, Any]:
        """Return the listing as JSON values."""
        return asdict(self)

    @staticmethod
    def from_dict(content: Mapping[str, Any]) -> FolderListing:
        """Build a listing from what `to_dict` returned.

        Raises:
            ValueError, KeyError, TypeError: If `content` was not returned by `to_dict`.
        """
        models = [
            ListedModel(
                **{
                    **model,
                    "format": Format(model["format"]),
                    "scheme": Scheme(model["scheme"]),
                    "runtime": None if model["runtime"] is None else Runtime(model["runtime"]),
                }
            )
            for model in content["models"]
        ]
        values = {
            **content,
            "task": TaskName(content["task"]),
            "score": ScoreFunction(content["score"]),
            "labels": tuple(content["labels"]),
            "models": tuple(models),
            "described": tuple(ListedFile(**file) for file in content["described"]),
        }
        return FolderListing(**values)


# --- the folder -------------------------------------------------------------------------------------------------------


def find_artefact_folder(folder: Path) -> Path:
    """Return the artefact folder inside a run folder; any other folder is returned as it is."""
    packed = folder / _PACKED_FOLDER
    is_run = not (folder / ARTEFACTS_FILE).is_file() and (packed / ARTEFACTS_FILE).is_file()
    return packed if is_run else folder


def find_unsafe_entry(folder: Path, relative: str) -> str | None:
    """Return why a path that a folder lists must not be opened; None if it is safe.

    A path is unsafe if it is, or contains, a pipe or another special file, a link to nothing, or a link out of the
    folder. Links to regular files inside the folder are allowed.

    Returns:
        A few words that continue the path, such as ``is or contains a link that leaves the folder``; None if it is
        safe.
    """
    path, root = folder / relative, folder.resolve()
    below = sorted(path.rglob("*")) if path.is_dir() else []
    for entry in (path, *below):
        if not entry.exists():
            return "is or contains a link to nothing"
        if not (entry.is_file() or entry.is_dir()):
            return f"is or contains {name_special_kind(entry)}, which is never opened"
        if entry.is_symlink() and not entry.resolve().is_relative_to(root):
            return "is or contains a link that leaves the folder"
    return None


def name_special_kind(path: Path) -> str:
    """Name the kind of a path that is neither file nor folder: "a FIFO", "a socket", "a device", a link to nothing, or other."""
    try:
        mode = path.stat().st_mode
    except (OSError, RuntimeError):
        return "a link in a circle, or to nothing"
    kinds = {stat.S_ISFIFO: "a FIFO", stat.S_ISSOCK: "a socket", stat.S_ISCHR: "a device", stat.S_ISBLK: "a device"}
    return next((name for is_kind, name in kinds.items() if is_kind(mode)), "no regular file")
