"""Tiny models without a number that is 0 or 1 by chance, so that no converter may leave one out, and the gate `stored` on their files."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families import find_family
from pocketbert.core.families.weight_records import ProductRanges
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Calibration, Format, Layout, Runtime, Scheme
from pocketbert.export.prepare import PreparedPredictor, prepare
from pocketbert.pipeline.gates.stored import PreparedModels, ReferenceConstants, check_stored_numbers
from pocketbert.pipeline.results import Gate, Subject
from pocketbert.quantize import Plan, quantize
from pocketbert.quantize.simulated import measure_product_ranges
from pocketbert.runtime.engines import open_file
from support.defects import defects_of, format_of
from support.folders import once
from support.quantized import SUFFIX, export_file
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer

LABELS = ("negative", "neutral", "positive")
LONGEST = 40
Form = tuple[Any, ...]
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]


def write_model(folder: Path, family: str, seed: int = 0) -> Path:
    """A tiny model whose biases and normalizations are random, too."""
    import torch

    made = tiny_classifier(family, 2, LABELS, seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed + 1)
        for parameter in made.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    made.save_pretrained(folder)
    write_tokenizer(folder, pad_id=find_family(family).tiny["pad_token_id"])
    return folder


class StoredFiles:
    """A tiny BERT, its files in every format and scheme, and what they are compared with; made when first asked for.

    A form is a format, and for a smaller file its scheme and maybe its runtime.

    Args:
        factory: Makes the folders, which all test processes share.
    """

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory
        with once(factory, "stored-model") as (folder, there):
            if not there:
                write_model(folder, "bert")
        self.folder = open_model_folder(str(folder))
        self.models = PreparedModels(folder, CLASSIFY, LONGEST)
        tokenizer = TextTokenizer(folder, LONGEST)
        self.rows = [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES))]
        """The rows that static files are calibrated on."""

    def module(self, format: Format) -> Any:
        """The model as it is exported."""
        return prepare(load_model(self.folder, CLASSIFY), self.folder.family, CLASSIFY, format)

    def reference(self, form: Form) -> ReferenceConstants:
        """The constants of that module."""
        return self.models.reference(form[0], Layout.PLAIN)

    def file(self, *form: Any) -> Path:
        """A file, read-only by convention."""
        defects_of(form[0])
        with once(self.factory, "-".join(("stored", *map(str, form)))) as (folder, there):
            path = folder / f"model{SUFFIX[form[0]]}"
            if not there and len(form) == 1:
                folder.mkdir()
                export_file(self.module(form[0]), self.folder.family, path)
            elif not there:
                folder.mkdir()
                self.quantize(form, path)
        return path

    def quantize(self, form: Form, path: Path, **more: Any) -> Path:
        """Write a smaller file anew."""
        rows = (lambda: self.rows) if form[1].static else None
        quantize(self.file(form[0]), path, Plan(*form, rows=rows, **more))
        return path

    def copy(self, form: Form, folder: Path) -> Path:
        """A copy of a file, to be broken."""
        source = self.file(*form)
        destination = folder / source.name
        if source.is_dir():
            shutil.rmtree(destination, ignore_errors=True)
            return Path(shutil.copytree(source, destination))
        return Path(shutil.copyfile(source, destination))

    @cache  # noqa: B019
    def measured(self, form: Form, method: Calibration = Calibration.MINMAX) -> dict[str, list[ProductRanges]]:
        """The ranges that torch measures on the calibration rows."""
        predictor = PreparedPredictor(self.module(form[0]), self.folder.family, CLASSIFY)
        return measure_product_ranges(predictor, self.rows, None, method, Plan(*form[:2]).steps)

    def check(self, path: Path, form: Form, **recorded: Any) -> Gate:
        """The gate on a file of a form."""
        return check_file(path, self.models, scheme_of(form), *form[2:], **recorded)


def scheme_of(form: Form) -> Scheme:
    """The scheme of a form; the exported file has its format's."""
    return form[1] if len(form) > 1 else FORMATS[form[0]].base


def check_file(
    path: Path, models: PreparedModels, scheme: Scheme, runtime: Runtime | None = None, **recorded: Any
) -> Gate:
    """Compare a file with the model it was made of; `recorded` are further fields of the subject."""
    format = format_of(path)
    predictor: Any = open_file(path, format)
    unread: Any = None
    subject = Subject(
        path.name, path, format, scheme, None, runtime, predictor, unread, [], CLASSIFY, Path(), **recorded
    )
    return check_stored_numbers(subject, models)
