"""Measure how far a right file of each scheme is off, with the scheme simulated in torch: its bound is made from that."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.golden import GOLDEN_FILE as SIMULATING_FILE_NAME
from pocketbert.core.compare.golden import GoldenRow, Simulated, read_golden, write_simulated
from pocketbert.core.compare.parity import Parity, build_probe, compare, worst_of
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES, sample_pairs
from pocketbert.core.disk.files import copy_path, read_json, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.families.weight_records import ProductRanges, Range, read_learned
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import say, waiting
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Matrix,
    Predictor,
    ScoredPredictor,
    TorchPredictor,
    run_rows,
    whole,
)
from pocketbert.core.predict.scores import probabilities
from pocketbert.core.predict.tokenization import Text, TextTokenizer, padding_side_of
from pocketbert.core.tasks import ScoreFunction, Task
from pocketbert.core.types import Calibration, Format, Runtime, Scheme
from pocketbert.pipeline.formats.base import ModelFile, RunModel, bounds_of, exported_file, place_of
from pocketbert.pipeline.formats.weight_roles import check_names, roles_of, simulation_of, weights_of, write_weights
from pocketbert.pipeline.make.golden import blank_row
from pocketbert.pipeline.reference import (
    check_spread,
    drawn_inputs,
    own_texts,
    reference_model,
    sample_batches,
    sentence_batches,
    takes_both,
    task_text,
)
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from torch import nn

    from pocketbert.quantize import Plan
    from pocketbert.quantize.rounding import ModulePredictor, Simulation
    from pocketbert.quantize.table import Rows


# --- outliers ---
# Which outlier channels of a model were divided, as an export records it and as card and report tell it.


FILE_NAME = "outliers.json"
SHOWN = 6
"""Tensors that a note names."""


class Outliers(BaseModel):
    """Outlier channels of one tensor, see `pocketbert.export.adapters.outliers`.

    Attributes:
        name: Path of the module that writes the tensor.
        channels: How many of its channels were divided.
        of: How many it has.
        ratio: The largest magnitude of its largest channel over that of its median channel, before.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    channels: int
    of: int
    ratio: float


_LIST = TypeAdapter(list[Outliers])


def write_outliers(folder: Path, module: nn.Module) -> list[Outliers]:
    """Record what was done to a prepared module in the folder of its files.

    Args:
        folder: Where the files of a format are.
        module: The module that they are exported from.

    Returns:
        What was recorded, in the order in which the module computes it.
    """
    from pocketbert.export.prepare import outliers_of

    found = [Outliers(name=o.name, channels=o.channels, of=o.of, ratio=o.ratio) for o in outliers_of(module)]
    write_json(folder / FILE_NAME, _LIST.dump_python(found, mode="json"))
    return found


def read_outliers(folder: Path) -> list[Outliers]:
    """Read what an export step recorded; nothing where an earlier version wrote the folder."""
    path = folder / FILE_NAME
    return _LIST.validate_python(read_json(path)) if path.is_file() else []


def outlier_notes(folders: Sequence[Path]) -> list[str]:
    """Tell what was done to the model of some folders, in one sentence where it is the same for all; nothing without outliers."""
    return list(dict.fromkeys(note for folder in folders if (note := outlier_note(read_outliers(folder)))))


def outlier_line(found: Sequence[Outliers]) -> str:
    """The note of an export on the terminal, without names; empty where there are no outliers."""
    if not found:
        return ""
    tensors = "1 tensor" if len(found) == 1 else f"{len(found)} tensors"
    return (
        f"outlier channels of {tensors}, up to {max(o.ratio for o in found):.0f} times the median channel, divided for "
        "int8; fp32 answers stay the same"
    )


def outlier_note(found: Sequence[Outliers]) -> str:
    """One sentence on the divided channels of a model; empty where there are none."""
    shown = [f"{o.name} ({o.channels} of {o.of}, up to {o.ratio:.0f} times the median channel)" for o in found[:SHOWN]]
    more = f" and {len(found) - SHOWN} more tensors" if len(found) > SHOWN else ""
    return (
        f"Outlier channels were divided by powers of two, so that int8 ranges fit the other channels; fp32 answers stay "
        f"the same: {', '.join(shown)}{more}."
        if found
        else ""
    )


# --- exporting ---
# The step that exports model files, with its parity gate.


PARITY_FILE = "parity.json"
REFERENCE = "transformers"


def make_export(
    model: RunModel,
    files: Sequence[ModelFile],
    texts: Sequence[Text],
    destination: Path,
    ready: Mapping[str, Path] | None = None,
) -> Sequence[str]:
    """Write one format's files, and compare wrapper and files with the untouched model.

    Args:
        model: What to export.
        files: What to write, all of one format.
        texts: Real texts of the data.
        destination: Folder to write into.
        ready: Files of the same model to take instead of exporting anew, by path in the artefact folder.

    Returns:
        One line for each comparison that failed.

    Raises:
        InputError: If the model answers every text alike.
    """
    from pocketbert.export.prepare import PreparedPredictor, prepare

    place, family = place_of(files[0].format), model.folder.family
    reference = reference_model(model.folder, model.task)
    probed = probe_texts(model.folder, model.task, texts, model.tokenizer)
    name = "student" if model.recipe.student else model.recipe.teacher.model
    check_spread(reference, model.tokenizer, probed, name)
    samples, sentences = sample_batches(model.tokenizer, probed), sentence_batches(model.task, model.tokenizer)
    layout = place.layout(model.recipe)
    module = prepare(reference.model, family, model.task, place.format, layout, reference.pooling, samples, sentences)
    outliers = outlier_line(write_outliers(destination, module))
    weights = weights_of(module, place.exported_scheme(model.recipe))
    check_names(model.recipe.quantize, weights, place.format)
    given, results = ready or {}, list[Parity]()
    if any(f.path not in given for f in files):
        if outliers:
            say(f"  {outliers}")
        prepared = PreparedPredictor(module, family, model.task)
        results.append(_parity(model, reference, probed, prepared, "prepared module"))
    for file in files:
        path = destination / Path(file.source).name
        if file.path in given:
            copy_path(given[file.path], path)
        else:
            with waiting(file.path):
                place.write(model, module, file, path)
        made = open_file(path, file.format)
        found = _parity(model, reference, probed, made, file.path, bounds_of(file).loss)
        results.append(found)
        say(
            f"  {file.path}: differs from {found.reference} by {found.worst:.1e} of the logits' spread, "
            f"allowed {found.bound:.0e}; {len(found.shapes)} input shapes"
        )
    write_weights(destination, weights, [destination / Path(f.source).name for f in files], place.format)
    write_json(destination / PARITY_FILE, [json.loads(r.model_dump_json()) for r in results])
    return [parity_failure(r) for r in results if not r.passed]


def _parity(
    model: RunModel,
    reference: TorchPredictor,
    texts: Sequence[Text],
    subject: Predictor,
    name: str,
    loss: float = 1.0,
) -> Parity:
    """Compare a module or a file with the untouched model, each group of its outputs, and keep the worst result."""
    task, recipe = model.task, model.recipe
    bound = (recipe.export.atol or model.folder.family.parity_atol) * loss
    inside = PROBABILITIES in subject.outputs
    like: Predictor = ScoredPredictor(reference, task.score) if inside else reference
    groups = [(PROBABILITIES,)] if inside else [g for g in task.compared if g[0] in subject.outputs]
    made, longest = [], max(subject.lengths, default=model.tokenizer.max_length)
    drawn = drawn_inputs(reference, model.tokenizer, model.folder.family.uses_segments, task, longest)
    for names in groups:
        probe = build_probe(like, model.tokenizer, texts, recipe.export.lengths, task, names, subject.lengths, drawn)
        made.append(compare(subject, name, REFERENCE, probe, names, bound))
    return worst_of(made)


def parity_failure(result: Parity) -> str:
    """One line on a failed comparison."""
    hint = " The mask seems to be ignored." if result.worst > 0.3 * result.mask_effect else ""
    return (
        f"parity of {result.subject}: differs from {result.reference} by {result.worst:.3g} of the logits' spread, "
        f"allowed {result.bound:.0e}.{hint}"
    )


def read_parity(folder: Path) -> list[Parity]:
    """Comparisons that an export step made."""
    path = folder / PARITY_FILE
    return [Parity.model_validate(p) for p in json.loads(path.read_text())] if path.is_file() else []


def probe_texts(folder: ModelFolder, task: Task, texts: Sequence[Text], tokenizer: TextTokenizer) -> list[Text]:
    """Real texts of every kind: the data's, the project's own, and pairs where segments matter."""
    pairs = list(sample_pairs()[:8]) if folder.family.uses_segments and takes_both(task) else []
    return [*texts[:16], *own_texts(task, tokenizer), *pairs]


def libraries(format: Format) -> tuple[str, ...]:
    """Distributions whose versions decide what a format's files look like."""
    return ("torch", "transformers", *FORMATS[format].libraries)


# --- quantizing ---
# The stage that makes smaller files of exported ones, with the type gate of the quantizer.


def make_quantized(
    model: RunModel,
    pairs: Sequence[tuple[ModelFile, ModelFile]],
    destination: Path,
    calibration: Callable[[], Rows],
) -> Sequence[str]:
    """Quantize files and check the types in the results.

    Args:
        model: The exported model.
        pairs: Exported file and what to make of it.
        destination: Folder to write into.
        calibration: Returns the rows that static schemes measure ranges on.

    Returns:
        One line for each file that is not what it should be.

    Raises:
        InputError: If the quantizer has no scheme for one of the files; nothing was written.
    """
    from pocketbert.quantize import quantize
    from pocketbert.quantize.table import row_for

    method = model.recipe.quantize.calibration
    plans = [
        replace(plan_of(file, calibration, model.weights, method), weights=roles_of(model, file)) for _, file in pairs
    ]
    for plan in plans:
        row_for(plan)
    failures: list[str] = []
    types = {}
    for (base, file), plan in zip(pairs, plans, strict=True):
        path = destination / Path(file.source).name
        try:
            with waiting(file.path):
                found = quantize(model.source(base), path, plan)
        except GateError as error:
            failures += error.failures
            continue
        place_of(file.format).finish(model, file, path)
        types[file.path] = found.model_dump(mode="json")
        say(f"  {file.path}: {found.summary}")
    write_json(destination / "types.json", types)
    return failures


def plan_of(
    file: ModelFile, calibration: Callable[[], Rows], weights: Path, method: Calibration = Calibration.MINMAX
) -> Plan:
    """What the quantizer is asked for to make a file.

    Args:
        file: The file.
        calibration: Returns the rows that static schemes measure ranges on.
        weights: Folder of the model, which may hold ranges that it was trained with.
        method: How static schemes choose ranges from these rows.
    """
    from pocketbert.quantize import Plan

    static = file.scheme.static
    learned = read_learned(weights, file.scheme, file.runtime) if static else None
    left = static and padding_side_of(weights) == "left"
    rows = calibration if static else None
    method = method if static else Calibration.MINMAX
    return Plan(file.format, file.scheme, file.runtime, rows, method, learned=learned, pads_left=left)


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

    golden = read_golden(destination / SIMULATING_FILE_NAME)
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
    from pocketbert.quantize.simulated import product_ranges
    from pocketbert.quantize.table import filled

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
