"""demo: runs the whole chain on the built-in corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import add
from pocketbert.cli.groups import CHAIN
from pocketbert.cli.output import print_json, print_table

SENTENCE = "could you wake me at quarter to seven tomorrow"


def register(app: typer.Typer) -> None:
    """Add the command."""
    add(app, demo, CHAIN)


def demo(
    overrides: options.Overrides = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="Work in this run folder.")] = Path("runs/demo"),
    text: Annotated[str, typer.Option("--text", help="Classify this sentence at the end.")] = SENTENCE,
    overwrite: options.Overwrite = False,
    json: options.Json = False,
) -> None:
    """Run the whole chain on built-in data with a real teacher.

    The result is a verified and measured int8 model. The demo takes 4 to 8 minutes on two cores.
    """
    from pocketbert import api

    result = api.demo(output, overwrite, overrides or ())
    assert result.phone is not None
    answer = api.predict(result.phone, [text])[0]
    top = answer.fields(3)
    if json:
        print_json({**result.to_dict(), "text": text, "label": top["label"]})
        return
    print_table(
        result.header, result.table, "assistant commands: the teacher and the student's files (* opened by default)"
    )
    print(f'"{text}"')
    print("  " + ", ".join(f"{t['label']} {t['score']:.1%}" for t in top["top"]))
    print(f"artefact folder: {result.phone}")
    print(f"report:          {result.report}")
    print(f'try your own:    pocketbert predict -m {result.phone} "your own sentence"')
