"""Entry point: the list of commands."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from copy import copy
from typing import Annotated

import typer

from pocketbert.cli import chain, diff, files, info, inputs, measure, plan, predict, serve, teach
from pocketbert.cli.commands import HELPERS, GroupedCommands, signals

app = typer.Typer(
    name="pocketbert",
    help="Distil BERT-family encoders, export them for phones, verify each file, and measure it.\n\n"
    "\b\n"
    "With a fine-tuned model:  pocketbert export -m MODEL -o FOLDER\n"
    "With labelled rows:       pocketbert run --data ROWS.csv\n"
    "With a recipe:            pocketbert run RECIPE",
    cls=GroupedCommands,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs a third of the time of the framed one
    epilog="Exit codes: 0 done, 1 the machine failed (e.g. disk full), 2 wrong input, 3 a gate failed, 4 a part is not installed, 130 Ctrl-C, 143 SIGTERM.",
)


def _version(wanted: bool) -> None:
    """Print the installed version and exit, for --version."""
    if wanted:
        from pocketbert.core.host.system import version_of

        print(version_of("pocketbert") or "unknown")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("-V", "--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


for module in (
    chain,
    plan,
    teach,
    files,
    predict,
    serve,
    measure,
    diff,
    info,
):  # in the order in which --help lists the commands
    module.register(app)
app.add_typer(inputs.recipes_app, name="recipes", rich_help_panel=HELPERS)
app.add_typer(inputs.data_app, name="data", rich_help_panel=HELPERS)


def main() -> None:
    """Run the command line."""
    # else Python searches all objects of the libraries for cycles when it ends: two seconds after an export
    atexit.register(gc.freeze)
    with signals():
        _only_named(sys.argv[1:2])(prog_name="pocketbert")  # also where it is run as python -m pocketbert


def _only_named(words: Sequence[str]) -> typer.Typer:
    """Return the application with the command of this name alone, or with all if there is none: building each takes milliseconds."""
    named = [c for c in app.registered_commands if c.callback is not None and c.callback.__name__ in words]
    if not named:
        return app
    narrowed = copy(app)
    narrowed.registered_commands, narrowed.registered_groups = named, []
    return narrowed


if __name__ == "__main__":
    main()
