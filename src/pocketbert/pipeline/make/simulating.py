"""Measure how far a right file of each scheme is off, with the scheme simulated in torch: its bound is made from that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.golden import FILE_NAME, GoldenRow, read_golden
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES
from pocketbert.core.compare.simulated import Simulated, write_simulated
from pocketbert.core.families.ranges import ProductRanges, Range
from pocketbert.core.host.progress import say
from pocketbert.core.predict.predictor import PROBABILITIES, Predictor
from pocketbert.core.predict.readout import Matrix, run_rows, whole
from pocketbert.core.predict.score import probabilities
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.predict.torch_predictor import TorchPredictor
from pocketbert.core.tasks import ScoreFunction, Task
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.pipeline.formats.model_files import ModelFile, exported_file
from pocketbert.pipeline.formats.place import bounds_of, place_of
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.formats.weight_schemes import simulation_of
from pocketbert.pipeline.make.golden import blank_row
from pocketbert.pipeline.make.quantizing import plan_of
from pocketbert.pipeline.make.roles import roles_of
from pocketbert.pipeline.reference import own_texts, sample_batches, sentence_batches, task_text
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from pocketbert.quantize.plan import Rows
    from pocketbert.quantize.simulation import ModulePredictor, Simulation

TEXTS = 64
"""Texts that errors are measured on, golden rows among them."""


def make_simulated(
    model: RunModel,
    reference: TorchPredictor,
    texts: Sequence[Text],
    destination: Path,
    files: Sequence[ModelFile],
    calibration: Callable[[], Rows],
) -> Sequence[str]:
    """Simulate the scheme of every file that has a simulation, and record its error; of static files, measure the ranges.

    Args:
        model: The exported model.
        reference: The same in torch.
        texts: Texts of the data; empty without data.
        destination: Folder with the golden rows, to write into.
        files: Files in the run folder.
        calibration: Returns the rows that static schemes measure ranges on.

    Returns:
        One line for each file whose simulation answers NaN or infinity.
    """
    from pocketbert.quantize import row_of

    rows_of_files = {f: row_of(f.format, f.scheme, f.runtime) for f in files if f.scheme is not Scheme.FP32}
    wanted = {
        f: simulation_of(row, roles_of(model, f), place_of(f.format).exported_scheme(model.recipe)).of_lengths(
            len(place_of(f.format).lengths(model.recipe, f, model.length))
        )
        for f, row in rows_of_files.items()
        if row.simulation is not None
    }
    if not wanted:
        write_simulated(destination, Simulated())
        return ()
    from pocketbert.quantize.simulated import SimulatedPredictor

    golden = read_golden(destination / FILE_NAME)
    rows = [*golden, *_more_rows(model, reference, texts, golden)]
    modules: dict[Format, ModulePredictor] = {}
    answers: dict[tuple[Format, Simulation, Runtime | None], list[Matrix]] = {}
    errors: dict[str, float] = {}
    for file, how in wanted.items():
        key = (file.format, how, file.runtime if how.static else None)  # each has its own learned ranges
        if key not in answers:
            if file.format not in modules:
                modules[file.format] = _exported(model, reference, file.format, rows)
            static = calibration() if how.static else ()
            plan = plan_of(file, calibration, model.weights, model.recipe.quantize.calibration)
            simulated_file = SimulatedPredictor(modules[file.format], how, static, plan.learned, plan.calibration)
            answers[key] = _answers(simulated_file, model, rows)
        errors[file.path] = _error(answers[key], rows, len(golden), _score_inside(model, file))
    broken = [path for path, error in errors.items() if not np.isfinite(error)]
    if broken:
        return [f"{path}: its scheme, simulated in torch, gives NaN or infinite logits." for path in broken]
    ranges = _all_ranges(model, {f: how for f, how in wanted.items() if f.scheme.static}, modules, calibration)
    simulated = Simulated(texts=len(rows), errors=errors, ranges=ranges)
    write_simulated(destination, simulated)
    for file in wanted:
        error = errors[file.path]
        say(
            f"  {file.path}: simulated in torch, off by {error:.3g} of the logits' spread; allowed {bounds_of(file).allowed(error):.3g}"
        )
    return ()


def _all_ranges(
    model: RunModel,
    files: Mapping[ModelFile, Simulation],
    modules: Mapping[Format, ModulePredictor],
    calibration: Callable[[], Rows],
) -> dict[str, dict[str, list[ProductRanges]]]:
    """The ranges that static files must hold, measured on the rows that each takes; by path of the file."""
    from pocketbert.quantize.measured import product_ranges
    from pocketbert.quantize.plan import filled

    out: dict[str, dict[str, list[ProductRanges]]] = {}
    known: dict[tuple[Format, Scheme, Runtime | None, int], dict[str, list[ProductRanges]]] = {}
    for file, how in files.items():
        place = place_of(file.format)
        longest = max(place.lengths(model.recipe, file, model.length), default=model.length)
        key = file.format, file.scheme, file.runtime, longest
        if key not in known:
            taken: Rows = (row for row in calibration() if row["input_ids"].shape[1] <= longest)
            source = exported_file(file.format, place.exported_scheme(model.recipe))
            one = len(place.lengths(model.recipe, source, model.length)) == 1
            taken = filled(taken, longest) if how.fills and one else taken
            plan = plan_of(file, calibration, model.weights, model.recipe.quantize.calibration)
            found = product_ranges(modules[file.format], taken, plan.learned, plan.calibration, plan.steps)
            known[key] = {name: [_shown(r) for r in own] for name, own in found.items()}
        out[file.path] = known[key]
    return out


def _shown(ranges: ProductRanges) -> ProductRanges:
    """Ranges with the digits that are written down."""

    def ends(found: Range | None) -> Range | None:
        return None if found is None else (float(f"{found[0]:.6g}"), float(f"{found[1]:.6g}"))

    return ProductRanges(inputs=ends(ranges.inputs), outputs=ends(ranges.outputs))


def _more_rows(
    model: RunModel, reference: TorchPredictor, texts: Sequence[Text], golden: Sequence[GoldenRow]
) -> list[GoldenRow]:
    """Rows that make 64 of the golden ones: the data's first, then the project's."""
    tokenizer, task = model.tokenizer, model.task
    known = {row.input for row in golden}
    candidates = [*texts, *_sentences(task, tokenizer)]
    chosen = [t for t in dict.fromkeys(candidates) if t not in known][: max(0, TEXTS - len(golden))]
    matrices = run_rows(reference, tokenizer, tokenizer.encode(chosen), task) if chosen else []
    out = []
    for text, matrix in zip(chosen, matrices, strict=True):
        row = blank_row(text, matrix, task, model.folder.labels or [])
        out.append(row.model_copy(update={"reference": row.pick(matrix).ravel().tolist()}))
    return out


def _sentences(task: Task, tokenizer: TextTokenizer) -> list[Text]:
    own = own_texts(task, tokenizer)
    if own and not isinstance(own[0], str):
        return own
    return [*own, *(task_text(task, text, tokenizer) for text in (*ASCII_SENTENCES, *UNICODE_SENTENCES))]


def _exported(model: RunModel, reference: TorchPredictor, format: Format, rows: Sequence[GoldenRow]) -> ModulePredictor:
    """The module that the format's files were exported from: its weights are those that were quantized."""
    from pocketbert.export.prepare import PreparedPredictor, prepare

    family, layout = model.folder.family, place_of(format).layout(model.recipe)
    samples = sample_batches(model.tokenizer, [r.input for r in rows])
    sentences = sentence_batches(model.task, model.tokenizer)
    module = prepare(reference.model, family, model.task, format, layout, reference.pooling, samples, sentences)
    return PreparedPredictor(module, family, model.task)


def _answers(predictor: Predictor, model: RunModel, rows: Sequence[GoldenRow]) -> list[Matrix]:
    """The recorded places of what a predictor answers, one unpadded row at a time as files are verified."""
    encoded = model.tokenizer.encode([r.input for r in rows])
    return run_rows(predictor, model.tokenizer, encoded, model.task, reduce=lambda i, m: rows[i].pick(m))


def _score_inside(model: RunModel, file: ModelFile) -> ScoreFunction | None:
    """The score function that a file computes itself; only files for one client do."""
    if file.client is None:
        return None
    inside = PROBABILITIES in open_file(model.source(file), file.format, runtime=file.runtime).outputs
    return model.task.score if inside else None


def _error(answers: Sequence[Matrix], rows: Sequence[GoldenRow], golden: int, score: ScoreFunction | None) -> float:
    """The RMS error on all rows, or on the golden ones, which are what the gate compares: the larger of both."""
    expected = [row.shaped(row.reference) for row in rows]
    if score is not None:
        answers, expected = ([probabilities(m, score).astype(np.float32) for m in part] for part in (answers, expected))
    worst = max(rms_error(whole(answers[:n]), whole(expected[:n])) for n in (golden, len(rows)))
    return float(f"{worst:.4g}")
