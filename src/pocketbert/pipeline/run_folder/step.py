"""A step of a run: what it is called, what decides its result, what it reads, and the function that makes it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pocketbert.core.data.files import check_source
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.host.versions import installed
from pocketbert.pipeline.run_folder.made_from import MadeFrom, flat


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
