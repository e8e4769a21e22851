"""The command `plan`: sizes, latencies and training times of the students that a teacher can have, before any is trained."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import CHAIN, add
from pocketbert.cli.output import print_json, print_table
from pocketbert.pipeline.options import PlanOptions

if TYPE_CHECKING:
    from pocketbert.core.recipe.planned import StudentPlan

_DEFAULTS = PlanOptions()


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    add(app, plan, CHAIN)


def plan(
    overrides: options.Overrides = None,
    data: Annotated[
        str | None,
        options.sets("--data", "Plan for the rows of this file, read as `run --data` reads it.", "data.train.path"),
    ] = None,
    task: Annotated[
        str | None,
        options.sets("--task", "Plan for this task without rows; with --data: the task, if the labels do not tell it."),
    ] = None,
    text: Annotated[str | None, options.sets("--text", "Read the text from this column.", "data.train.text")] = None,
    text_pair: Annotated[
        str | None, options.sets("--text-pair", "Read the second text from this column.", "data.train.text_pair")
    ] = None,
    label: Annotated[
        str | None, options.sets("--label", "Read the label from this column.", "data.train.label")
    ] = None,
    evaluation: Annotated[
        str | None,
        options.sets("--eval", "Score on the rows of this file; default a tenth of the others.", "data.eval.path"),
    ] = None,
    max_size_mb: Annotated[
        float | None, typer.Option("--max-size-mb", help="Allow no larger file than this, in MB (1,000,000 bytes).")
    ] = None,
    max_p90_ms: Annotated[
        float | None,
        typer.Option("--max-p90-ms", help="Allow no larger 90th percentile of the latency than this, on each device."),
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            "--keep",
            help="Let the run take the smallest student that keeps this share of the teacher's score, such as 0.97.",
        ),
    ] = None,
    device: Annotated[
        list[str] | None,
        typer.Option("--device", help="Measure latencies on this device; may be repeated. Default: local."),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", min=1, help="Use this number of threads.")] = _DEFAULTS.threads,
    format: Annotated[
        str, typer.Option("--format", help="Plan files of these formats, comma-separated: onnx, tflite, coreml.")
    ] = ",".join(_DEFAULTS.formats),
    scheme: Annotated[
        str, typer.Option("--scheme", help="Plan files of these schemes, comma-separated, the preferred one first.")
    ] = ",".join(_DEFAULTS.schemes),
    choose: Annotated[
        str | None,
        typer.Option("--choose", help="Write the recipe for this student; default: the largest inside the limits."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Write recipe.yaml, plan.json and the page plan.html to this folder."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace these files if they exist.")] = False,
    json: options.Json = False,
) -> None:
    """Show what a student would weigh and take before training.

    Students of some shapes, and the chosen one, are exported with random weights and timed, and the figures of the others
    are estimated from these. Exit code 3: none is inside the limits.
    """
    from pocketbert import api
    from pocketbert.pipeline.direct.planning import check_choice

    columns: dict[str, Any] = {"text": text, "text_pair": text_pair, "label": label, "evaluation": evaluation}
    found = api.plan_students(
        None if data is None else api.DataFiles(data, task=task, **columns),
        PlanOptions(
            task=task if data is None else None,
            max_size_mb=max_size_mb,
            max_p90_ms=max_p90_ms,
            devices=device or _DEFAULTS.devices,
            threads=threads,
            formats=options.listed(format),
            schemes=options.listed(scheme),
            choose=choose,
            keep=keep,
        ),
        output,
        overrides=overrides or (),
        overwrite=overwrite,
    )
    if json:
        print_json(found.to_dict())
    else:
        _print_plan(found, output, overrides or [], has_rows=data is not None)
    check_choice(found)


def _print_plan(plan: StudentPlan, output: Path | None, overrides: list[str], *, has_rows: bool) -> None:
    """Print the table of students, sentences, the written files, and the command that trains the chosen student."""
    from pocketbert.benchmarks.report.planning import describe_plan, make_plan_table
    from pocketbert.core.host.progress import print_note

    print_table(*make_plan_table(plan), f"students of {plan.teacher}: size and p90")
    limits = f", in brackets outside the limits ({plan.limits.text})" if plan.limits.text else ""
    print("\n".join([f"* chosen{limits}", *describe_plan(plan)]))
    if output is None:
        print_note("-o FOLDER writes the recipe of the chosen student, and a page with a picture.")
        return
    print(f"page:   {output}/plan.html")
    recipe = output / "recipe.yaml"
    if not plan.chosen and recipe.exists():
        print_note(f"{recipe} is left from an earlier plan: no student is inside the limits of this one")
    if plan.chosen:
        print(f"recipe: {recipe}")
        first = "" if has_rows else f"name your rows in the section data of {recipe}, then "
        further = [one for one in overrides if not one.startswith(("student", "distill"))]  # the recipe has these
        words = ["pocketbert", "run", str(recipe), "-o", f"runs/{plan.name}", *further]
        print_note(f"Next: {first}{shlex.join(words)}")
