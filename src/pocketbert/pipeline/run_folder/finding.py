"""What a run folder has of a step, compared with what the step is made from now."""

from __future__ import annotations

import os
from pathlib import Path

from pocketbert.core.disk.files import digests
from pocketbert.core.errors import Problem
from pocketbert.core.types import Status
from pocketbert.pipeline.run_folder.mark import Mark
from pocketbert.pipeline.run_folder.plan import Finding
from pocketbert.pipeline.run_folder.step import Step
from pocketbert.pipeline.run_folder.work import Work, holds_work, progress_in, recorded


def found_of(step: Step, output: Path, mark: Mark | None, work: Work) -> Finding | None:
    """What is there of a step; None where there is nothing.

    Args:
        step: The step, as the recipe has it now.
        output: Its file or folder.
        mark: What is remembered of it.
        work: Its unfinished work.
    """
    if mark is None:
        if os.path.lexists(output):
            what = "exists and was not made by this run; nothing was written."
            fix = "Move it away, or choose another -o/--output."
            return Finding(step, foreign=(Problem(str(output), what, fix),))
        return _found_work(step, work)
    have = digests(output)
    if strangers := sorted(set(have) - set(mark.files)):
        what = f"was not written by this run; {output} is not touched."
        return Finding(step, foreign=(Problem(str(output / strangers[0]), what, "Move it away."),))
    if mark.status is Status.PASSED and not have:
        return _found_work(step, work)
    made_from, now = mark.made_from, work.now
    return Finding(
        step,
        failed=mark.status is Status.FAILED,
        changes=tuple(made_from.changes(now)),
        gates=tuple(made_from.gate_changes(now)),
        versions=tuple(made_from.version_changes(now)),
        differs=made_from.hash != now.hash,
        damage=_damage(output, have, mark, work),
    )


def _damage(output: Path, have: dict[str, str], mark: Mark, work: Work) -> tuple[Problem, ...]:
    """Files that are not as they were written; not those of an output whose successor waits for its rename."""
    changed = sorted(n for n in mark.files if have.get(n) != mark.files[n])
    if not have or not changed or digests(work.built) == mark.files:
        return ()
    what = f"{changed[0] or 'the file'} was changed or removed after it was made."
    return (Problem(str(output), what, "Use another -o/--output, or --overwrite to make it again."),)


def _found_work(step: Step, work: Work) -> Finding | None:
    others = work.others()
    if others:
        made_from = recorded(others[0])
        changes = (
            tuple(made_from.changes(work.now))
            if made_from is not None
            else (f"{others[0].name} does not tell what it is made from",)
        )
        return Finding(step, work="; ".join(map(progress_in, others)), changes=changes, differs=True)
    made_from = recorded(work.path)
    if made_from is None or not holds_work(work.path):
        return None
    return Finding(step, work=progress_in(work.path), versions=tuple(made_from.version_changes(work.now)))
