"""Plan a student before anything is trained: what its files would weigh, how fast they would be, how long training would take.

`plan_students` makes the recipe of the data or the task (`_open`), exports some students of the teacher's shape with random weights in
every format and scheme (`export_probes`), times their files on the devices (`time_files`), and makes some steps of each training
(`time_training`). Sizes, times and durations of the other students are estimated from these (`_plan_files`). It writes the recipe of the
chosen student, the plan and a page.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TypeVar

from pydantic import ValidationError

from pocketbert.core.data.labels import Labels
from pocketbert.core.devices import DEVICES, LOCAL, Figure, parse_measuring_devices
from pocketbert.core.disk.destination import resolve_output_file
from pocketbert.core.disk.files import write_atomic, write_json
from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import GateError, InputError, Problem, suggest_allowed
from pocketbert.core.formats import FORMATS
from pocketbert.core.heads import make_head
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.progress import print_note
from pocketbert.core.recipe.budget import BudgetSection
from pocketbert.core.recipe.file import parse_recipe
from pocketbert.core.recipe.ladder import rung_recipe
from pocketbert.core.recipe.planned import (
    AUTO,
    PRUNED_VOCABULARY,
    PlanLimits,
    PlannedFile,
    PlannedStudent,
    PlannedTime,
    StudentPlan,
    choose_student,
    estimate_costs,
)
from pocketbert.core.recipe.recipe import Recipe
from pocketbert.core.recipe.student import VocabularySection
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.core.types import Format, Provenance, Scheme
from pocketbert.pipeline.direct.plan_probes import (
    FileTimes,
    PlanGround,
    Probe,
    announce_plan,
    choose_probes,
    export_probes,
    find_missing_probe,
    time_files,
    time_training,
)
from pocketbert.pipeline.doctor import require_for
from pocketbert.pipeline.learn.data import RunData, load_data, max_length
from pocketbert.pipeline.options import DataFiles, PlanOptions
from pocketbert.pipeline.recipes import StartingRecipe, replace_student, starting_recipe, task_recipe
from pocketbert.pipeline.reference import open_teacher

RECIPE_FILE, PLAN_FILE, PAGE_FILE = "recipe.yaml", "plan.json", "plan.html"
_Figure = TypeVar("_Figure")
_PLACEHOLDERS: dict[LabelKind, tuple[str, ...]] = {LabelKind.SPANS: ("O", "B-1", "I-1")}


def plan_students(
    data: DataFiles | None,
    options: PlanOptions,
    overrides: Sequence[str] = (),
    output: Path | None = None,
    overwrite: bool = False,
) -> StudentPlan:
    """Return the sizes, latencies and training times of a teacher's students, and the choice of one; see `pocketbert.api.plan_students`.

    With an output folder the plan and its page are written there, and the recipe unless no student is inside the limits. `check_choice`
    raises GateError in that case.

    Raises:
        InputError: Listing every problem of the options, or if teacher or rows cannot be used.
        MachineError: If there is too little room for the files.
    """
    limits, devices, formats, schemes = _check_options(data, options)
    files = _check_output(output, overwrite)
    own = [f"student={{auto: {{keep: {options.keep}}}}}"] if options.keep is not None else []
    ground = _open(data, options, [*overrides, *own], output or Path.cwd())
    rungs = ground.rungs
    if options.choose is not None and options.choose not in (names := [name for name, *_ in ground.wanted]):
        what = f"no student '{options.choose}'; {suggest_allowed(options.choose, names)}."
        raise InputError(Problem("--choose", what))
    export = ground.recipe.export.model_copy(update={"formats": formats})
    require_for(ground.recipe.model_copy(update={"export": export}))
    probes = choose_probes(ground, options.choose)
    announce_plan(ground, probes, formats, schemes)
    times, tokens = _measure_files(ground, probes, formats, schemes, devices, options.threads)
    minutes, teacher_min = time_training(ground, rungs)
    while True:
        students = _plan_files(ground, probes, times, options.threads, minutes)
        chosen = _choose(students, limits, schemes, options, ground)
        estimated = find_missing_probe(ground, probes, chosen[0]) if chosen else None
        if estimated is None:
            break
        print_note(f"plan: {estimated.name} is chosen by estimates; it is measured now, too")
        times |= _measure_files(ground, [estimated], formats, schemes, devices, options.threads)[0]
        probes.append(estimated)
    if options.keep is not None and options.max_p90_ms is not None:
        ground.notes += _list_limit_notes({device for *_, device in times}, options.threads)
    plan = StudentPlan(
        name=ground.recipe.name,
        task=ground.recipe.task,
        teacher=ground.recipe.teacher.model,
        machine=describe_machine().summary,
        devices=devices,
        threads=options.threads,
        tokens=tokens,
        limits=limits,
        teacher_min=teacher_min,
        students=students,
        chosen=chosen[0] if chosen else "",
        keep=options.keep,
        scheme=chosen[1] if chosen else None,
        notes=ground.notes,
    )
    if files is not None:
        _write(plan, ground, files)
    return plan


# --- options and output -----------------------------------------------------------------------------------------------


def _check_options(
    data: DataFiles | None, options: PlanOptions
) -> tuple[PlanLimits, list[str], list[Format], list[Scheme]]:
    """Return limits, devices, formats and schemes of the options.

    Raises:
        InputError: Listing everything that is wrong with them, by flag.
    """
    problems = list[Problem]()
    if (data is None) == (options.task is None):
        fix = "Give --data rows.csv, or --task text-classification to plan before there are rows."
        what = "neither is given." if data is None else "both are given; with rows the task is part of data."
        problems.append(Problem("--data, --task", what, fix))
    if options.keep is not None and not 0 < options.keep <= 1:
        what = f"{options.keep:g}; allowed: a share above 0, up to 1."
        problems.append(Problem("--keep", what, "0.97 keeps 97 % of the teacher's score."))
    if options.keep is not None and options.choose is not None:
        what = "with --choose there is one student, and none to choose among."
        problems.append(Problem("--keep", what, "Leave one of the two out."))
    given = {"max_size_mb": options.max_size_mb, "max_p90_ms": options.max_p90_ms}
    given = {name: value for name, value in given.items() if value is not None}
    try:
        BudgetSection.model_validate(given or {"max_drop": 0})
    except ValidationError as invalid:
        for error in invalid.errors(include_url=False, include_input=False):
            flag = f"--{str(error['loc'][0]).replace('_', '-')}" if error["loc"] else "limits"
            problems.append(Problem(flag, f"{error['msg'].removeprefix('Value error, ')}."))
    devices = list[str]()
    try:
        devices = [str(name) for name in parse_measuring_devices(list(options.devices), "--device")]
        timing = [name for name, info in DEVICES.items() if Figure.LATENCY in info.figures and not info.instead]
        for name in devices:
            if name.partition(":")[0] not in timing:
                what = f"{name} gives no latency; allowed: {', '.join(timing)}."
                problems.append(Problem("--device", what, "Measure the finished files there: pocketbert benchmark."))
    except InputError as error:
        problems += error.problems
    formats = [Format(name) for name in options.formats if name in set(Format)]
    for name in (name for name in options.formats if name not in set(Format)):
        problems.append(Problem("--format", f"'{name}' is no format; {suggest_allowed(name, list(Format))}."))
    schemes = [Scheme(name) for name in options.schemes if name in set(Scheme)]
    for name in (name for name in options.schemes if name not in set(Scheme)):
        problems.append(Problem("--scheme", f"'{name}' is no scheme; {suggest_allowed(name, list(Scheme))}."))
    problems += [Problem("--format", "names no format.", "For example --format onnx.")] if not options.formats else []
    problems += [Problem("--scheme", "names no scheme.", "For example --scheme int8.")] if not options.schemes else []
    for format in formats:
        lacking = [s for s in schemes if not FORMATS[format].takes(s)]
        if lacking:
            what = f"{', '.join(lacking)} does not exist in {FORMATS[format].title}; it has {', '.join(FORMATS[format].schemes)}."
            problems.append(Problem("--scheme", what, "Leave it out, or plan that format by itself with --format."))
    if not options.threads > 0:
        problems.append(Problem("--threads", f"{options.threads}; allowed: whole numbers from 1."))
    if problems:
        raise InputError(problems)
    limits = PlanLimits(max_size_mb=options.max_size_mb, max_p90_ms=options.max_p90_ms)
    return limits, devices, formats, schemes


def _check_output(folder: Path | None, overwrite: bool) -> dict[str, Path] | None:
    """Return the paths of the files that are written to a folder, by name, after checking that they can be; None for None.

    Raises:
        InputError: Listing every file that is there.
        MissingBackendError: If a library that pages need is not installed.
    """
    if folder is None:
        return None
    from pocketbert.benchmarks.report import plots

    plots.require_report_packages()
    files, problems = dict[str, Path](), list[Problem]()
    for name in (RECIPE_FILE, PLAN_FILE, PAGE_FILE):
        try:
            files[name] = resolve_output_file(folder / name, overwrite)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return files


# --- teacher, rows and shapes -----------------------------------------------------------------------------------------


def _open(data: DataFiles | None, options: PlanOptions, overrides: Sequence[str], folder: Path) -> PlanGround:
    """Make the recipe, open its teacher and read its rows.

    Raises:
        InputError: If recipe, teacher or rows cannot be read, if the model has several heads, or if the recipe does not train a student in
            one stage of method `task`.
    """
    if data is not None:
        start = starting_recipe(data, folder, overrides, compare_students=False)
        for note in start.notes:
            print_note(note)
    else:
        assert options.task is not None
        start = task_recipe(options.task, folder, overrides)
    recipe = start.recipe
    if recipe.tasks is not None:
        fix = "Leave tasks out, and plan with the head that matters most."
        raise InputError(Problem("tasks", "a plan is for one head.", fix))
    if recipe.student is None or [stage.method_name() for stage in recipe.distill] != ["task"]:
        fix = "Leave out what sets student or distill."
        raise InputError(Problem("distill", "a plan is for one stage of method task with a student.", fix))
    model = open_teacher(recipe)
    if data is not None:
        rows = load_data(recipe, model)
        return PlanGround(start, model, rows, max_length(recipe.data, model, rows.head.task), overrides)
    task = model.task_row(TaskName(recipe.task))
    names = (model.labels or _PLACEHOLDERS.get(task.labels, ("0", "1"))) if task.names_labels else ()
    labels = Labels(tuple(names))
    train = recipe.data.train
    pair = task.pairs_only or (train is not None and train.text_pair is not None)
    rows = RunData(make_head(task, labels, recipe.answer), labels, {}, None, pair)
    notes = ["Without rows: no training times, no smaller vocabulary, and texts of the project were timed."]
    notes += [f"The head has {len(names)} labels; more of them make files larger."] if names else []
    return PlanGround(start, model, rows, max_length(recipe.data, model, task), overrides, notes)


# --- the plan ---------------------------------------------------------------------------------------------------------


def _measure_files(
    ground: PlanGround,
    probes: Sequence[Probe],
    formats: Sequence[Format],
    schemes: Sequence[Scheme],
    devices: Sequence[str],
    threads: int,
) -> tuple[FileTimes, float]:
    """Export students with random weights (probes) to a temporary folder, and time their files.

    Returns the times and the mean number of tokens of the texts. Sizes are recorded in the probes.
    """
    with temporary_folder(Path(tempfile.gettempdir())) as work:
        export_probes(ground, probes, formats, schemes, work)
        return time_files(ground, probes, schemes, devices, threads)


def _plan_files(
    ground: PlanGround, probes: Sequence[Probe], times: FileTimes, threads: int, minutes: Mapping[str, float]
) -> list[PlannedStudent]:
    """Return every student, by work, with sizes and latencies of its files: measured for the exported students (probes), else estimated."""
    wanted = ground.wanted
    files: dict[str, list[PlannedFile]] = {name: [] for name, *_ in wanted}
    devices = list(dict.fromkeys(device for *_, device in times))
    for format, scheme in probes[0].files:
        sizes = _complete(ground, {p.name: float(p.files[format, scheme][2]) for p in probes}, vocabulary=True)
        latencies = {
            device: {p: both for (p, f, s, d), both in times.items() if (f, s, d) == (format, scheme, device)}
            for device in devices
        }
        shown = {
            device: _complete_times(ground, known, device, threads) for device, known in latencies.items() if known
        }
        path = probes[0].files[format, scheme][0].path
        for name, *_ in wanted:
            size, by = sizes[name]
            files[name].append(
                PlannedFile(
                    student=name,
                    file=path,
                    scheme=scheme,
                    bytes=round(size),
                    by=by,
                    times=[planned[name] for planned in shown.values() if name in planned],
                )
            )
    students = []
    for name, rung, pieces in wanted:
        section = rung.student
        if name.endswith(PRUNED_VOCABULARY):
            section = section.model_copy(update={"vocabulary": VocabularySection()})
        students.append(
            PlannedStudent(
                name=name,
                layers=rung.layers,
                width=rung.width,
                pieces=pieces,
                work=rung.work,
                training_min=minutes.get(rung.name),
                student=section,
                files=files[name],
            )
        )
    return sorted(students, key=lambda s: (s.work, s.pieces))


def _complete(
    ground: PlanGround, measured: Mapping[str, float], vocabulary: bool = False
) -> dict[str, tuple[float, Provenance]]:
    """Return a figure of the students by name: the measured one, else an estimate from the measured encoders.

    With `vocabulary` the figure depends on the size of the vocabulary too. Without it, students that differ in the vocabulary only have
    the same figure. A student that was neither measured nor can be estimated, such as a static one that was not exported, is left out.
    """
    shapes = {name: ground.shape(rung, pieces if vocabulary else 0) for name, rung, pieces in ground.wanted}
    known = {shapes[name]: value for name, value in measured.items() if shapes[name].layers}
    names = [name for name, shape in shapes.items() if shape.layers and known]
    estimated = dict(zip(names, estimate_costs(known, [shapes[name] for name in names]), strict=True)) if names else {}
    result = dict[str, tuple[float, Provenance]]()
    for name in shapes:
        own = measured.get(name) if vocabulary else _find_by_encoder(measured, name)
        if own is not None:
            result[name] = own, Provenance.MEASURED
        elif name in estimated:
            result[name] = estimated[name], Provenance.ESTIMATED
    return result


def _find_by_encoder(measured: Mapping[str, _Figure], name: str) -> _Figure | None:
    """Return the figure of a student, or of the one that differs from it in its vocabulary only; None if neither is measured."""
    whole = name.removesuffix(PRUNED_VOCABULARY)
    return measured.get(whole, measured.get(whole + PRUNED_VOCABULARY))


def _complete_times(
    ground: PlanGround, measured: Mapping[str, tuple[float, float]], device: str, threads: int
) -> dict[str, PlannedTime]:
    """Return the latency of one kind of file on a device by student: the measured one, else an estimate from the measured encoders.

    Only medians are estimated, because 90th percentiles vary too much. An estimated 90th percentile is the median times the median ratio
    of the two among the measured students.
    """
    medians = _complete(ground, {name: p50 for name, (p50, _) in measured.items()})
    spread = median(p90 / p50 for p50, p90 in measured.values())
    times = {}
    for name, (p50, by) in medians.items():
        own = _find_by_encoder(measured, name)
        p90 = own[1] if own is not None else p50 * spread
        times[name] = PlannedTime(device=device, threads=threads, p50_ms=round(p50, 5), p90_ms=round(p90, 5), by=by)
    return times


def _choose(
    students: Sequence[PlannedStudent],
    limits: PlanLimits,
    schemes: Sequence[Scheme],
    options: PlanOptions,
    ground: PlanGround,
) -> tuple[str, Scheme] | None:
    """Return the student and the scheme that the recipe gets; None if no student is inside the limits.

    It is the student that the user names, even outside the limits, else the largest inside the limits. Without limits it is the student of
    the starting recipe. With a share of the score to keep, the name is `AUTO`, because the run chooses the student, and the scheme is that
    of the largest one inside the limits.
    """
    name, own = options.choose, ground.recipe.student
    if options.keep is not None:
        whole = [student for student in students if not student.name.endswith(PRUNED_VOCABULARY)]
        found = choose_student(whole, limits, schemes)
        return (AUTO, found[1]) if found else None
    if name is None and not limits.text:
        layers = own.layers if own is not None else None
        name = next((s.name for s in students if s.layers == layers and s.width is None), students[-1].name)
    named = [student for student in students if name in (None, student.name)]
    found = choose_student(named, limits, schemes)
    if found is None:
        return (named[0].name, schemes[0]) if name is not None else None
    return found[0].name, found[1]


def _list_limit_notes(devices: Collection[str], threads: int) -> list[str]:
    """Return sentences on how the plan's limit on latency holds in a run that chooses its student; empty if it holds as it is.

    Such a run times its students on its own machine only, with one thread.
    """
    if LOCAL not in devices:
        fix = "plan for --device local, too, or check the finished files on the devices"
        return [f"The recipe has no limit of the latency, as the run times its students on this machine: {fix}."]
    further = [device for device in devices if device != LOCAL]
    notes = [f"The run keeps the limit of the latency on this machine only, not on {', '.join(sorted(further))}."]
    return (notes if further else []) + (
        [f"The run times its students with one thread, and its limit is of times with {threads}."]
        if threads != 1
        else []
    )


def nearest(plan: StudentPlan) -> str:
    """Return a sentence on the smallest file of a plan and, if any was timed, the fastest: for a plan with no student inside the limits."""
    files = [file for student in plan.students for file in student.files]
    smallest = min(files, key=lambda file: file.bytes)
    words = f"The smallest file is {smallest.file} of {smallest.student} with {smallest.bytes / 1e6:.2f} MB"
    timed = [(time.p90_ms, time.device, file) for file in files for time in file.times]
    if timed:
        p90, device, file = min(timed, key=lambda one: one[0])
        words += f", the fastest {file.file} of {file.student} with {p90:.2f} ms on {device}"
    return f"{words}."


def check_choice(plan: StudentPlan) -> None:
    """Raise GateError if no student of a plan is inside its limits."""
    if not plan.chosen:
        fix = "Raise a limit, allow more schemes (--scheme), or choose a smaller teacher."
        raise GateError([f"No student is inside the limits ({plan.limits.text}).", nearest(plan), fix])


# --- the files --------------------------------------------------------------------------------------------------------


def _write(plan: StudentPlan, ground: PlanGround, files: Mapping[str, Path]) -> None:
    """Write the plan, its page, and the recipe of the chosen student if there is one."""
    from pocketbert.benchmarks.report.planning import write_plan

    for path in files.values():
        path.parent.mkdir(parents=True, exist_ok=True)
    write_json(files[PLAN_FILE], plan.to_dict())
    write_plan(plan, files[PAGE_FILE])
    if plan.chosen:
        rung = next((r for r in ground.rungs if r.name == plan.chosen.removesuffix(PRUNED_VOCABULARY)), None)
        recipe = rung_recipe(ground.recipe, rung) if rung is not None else ground.recipe
        write_atomic(files[RECIPE_FILE], _recipe_text(plan, ground.start, recipe))


def _recipe_text(plan: StudentPlan, start: StartingRecipe, recipe: Recipe) -> str:
    """Return the text of the starting recipe with the student that the plan chose, its scheme, and what the plan expects.

    Args:
        plan: The plan.
        start: The starting recipe.
        recipe: The settings of the recipe that trains the chosen student, or chooses one.
    """
    assert plan.scheme is not None
    chosen, (stage,) = plan.choice, recipe.distill
    section = chosen.student.model_dump(mode="json", exclude_defaults=True) if chosen else _auto_section(plan)
    settings = {"method": stage.method_name(), **stage.model_dump(mode="json", exclude_defaults=True)}
    changed = stage != parse_recipe(start.text, Path(RECIPE_FILE)).distill[0]  # by the student, or by an override
    text = replace_student(start.text, section, plan.scheme, settings if changed else None)
    words = (
        f"the {plan.scheme} student {plan.chosen}"
        if chosen
        else f"the smallest {plan.scheme} student that keeps enough"
    )
    text = re.sub(r"(?m)^(description: .* to) a [^ ]+ int8 student", lambda match: f"{match[1]} {words}", text)
    limits = f", {plan.limits.text}" if plan.limits.text else ""
    text = re.sub(r"(?m)^# The student is .*$", lambda _: f"# By `pocketbert plan`: {words}{limits}.", text)
    if chosen and not chosen.layers:  # the comment of the start is of students with layers
        learned = (
            "the teacher's answers and the labels" if settings["signals"].get("labels") else "the teacher's answers"
        )
        text = re.sub(
            r"(?m)^# The student learns .*(?:\n#.*)*", lambda _: f"# A student without layers learns {learned}.", text
        )
    files = [
        f for s in plan.students for f in s.files if plan.is_chosen(f) or (f.student == plan.chosen and not f.times)
    ]
    rows = "".join(f"    - {json.dumps(file.model_dump(mode='json', exclude_defaults=True))}\n" for file in files)
    expected = "# What the plan expects, beside which the report shows what was measured."
    return f"{text}{expected}\nplanned:\n  machine: {json.dumps(plan.machine)}\n  files:\n{rows}"


def _auto_section(plan: StudentPlan) -> dict[str, object]:
    """Return the recipe section `student: {auto: ...}`: the share of the teacher's score to keep, and limits of size and latency.

    The plan limits the 90th percentile of the latency, the recipe the median. So the limit is multiplied by p50 / p90, the median of
    this ratio over all times that the plan measured on this machine. Without such times the latency has no limit.
    """
    limits = {"keep": plan.keep, "max_size_mb": plan.limits.max_size_mb}
    local = [time for s in plan.students for file in s.files for time in file.times if time.device == LOCAL]
    if plan.limits.max_p90_ms is not None and local:
        share = median(time.p50_ms / time.p90_ms for time in local)
        limits["max_latency_ms"] = round(plan.limits.max_p90_ms * share, 4)
    return {"auto": {name: value for name, value in limits.items() if value is not None}}
