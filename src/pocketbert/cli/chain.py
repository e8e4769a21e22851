"""run, finetune, distill: commands that follow a recipe."""

from __future__ import annotations

from pathlib import Path

import typer

from pocketbert.cli import options
from pocketbert.cli.groups import CHAIN
from pocketbert.cli.guard import guarded
from pocketbert.cli.output import print_json, print_table


def register(app: typer.Typer) -> None:
    """Add the commands."""
    for command in (run, finetune, distill):
        app.command(rich_help_panel=CHAIN)(guarded(command))


def _output(output: Path | None, name: str) -> Path:
    return output or Path("runs") / name


def _with_seed(overrides: list[str] | None, seed: int | None) -> list[str]:
    return [*(overrides or ()), *([f"seed={seed}"] if seed is not None else [])]


def run(
    recipe: options.Recipe,
    overrides: options.Overrides = None,
    output: options.OptionalOutput = None,
    seed: options.Seed = None,
    overwrite: options.Overwrite = False,
    resume_anyway: options.ResumeAnyway = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Run every step of a recipe, from the teacher to the report.

    The steps make the teacher, the student and the model files, check the files, measure them, and pack the artefact
    folder. The same command continues an interrupted run.
    """
    from pocketbert import api

    resolved = api.load_recipe(recipe, _with_seed(overrides, seed))
    folder = _output(output, resolved.name)
    if dry_run:
        steps = api.plan(resolved, folder, overwrite, resume_anyway)
        if json:
            print_json([vars(s) for s in steps])
        else:
            rows = [[s.name, f"{folder}/{s.output}", f"{s.state}: {s.why}" if s.why else s.state] for s in steps]
            print_table(["step", "writes", "state"], rows)
        return
    result = api.run(resolved, folder, overwrite, resume_anyway)
    if json:
        print_json(
            {
                "folder": str(folder),
                "phone": str(result.phone),
                "report": str(result.report),
                "table": [dict(zip(result.header, row, strict=True)) for row in result.table],
            }
        )
        return
    print_table(result.header, result.table, resolved.name)
    print(f"artefact folder: {result.phone}")
    print(f"report:          {result.report}")


def finetune(
    recipe: options.Recipe,
    overrides: options.Overrides = None,
    output: options.OptionalOutput = None,
    seed: options.Seed = None,
    overwrite: options.Overwrite = False,
    resume_anyway: options.ResumeAnyway = False,
    json: options.Json = False,
) -> None:
    """Load or fine-tune the teacher of a recipe, then stop. (recipe: teacher)"""
    from pocketbert import api

    resolved = api.load_recipe(recipe, _with_seed(overrides, seed))
    folder = api.finetune(resolved, _output(output, resolved.name), overwrite, resume_anyway)
    print_json({"teacher": str(folder)}) if json else print(f"teacher: {folder}")


def distill(
    recipe: options.Recipe,
    overrides: options.Overrides = None,
    output: options.OptionalOutput = None,
    seed: options.Seed = None,
    overwrite: options.Overwrite = False,
    resume_anyway: options.ResumeAnyway = False,
    json: options.Json = False,
) -> None:
    """Train the teacher and the student of a recipe, then stop. (recipe: teacher, student, distill)"""
    from pocketbert import api

    resolved = api.load_recipe(recipe, _with_seed(overrides, seed))
    folder = api.distill(resolved, _output(output, resolved.name), overwrite, resume_anyway)
    print_json({"student": str(folder)}) if json else print(f"student: {folder}")
