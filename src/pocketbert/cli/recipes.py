"""recipes ls, show, cp, validate, schema."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import add
from pocketbert.cli.output import print_json, print_table

app = typer.Typer(help="List, show, copy and check recipes.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Name of a shipped recipe, from `pocketbert recipes ls`.")]


def ls(json: options.Json = False) -> None:
    """List the recipes that are shipped with PocketBERT."""
    from pocketbert import api
    from pocketbert.pipeline.shipped import names

    rows = [[name, api.load_recipe(name).task.value, api.load_recipe(name).description] for name in names()]
    if json:
        print_json([dict(zip(("name", "task", "description"), row, strict=True)) for row in rows])
    else:
        print_table(["name", "task", "description"], rows)


def show(name: Name) -> None:
    """Print a shipped recipe."""
    from pocketbert.pipeline.shipped import recipe_path

    print(recipe_path(name).read_text(encoding="utf-8"), end="")


def cp(
    name: Name,
    destination: Annotated[Path, typer.Argument(help="Write this file.")],
    overwrite: options.OverwriteFile = False,
) -> None:
    """Copy a shipped recipe to a file that you can edit."""
    from pocketbert.pipeline.shipped import copy_recipe

    destination = copy_recipe(name, destination, overwrite)
    print(f"written: {destination}\nEdit it, then run it: pocketbert run {destination}")


def validate(recipe: options.Recipe, overrides: options.Overrides = None) -> None:
    """Check a recipe and its files, and list all problems.

    Its local model and data files are read; of a shipped recipe only the settings are checked.
    """
    from pocketbert import api
    from pocketbert.pipeline.learn.first_look import look
    from pocketbert.pipeline.shipped import names

    resolved = api.load_recipe(recipe, overrides or ())
    if recipe not in names():
        look(resolved)
    stages = len(resolved.distill)
    distilled = f"{stages} distillation stage{'s' if stages != 1 else ''}" if stages else "no distillation"
    print(f"{recipe}: valid, task {resolved.task}, {distilled}")


def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from pocketbert.core.recipe.file import recipe_schema

    print(jsonlib.dumps(recipe_schema(), indent=2))


for command in (ls, show, cp, validate, schema):
    add(app, command, group="recipes")
