"""Show the plan of a student: a table and sentences for the terminal (`make_plan_table`, `describe_plan`), and a page with a picture (`write_plan`)."""

from __future__ import annotations

from pathlib import Path

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.page import open_template
from pocketbert.benchmarks.report.plots import CandidatePoint, Figure, make_figure
from pocketbert.benchmarks.report.sources import Citation, Sources
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.recipe.planned import PlannedFile, PlannedStudent, PlannedTime, StudentPlan, choose_student
from pocketbert.core.types import Provenance, Scheme

_TEMPLATE = "planning.html.j2"
_ABOUT = "~"
"""Stands before an estimated figure."""


def make_plan_table(plan: StudentPlan) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table for the terminal: a row for each student, a column for each file with size and p90.

    Files outside the limits stand in brackets, chosen ones have a ``*``.
    """
    files = _planned_files(plan)
    header = ["student", "pieces", "training", *(_column(file) for file in files)]
    rows = []
    for student in plan.students:
        cells = []
        for column in files:
            file = next(f for f in student.files if (f.file, f.scheme) == (column.file, column.scheme))
            words = ", ".join([_size(file), *([" / ".join(_p90(t) for t in file.times) + " ms"] if file.times else [])])
            words = f"({words})" if plan.limits.exceeded(file) else words
            cells.append(f"{words} *" if plan.is_chosen(file) else words)
        rows.append([student.name, wording.count(student.pieces), _minutes(student.training_min), *cells])
    return header, rows


def _planned_files(plan: StudentPlan) -> list[PlannedFile]:
    """Return the first student's files that are shown: those that are timed or not fp32, else all.

    They stand for the columns, since all students have files of the same formats and schemes.
    """
    files = plan.students[0].files
    return [file for file in files if file.times or file.scheme is not Scheme.FP32] or files


def _column(file: PlannedFile) -> str:
    """Return the heading of a file: its format and scheme."""
    return f"{Path(file.file).parts[0]} {file.scheme}"


def _size(file: PlannedFile) -> str:
    """Return a file's size in words, marked if it is estimated."""
    return f"{_ABOUT * (file.by is Provenance.ESTIMATED)}{wording.size(file.bytes)}"


def _p90(time: PlannedTime) -> str:
    """Return a 90th percentile without its unit, marked if it is estimated."""
    return f"{_ABOUT * (time.by is Provenance.ESTIMATED)}{wording.milliseconds(time.p90_ms)}"


def _minutes(minutes: float | None) -> str:
    """Return an estimated duration in words: ``~12 min``, ``~40 s``; a dash where none was estimated."""
    if minutes is None:
        return wording.NONE
    return f"{_ABOUT}{minutes * 60:.0f} s" if minutes < 1 else f"{_ABOUT}{minutes:.0f} min"


def describe_plan(plan: StudentPlan) -> list[str]:
    """Return sentences on a plan: where figures come from, how long the training takes, what was chosen."""
    sentences = [
        f"{_ABOUT} estimated from the students that were exported; other figures measured with random weights."
    ]
    if any(file.times for student in plan.students for file in student.files):
        sentences.append(
            f"Times on {', '.join(plan.devices)}: {wording.threads(plan.threads)}, one text at a time, {plan.tokens:.0f} tokens on "
            "average, without the tokenizer."
        )
    if plan.teacher_min is not None:
        sentences.append(f"Before the student the teacher is fine-tuned: {_minutes(plan.teacher_min)}.")
    if (chosen := plan.choice) is not None:
        why = _explain_choice(plan, chosen)
        sentences.append(f"Chosen: {chosen.name} in {plan.scheme} ({why}); --choose NAME takes another one.")
    if plan.keep is not None and plan.chosen:
        sentences.append(
            f"The run trains those that are marked in {plan.scheme}, smallest first, until one keeps {100 * plan.keep:g} % of the "
            "teacher's score."
        )
    sentences.append("How well a student answers is seen only after training.")
    return [*sentences, *plan.notes]


def _explain_choice(plan: StudentPlan, chosen: PlannedStudent) -> str:
    """Return in words whether a chosen student is the largest inside the limits, inside or outside of them, or no limit is set.

    Only a student that --choose named can be another than the largest one inside.
    """
    if not plan.limits.text or plan.scheme is None:
        return "no limit is set"
    if any(plan.limits.exceeded(file) for file in chosen.files if plan.is_chosen(file)):
        return "outside the limits"
    largest = choose_student(plan.students, plan.limits, [plan.scheme])
    return "the largest inside the limits" if largest and largest[0].name == chosen.name else "inside the limits"


# --- the page ---------------------------------------------------------------------------------------------------------


def write_plan(plan: StudentPlan, path: Path) -> None:
    """Write the page that shows a plan.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    shown, sources = {file.file for file in _planned_files(plan)}, Sources()
    source = sources.cite(plan.machine, "planned", f"measured with random weights; {_ABOUT} estimated from those")
    page = open_template(_TEMPLATE).render(
        p=plan,
        sentences=describe_plan(plan),
        figures_of_devices=_draw_plan(plan, source),
        sources=sources,
        source=source,
        devices=_devices(plan),
        rows=[
            _page_row(plan, student, file) for student in plan.students for file in student.files if file.file in shown
        ],
        w=wording,
        colors={},
    )
    write_atomic(path, page)


def _devices(plan: StudentPlan) -> list[str]:
    """Return the devices with times."""
    return list(dict.fromkeys(time.device for s in plan.students for file in s.files for time in file.times))


def _draw_plan(plan: StudentPlan, source: Citation) -> list[Figure]:
    """Draw latency over size of all files, one picture for each format and device; `source` says where the figures are from."""
    figures, limits = list[Figure](), (plan.limits.max_size_mb, plan.limits.max_p90_ms)
    for format in dict.fromkeys(Path(file.file).parts[0] for file in _planned_files(plan)):
        for device in _devices(plan):
            points = [
                CandidatePoint(
                    student.name,
                    file.bytes / 1e6,
                    time.p90_ms,
                    False,
                    not plan.limits.exceeded(file),
                    plan.is_chosen(file),
                    f"scheme {file.scheme}",
                )
                for student in plan.students
                for file in student.files
                for time in file.times
                if time.device == device and Path(file.file).parts[0] == format
            ]
            if points:
                scale = f"p90 in ms on {device}, log scale"
                title = f"{format} files on {device}"
                svg = plots.draw_search(points, limits, scale, title, log=True)
                caption = "Size and latency of each student's files. Names that would cover others are left out; the table has all."
                figures.append(make_figure(svg, caption, [source]))
    return figures


def _page_row(plan: StudentPlan, student: PlannedStudent, file: PlannedFile) -> dict[str, object]:
    """Return the cells of a planned file's row in the page's table, by name, with estimates marked.

    They are student, file, size, p50 and p90 on each device, training time, exceeded limits, and whether the plan chooses it.
    """
    times = {time.device: time for time in file.times}
    return {
        "student": student.name,
        "file": file.file,
        "size": _size(file),
        "times": [
            (f"{_ABOUT * (t.by is Provenance.ESTIMATED)}{wording.milliseconds(t.p50_ms)}", _p90(t))
            if (t := times.get(device))
            else (wording.NONE, wording.NONE)
            for device in _devices(plan)
        ],
        "training": _minutes(student.training_min),
        "exceeded": plan.limits.exceeded(file),
        "chosen": plan.is_chosen(file),
    }
