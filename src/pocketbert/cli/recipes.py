"""recipes ls, show, cp, validate, schema."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.guard import guarded
from pocketbert.cli.output import print_json, print_table

app = typer.Typer(help="Recipes that come with PocketBERT, and yours.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(help="Name of a shipped recipe.")]


def ls(json: options.Json = False) -> None:
    """List the shipped recipes."""
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


def cp(name: Name, destination: Annotated[Path, typer.Argument(help="File to write.")]) -> None:
    """Copy a shipped recipe for editing."""
    from pocketbert.pipeline.shipped import copy_recipe

    copy_recipe(name, destination)
    print(f"{destination}: edit it, then pocketbert run {destination}")


def validate(recipe: options.Recipe, overrides: options.Overrides = None) -> None:
    """Check a recipe; every problem at once."""
    from pocketbert import api

    resolved = api.load_recipe(recipe, overrides or ())
    print(f"{recipe}: valid, task {resolved.task}, {len(resolved.distill)} distillation stages")


def schema() -> None:
    """Print the JSON Schema of recipes."""
    from pocketbert.core.recipe.file import recipe_schema

    print(jsonlib.dumps(recipe_schema(), indent=2))


for command in (ls, show, cp, validate, schema):
    app.command()(guarded(command))
