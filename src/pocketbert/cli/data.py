"""data check."""

from __future__ import annotations

import typer

from pocketbert.cli import options
from pocketbert.cli.guard import guarded

app = typer.Typer(help="Look at data before training on it.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _data() -> None:
    pass


def check(recipe: options.Recipe, overrides: options.Overrides = None, json: options.Json = False) -> None:
    """Read a recipe's data and describe it: rows, duplicates, truncation, leaks, balance. (recipe: data)"""
    from pocketbert import api

    report = api.data_check(api.load_recipe(recipe, overrides or ()))
    if json:
        print(report.model_dump_json() if report else "null")
    else:
        print("\n".join(report.lines()) if report else "the recipe has no data")


app.command()(guarded(check))
