"""Entry point: the list of commands."""

from __future__ import annotations

from typing import Annotated

import typer

from pocketbert.cli import chain, data, demo, files, info, measure, predict, recipes

app = typer.Typer(
    name="pocketbert",
    help="Distil BERT-family encoders, export them for phones, prove that each file still does the job, and measure it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help needs a third of the time of the framed one
    epilog="Exit codes: 0 done, 1 the machine failed, 2 wrong input, 3 a gate failed, 4 something is not installed, 130 Ctrl-C.",
)


def _version(wanted: bool) -> None:
    if wanted:
        from pocketbert.core.host.versions import version_of

        print(version_of("pocketbert") or "unknown")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


for module in (chain, files, predict, measure, info, demo):
    module.register(app)
app.add_typer(recipes.app, name="recipes")
app.add_typer(data.app, name="data")


def main() -> None:
    """Run the command line."""
    app()


if __name__ == "__main__":
    main()
