"""Options that several commands share, each named as its recipe key or as the Hugging Face tools name it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.recipe.presets import PRESETS, Preset, PresetSettings
from pocketbert.pipeline.options import RECIPE_KEY_FLAGS

if TYPE_CHECKING:
    from pocketbert.core.data.source import DataSource

_KEYS = {flag: key for key, flag in RECIPE_KEY_FLAGS.items()}


def sets(flag: str, text: str, key: str = "", short: tuple[str, ...] = (), **settings: Any) -> Any:
    """Return a typer option whose help ends with the recipe key that it sets.

    Args:
        flag: Name of the option, e.g. ``--opset``.
        text: What the option does.
        key: The recipe key; by default the one in `pocketbert.pipeline.options.RECIPE_KEY_FLAGS`.
        short: Shorter names of the option, e.g. ``-m``.
        settings: Arguments that are passed on to typer.
    """
    return typer.Option(*short, flag, help=f"{text} (recipe: {key or _KEYS[flag]})", **settings)


def preset_defaults(of: Callable[[PresetSettings], str]) -> str:
    """Return help text on an option's default in each benchmark preset: ``default 5; quick 3; mlperf 4``.

    Presets with the same value as the first (standard) are left out.

    Args:
        of: Function from the settings of a preset to the option's value, as text.
    """
    values = {preset: of(settings) for preset, settings in PRESETS.items()}
    usual = values.pop(Preset.STANDARD)
    return "; ".join([f"default {usual}", *(f"{preset} {value}" for preset, value in values.items() if value != usual)])


def listed(text: str) -> list[str]:
    """Split a comma-separated text into its non-empty parts, without blanks around them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def numbers(text: str, flag: str) -> list[int]:
    """Parse a comma-separated list of positive integers; `flag` names the option in errors.

    Raises:
        InputError: If the text is not a list of positive integers.
    """
    parts = listed(text)
    if not parts or not all(p.isdecimal() and int(p) > 0 for p in parts):
        raise InputError(
            Problem(
                flag,
                f"'{text}' is not a list of positive numbers.",
                "Write whole numbers from 1, separated by commas, for example 1,2.",
            )
        )
    return [int(p) for p in parts]


def rows(
    path: Path | str,
    text: str | None,
    text_pair: str | None,
    label: str | None,
    header: bool | None = None,
    max_line_mb: float = DEFAULT_LINE_MB,
    max_rows: int = DEFAULT_MAX_ROWS,
    encoding: str | None = None,
) -> DataSource:
    """Return the data source of a file with the columns and limits of a command's options.

    Columns that are None are guessed later.
    """
    from pocketbert.core.data.source import DataSource

    limits = {"max_line_mb": max_line_mb, "max_rows": max_rows}
    return DataSource.at(str(path), text, text_pair, label, header, encoding, **limits)


def optional_rows(
    path: Path | None,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    header: bool | None = None,
    max_line_mb: float = DEFAULT_LINE_MB,
    max_rows: int = DEFAULT_MAX_ROWS,
    encoding: str | None = None,
) -> DataSource | None:
    """Return the data source of a file as `rows` does; None if the command names no file."""
    return None if path is None else rows(path, text, text_pair, label, header, max_line_mb, max_rows, encoding)


def choices(text: str) -> dict[str, str]:
    """Parse the value of --roles, ``ROLE=SCHEME,...``, to the scheme of each role (place of a weight in a layer) or module.

    Raises:
        InputError: If a part of the text is not ROLE=SCHEME.
    """
    parts = [part.partition("=") for part in listed(text)]
    wrong = [key for key, _, scheme in parts if not key or not scheme]
    if wrong:
        what = f"'{wrong[0]}' has no scheme."
        raise InputError(Problem("--roles", what, "Write ROLE=SCHEME, for example --roles ffn_down=none."))
    return {key: scheme for key, _, scheme in parts}


Roles = Annotated[
    str,
    sets(
        "--roles",
        "Leave roles or modules as they were exported, or give them a second scheme, comma-separated: encoder.layer.2.*=none, "
        "ffn_down=a8w8; docs/lab/quantization.md lists the roles, and the second schemes of each file.",
        metavar="ROLE=SCHEME,...",
    ),
]
Calibration = Annotated[
    str | None,
    sets(
        "--calibration",
        "Choose the ranges of a8w8 and a16w8 files by this method: minmax, from the smallest number to the largest; mse, with the least mean "
        "squared error of rounding; percentile, without the furthest 0.01 % of the numbers. Default: minmax.",
    ),
]
Recipe = Annotated[str, typer.Argument(help="Recipe file, or the name of a shipped one (`pocketbert recipes ls`).")]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY.SUB=VALUE]...", help="Set keys of the recipe, e.g. seed=3 data.max_length=64."),
]
Output = Annotated[Path, typer.Option("-o", "--output", help="Write this folder.")]
OptionalOutput = Annotated[
    Path | None,
    typer.Option("-o", "--output", help="Work in this run folder; default: runs/NAME, with the recipe's name."),
]
Folder = Annotated[Path, typer.Option("-m", "--model", help="Open this artefact folder, or that of this run folder.")]
Scheme = Annotated[
    str | None,
    typer.Option(
        "--scheme", help="Open the file of this scheme: int8, fp32, ...; default: that of the folder's default file."
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format",
        help="Open the file of this format: onnx, tflite, coreml; default: that of the folder's default file.",
    ),
]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Use fastest here to let PocketBERT measure once which file is fastest at each length, and open that one.",
    ),
]
Cluster = Annotated[
    str,
    typer.Option(
        "--engine",
        help="ray: work in the processes of a Ray cluster, a local one or that of RAY_ADDRESS; the result is the same.",
    ),
]
ClusterWorkers = Annotated[
    int | None, typer.Option("--workers", min=1, help="With --engine ray: processes; default: one on each machine.")
]
ModelFile = Annotated[
    str | None, typer.Option("--model-file", help="Open this file of the folder, e.g. tflite/model_int8.tflite.")
]
Seed = Annotated[int | None, sets("--seed", "Use this seed for every random choice.", "seed", min=0)]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace results that were made with other settings.")]
OverwriteFile = Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")]
ResumeAnyway = Annotated[
    bool,
    typer.Option(
        "--resume-anyway", help="Keep results that other library versions made, and record that in the run folder."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="List the steps and their state, and do nothing.")]
Text = Annotated[
    str | None,
    sets("--text", "Read the text from this column; default: found by its name or its content.", "data.eval.text"),
]
TextPair = Annotated[str | None, sets("--text-pair", "Read the second text from this column.", "data.eval.text_pair")]
FittedAnswer = Annotated[
    list[str] | None,
    typer.Option(
        "--answer",
        metavar="KEY=VALUE",
        help="With --budget: set temperature or unknown for the new files, instead of fitting the temperature; "
        "unknown.accuracy=0.95 fits a threshold for each file. The rows that choose the files are fitted on. May be repeated.",
    ),
]
Label = Annotated[
    str | None,
    sets("--label", "Read the label from this column; default: found by its name or its content.", "data.eval.label"),
]
Header = Annotated[
    bool | None,
    sets(
        "--header/--no-header",
        "Take the first row of a table as the names of its columns, or as a row of data; default: detected. Without a "
        "header the columns are called 'column 1', 'column 2', ...",
        "data.eval.header",
    ),
]
Encoding = Annotated[
    str | None,
    sets("--encoding", "Read text files in this encoding, such as cp1252; default: detected.", "data.eval.encoding"),
]
MaxLine = Annotated[
    float,
    sets(
        "--max-line-mb",
        "Refuse a file with a longer line or row than this, in MB.",
        "data.eval.max_line_mb",
        min=0.001,
        max=256,
    ),
]
MaxRows = Annotated[
    int,
    sets(
        "--max-rows",
        "Refuse a file with more rows than this, or with over 512 bytes for each.",
        "data.eval.max_rows",
        min=1,
        max=1 << 40,
    ),
]
