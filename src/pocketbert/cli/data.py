"""data check, data prepare, data augment, data demo."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import add
from pocketbert.cli.output import print_json

app = typer.Typer(help="Check, prepare and augment the data of a recipe.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _data() -> None:
    pass


def check(recipe: options.Recipe, overrides: options.Overrides = None, json: options.Json = False) -> None:
    """Describe a recipe's data: rows, duplicates, leaks, balance.

    It also counts texts longer than data.max_length, which would be cut. Nothing is trained. (recipe: data)
    """
    from pocketbert import api

    report = api.data_check(api.load_recipe(recipe, overrides or ()))
    if json:
        print(report.model_dump_json() if report else "null")
    else:
        print("\n".join(report.lines()) if report else "The recipe has no data.")


def prepare(
    recipe: options.Recipe,
    output: options.Output,
    overrides: options.Overrides = None,
    json: options.Json = False,
) -> None:
    """Tokenize a recipe's plain text once, for several runs. (recipe: data.corpus)

    A run does this itself. Prepare a corpus that is large or that several recipes share. The command prints one folder
    per entry of data.corpus.sources: set the `path` of that entry to it.
    """
    from pocketbert import api

    folders = api.data_prepare(api.load_recipe(recipe, overrides or ()), output)
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
    add(app, command, group="data")
