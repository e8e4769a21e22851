"""What an app of one platform carries of an artefact folder: one class for each platform, registered under its name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from pocketbert.core.artefacts import Artefacts, FileRecord, Kind, ModelRecord, changed_files
from pocketbert.core.compare.golden import FILE_NAME as GOLDEN_FILE
from pocketbert.core.compare.golden import LEAST_ROWS, TOKENS_FILE_NAME, read_golden
from pocketbert.core.compare.simulated import FILE_NAME as SIMULATED_FILE
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families.config import FILE_NAME as CONFIG_FILE
from pocketbert.core.models.tokenizer import OTHER_FILES
from pocketbert.core.types import Status


@dataclass(frozen=True)
class Choice:
    """What is packed.

    Attributes:
        models: Model files, those of the folder's default format first.
        others: The other files.
        absent: Files that an app could use and that are not packed, and why.
    """

    models: list[ModelRecord]
    others: list[FileRecord] = field(default_factory=list)
    absent: dict[str, str] = field(default_factory=dict)

    @property
    def files(self) -> list[FileRecord]:
        """All of them."""
        return [*self.models, *self.others]


class AppPlatform(ABC):
    """A platform: which files of an artefact folder its apps need.

    Attributes:
        name: What ``pocketbert pack --for`` takes.
        title: Its name in messages, with the article: ``an iOS app``.
        lacks: What is wrong with a folder that has no model file for it, and how to export one.
        needed: Files that must be there besides the model files.
        useful: Files that are packed where the folder has them.
        folders: Folders whose files are packed where the artefact folder has them.
        takes_forms: Whether it can run files with more inputs than the text gives.
        has_selftest: Whether ``selftest.json`` is written.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    lacks: ClassVar[tuple[str, str]]
    needed: ClassVar[tuple[str, ...]] = (CONFIG_FILE, "tokenizer.json", GOLDEN_FILE, TOKENS_FILE_NAME)
    useful: ClassVar[tuple[str, ...]] = (*OTHER_FILES, SIMULATED_FILE)
    folders: ClassVar[tuple[str, ...]] = ()
    takes_forms: ClassVar[bool] = False
    has_selftest: ClassVar[bool] = True

    @abstractmethod
    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the model files, none where the folder has none for the platform, and tell which are absent."""

    def path(self, artefacts: Artefacts, record: ModelRecord) -> str:
        """Name a model file in the packed folder."""
        return record.path

    def add(self, models: list[Path], destination: Path) -> dict[str, Kind]:
        """Write files that the artefact folder does not have, and tell their kinds by name."""
        return {}

    def choose(self, folder: Path, artefacts: Artefacts) -> Choice:
        """Choose the files of an artefact folder that an app needs.

        Raises:
            InputError: If there is no such model file, a file is missing or changed, the golden rows are too few, or the files
                take more inputs than the app makes.
        """
        if artefacts.form is not None and not self.takes_forms:
            what = f"its files have the form '{artefacts.form}', with inputs that {self.title} does not make."
            raise InputError(Problem(str(folder), what, "Export the model again with --form text."))
        passed = [r for r in artefacts.files if not (isinstance(r, ModelRecord) and r.status is Status.FAILED)]
        choice = self.models(artefacts.model_copy(update={"files": passed}))
        if not choice.models:
            raise InputError(Problem(str(folder), *self.lacks))
        by_path = {r.path: r for r in artefacts.files}
        below = [r for r in artefacts.files if r.path.partition("/")[0] in self.folders]
        named = [by_path[name] for name in (*self.needed, *self.useful) if name in by_path]
        choice = Choice(choice.models, [*named, *below], choice.absent)
        problems = [
            Problem(str(folder / name), what, "Copy the folder again.")
            for name, what in self._damage(folder, artefacts, choice)
        ]
        if problems:
            raise InputError(problems)
        read_golden(folder / GOLDEN_FILE, LEAST_ROWS)
        return choice

    def _damage(self, folder: Path, artefacts: Artefacts, choice: Choice) -> Iterator[tuple[str, str]]:
        listed = {r.path for r in choice.others}
        yield from ((name, "is missing; an app needs it.") for name in self.needed if name not in listed)
        yield from ((r.path, "listed, but not there.") for r in choice.files if not (folder / r.path).exists())
        changed = changed_files(folder, artefacts.model_copy(update={"files": choice.files}))
        yield from ((name, "changed since it was packed: its sha256 is not the listed one.") for name in changed)
