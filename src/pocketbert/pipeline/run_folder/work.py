"""Where a step works before it has a result: checkpoints that survive a kill, and what is being built."""

from __future__ import annotations

import re
from pathlib import Path

from pocketbert.core.disk.files import read_json, write_json
from pocketbert.core.disk.ownership import remove
from pocketbert.distill.training.checkpoint_folder import steps_done
from pocketbert.pipeline.run_folder.made_from import MadeFrom
from pocketbert.pipeline.run_folder.step import Step

RECORD = "made-from.json"
"""What unfinished work is made from, in its folder."""
NEW = ".new"
"""Ending of the folder in which the output of a step is built."""
_OWN = re.compile(r"-[0-9a-f]{12}")


class Work:
    """The unfinished work of a step.

    Args:
        root: Folder of the unfinished work of all steps.
        step: The step.
        now: What it is made from.
    """

    def __init__(self, root: Path, step: Step, now: MadeFrom) -> None:
        self.root, self.step, self.now = root, step, now
        self.path = root / f"{step.name}-{now.hash[:12]}"
        """Where checkpoints and caches go."""
        self.built = root / f"{step.name}{NEW}" / step.output
        """Where the output is built: a rename away from its final name."""
        self.aside = root / f"{step.name}{NEW}" / "old"
        """Where an older output is moved in that moment."""

    def others(self) -> list[Path]:
        """Work folders of the step that were made from something else, and hold anything."""
        return [p for p in self._folders() if p != self.path and holds_work(p)]

    def unwanted(self) -> list[Path]:
        """Work folders of the step that hold anything."""
        return [p for p in self._folders() if holds_work(p)]

    def begin(self) -> MadeFrom:
        """Make room for the output, and take up the work that is there.

        Returns:
            What the result is made from: with the versions that the work was begun with.
        """
        for stale in self._folders():
            if stale != self.path:
                remove(stale)
        self.path.mkdir(parents=True, exist_ok=True)
        made_from = recorded(self.path)
        if made_from is None or not holds_work(self.path):
            made_from = self.now
        made_from = made_from.model_copy(update={"gates": self.now.gates})
        write_json(self.path / RECORD, made_from.model_dump(mode="json"))
        remove(self._new)
        (self.built if self.step.is_folder else self.built.parent).mkdir(parents=True)
        return made_from

    def accept(self) -> None:
        """Remember that unfinished work goes on with the library versions of now."""
        made_from = recorded(self.path)
        if made_from is not None:
            write_json(self.path / RECORD, made_from.accepting(self.now).model_dump(mode="json"))

    def clear(self) -> None:
        """Remove the work of a step that has ended."""
        remove(self.path)
        remove(self._new)

    def remove_all(self) -> None:
        """Remove all work of the step, whatever it was made from."""
        for path in self._folders():
            remove(path)
        remove(self._new)

    @property
    def steps_done(self) -> bool:
        """Whether there is a checkpoint of a training."""
        return bool(steps_done(self.path))

    @property
    def _new(self) -> Path:
        return self.root / f"{self.step.name}{NEW}"

    def _folders(self) -> list[Path]:
        name = self.step.name
        return [p for p in sorted(self.root.glob(f"{name}-*")) if _OWN.fullmatch(p.name.removeprefix(name))]


def recorded(work: Path) -> MadeFrom | None:
    """What unfinished work is made from; None where that was not written."""
    path = work / RECORD
    return MadeFrom.model_validate(read_json(path)) if path.is_file() else None


def holds_work(work: Path) -> bool:
    """Whether a work folder holds anything that would be lost with it."""
    return any(p.is_file() and p != work / RECORD for p in work.rglob("*"))


def progress_in(work: Path) -> str:
    """How far unfinished work is, and where it lies."""
    done = [f"{name} at step {count:,}" if name else f"step {count:,}" for name, count in steps_done(work)]
    return f"{work}{', ' if done else ''}{', '.join(done)}"
