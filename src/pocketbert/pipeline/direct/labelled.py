"""Labelled rows of a user's file, as the files of an artefact folder take them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketbert.core.artefacts import artefact_folder, read_artefacts
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.pipeline.export_recipe import found_columns
from pocketbert.pipeline.make.measuring import compiled_for


def benchmark_rows(models: Sequence[Path], source: DataSource, devices: Sequence[str]) -> EvalSet:
    """Read the rows on which the emulators of a benchmark's devices are scored.

    Args:
        models: The measured folders.
        source: The rows.
        devices: The devices.

    Raises:
        InputError: Where no device scores them, or they cannot belong to the files of several folders.
    """
    if not any(compiled_for(devices)):
        what = "is scored on devices with an emulator of an NPU only, and none is named."
        raise InputError(Problem("--data", what, "Name one (pocketbert devices), or use: pocketbert verify --data"))
    if len(models) != 1:
        raise InputError(Problem("--data", f"is for one folder, got {len(models)}.", "Give one folder with -m."))
    return labelled_rows(artefact_folder(models[0]), source)


def labelled_rows(folder: Path, source: DataSource) -> EvalSet:
    """Read and tokenize the rows that files are scored on.

    Args:
        folder: The artefact folder.
        source: The rows; columns that are not named are found.

    Raises:
        InputError: If the rows cannot be read or scored.
    """
    artefacts = read_artefacts(folder)
    head, name = artefacts.head(), Path(source.title).name
    source = found_columns(source, head.task)
    tokenizer = TextTokenizer(folder, artefacts.processing.max_length)
    reader = tokenizer.reader
    rows = read_examples(source, kind=head.task.labels, columns=reader.form.columns if reader else ())
    if reader is not None:
        reader.check([row.input for row in rows], f"{name} row")
    prepared = head.prepare(rows, tokenizer, source.title)
    if not len(prepared.truth):
        raise InputError(
            Problem(
                "--data",
                f"{name} has no scored pairs; vectors without scores are compared on golden rows.",
                "Give --text-pair and --label, or leave --data out.",
            )
        )
    return EvalSet(name, head, prepared)
