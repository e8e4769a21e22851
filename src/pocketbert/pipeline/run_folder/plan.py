"""What a run finds of its steps, and what it does about it: kept, made again, or refused with one message."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pocketbert.core.errors import InputError, Problem
from pocketbert.pipeline.run_folder.step import Step


@dataclass(frozen=True)
class Finding:
    """What the folder has of a step that has a result or unfinished work.

    Attributes:
        step: The step.
        work: Where its unfinished work lies and how far it is; empty where there is none.
        failed: Whether its gates failed.
        changes: Settings and contents of its own that are others now.
        gates: Values that only judge it and are others now.
        versions: Libraries whose versions are others now.
        differs: Whether its hash is another one now.
        damage: Files that changed after it was made.
        foreign: What lies in its place and this run did not make.
    """

    step: Step
    work: str = ""
    failed: bool = False
    changes: tuple[str, ...] = ()
    gates: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    differs: bool = False
    damage: tuple[Problem, ...] = ()
    foreign: tuple[Problem, ...] = ()


@dataclass(frozen=True)
class Plan:
    """What a run does about what it finds.

    Attributes:
        anew: Why steps are made again, by name; what they have is dropped first.
        retried: Steps whose gates failed, with why they are made again; their files stay until then.
        accepted: Steps that are taken as they are although library versions changed.
    """

    anew: dict[str, str] = field(default_factory=dict)
    retried: dict[str, str] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Permission:
    """What the user allowed.

    Attributes:
        overwrite: Results and unfinished work of another recipe or other versions may be replaced.
        resume_anyway: What other library versions made may be taken as it is.
    """

    overwrite: bool = False
    resume_anyway: bool = False


def plan_of(found: Sequence[Finding], allowed: Permission, where: str) -> Plan:
    """Decide what to do about each step.

    Args:
        found: What the folder has, in the order of the steps.
        allowed: What the user allowed.
        where: The run folder, for messages.

    Raises:
        InputError: Listing everything that is refused; nothing was changed.
    """
    reasons = {f.step.name: _Reasons() for f in found}
    changed, aged = list[Finding](), list[Finding]()
    problems, plan = list[Problem](), Plan()
    accepted = list[str]()
    for one in found:
        name, why = one.step.name, reasons[one.step.name]
        for before in (reasons[n] for n in one.step.needs if n in reasons):
            why.inherit(before)
        problems += one.foreign
        if one.differs:
            why.changes |= dict.fromkeys(one.changes)
            if not why.changes:
                why.changes[f"what {name} was made from was made again"] = None
        if why.changes and not one.failed:
            changed.append(one)
        elif one.damage:
            problems += [] if allowed.overwrite else one.damage
            if allowed.overwrite:
                plan.anew[name] = "changed after it was made"
                continue
        elif one.versions and not one.failed:
            aged.append(one)
            if allowed.resume_anyway:
                accepted.append(name)
            else:
                why.versions |= dict.fromkeys(one.versions)
        why.free |= dict.fromkeys(one.gates)
        if one.failed:
            why.free[f"{name} failed before"] = None
            plan.retried[name] = why.text
        elif why.text:
            plan.anew[name] = why.text
    if changed and not allowed.overwrite:
        problems.append(_changed_recipe(changed, reasons, where))
    if aged and not allowed.overwrite and not allowed.resume_anyway:
        problems.append(_changed_versions(aged, where))
    if problems:
        raise InputError(problems)
    return Plan(plan.anew, plan.retried, tuple(n for n in accepted if n not in plan.anew))


@dataclass
class _Reasons:
    """Why a step is made again: ordered sets of texts, by what they need.

    Attributes:
        changes: Of the recipe and the data; need permission.
        versions: Of libraries; need permission.
        free: Gates that changed or failed; need none.
    """

    changes: dict[str, None] = field(default_factory=dict)
    versions: dict[str, None] = field(default_factory=dict)
    free: dict[str, None] = field(default_factory=dict)

    def inherit(self, other: _Reasons) -> None:
        """Add the reasons of a step that is read."""
        self.changes |= other.changes
        self.versions |= other.versions
        self.free |= other.free

    @property
    def text(self) -> str:
        """All of them."""
        return "; ".join([*self.changes, *self.versions, *self.free])


def _changed_recipe(changed: Sequence[Finding], reasons: dict[str, _Reasons], where: str) -> Problem:
    """One message for all changes: every key, and how much of the run would be made anew."""
    texts = dict.fromkeys(text for one in changed for text in reasons[one.step.name].changes)
    works = [f"unfinished work of {one.step.name}: {one.work}" for one in changed if one.work]
    return Problem(
        where,
        f"{'; '.join(texts)}: {_steps_behind(changed)} would be made anew"
        + (f" ({'; '.join(works)})." if works else ". Nothing was changed."),
        "Put the values back to go on, use another -o/--output, or --overwrite to make them anew.",
    )


def _changed_versions(aged: Sequence[Finding], where: str) -> Problem:
    texts = dict.fromkeys(text for one in aged for text in one.versions)
    names = [one.step.name for one in aged]
    works = [f"unfinished work of {one.step.name}: {one.work}" for one in aged if one.work]
    return Problem(
        where,
        f"{'; '.join(texts)}: {_listed(names)} {'was' if len(names) == 1 else 'were'} made with the former versions"
        + (f" ({'; '.join(works)})." if works else "."),
        "--resume-anyway to take them as they are, which is recorded, or --overwrite to start over.",
    )


def _steps_behind(changed: Sequence[Finding]) -> str:
    """``student and the 10 steps behind it``."""
    names = {one.step.name for one in changed}
    behind = set[str]()
    for one in changed:  # in the order of the run
        if any(n in names for n in one.step.needs):
            behind.add(one.step.name)
    first = [one.step.name for one in changed if one.step.name not in behind]
    if not behind:
        return _listed(first)
    count = "the step" if len(behind) == 1 else f"the {len(behind)} steps"
    return f"{', '.join(first)} and {count} behind {'it' if len(first) == 1 else 'them'}"


def _listed(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
