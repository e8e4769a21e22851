"""The commands about what a run starts from: `data check|prepare|augment|demo` and `recipes ls|show|cp|validate|schema`."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import add
from pocketbert.cli.output import print_json, print_table
from pocketbert.core.errors import InputError, Problem, escape_line

if TYPE_CHECKING:
    from pocketbert.pipeline.file_check import FileReport

data_app = typer.Typer(
    help="Check, prepare and augment the data of a recipe.", no_args_is_help=True, rich_markup_mode=None
)


@data_app.callback()
def _data() -> None:
    pass


def check(
    recipe: Annotated[
        str, typer.Argument(help="Recipe file, name of a shipped one, or a data file or folder without a recipe.")
    ],
    overrides: options.Overrides = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    teacher: Annotated[
        str | None,
        typer.Option(
            "--teacher",
            help="Of a data file: read a teacher's answers from this column, or votes from several (a,b,c).",
        ),
    ] = None,
    header: options.Header = None,
    encoding: options.Encoding = None,
    task: Annotated[str | None, typer.Option("--task", help="Of a data file: the task; default: found.")] = None,
    json: options.Json = False,
) -> None:
    """Describe the data of a recipe, or a data file.

    For a recipe it prints rows, duplicates, leaks, balance, and texts longer than data.max_length. For a file it prints
    the columns, the task, some rows as they are read, and what looks wrong. Nothing is trained. (recipe: data)
    """
    from pocketbert import api
    from pocketbert.pipeline.file_check import is_data_argument

    if is_data_argument(recipe):
        if overrides:
            fix = "Name its columns with --text, --text-pair and --label, or check a recipe."
            raise InputError(Problem(overrides[0], f"is a key of a recipe, {recipe} is a data file.", fix))
        files = api.DataFiles(recipe, None, text, text_pair, label, header, task, encoding, teacher=teacher)
        _print_file_report(api.data_check_file(files), json)
        return
    given = {"--text": text, "--text-pair": text_pair, "--label": label, "--header": header, "--encoding": encoding}
    if flags := [flag for flag, value in {**given, "--task": task, "--teacher": teacher}.items() if value is not None]:
        fix = "Name a data file, or set the keys of the recipe, e.g. data.train.text=sentence"
        raise InputError(
            Problem(", ".join(flags), "belong to a data file; a recipe names its own columns and task.", fix)
        )
    report = api.data_check(api.load_recipe(recipe, overrides or ()))
    if json:
        print(report.model_dump_json() if report else "null")
    else:
        print("\n".join(report.lines()) if report else "The recipe has no data.")


def _print_file_report(report: FileReport, json: bool) -> None:
    """Print the report on a data file; then raise InputError if it names problems that would end a run."""
    if json:
        print(report.model_dump_json())
    else:
        rows = [[c.name, f"{c.filled:,}", f"{c.values:,}", escape_line(c.example)] for c in report.columns]
        print_table(["column", "filled", "values", "first"], rows)
        print("\n".join(map(escape_line, report.lines())))
    if report.problems:
        raise InputError(report.problems)


def prepare(
    recipe: options.Recipe,
    output: options.Output,
    overrides: options.Overrides = None,
    engine: options.Cluster = "local",
    workers: options.ClusterWorkers = None,
    json: options.Json = False,
) -> None:
    """Tokenize a recipe's plain text once, for several runs. (recipe: data.corpus)

    A run does this itself. Prepare a corpus that is large or that several recipes share. The command prints one folder
    per entry of data.corpus.sources: set the `path` of that entry to it.
    """
    from pocketbert import api

    folders = api.data_prepare(api.load_recipe(recipe, overrides or ()), output, engine, workers)
    if json:
        print_json({"corpora": [str(f) for f in folders]})
    else:
        print("\n".join(f"corpus: {f}" for f in folders))


def augment(
    recipe: options.Recipe,
    output: Annotated[Path, typer.Option("-o", "--output", help="Write this file, .jsonl or .jsonl.gz.")],
    overrides: options.Overrides = None,
    overwrite: options.OverwriteFile = False,
    json: options.Json = False,
) -> None:
    """Write training rows and copies with replaced words to a file. (recipe: data.augment)

    A run does this itself for stages with `augmented: true`; use the command to look at the rows or to train on them
    elsewhere. The file contains no held-out rows, so train on it with data.holdout=0. If the command was interrupted,
    the same command continues.
    """
    from pocketbert import api

    counts = api.data_augment(api.load_recipe(recipe, overrides or ()), output, overwrite)
    if json:
        print_json({"file": str(output), "rows": counts.rows, "copies": counts.copies, "left_out": counts.left_out})
    else:
        print(f"augmented: {output}: {counts.line}")


def demo(output: options.Output, json: options.Json = False) -> None:
    """Write the built-in corpus of assistant commands.

    Each row has an intent and slots. There are files for training, development and test.
    """
    from pocketbert import api

    files = api.data_demo(output)
    if json:
        print_json({name: str(path) for name, path in files.items()})
    else:
        print("\n".join(f"{name}: {path}" for name, path in files.items()))


for command in (check, prepare, augment, demo):
    add(data_app, command, group="data")


recipes_app = typer.Typer(help="List, show, copy and check recipes.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Name of a shipped recipe, from `pocketbert recipes ls`.")]


def ls(json: options.Json = False) -> None:
    """List the recipes that are shipped with PocketBERT."""
    from pocketbert import api
    from pocketbert.pipeline.recipes import shipped_names

    rows = [[name, api.load_recipe(name).task.value, api.load_recipe(name).description] for name in shipped_names()]
    if json:
        print_json([dict(zip(("name", "task", "description"), row, strict=True)) for row in rows])
    else:
        print_table(["name", "task", "description"], rows)


def show(name: Name) -> None:
    """Print a shipped recipe."""
    from pocketbert.pipeline.recipes import recipe_path

    print(recipe_path(name).read_text(encoding="utf-8"), end="")


def cp(
    name: Name,
    destination: Annotated[Path, typer.Argument(help="Write this file.")],
    overwrite: options.OverwriteFile = False,
) -> None:
    """Copy a shipped recipe to a file that you can edit."""
    from pocketbert.pipeline.recipes import copy_recipe

    destination = copy_recipe(name, destination, overwrite)
    print(f"written: {destination}\nEdit it, then run it: pocketbert run {destination}")


def validate(recipe: options.Recipe, overrides: options.Overrides = None) -> None:
    """Check a recipe and its files, and list all problems.

    The local model and data files that the recipe names are read; for a shipped recipe, only the settings are checked.
    """
    from pocketbert import api
    from pocketbert.pipeline.learn.data import check_before_run
    from pocketbert.pipeline.recipes import shipped_names

    resolved = api.load_recipe(recipe, overrides or ())
    if recipe not in shipped_names():
        check_before_run(resolved)
    stages = len(resolved.distill)
    distilled = f"{stages} distillation stage{'s' if stages != 1 else ''}" if stages else "no distillation"
    print(f"{recipe}: valid, task {resolved.task}, {distilled}")


def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from pocketbert.core.recipe.file import recipe_schema

    print(jsonlib.dumps(recipe_schema(), indent=2))


for recipes_command in (ls, show, cp, validate, schema):
    add(recipes_app, recipes_command, group="recipes")
