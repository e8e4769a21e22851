"""A step of a run: what it is called, what decides its result, what it reads, and the function that makes it."""

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
from pocketbert.core.disk.files import read_json, sha256_file, sha256_json, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.core.host.system import installed
from pocketbert.core.types import Status

# --- made_from ---
# What the result of a step was made from, key by key, so that a change can be named.


_PLAIN = re.compile(r"[\w./:@+-]+")
_LONGEST = 60
_ABSENT = "not installed"


class MadeFrom(BaseModel):
    """What the result of a step is made from.

    Attributes:
        step: Name of the step.
        settings: Values that decide the result, by recipe key (``distill.0.steps``).
        contents: Digests of files that decide it and no step wrote, by recipe key (``data.train``).
        gates: Values that only judge it, by recipe key.
        needs: Hashes of the steps it reads.
        versions: Libraries that decide it.
        accepted: Later versions of these with which it was taken as it is, in order.
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
        """Identity of the result: without library versions, and without what only judges it."""
        return sha256_json(self.model_dump(mode="json", include={"step", "settings", "contents", "needs"}))

    def exact(self, inputs: Mapping[str, str]) -> str:
        """Identity with gates and library versions.

        Args:
            inputs: The same of the steps it reads, among others.
        """
        needs = {name: inputs[name] for name in self.needs}
        return sha256_json([self.hash, self.gates, self.versions, needs])

    def changes(self, now: MadeFrom) -> list[str]:
        """Name each setting, content and step read that differs from what the result would be made from now."""
        contents = self.contents.keys() | now.contents.keys()
        differ = [key for key in sorted(contents) if self.contents.get(key) != now.contents.get(key)]
        return [
            *_differences(self.settings, now.settings),
            *(f"the content of {key} changed" for key in differ),
            *self._reading(now),
        ]

    def _reading(self, now: MadeFrom) -> list[str]:
        """Which other steps are read now."""
        new = ", ".join(name for name in now.needs if name not in self.needs)
        gone = ", ".join(name for name in self.needs if name not in now.needs)
        if new and gone:
            return [f"{self.step} reads {new} instead of {gone}"]
        return ([f"{self.step} reads {new} too"] if new else []) + (
            [f"{self.step} reads {gone} no longer"] if gone else []
        )

    def gate_changes(self, now: MadeFrom) -> list[str]:
        """Name each value that only judges the result and differs now."""
        return _differences(self.gates, now.gates)

    def version_changes(self, now: MadeFrom) -> list[str]:
        """Name each library whose version differs now; none where these versions were accepted before."""
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
        """Which libraries were others when it was begun and each time it was taken as it is."""
        out, before = list[str](), self.versions
        for later in self.accepted:
            names = sorted(n for n in before.keys() | later.keys() if before.get(n) != later.get(n))
            out += [f"{n} {before.get(n, _ABSENT)}, taken on with {later.get(n, _ABSENT)}" for n in names]
            before = later
        return "; ".join(out)

    def accepting(self, now: MadeFrom) -> MadeFrom:
        """The same, with the versions of now among those that it was taken with."""
        if not self.version_changes(now):
            return self
        return self.model_copy(update={"accepted": [*self.accepted, now.versions]})


def flat(sections: Mapping[str, object], prefix: str = "") -> dict[str, JsonValue]:
    """Values of nested sections by dotted key; of a list of sections each has its number in the key."""
    out: dict[str, JsonValue] = {}
    for name, value in sections.items():
        key = f"{prefix}{name}"
        if isinstance(value, list) and any(isinstance(v, dict) for v in value):
            value = {str(number): entry for number, entry in enumerate(value)}
        if isinstance(value, Mapping):
            out |= flat(value, f"{key}.") if value else {key: {}}
        else:
            out[key] = json.loads(json.dumps(value))
    return out


def _differences(before: Mapping[str, JsonValue], now: Mapping[str, JsonValue]) -> list[str]:
    """``KEY was A, is B`` for each key that differs; a section that is new or gone is one of these."""
    out = []
    for key in [*now, *(k for k in before if k not in now)]:
        if key in before and key in now:
            if before[key] != now[key]:
                out.append(f"{key} was {_shown(before[key])}, is {_shown(now[key])}")
            continue
        there, elsewhere = (now, before) if key in now else (before, now)
        if there[key] in (None, [], {}):
            continue  # a section that is not set: what it is elsewhere is told by its keys there
        section = _topmost(key, elsewhere)
        value = _shown(there[key]) if section == key else "set"
        out.append(f"{section} was not set, is {value}" if key in now else f"{section} was {value}, is not set")
    return list(dict.fromkeys(out))


def _topmost(key: str, elsewhere: Mapping[str, JsonValue]) -> str:
    """The largest section around a key that has no key in other settings; a section that is null there is not set."""
    parts = key.split(".")
    for count in range(1, len(parts)):
        section = ".".join(parts[:count])
        if not any(k.startswith(f"{section}.") for k in elsewhere):
            return section
    return key


def _shown(value: JsonValue) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) and _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


@dataclass(frozen=True)
class Places:
    """Where a step writes.

    Attributes:
        output: Where its output is built: a folder is there already, a file is not. Renamed when the step has ended.
        work: A folder that survives a kill, for checkpoints and caches.
        metrics: A .jsonl file that all steps of a run share, for losses.
    """

    output: Path
    work: Path
    metrics: Path


@dataclass(frozen=True)
class Step:
    """One step of a run.

    Attributes:
        name: Short name, e.g. ``student``.
        title: What is said while it runs.
        output: Folder or file it writes, relative to the run folder.
        settings: Recipe sections and other values that decide its result, by recipe key.
        needs: Names of steps it reads.
        make: Writes the output; returns gate failures.
        libraries: Distributions whose versions decide its result.
        trains: Whether all processes of a launch make it together; process 0 makes the other steps.
        contents: Digests of what it reads and no step wrote, by recipe key.
        gates: Recipe sections that only judge the result: with others the step is made again without being asked.
    """

    name: str
    title: str
    output: str
    settings: Mapping[str, object]
    needs: tuple[str, ...]
    make: Callable[[Places], Sequence[str]]
    libraries: tuple[str, ...] = ()
    trains: bool = False
    contents: Mapping[str, str | None] = field(default_factory=dict)
    gates: Mapping[str, object] = field(default_factory=dict)

    @property
    def is_folder(self) -> bool:
        """Whether the output is a folder."""
        return "." not in self.output

    def made_from(self, inputs: Mapping[str, str]) -> MadeFrom:
        """What it would be made from now.

        Args:
            inputs: Hashes of the steps it reads, among others.
        """
        return MadeFrom(
            step=self.name,
            settings=flat(self.settings),
            contents={key: digest for key, digest in self.contents.items() if digest is not None},
            gates=flat(self.gates),
            needs={name: inputs[name] for name in self.needs},
            versions=installed(("pocketbert", *self.libraries)),
        )


def data_digest(source: DataSource | None) -> str | None:
    """Digest of a local data file; None for a file that is gone, and for Hub data, which its settings identify.

    Raises:
        InputError: If it is no regular file or of an unknown kind: it is not read then, since it may have no end.
    """
    if source is None or source.path is None or not os.path.exists(source.path):  # noqa: PTH110  any name is allowed here
        return None
    check_source(source)
    return sha256_file(Path(source.path))


# --- mark ---
# What a run folder remembers of a step that has ended.


class Mark(BaseModel):
    """What is remembered of a step that has ended.

    Attributes:
        name: Name of the step.
        made_from: What its result was made from.
        status: Passed or failed.
        files: sha256 of each file of its output by its path in it; see `pocketbert.core.disk.files.digests`.
        failures: Gates that failed.
        wall_s: Seconds it took, in the process that finished it.
        cpu_s: CPU seconds of that process and its children.
    """

    name: str
    made_from: MadeFrom
    status: Status
    files: dict[str, str] = {}
    failures: list[str] = []
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def hash(self) -> str:
        """Identity of the result."""
        return self.made_from.hash


class Marks:
    """The marks of a run folder, one file per step.

    Args:
        folder: Where they lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self, name: str) -> Mark | None:
        """What is remembered of a step."""
        path = self.folder / f"{name}.json"
        return Mark.model_validate(read_json(path)) if path.is_file() else None

    def write(self, mark: Mark) -> None:
        """Remember a step."""
        write_json(self.folder / f"{mark.name}.json", mark.model_dump(mode="json"))

    def remove(self, name: str) -> None:
        """Forget a step."""
        remove(self.folder / f"{name}.json")

    def all(self) -> list[Mark]:
        """All marks, in order of their steps' completion."""
        paths = sorted(self.folder.glob("*.json"), key=lambda p: p.stat().st_mtime)
        return [Mark.model_validate(read_json(p)) for p in paths]
