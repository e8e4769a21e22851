"""Measures the cells of a unit: a tiny random model, its files, and how far they are from the untouched model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.compare.evaluate import logit_scale, rms_error, worst_difference
from pocketbert.core.compare.parity import build_probe
from pocketbert.core.compare.sample_texts import sample_pairs
from pocketbert.core.families import Family
from pocketbert.core.formats import FORMATS, Bounds
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import Matrix, Predictor, TorchPredictor, join_texts, run_rows, split_by_text
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format, Scheme, Shapes
from pocketbert.pipeline.reference import draw_inputs, load_reference_model, project_texts, tokenize_batches
from pocketbert.runtime.engines import open_file
from support.matrix.cells import PAIRS, Cell, Unit, schemes
from support.matrix.record import Result
from support.tiny import tiny_classifier, write_own_tokenizer

EXPORTED, LONGEST = (16, 40), 48
"""Lengths of files that take listed lengths, and the longest of those that take any."""
ASKED = (7, 11, 24, 31, 45)
"""Lengths of inputs, none of which an exporter's example has."""
MEDIAN = 1e-5
"""Largest median difference of an fp32 file."""
LEAST_EFFECT = 0.02
"""A model whose answers move less when its mask is dropped, or its words are exchanged, would prove nothing."""
HALF_MARGIN = 1.5
"""A file in fp16 that is further off than its bound may be this many times as far off as torch is in fp16."""
LABELS = ("negative", "neutral", "positive")


@dataclass(frozen=True)
class Model:
    """A tiny random model on disk, what it does, and the untouched model that transformers makes of it."""

    folder: ModelFolder
    task: Task
    reference: TorchPredictor
    tokenizer: TextTokenizer

    @property
    def row(self) -> Family:
        """Its row of the family table."""
        return self.folder.family

    def texts(self, column: str) -> list[Text]:
        """Texts of the kind that a column of the matrix takes."""
        return list(sample_pairs()) if column == PAIRS else project_texts(self.task, self.tokenizer)


def make_model(folder: Path, name: str, task: Task, layers: int = 2) -> Model:
    """Write a tiny random model of a row of the family table, its biases and normalizations random too, and open it."""
    import torch

    folder.mkdir(parents=True)
    told = write_own_tokenizer(folder, name)
    counts = {TaskName.REGRESSION: 1, TaskName.MULTIPLE_CHOICE: 1, TaskName.QUESTION_ANSWERING: 2}
    labels = LABELS[: counts.get(task.name, len(LABELS))]
    changes = {"problem_type": task.problem_type} if task.problem_type else {}
    model = tiny_classifier(name, layers, labels, auto_class=task.auto_class, **told, **changes)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.save_pretrained(folder)
    opened = open_model_folder(str(folder))
    length = min(LONGEST, opened.positions)
    return Model(opened, task, load_reference_model(opened, task), TextTokenizer(folder, length))


def measure(unit: Unit, folder: Path, only: Sequence[Scheme] = (), layers: int = 2) -> list[Result]:
    """Write the files of a unit into a new folder and measure its cells, or those of some schemes."""
    model = make_model(folder / "model", unit.row, TASKS[unit.task], layers)
    effects = {column: _effects(model, column) for column in unit.columns}
    out: list[Result] = []
    files = _Files(unit, model, folder)
    for scheme in only or schemes(unit.format):
        path = files.write(scheme)
        for column in unit.columns:
            cell = Cell(unit.row, column, str(unit.format), str(scheme))
            out.append(_measured(model, cell, path, effects[column], files))
    return out


class _Files:
    """The files of a unit: an exported one, and those that are made from it."""

    def __init__(self, unit: Unit, model: Model, folder: Path) -> None:
        self.unit, self.model, self.folder = unit, model, folder
        self._exported: dict[Scheme, Path] = {}

    def write(self, scheme: Scheme) -> Path:
        """Write the file of a scheme, and the one that it is made from."""
        from pocketbert.quantize import Plan, quantize

        info = FORMATS[self.unit.format]
        if scheme in (Scheme.FP32, Scheme.FP16):
            if scheme not in self._exported:
                self._exported[scheme] = self._export(scheme, self.folder / f"{info.stem}_{scheme}{info.suffix}")
            return self._exported[scheme]
        destination = self.folder / f"{info.stem}_{scheme}{info.suffix}"
        quantize(self.write(info.base), destination, Plan(self.unit.format, scheme))
        return destination

    def module(self) -> Any:
        """What is exported."""
        from pocketbert.export.prepare import prepare

        model = self.model
        samples = tokenize_batches(model.tokenizer, model.texts(""))
        pooling = model.reference.pooling
        return prepare(model.reference.model, model.row, model.task, self.unit.format, pooling=pooling, samples=samples)

    def _export(self, scheme: Scheme, path: Path) -> Path:
        from pocketbert.export import coreml, onnx, tflite

        model, module = self.model, self.module()
        if self.unit.format is Format.ONNX:
            encoded = model.tokenizer.encode(list(model.texts(""))[:2])
            onnx.export(module, model.row, model.task, model.tokenizer.pad(encoded), path)
        elif self.unit.format is Format.TFLITE:
            tflite.export(module, model.row, model.task, EXPORTED, path)
        else:
            shapes, lengths = (Shapes.ENUMERATED, EXPORTED)
            if scheme is Scheme.FP32:  # lengths that the exporter has not seen
                shapes, lengths = Shapes.RANGED, (model.tokenizer.max_length,)
            labels = LABELS if model.task.name is TaskName.TEXT_CLASSIFICATION else ()
            info = coreml.CoremlInfo("A tiny random model.", "1", "the tests", "none", labels)
            form = coreml.CoremlForm(shapes=shapes, precision=scheme)
            coreml.export(module, model.row, model.task, lengths, path, form, info)
        return path


def _compute_in_half(exact: TorchPredictor, lengths: tuple[int, ...]) -> TorchPredictor:
    """Return the untouched model for inputs of these lengths, all of it computed in fp16 by torch."""
    half = TorchPredictor(copy.deepcopy(exact.model).half(), exact.task, exact.inputs, exact.pooling)
    half.lengths = lengths
    return half


def _measured(model: Model, cell: Cell, path: Path, effects: tuple[float, float], files: _Files) -> Result:
    scheme, info = Scheme(cell.scheme), FORMATS[files.unit.format]
    bounds = info.bounds[scheme, None]
    predictor = open_file(path, files.unit.format, threads=1)
    if scheme in (Scheme.FP32, Scheme.FP16):
        worst, median, shapes = differences(model, cell.task, predictor)
        bound = model.row.parity_atol * bounds.loss
        if scheme is Scheme.FP16 and worst > bound:  # the spread of a random head's only logit can be tiny
            half = _compute_in_half(model.reference, predictor.lengths)
            bound = max(bound, HALF_MARGIN * differences(model, cell.task, half)[0])
    else:
        worst, shapes = _error(model, cell.task, predictor)
        median, bound = float("nan"), _allowed(model, cell, bounds, files)
    problems = [] if worst <= bound else [f"differs by {worst:.3g}, allowed {bound:.3g}"]
    if scheme is Scheme.FP32 and not median <= MEDIAN:
        problems.append(f"differs by {median:.3g} in the median, allowed {MEDIAN:g}")
    for what, effect in zip(("mask", "positions"), effects, strict=True):
        problems += [] if effect >= LEAST_EFFECT else [f"{what} of the model matter by {effect:.3g} only"]
    numbers = (float(f"{n:.3g}") for n in (worst, bound, median, *effects))
    return Result(cell, not problems, *numbers, shapes, "; ".join(problems))


def differences(model: Model, column: str, predictor: Predictor) -> tuple[float, float, list[tuple[int, int]]]:
    """Largest difference, the median over the inputs, and the shapes of the inputs."""
    found: list[float] = []
    shapes: set[tuple[int, int]] = set()
    longest = max(predictor.lengths, default=model.tokenizer.max_length)
    segments = model.row.uses_segments or column == PAIRS
    drawn = draw_inputs(model.reference, model.tokenizer, segments, model.task, longest)
    for names in model.task.compared:
        own = model.reference, model.tokenizer, model.texts(column)
        probe = build_probe(*own, ASKED, model.task, names, predictor.lengths, drawn)
        scale = logit_scale(join_texts(probe.expected))
        for batch, expected in zip(probe.batches, probe.expected, strict=True):
            found.append(worst_difference(probe.read(predictor, batch, names), expected) / scale)
            shapes.add((int(batch["input_ids"].shape[0]), int(batch["input_ids"].shape[1])))
    # numpy's maximum and median of numbers with a NaN are NaN
    return float(np.max(found)), float(np.median(found)), sorted(shapes)


def _error(model: Model, column: str, predictor: Predictor) -> tuple[float, list[tuple[int, int]]]:
    """RMS error over texts, one unpadded text at a time, and the shapes of the inputs."""
    longest = max(predictor.lengths, default=model.tokenizer.max_length)
    rows = TextTokenizer(model.folder.path, longest).encode(model.texts(column))
    made, right = (
        join_texts(run_rows(one, model.tokenizer, rows, model.task, names=model.task.compared[0]))
        for one in (predictor, model.reference)
    )
    return float(rms_error(made, right)), sorted({(1, len(row)) for row in rows})


def _allowed(model: Model, cell: Cell, bounds: Bounds, files: _Files) -> float:
    """The bound of docs/bounds.md: three times the error of the scheme, simulated in torch."""
    from pocketbert.export.prepare import PreparedPredictor
    from pocketbert.quantize import find_row
    from pocketbert.quantize.simulated import SimulatedPredictor

    format = files.unit.format
    how = find_row(format, Scheme(cell.scheme)).simulation
    if how is None:
        return bounds.reference
    how = how.made_from(FORMATS[format].base).of_lengths(len(EXPORTED))
    exact = PreparedPredictor(files.module(), model.row, model.task)
    limited: Any = SimulatedPredictor(exact, how)
    limited.lengths = EXPORTED if FORMATS[format].fixed_lengths else ()  # those of the file
    return bounds.allowed(_error(model, cell.task, limited)[0])


def _effects(model: Model, column: str) -> tuple[float, float]:
    """How far the untouched model's answers move without its mask, and with words that changed places."""
    task, names = model.task, model.task.answer
    rows = [r for r in model.tokenizer.encode(model.texts(column)) if len(r) > 6][:8]
    padded = model.tokenizer.pad(rows, model.tokenizer.max_length)
    right = join_texts(split_by_text(model.reference.run(padded), padded, names, task, None))
    opened = {**padded, "attention_mask": np.ones_like(padded["attention_mask"])}
    wrong = join_texts(split_by_text(model.reference.run(opened), padded, names, task, None))
    mask = worst_difference(wrong, right) / logit_scale(right)
    moved: list[Matrix] = []
    for row in rows:
        order = np.arange(len(row))
        inner = np.flatnonzero(~np.isin(row.ids, [*model.tokenizer.special_ids]))
        order[inner] = inner[::-1]
        turned = model.tokenizer.pad([replace(row, ids=row.ids[order])])
        (answer,) = split_by_text(model.reference.run(turned), turned, names, task, None)
        moved.append(answer[order] if len(answer) == len(order) and len(answer) > 1 else answer)
    return float(mask), float(worst_difference(join_texts(moved), right) / logit_scale(right))
