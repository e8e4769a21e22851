"""The commands that run a recipe or a part of it: `run`, `finetune`, `distill`, and `demo` on the built-in corpus."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import CHAIN, add
from pocketbert.cli.output import example_texts, print_json, print_table
from pocketbert.core.errors import InputError, Problem

if TYPE_CHECKING:
    from pocketbert.core.recipe.recipe import Recipe
    from pocketbert.pipeline.options import PlannedStep
    from pocketbert.pipeline.recipes import StartingRecipe
    from pocketbert.pipeline.run_folder.folder import RunResult


_DEMO_SENTENCE = "could you wake me at quarter to seven tomorrow"


def register(app: typer.Typer) -> None:
    """Add the commands of this module to the application."""
    for command in (run, finetune, distill, demo):
        add(app, command, CHAIN)


def run(
    recipe: Annotated[
        str | None,
        typer.Argument(help="Recipe file, or the name of a shipped one (`pocketbert recipes ls`); not with --data."),
    ] = None,
    overrides: options.Overrides = None,
    data: Annotated[
        str | None,
        options.sets(
            "--data",
            "Train on this file (table, JSON, Parquet, CoNLL, fastText, Rasa NLU) or folder of classes without a recipe: its columns "
            "and its task are found in the rows, and the recipe is written into the run folder. From 2,000 rows on students are compared, "
            "and the smallest that keeps 97 % of the teacher is taken, else the best.",
            "data.train.path",
        ),
    ] = None,
    evaluation: Annotated[
        str | None,
        options.sets(
            "--eval", "With --data: score on the rows of this file; default a tenth of the others.", "data.eval.path"
        ),
    ] = None,
    unlabelled: Annotated[
        list[str] | None,
        options.sets(
            "--unlabelled",
            "With --data: let the teacher label the texts of this file (text lines, table, JSON, Parquet) and the student learn from "
            "them too; more than once for several files. Labels in it are not read.",
            "data.transfer.sources.path",
        ),
    ] = None,
    text: Annotated[
        str | None, options.sets("--text", "With --data: read the text from this column.", "data.train.text")
    ] = None,
    text_pair: Annotated[
        str | None,
        options.sets("--text-pair", "With --data: read the second text from this column.", "data.train.text_pair"),
    ] = None,
    label: Annotated[
        str | None, options.sets("--label", "With --data: read the label from this column.", "data.train.label")
    ] = None,
    teacher: Annotated[
        str | None,
        options.sets(
            "--teacher",
            "With --data: learn from the answers of a teacher in this column, or from the votes in several (ann1,ann2,ann3); default: "
            "found by its content.",
            "data.train.teacher",
        ),
    ] = None,
    header: Annotated[
        bool | None,
        options.sets(
            "--header/--no-header",
            "With --data: take the first row of tables as the names of the columns, or as a row of data; default: detected. "
            "Without a header the columns are called 'column 1', 'column 2', ...",
            "data.train.header",
        ),
    ] = None,
    encoding: Annotated[
        str | None,
        options.sets(
            "--encoding",
            "With --data: read text files in this encoding, such as cp1252; default: detected.",
            "data.train.encoding",
        ),
    ] = None,
    task: Annotated[str | None, options.sets("--task", "With --data: the task, if the labels do not tell it.")] = None,
    student: Annotated[
        str | None,
        options.sets(
            "--student",
            "auto: take the smallest student that keeps enough of the teacher; exit code 3 if none does.",
            "student",
            metavar="auto",
        ),
    ] = None,
    keep: Annotated[
        float | None,
        options.sets(
            "--keep",
            "As --student auto, with this share of the teacher's score to keep; default 0.97.",
            "student.auto.keep",
        ),
    ] = None,
    max_size_mb: Annotated[
        float | None,
        options.sets(
            "--max-size-mb", "As --student auto, with at most this size of the file in MB.", "student.auto.max_size_mb"
        ),
    ] = None,
    max_latency_ms: Annotated[
        float | None,
        options.sets(
            "--max-latency-ms",
            "As --student auto, with at most this median latency on this machine in ms.",
            "student.auto.max_latency_ms",
        ),
    ] = None,
    output: options.OptionalOutput = None,
    seed: options.Seed = None,
    overwrite: options.Overwrite = False,
    resume_anyway: options.ResumeAnyway = False,
    dry_run: options.DryRun = False,
    json: options.Json = False,
) -> None:
    """Run every step of a recipe, or make a model of one data file.

    The steps make the teacher, the student and the model files, check the files, measure them, and pack the artefact
    folder. The same command continues an interrupted run.
    """
    from pocketbert import api
    from pocketbert.core.host.progress import print_note
    from pocketbert.pipeline.recipes import default_folder

    data_options: dict[str, Any] = {
        "text": text,
        "text_pair": text_pair,
        "label": label,
        "teacher": teacher,
        "header": header,
        "encoding": encoding,
        "task": task,
        "evaluation": evaluation,
        "unlabelled": unlabelled,
    }
    start: Recipe | StartingRecipe
    limits = {"keep": keep, "max_size_mb": max_size_mb, "max_latency_ms": max_latency_ms}
    overrides = [*(overrides or ()), *_choose_student(student, limits, data is None)]
    if data is None:
        start = resolved = api.load_recipe(_require_recipe(recipe, data_options), _add_seed(overrides, seed))
        folder = _run_folder(output, resolved.name)
    else:
        changes = _overrides_with_data(recipe, overrides)
        folder = output or default_folder(data)
        start = api.starting_recipe(
            api.DataFiles(data, **{**data_options, "unlabelled": unlabelled or ()}), folder, _add_seed(changes, seed)
        )
        resolved = start.recipe
        for note in start.notes:
            print_note(note)
    if dry_run:
        _print_plan(api.plan(start, folder, overwrite, resume_anyway), folder, json)
        return
    result = api.run(start, folder, overwrite, resume_anyway)
    if json:
        print_json(result.to_dict())
        return
    if result.tried is not None:
        print_table(
            *result.tried.table(), f"students, {result.tried.file} files, {result.tried.rows:,} validation rows"
        )
    print_table(result.header, result.table, resolved.name)
    print(f"artefact folder: {result.phone}")
    print(f"report:          {result.report}")
    _explain_star(result)
    from pocketbert.core.artefacts import read_artefacts

    texts = example_texts(read_artefacts(result.phone)) if result.phone is not None else '"A TEXT"'
    print_note(f"Try it: pocketbert predict -m {shlex.quote(str(result.phone))} {texts}")
    if data is not None:
        print(f"recipe:          {folder}/recipe.yaml (edit a copy, then: pocketbert run COPY -o ANOTHER_FOLDER)")


def _require_recipe(recipe: str | None, data_options: Mapping[str, object]) -> str:
    """Return the recipe argument of the command `run`; raise InputError if it is missing or contradicts options.

    Raises:
        InputError: If no recipe was named, or if an option was given that has a meaning only with --data.
    """
    flags = {"evaluation": "--eval", "header": "--header, --no-header"}
    without_data = [flags.get(k, f"--{k.replace('_', '-')}") for k, v in data_options.items() if v is not None]
    if without_data:
        fix = "Give --data FILE, or set the keys of the recipe, e.g. data.train.text=sentence"
        raise InputError(
            Problem(", ".join(without_data), "belong to --data; a recipe names its own columns and task.", fix)
        )
    if recipe is None:
        fix = "Give a recipe, or a data file with --data: pocketbert run --data rows.csv"
        raise InputError(Problem("run", "no recipe and no data.", fix))
    return recipe


def _overrides_with_data(recipe: str | None, overrides: list[str] | None) -> list[str]:
    """Return all ``key=value`` overrides of `run --data`; the first argument is one of them, since no recipe is named.

    Raises:
        InputError: If the first argument is the name of a recipe.
    """
    if recipe is not None and "=" not in recipe:
        fix = "Leave one of them out; a recipe names its data in data.train."
        raise InputError(Problem("--data", f"is given together with the recipe '{recipe}'.", fix))
    return [*([recipe] if recipe else []), *(overrides or ())]


def _choose_student(student: str | None, limits: Mapping[str, float | None], has_recipe: bool) -> list[str]:
    """Return the recipe overrides that --student auto and its limits stand for; none if none of these options was given.

    Args:
        student: Value of --student: with `auto` the section is replaced.
        limits: The limits by their keys in the recipe; None for those that were not given.
        has_recipe: Whether the student's section is one that the user wrote: a limit alone then changes that limit only.

    Raises:
        InputError: If --student names anything else.
    """
    given = {name: value for name, value in limits.items() if value is not None}
    if student not in (None, "auto"):
        fix = "For a student of a given size set the recipe's key, e.g. student.layers=2"
        raise InputError(Problem("--student", f"'{student}' is not known; allowed: auto.", fix))
    if student is None and not given:
        return []
    if student is None and has_recipe:
        return [f"student.auto.{name}={value}" for name, value in given.items()]
    return [f"student={{auto: {{{', '.join(f'{name}: {value}' for name, value in given.items())}}}}}"]


def _add_seed(overrides: list[str] | None, seed: int | None) -> list[str]:
    """Return the overrides ``key=value``, with ``seed=N`` appended if --seed was given."""
    return [*(overrides or ()), *([f"seed={seed}"] if seed is not None else [])]


def _run_folder(output: Path | None, recipe_name: str) -> Path:
    """Return the run folder: the value of -o, else ``runs/NAME`` with the recipe's name."""
    return output or Path("runs") / recipe_name


def _print_plan(steps: Sequence[PlannedStep], folder: Path, json: bool) -> None:
    """Print the table or JSON of `--dry-run`: each step, the path it writes, and its state."""
    if json:
        print_json([vars(s) for s in steps])
        return
    rows = [[s.name, f"{folder}/{s.output}", f"{s.state}: {s.why}" if s.why else s.state] for s in steps]
    print_table(["step", "writes", "state"], rows)


def _explain_star(result: RunResult) -> None:
    """Print which file the star in a run's table marks, and where the file for each platform is named."""
    from pocketbert.core.host.progress import print_note

    print_note(
        f"* is the file that pocketbert.load opens; the first table of {result.phone}/README.md names one for each platform."
    )


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

    resolved = api.load_recipe(recipe, _add_seed(overrides, seed))
    folder = api.finetune(resolved, _run_folder(output, resolved.name), overwrite, resume_anyway)
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
    """Train the student of a recipe, and its teacher where needed. (recipe: teacher, student, distill)"""
    from pocketbert import api

    resolved = api.load_recipe(recipe, _add_seed(overrides, seed))
    folder = api.distill(resolved, _run_folder(output, resolved.name), overwrite, resume_anyway)
    print_json({"student": str(folder)}) if json else print(f"student: {folder}")


def demo(
    overrides: options.Overrides = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Work in this run folder.")] = Path("runs/demo"),
    text: Annotated[str, typer.Option("--text", help="Classify this sentence at the end.")] = _DEMO_SENTENCE,
    web: Annotated[
        bool, typer.Option("--web", help="Also write a page in which the files answer what is typed: OUTPUT/web.")
    ] = False,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Run the whole chain on built-in data with a real teacher.

    The result is a verified and measured int8 model. The demo takes 4 to 8 minutes on two cores.
    """
    from pocketbert import api

    result = api.demo(output, overwrite, overrides or ())
    assert result.phone is not None
    page = api.pack(result.phone, output / "web", overwrite, "web-demo") if web else None
    answer = api.predict(result.phone, [text])[0]
    top = answer.fields(3)
    if json:
        print_json({**result.to_dict(), "text": text, "label": top["label"], **({"web": str(page)} if page else {})})
        return
    print_table(
        result.header, result.table, "assistant commands: the teacher and the student's files (* opened by default)"
    )
    print(f'"{text}"')
    print("  " + ", ".join(f"{t['label']} {t['score']:.1%}" for t in top["top"]))
    print(f"artefact folder: {result.phone}")
    print(f"report:          {result.report}")
    if page is not None:
        print(f"page:            python -m http.server -d {page}, then open http://localhost:8000")
    _explain_star(result)
    print(f'try your own:    pocketbert predict -m {result.phone} "your own sentence"')
