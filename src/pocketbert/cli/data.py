"""data check, data prepare, data augment, data demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.guard import guarded
from pocketbert.cli.output import print_json

app = typer.Typer(
    help="Look at data, and prepare it, before training on it.", no_args_is_help=True, rich_markup_mode=None
)


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


def prepare(
    recipe: options.Recipe,
    output: options.Output,
    overrides: options.Overrides = None,
    json: options.Json = False,
) -> None:
    """Tokenize a recipe's plain text once, for several runs to read. (recipe: data.corpus)

    A run does this by itself; prepare it where a corpus is large or several recipes share it, and name the folders that are
    printed as data.corpus.sources with `path`.
    """
    from pocketbert import api

    folders = api.data_prepare(api.load_recipe(recipe, overrides or ()), output)
    if json:
        print_json({"corpora": [str(f) for f in folders]})
    else:
        print("\n".join(f"corpus: {f}" for f in folders))


def augment(
    recipe: options.Recipe,
    output: Annotated[Path, typer.Option("-o", "--output", help="File to write, .jsonl or .jsonl.gz.")],
    overrides: options.Overrides = None,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Write a recipe's training rows, each followed by copies with words replaced. (recipe: data.augment)

    A run does this by itself for stages with `augmented: true`; write the file to look at it, or to train on it elsewhere.
    Held-out rows are not in it: train on it with data.holdout=0. Started again after it was stopped it continues.
    """
    from pocketbert import api

    counts = api.data_augment(api.load_recipe(recipe, overrides or ()), output, overwrite)
    if json:
        print_json({"file": str(output), "rows": counts.rows, "copies": counts.copies, "left_out": counts.left_out})
    else:
        print(f"augmented: {output}: {counts.line}")


def demo(output: options.Output, json: options.Json = False) -> None:
    """Write the project's own corpus of assistant commands: intents and slots, train, dev and test."""
    from pocketbert import api

    files = api.data_demo(output)
    if json:
        print_json({name: str(path) for name, path in files.items()})
    else:
        print("\n".join(f"{name}: {path}" for name, path in files.items()))


app.command()(guarded(check))
app.command()(guarded(prepare))
app.command()(guarded(augment))
app.command()(guarded(demo))
