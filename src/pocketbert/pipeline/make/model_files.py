"""Write the model files of a run: export them, quantize them, and simulate each scheme.

`make_export` prepares the torch model for a format, writes its files, and compares them with the untouched model; it records divided
outlier channels (`Outliers`) and the comparisons (`read_parity`). `make_quantized` makes smaller files of exported ones.
`make_simulated` computes each scheme in torch: the error of a correct file, from which the gates make its bound, and the ranges that
a static file must hold.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from pydantic import BaseModel, ConfigDict, TypeAdapter

from pocketbert.core.compare.evaluate import rms_error
from pocketbert.core.compare.golden import GOLDEN_FILE, GoldenRow, SimulatedErrors, read_golden, write_simulated
from pocketbert.core.compare.parity import Parity, build_probe, compare_with_probe, worst_parity
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES, sample_pairs
from pocketbert.core.disk.files import copy_path, read_json, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.families.weight_records import ProductRanges, Range, read_learned_ranges
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import print_note, report_waiting
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import (
    PROBABILITIES,
    Matrix,
    Predictor,
    ScoredPredictor,
    TorchPredictor,
    join_texts,
    run_rows,
)
from pocketbert.core.predict.scores import apply_score_function
from pocketbert.core.predict.tokenization import read_padding_side
from pocketbert.core.types import Calibration, Format, Runtime, Scheme
from pocketbert.pipeline.formats.base import ModelFile, RunModel, bounds_of, exported_file, format_place
from pocketbert.pipeline.formats.weight_roles import (
    check_weight_choices,
    list_weights,
    record_weights,
    resolve_file_weights,
    simulation_of_file,
)
from pocketbert.pipeline.make.golden import blank_row
from pocketbert.pipeline.reference import (
    check_spread,
    draw_inputs,
    project_text_batches,
    project_texts,
    takes_texts_and_pairs,
    task_text,
    tokenize_batches,
)
from pocketbert.runtime.engines import open_file

if TYPE_CHECKING:
    from torch import nn

    from pocketbert.quantize import Plan
    from pocketbert.quantize.rounding import ModulePredictor, Simulation
    from pocketbert.quantize.table import Rows

TEXTS = 64
"""Texts on which the error of a simulated scheme is measured, golden rows among them."""
PARITY_FILE = "parity.json"
_OUTLIERS_FILE = "outliers.json"
_REFERENCE = "transformers"
"""Name of the untouched torch model in the comparisons."""
_SHOWN_OUTLIERS = 6
"""Tensors that a note names."""


# --- export ---


def make_export(
    model: RunModel,
    reference: TorchPredictor,
    files: Sequence[ModelFile],
    texts: Sequence[Text],
    destination: Path,
    ready: Mapping[str, Path] | None = None,
) -> Sequence[str]:
    """Export the torch model to files of one format, and compare their outputs with those of the original model.

    Args:
        model: The model.
        reference: The same in torch.
        files: The files to write, all of one format.
        texts: Texts of the data.
        destination: Folder to write into.
        ready: Files of the same model to copy instead of exporting anew, by path in the artefact folder.

    Returns:
        One line for each comparison that failed.

    Raises:
        InputError: If the model answers every text alike.
    """
    from pocketbert.export.prepare import PreparedPredictor, prepare_with_shared_weights

    place, family = format_place(files[0].format), model.folder.family
    pairs = sample_pairs()[:8] if family.uses_segments and takes_texts_and_pairs(model.task) else ()
    probe_texts = [*texts[:16], *project_texts(model.task, model.tokenizer), *pairs]
    name = "student" if model.recipe.student else model.recipe.teacher.model
    check_spread(reference, model.tokenizer, probe_texts, name)
    samples, sentences = (
        tokenize_batches(model.tokenizer, probe_texts),
        project_text_batches(model.task, model.tokenizer),
    )
    layout = place.layout(model.recipe)
    module = prepare_with_shared_weights(
        reference.model, family, model.task, place.format, layout, reference.pooling, samples, sentences
    )
    outliers = _write_outliers(destination, module)
    weights = list_weights(module, place.exported_scheme(model.recipe))
    check_weight_choices(model.recipe.quantize, weights, place.format)
    ready, results = ready or {}, list[Parity]()
    if any(file.path not in ready for file in files):
        if outliers:
            print_note(f"  {_summarize_outliers(outliers)}")
        prepared = PreparedPredictor(module, family, model.task)
        results.append(_compare_outputs(model, reference, probe_texts, prepared, "prepared module"))
    for file in files:
        path = destination / Path(file.source).name
        if file.path in ready:
            copy_path(ready[file.path], path)
        else:
            with report_waiting(file.path):
                place.write(model, module, file, path)
        written = open_file(path, file.format)
        result = _compare_outputs(model, reference, probe_texts, written, file.path, bounds_of(file).loss)
        results.append(result)
        print_note(
            f"  {file.path}: differs from {result.reference} by {result.worst:.1e} of the logits' spread, "
            f"allowed {result.bound:.0e}; {len(result.shapes)} input shapes"
        )
    record_weights(destination, weights, [destination / Path(f.source).name for f in files], place.format)
    write_json(destination / PARITY_FILE, [json.loads(r.model_dump_json()) for r in results])
    return [_describe_parity_failure(result) for result in results if not result.passed]


def _compare_outputs(
    model: RunModel,
    reference: TorchPredictor,
    texts: Sequence[Text],
    subject: Predictor,
    name: str,
    loss: float = 1.0,
) -> Parity:
    """Compare `subject`, a prepared module or exported file, with the original torch model; return the worst result.

    `loss` multiplies the bound, for formats that compute with fewer digits.
    """
    task, recipe = model.task, model.recipe
    bound = (recipe.export.atol or model.folder.family.parity_atol) * loss
    scored = PROBABILITIES in subject.outputs
    expected: Predictor = ScoredPredictor(reference, task.score) if scored else reference
    groups = [(PROBABILITIES,)] if scored else [g for g in task.compared if g[0] in subject.outputs]
    longest = max(subject.lengths, default=model.tokenizer.max_length)
    drawn = draw_inputs(reference, model.tokenizer, model.folder.family.uses_segments, task, longest)
    results = []
    for names in groups:
        probe = build_probe(
            expected, model.tokenizer, texts, recipe.export.lengths, task, names, subject.lengths, drawn
        )
        results.append(compare_with_probe(subject, name, _REFERENCE, probe, names, bound))
    return worst_parity(results)


def _describe_parity_failure(result: Parity) -> str:
    """Return the message for an export whose outputs differ from the original model by more than the bound."""
    hint = " The mask seems to be ignored." if result.worst > 0.3 * result.mask_effect else ""
    return (
        f"parity of {result.subject}: differs from {result.reference} by {result.worst:.3g} of the logits' spread, "
        f"allowed {result.bound:.0e}.{hint}"
    )


def read_parity(folder: Path) -> list[Parity]:
    """Read the output comparisons that an export step wrote to its folder; an empty list if there are none."""
    path = folder / PARITY_FILE
    return [Parity.model_validate(p) for p in json.loads(path.read_text())] if path.is_file() else []


def export_libraries(format: Format) -> tuple[str, ...]:
    """Return the Python packages whose versions affect exported files of a format."""
    return ("torch", "transformers", *FORMATS[format].libraries)


class Outliers(BaseModel):
    """The outlier channels of one tensor that were divided before export, for int8 ranges.

    Attributes:
        name: Path of the module that writes the tensor.
        channels: Number of channels that were divided.
        of: Number of all channels.
        ratio: The largest magnitude of the largest channel over that of the median channel, before the division.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    channels: int
    of: int
    ratio: float


_OUTLIER_LIST = TypeAdapter(list[Outliers])


def _write_outliers(folder: Path, module: nn.Module) -> list[Outliers]:
    """Write the divided outlier channels of a prepared module to its export folder, and return them."""
    from pocketbert.export.prepare import list_divided_outliers

    outliers = [
        Outliers(name=o.name, channels=o.channels, of=o.of, ratio=o.ratio) for o in list_divided_outliers(module)
    ]
    write_json(folder / _OUTLIERS_FILE, _OUTLIER_LIST.dump_python(outliers, mode="json"))
    return outliers


def outlier_notes(folders: Sequence[Path]) -> list[str]:
    """Return a distinct sentence on the divided outlier channels of each export folder; empty without outliers."""
    notes = []
    for folder in folders:
        path = folder / _OUTLIERS_FILE  # earlier versions wrote none
        outliers = _OUTLIER_LIST.validate_python(read_json(path)) if path.is_file() else []
        if outliers:
            notes.append(_describe_outliers(outliers))
    return list(dict.fromkeys(notes))


def _summarize_outliers(outliers: Sequence[Outliers]) -> str:
    """Return the short line on divided outlier channels that an export prints: their number and largest ratio."""
    tensors = "1 tensor" if len(outliers) == 1 else f"{len(outliers)} tensors"
    return (
        f"outlier channels of {tensors}, up to {max(o.ratio for o in outliers):.0f} times the median channel, divided for "
        "int8; fp32 answers stay the same"
    )


def _describe_outliers(outliers: Sequence[Outliers]) -> str:
    """Return the sentence on divided outlier channels for card and report, naming up to `_SHOWN_OUTLIERS` tensors."""
    shown = [
        f"{o.name} ({o.channels} of {o.of}, up to {o.ratio:.0f} times the median channel)"
        for o in outliers[:_SHOWN_OUTLIERS]
    ]
    more = f" and {len(outliers) - _SHOWN_OUTLIERS} more tensors" if len(outliers) > _SHOWN_OUTLIERS else ""
    return (
        f"Outlier channels were divided by powers of two, so that int8 ranges fit the other channels; fp32 answers stay "
        f"the same: {', '.join(shown)}{more}."
    )


# --- quantize ---


def make_quantized(
    model: RunModel,
    pairs: Sequence[tuple[ModelFile, ModelFile]],
    destination: Path,
    calibration: Callable[[], Rows],
) -> Sequence[str]:
    """Quantize exported model files, check the stored number types, and record them in ``types.json``.

    Args:
        model: The exported model.
        pairs: Exported file and the file to make of it.
        destination: Folder to write into.
        calibration: Returns the rows on which static schemes measure ranges.

    Returns:
        One line for each file whose number types are wrong.

    Raises:
        InputError: If the quantizer has no scheme for one of the files; nothing was written.
    """
    from pocketbert.quantize import quantize
    from pocketbert.quantize.table import find_row_for_plan

    method = model.recipe.quantize.calibration
    plans = [
        replace(quantization_plan(file, calibration, model.weights, method), weights=resolve_file_weights(model, file))
        for _, file in pairs
    ]
    for plan in plans:
        find_row_for_plan(plan)
    failures: list[str] = []
    types = {}
    for (base, file), plan in zip(pairs, plans, strict=True):
        path = destination / Path(file.source).name
        try:
            with report_waiting(file.path):
                stored = quantize(model.source(base), path, plan)
        except GateError as error:
            failures += error.failures
            continue
        format_place(file.format).finish(model, file, path)
        types[file.path] = stored.model_dump(mode="json")
        print_note(f"  {file.path}: {stored.summary}")
    write_json(destination / "types.json", types)
    return failures


def quantization_plan(
    file: ModelFile, calibration: Callable[[], Rows], weights: Path, method: Calibration = Calibration.MINMAX
) -> Plan:
    """Return the plan (format, scheme, calibration) by which the quantizer makes a file, without per-weight schemes.

    `calibration` returns the rows on which static schemes measure ranges, and `method` chooses ranges from them; `weights` is the
    model's folder, which may hold ranges that were learned in training.
    """
    from pocketbert.quantize import Plan

    if not file.scheme.static:
        return Plan(file.format, file.scheme, file.runtime)
    learned = read_learned_ranges(weights, file.scheme, file.runtime)
    pads_left = read_padding_side(weights) == "left"
    return Plan(file.format, file.scheme, file.runtime, calibration, method, learned=learned, pads_left=pads_left)


# --- simulated schemes ---


def make_simulated(
    model: RunModel,
    reference: TorchPredictor,
    texts: Sequence[Text],
    destination: Path,
    files: Sequence[ModelFile],
    calibration: Callable[[], Rows],
) -> Sequence[str]:
    """Simulate each quantized file's scheme in torch; write its RMS error, and the activation ranges of static files.

    Args:
        model: The exported model.
        reference: The same in torch.
        texts: Texts of the data; empty without data.
        destination: Folder with the golden rows, to write into.
        files: All files of the run.
        calibration: Returns the rows on which static schemes measure ranges.

    Returns:
        One line for each file whose simulation answers NaN or infinity.
    """
    simulations = _plan_simulations(model, files)
    if not simulations:
        write_simulated(destination, SimulatedErrors())
        return ()
    from pocketbert.quantize.simulated import SimulatedPredictor

    golden = read_golden(destination / GOLDEN_FILE)
    rows = [*golden, *_make_further_rows(model, reference, texts, golden)]
    encoded = model.tokenizer.encode([row.input for row in rows])
    errors: dict[str, float] = {}
    ranges: dict[str, dict[str, list[ProductRanges]]] = {}
    for format in dict.fromkeys(file.format for file in simulations):  # one prepared module in memory at a time
        own = {file: simulation for file, simulation in simulations.items() if file.format is format}
        module = _prepare_module(model, reference, format, rows)
        answers: dict[tuple[Simulation, Runtime | None], list[Matrix]] = {}
        for file, simulation in own.items():
            key = simulation, file.runtime if simulation.static else None  # each has its own learned ranges
            if key not in answers:
                static_rows = calibration() if simulation.static else ()
                plan = quantization_plan(file, calibration, model.weights, model.recipe.quantize.calibration)
                predictor = SimulatedPredictor(module, simulation, static_rows, plan.learned, plan.calibration)
                # one unpadded row at a time, as files are verified
                answers[key] = run_rows(
                    predictor, model.tokenizer, encoded, model.task, reduce=lambda i, matrix: rows[i].pick(matrix)
                )
                del predictor
            errors[file.path] = _measure_simulated_error(model, file, answers[key], rows, len(golden))
        if all(np.isfinite(errors[file.path]) for file in own):
            static = {file: simulation for file, simulation in own.items() if file.scheme.static}
            ranges |= _measure_static_ranges(model, static, module, calibration)
    broken = [path for path, error in errors.items() if not np.isfinite(error)]
    if broken:
        return [f"{path}: its scheme, simulated in torch, gives NaN or infinite logits." for path in broken]
    write_simulated(destination, SimulatedErrors(texts=len(rows), errors=errors, ranges=ranges))
    for file in simulations:
        error = errors[file.path]
        print_note(
            f"  {file.path}: simulated in torch, off by {error:.3g} of the logits' spread; allowed {bounds_of(file).allowed(error):.3g}"
        )
    return ()


def _plan_simulations(model: RunModel, files: Sequence[ModelFile]) -> dict[ModelFile, Simulation]:
    """Map each quantized file to the torch simulation of its scheme; files without a simulation are left out."""
    from pocketbert.quantize import find_row

    scheme_rows = {f: find_row(f.format, f.scheme, f.runtime) for f in files if f.scheme is not Scheme.FP32}
    simulations = {}
    for file, row in scheme_rows.items():
        if row.simulation is not None:
            place = format_place(file.format)
            simulation = simulation_of_file(row, resolve_file_weights(model, file), place.exported_scheme(model.recipe))
            lengths = place.lengths(model.recipe, file, model.length)
            simulations[file] = simulation.of_lengths(len(lengths))
    return simulations


def _make_further_rows(
    model: RunModel, reference: TorchPredictor, texts: Sequence[Text], golden: Sequence[GoldenRow]
) -> list[GoldenRow]:
    """Return rows of further texts, with the torch model's outputs, that with the golden rows make `TEXTS` rows."""
    tokenizer, task = model.tokenizer, model.task
    own = project_texts(task, tokenizer)
    if not own or isinstance(own[0], str):
        own = [*own, *(task_text(task, text, tokenizer) for text in (*ASCII_SENTENCES, *UNICODE_SENTENCES))]
    known = {row.input for row in golden}
    chosen = [t for t in dict.fromkeys([*texts, *own]) if t not in known][: max(0, TEXTS - len(golden))]
    matrices = run_rows(reference, tokenizer, tokenizer.encode(chosen), task) if chosen else []
    rows = []
    for text, matrix in zip(chosen, matrices, strict=True):
        row = blank_row(text, matrix, task, model.folder.labels or [])
        rows.append(row.model_copy(update={"reference": row.pick(matrix).ravel().tolist()}))
    return rows


def _prepare_module(
    model: RunModel, reference: TorchPredictor, format: Format, rows: Sequence[GoldenRow]
) -> ModulePredictor:
    """Rewrite the torch model as for export to a format, so that its weights are those that were quantized."""
    from pocketbert.export.prepare import PreparedPredictor, prepare_with_shared_weights

    family, layout = model.folder.family, format_place(format).layout(model.recipe)
    samples = tokenize_batches(model.tokenizer, [row.input for row in rows])
    sentences = project_text_batches(model.task, model.tokenizer)
    module = prepare_with_shared_weights(
        reference.model, family, model.task, format, layout, reference.pooling, samples, sentences
    )
    return PreparedPredictor(module, family, model.task)


def _measure_simulated_error(
    model: RunModel, file: ModelFile, answers: Sequence[Matrix], rows: Sequence[GoldenRow], golden: int
) -> float:
    """Return the RMS error of simulated outputs: the larger of that on all rows and that on the first `golden` ones.

    Files for one client may compute probabilities themselves; their error is measured on these.
    """
    expected = [row.shaped(row.reference) for row in rows]
    if file.client is not None:
        outputs = open_file(model.source(file), file.format, runtime=file.runtime).outputs
        if PROBABILITIES in outputs:
            score = model.task.score
            answers, expected = (
                [apply_score_function(m, score).astype(np.float32) for m in part] for part in (answers, expected)
            )
    worst = max(rms_error(join_texts(answers[:n]), join_texts(expected[:n])) for n in (golden, len(rows)))
    return float(f"{worst:.4g}")


def _measure_static_ranges(
    model: RunModel,
    simulations: Mapping[ModelFile, Simulation],
    module: ModulePredictor,
    calibration: Callable[[], Rows],
) -> dict[str, dict[str, list[ProductRanges]]]:
    """Measure the activation ranges that static files must hold, on calibration rows; by file path and weight name.

    `simulations` maps the static files of one format to their schemes' rounding, `module` is the torch module prepared for it.
    """
    from pocketbert.quantize.simulated import measure_product_ranges
    from pocketbert.quantize.table import repeat_tokens

    ranges: dict[str, dict[str, list[ProductRanges]]] = {}
    measured: dict[tuple[Scheme, Runtime | None, int], dict[str, list[ProductRanges]]] = {}
    for file, simulation in simulations.items():
        place = format_place(file.format)
        longest = max(place.lengths(model.recipe, file, model.length), default=model.length)
        key = file.scheme, file.runtime, longest
        if key not in measured:
            rows: Rows = (row for row in calibration() if row["input_ids"].shape[1] <= longest)
            base = exported_file(file.format, place.exported_scheme(model.recipe))
            one_length = len(place.lengths(model.recipe, base, model.length)) == 1
            rows = repeat_tokens(rows, longest) if simulation.fills and one_length else rows
            plan = quantization_plan(file, calibration, model.weights, model.recipe.quantize.calibration)
            products = measure_product_ranges(module, rows, plan.learned, plan.calibration, plan.steps)
            measured[key] = {
                name: [ProductRanges(inputs=_round_range(r.inputs), outputs=_round_range(r.outputs)) for r in own]
                for name, own in products.items()
            }
        ranges[file.path] = measured[key]
    return ranges


def _round_range(ends: Range | None) -> Range | None:
    """Return the two ends of a range rounded to six significant digits; None for None."""
    return None if ends is None else (float(f"{ends[0]:.6g}"), float(f"{ends[1]:.6g}"))
