"""Decide what a run does about the results that its folder holds: keep them, make them again, or refuse.

`make_plan` takes a `Finding` for each step that has a result or unfinished work and returns a `Plan`. All refusals are collected in
one error before anything is changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pocketbert.core.errors import InputError, Problem
from pocketbert.pipeline.run_folder.step import Step


@dataclass(frozen=True)
class Finding:
    """The comparison of a step's result or unfinished work in the run folder with the step's current settings.

    Attributes:
        step: The step.
        work: Path and progress of the unfinished work; empty if there is none.
        failed: Whether gates of the result failed.
        changes: The step's settings and file contents that have changed, a phrase each.
        gates: Settings of checks on the result that have changed, a phrase each.
        versions: Libraries whose versions have changed.
        differs: Whether the step's hash has changed.
        damage: Output files that were changed after the step ended.
        foreign: Files in the place of the step's output that this run did not make.
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
    """Which steps a run makes again, and which results it keeps although library versions have changed.

    Attributes:
        anew: Reasons to make steps again, by name of the step. Output and unfinished work are removed before.
        retried: Reasons to make steps again whose gates failed, by name of the step. Their files stay until then.
        accepted: Names of steps that are taken as they are although library versions have changed.
    """

    anew: dict[str, str] = field(default_factory=dict)
    retried: dict[str, str] = field(default_factory=dict)
    accepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Permission:
    """Whether the user allows old results to be replaced, or to be kept despite other library versions.

    Attributes:
        overwrite: Results and unfinished work of another recipe or other library versions may be replaced.
        resume_anyway: Results made with other library versions may be taken as they are.
    """

    overwrite: bool = False
    resume_anyway: bool = False


@dataclass
class _Reasons:
    """Reasons to make a step again. The keys of each dictionary are an ordered set of phrases.

    Attributes:
        changes: Changes of the recipe and the data, which need the user's permission.
        versions: Changes of library versions, which need the user's permission.
        free: Gates that changed or failed, for which no permission is needed.
    """

    changes: dict[str, None] = field(default_factory=dict)
    versions: dict[str, None] = field(default_factory=dict)
    free: dict[str, None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """All reasons in one line."""
        return "; ".join([*self.changes, *self.versions, *self.free])


def make_plan(findings: Sequence[Finding], allowed: Permission, folder: str) -> Plan:
    """Decide which steps of a run are run again and which results are kept.

    A step is run again if its settings, checks or library versions have changed, its output was changed or failed a gate,
    or it reads the output of such a step. Results of other library versions are kept if the user allows that.

    Args:
        findings: State of each step that has a result or unfinished work, in the order of the run.
        allowed: What the user has allowed, such as replacing results.
        folder: The run folder, for messages.

    Raises:
        InputError: Listing everything that the user has not allowed. Nothing was changed then.
    """
    reasons = {finding.step.name: _Reasons() for finding in findings}
    changed, aged = list[Finding](), list[Finding]()
    problems, accepted = list[Problem](), list[str]()
    plan = Plan()
    for finding in findings:
        name, own = finding.step.name, reasons[finding.step.name]
        for read in (reasons[n] for n in finding.step.needs if n in reasons):
            own.changes |= read.changes
            own.versions |= read.versions
            own.free |= read.free
        problems += finding.foreign
        if finding.differs:
            own.changes |= dict.fromkeys(finding.changes)
            if not own.changes:
                own.changes[f"what {name} was made from was made again"] = None
        if own.changes and not finding.failed:
            changed.append(finding)
        elif finding.damage:
            problems += [] if allowed.overwrite else finding.damage
            if allowed.overwrite:
                plan.anew[name] = "changed after it was made"
                continue
        elif finding.versions and not finding.failed:
            aged.append(finding)
            if allowed.resume_anyway:
                accepted.append(name)
            else:
                own.versions |= dict.fromkeys(finding.versions)
        own.free |= dict.fromkeys(finding.gates)
        if finding.failed:
            own.free[f"{name} failed before"] = None
            plan.retried[name] = own.text
        elif own.text:
            plan.anew[name] = own.text
    if changed and not allowed.overwrite:
        problems.append(_describe_changed_recipe(changed, reasons, folder))
    if aged and not allowed.overwrite and not allowed.resume_anyway:
        problems.append(_describe_changed_versions(aged, folder))
    if problems:
        raise InputError(problems)
    return Plan(plan.anew, plan.retried, tuple(n for n in accepted if n not in plan.anew))


def _describe_changed_recipe(changed: Sequence[Finding], reasons: dict[str, _Reasons], folder: str) -> Problem:
    """Return the problem of a changed recipe, which names every changed key and how many steps would be run again."""
    texts = dict.fromkeys(text for finding in changed for text in reasons[finding.step.name].changes)
    works = _describe_unfinished_work(changed)
    return Problem(
        folder,
        f"{'; '.join(texts)}: {_describe_steps(changed)} would be made anew"
        + (f" ({works})." if works else ". Nothing was changed."),
        "Put the values back to go on, use another -o/--output, or --overwrite to make them anew.",
    )


def _describe_changed_versions(aged: Sequence[Finding], folder: str) -> Problem:
    """Return the problem of changed library versions: every library, and the steps run with the former versions."""
    texts = dict.fromkeys(text for finding in aged for text in finding.versions)
    names = [finding.step.name for finding in aged]
    works = _describe_unfinished_work(aged)
    return Problem(
        folder,
        f"{'; '.join(texts)}: {_join_names(names)} {'was' if len(names) == 1 else 'were'} made with the former versions"
        + (f" ({works})." if works else "."),
        "--resume-anyway to take them as they are, which is recorded, or --overwrite to start over.",
    )


def _describe_unfinished_work(findings: Sequence[Finding]) -> str:
    return "; ".join(f"unfinished work of {f.step.name}: {f.work}" for f in findings if f.work)


def _describe_steps(changed: Sequence[Finding]) -> str:
    """Return a text on changed steps in the order of the run, such as ``student and the 10 steps behind it``."""
    names = {finding.step.name for finding in changed}
    behind = {finding.step.name for finding in changed if any(n in names for n in finding.step.needs)}
    first = [finding.step.name for finding in changed if finding.step.name not in behind]
    if not behind:
        return _join_names(first)
    count = "the step" if len(behind) == 1 else f"the {len(behind)} steps"
    return f"{', '.join(first)} and {count} behind {'it' if len(first) == 1 else 'them'}"


def _join_names(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
