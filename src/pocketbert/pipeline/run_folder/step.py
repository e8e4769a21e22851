"""A step of a run, and the record of a finished one.

`Step` describes a step: its name, output, inputs and the function that makes it. `Step.made_from` returns a `MadeFrom`: the settings,
file digests, hashes of earlier steps and library versions that its result depends on. A `Mark` stores that with the digests of the
output when the step ends; comparing the stored `MadeFrom` with the current one names every setting that has changed since.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import BaseModel, JsonValue

from pocketbert.core.data.files import check_source
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.files import read_json, sha256_json, sha256_path, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.host.system import installed_versions
from pocketbert.core.types import Status

_PLAIN_TEXT = re.compile(r"[\w./:@+-]+")
_LONGEST_SHOWN = 60
"""Characters of a value in a message."""
_ABSENT = "not installed"


class MadeFrom(BaseModel):
    """The settings, file digests, earlier steps and library versions that the result of a step depends on.

    Attributes:
        step: Name of the step.
        settings: Values that decide the result, by recipe key (``distill.0.steps``).
        contents: Digests of files that decide the result and that no step wrote, by recipe key (``data.train``).
        gates: Values that only judge the result, by recipe key.
        needs: Hashes of the steps whose output the step reads, by name.
        versions: Versions of the libraries that decide the result.
        accepted: Later library versions with which the user took the result as it is, in order.
    """

    step: str
    settings: dict[str, JsonValue] = {}
    contents: dict[str, str] = {}
    gates: dict[str, JsonValue] = {}
    needs: dict[str, str] = {}
    versions: dict[str, str] = {}
    accepted: list[dict[str, str]] = []

    @property
    def hash(self) -> str:
        """SHA-256 of what the result depends on, without library versions and settings of checks."""
        return sha256_json(self.model_dump(mode="json", include={"step", "settings", "contents", "needs"}))

    def exact(self, exact_hashes: Mapping[str, str]) -> str:
        """Return the SHA-256 of this record with settings of checks and library versions.

        Args:
            exact_hashes: For each earlier step, by name, the hash that this method returned for it.
        """
        needs = {name: exact_hashes[name] for name in self.needs}
        return sha256_json([self.hash, self.gates, self.versions, needs])

    def changes(self, now: MadeFrom) -> list[str]:
        """Return a phrase for each setting and file that differs from the current state, `now`, and one if other steps are read.

        That an earlier step has another result is not among them.
        """
        keys = self.contents.keys() | now.contents.keys()
        changed = [key for key in sorted(keys) if self.contents.get(key) != now.contents.get(key)]
        texts = [
            *_describe_differences(self.settings, now.settings),
            *(f"the content of {key} changed" for key in changed),
        ]
        added = ", ".join(name for name in now.needs if name not in self.needs)
        dropped = ", ".join(name for name in self.needs if name not in now.needs)
        if added and dropped:
            texts.append(f"{self.step} reads {added} instead of {dropped}")
        elif added:
            texts.append(f"{self.step} reads {added} too")
        elif dropped:
            texts.append(f"{self.step} reads {dropped} no longer")
        return texts

    def gate_changes(self, now: MadeFrom) -> list[str]:
        """Return a phrase for each setting of checks on the result that differs from the current state, `now`."""
        return _describe_differences(self.gates, now.gates)

    def version_changes(self, now: MadeFrom) -> list[str]:
        """Return a phrase for each library that has another version in the current state, `now`.

        There are none if the user has accepted those versions.
        """
        if now.versions == self.versions or now.versions in self.accepted:
            return []
        last = self.accepted[-1] if self.accepted else self.versions
        names = sorted(last.keys() | now.versions.keys())
        return [
            f"{name} was {last.get(name, _ABSENT)}, is {now.versions.get(name, _ABSENT)}"
            for name in names
            if last.get(name) != now.versions.get(name)
        ]

    @property
    def history(self) -> str:
        """Text on the library versions that had changed each time the user kept the result; empty if that never happened."""
        texts, before = list[str](), self.versions
        for later in self.accepted:
            names = sorted(n for n in before.keys() | later.keys() if before.get(n) != later.get(n))
            texts += [f"{n} {before.get(n, _ABSENT)}, taken on with {later.get(n, _ABSENT)}" for n in names]
            before = later
        return "; ".join(texts)

    def accepting(self, now: MadeFrom) -> MadeFrom:
        """Return a copy that records the library versions of the current state, `now`, as accepted for the result.

        If no version has changed, the record itself is returned.
        """
        if not self.version_changes(now):
            return self
        return self.model_copy(update={"accepted": [*self.accepted, now.versions]})


def _describe_differences(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> list[str]:
    """Return a text such as ``KEY was A, is B`` for each key that differs.

    If a whole section is in one of the two only, the section is named and not its keys. A key that only one of the two has
    is left out if it is empty there.
    """
    texts = []
    for key in [*now, *(k for k in before if k not in now)]:
        if key in before and key in now:
            if before[key] != now[key]:
                texts.append(f"{key} was {_shorten_value(before[key])}, is {_shorten_value(now[key])}")
            continue
        having, lacking = (now, before) if key in now else (before, now)
        if having[key] in (None, [], {}):
            continue  # a section that is not set: the keys that it has on the other side are compared instead
        section = _find_topmost_section(key, lacking)
        value = _shorten_value(having[key]) if section == key else "set"
        texts.append(f"{section} was not set, is {value}" if key in now else f"{section} was {value}, is not set")
    return list(dict.fromkeys(texts))


def _find_topmost_section(key: str, settings: Mapping[str, JsonValue]) -> str:
    """Return the shortest section of a dotted key, such as ``distill.0``, that other settings do not have.

    It is the key itself if they have all sections of it.
    """
    parts = key.split(".")
    for count in range(1, len(parts)):
        section = ".".join(parts[:count])
        if not any(k.startswith(f"{section}.") for k in settings):
            return section
    return key


def _shorten_value(value: JsonValue) -> str:
    """Return a setting's value as text for messages, cut to `_LONGEST_SHOWN` characters."""
    if value is None:
        return "not set"
    text = value if isinstance(value, str) and _PLAIN_TEXT.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN - 3]}..."


@dataclass(frozen=True)
class StepPaths:
    """The paths that a step writes to: its output, its work folder and the file of losses.

    Attributes:
        output: Path at which the output is built: a folder exists already, a file does not. It is renamed when the step
            has ended.
        work: A folder that survives a kill, for checkpoints and caches.
        metrics: A .jsonl file for losses that all steps of a run share.
    """

    output: Path
    work: Path
    metrics: Path


@dataclass(frozen=True)
class Step:
    """One step of a run, such as ``teacher`` or ``verify``: its inputs, its output and the function that makes it.

    Attributes:
        name: Short name, such as ``student``.
        title: Text that is printed while the step runs.
        output: Folder or file that the step writes, relative to the run folder.
        settings: Recipe sections and other values that decide the result, by recipe key.
        needs: Names of the steps whose output the step reads.
        make: Function that writes the output and returns a line for each gate that failed.
        libraries: Distributions whose versions decide the result.
        trains: Whether all processes of a launch make the step together; process 0 alone makes the other steps.
        contents: Digests of the files that the step reads and no step wrote, by recipe key.
        gates: Recipe sections that only judge the result. If they change, the step is made again without permission.
    """

    name: str
    title: str
    output: str
    settings: Mapping[str, object]
    needs: tuple[str, ...]
    make: Callable[[StepPaths], Sequence[str]]
    libraries: tuple[str, ...] = ()
    trains: bool = False
    contents: Mapping[str, str | None] = field(default_factory=dict)
    gates: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder."""
        return "." not in self.output

    def made_from(self, hashes: Mapping[str, str]) -> MadeFrom:
        """Return the current settings, digests and versions that decide the step's result.

        Args:
            hashes: Hashes of the earlier steps, by name.
        """
        return MadeFrom(
            step=self.name,
            settings=_flatten(self.settings),
            contents={key: digest for key, digest in self.contents.items() if digest is not None},
            gates=_flatten(self.gates),
            needs={name: hashes[name] for name in self.needs},
            versions=installed_versions(("pocketbert", *self.libraries)),
        )


def _flatten(sections: Mapping[str, object], prefix: str = "") -> dict[str, JsonValue]:
    """Flatten nested recipe sections to values by dotted key. A section in a list has its index in the key."""
    values: dict[str, JsonValue] = {}
    for name, value in sections.items():
        key = f"{prefix}{name}"
        if isinstance(value, list) and any(isinstance(v, dict) for v in value):
            value = {str(number): entry for number, entry in enumerate(value)}
        if isinstance(value, Mapping):
            values |= _flatten(value, f"{key}.") if value else {key: {}}
        else:
            values[key] = json.loads(json.dumps(value))
    return values


def data_digest(source: DataSource | None) -> str | None:
    """Return the SHA-256 of a local data file, or of a folder of classes.

    It is None if there is no such file, and for data sets on the Hub.

    Raises:
        InputError: If it is no regular file or of an unknown kind. It is not read then, since it may have no end.
    """
    if source is None or source.path is None or not os.path.exists(source.path):  # noqa: PTH110  any name is allowed here
        return None
    check_source(source)
    return sha256_path(Path(source.path))


class Mark(BaseModel):
    """The record of an ended step: what it was made from, its status, output digests, failures and duration.

    Attributes:
        name: Name of the step.
        made_from: Settings, inputs and versions that the result was made from.
        status: Passed or failed.
        files: sha256 of each file of the output, by its path in the output; see
            `pocketbert.core.disk.files.file_digests`.
        failures: A line for each gate that failed.
        wall_s: Seconds that the step took, in the process that finished it.
        cpu_s: CPU seconds of that process and its children.
    """

    name: str
    made_from: MadeFrom
    status: Status
    files: dict[str, str] = {}
    failures: list[str] = []
    wall_s: float = 0.0
    cpu_s: float = 0.0


class Marks:
    """The records of ended steps in a run folder, one JSON file per step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> Mark | None:
        """Read the record of a step by name; None if the step has not ended."""
        path = self.folder / f"{name}.json"
        return Mark.model_validate(read_json(path)) if path.is_file() else None

    def write(self, mark: Mark) -> None:
        """Write the record of an ended step."""
        write_json(self.folder / f"{mark.name}.json", mark.model_dump(mode="json"))

    def remove(self, name: str) -> None:
        """Remove the record of a step."""
        remove(self.folder / f"{name}.json")

    def all(self) -> list[Mark]:
        """Return the records of all ended steps, in the order in which they were last written."""
        paths = sorted(self.folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        return [Mark.model_validate(read_json(p)) for p in paths]
