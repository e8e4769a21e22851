"""sensitivity: which roles of a model a scheme costs most."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pocketbert.cli import options
from pocketbert.cli.commands import add
from pocketbert.cli.groups import RESULTS
from pocketbert.cli.options import listed
from pocketbert.cli.output import print_table
from pocketbert.core.data.limits import LINE_MB, ROWS
from pocketbert.pipeline.options import CalibrationOptions

if TYPE_CHECKING:
    from pocketbert.core.artefacts import Sensitivities, Sensitivity

_NONE = "-"


def register(app: typer.Typer) -> None:
    """Add the command."""
    add(app, sensitivity, RESULTS)


def sensitivity(
    model: options.Folder,
    calibrate: Annotated[
        Path | None,
        typer.Option(
            "--calibrate",
            help="Compare files, and measure the ranges of static schemes, on the labelled training rows of this .jsonl[.gz], .csv, "
            ".tsv or .parquet file.",
        ),
    ] = None,
    calibration: options.Calibration = None,
    scheme: Annotated[
        str | None,
        typer.Option(
            "--scheme",
            help="Measure these schemes, comma-separated; default: those of the folder's files, else int8 (Core ML: w8).",
        ),
    ] = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    label: options.Label = None,
    header: options.Header = None,
    max_line_mb: options.MaxLine = LINE_MB,
    max_rows: options.MaxRows = ROWS,
    record: Annotated[bool, typer.Option("--record", help="Write the figures into the report of the folder.")] = False,
    json: options.Json = False,
) -> None:
    """Measure how far each role takes a file from the exported one.

    For each format and scheme, files in which one role is compressed are written, compared and deleted. Their errors add in
    quadrature: the sum is compared with the file in which all roles are compressed.
    """
    from pocketbert import api

    rows = (
        options.rows(calibrate, text, text_pair, label, header, max_line_mb, max_rows)
        if calibrate is not None
        else None
    )
    schemes = listed(scheme) if scheme is not None else None
    given = CalibrationOptions(rows=rows, method=calibration)
    found = api.sensitivity(model, given, schemes, record=record)
    if json:
        print(found.model_dump_json())
        return
    _print(found)


def _print(found: Sensitivities) -> None:
    for one in found.schemes:
        print(f"{one.format} {one.scheme}")
        if one.note:
            print(f"  {one.note}")
            continue
        header = ["only this role", "RMS difference", "share of squares", "MB saved", ""]
        print_table(header, _rows(one))
    print(f"RMS differences from the exported file, of the spread of its answers, on {found.rows:,} calibration rows.")
    print(found.machine)


def _rows(one: Sensitivity) -> list[list[str]]:
    rows = [
        [
            role.role.value,
            _NONE if role.rel is None else f"{role.rel:.4f}",
            _NONE if (share := one.share(role)) is None else f"{share:.0%}",
            f"{role.saved / 1e6:.2f}",
            role.note,
        ]
        for role in one.roles
    ]
    predicted, whole = (_NONE if value is None else f"{value:.4f}" for value in (one.predicted, one.whole))
    return [
        *rows,
        ["all, predicted", predicted, _NONE, _NONE, "root of the sum of squares"],
        ["all, measured", whole, _NONE, f"{one.saved / 1e6:.2f}", ""],
    ]
