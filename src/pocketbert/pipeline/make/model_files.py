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
from pocketbert.core.compare.golden import GoldenRow, SimulatedErrors, write_simulated
from pocketbert.core.compare.parity import Parity, build_probe, compare_with_probe, worst_parity
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, UNICODE_SENTENCES, sample_pairs
from pocketbert.core.disk.files import copy_path, read_json, write_json
from pocketbert.core.errors import GateError
from pocketbert.core.families.weight_records import ProductRanges, Range, read_learned_ranges
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import print_note, report_waiting
from pocketbert.core.host.system import release_memory
from pocketbert.core.predict.inputs import Encoded, Text
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
from pocketbert.core.predict.tokenization import TextTokenizer, read_padding_side
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
from pocketbert.runtime.engines import describe_file, open_file

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import nn

    from pocketbert.quantize import Plan
    from pocketbert.quantize.rounding import ModulePredictor, Simulation
    from pocketbert.quantize.table import Rows

TEXTS = 64
"""Texts on which the error of a simulated scheme is measured, golden rows among them."""
_DRAWN_TOKENS = 256
PARITY_FILE = "parity.json"
_OUTLIERS_FILE = "outliers.json"
_REFERENCE = "transformers"
"""Name of the untouched torch model in the comparisons."""
_FEW_TOKENS = 64
"""Longest input of the prepared module, which is compared before a file is written to refuse early what is wrong anyway;
the file, which is what users get, is compared at every length."""
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

    The comparisons, the list of weights and the divided outlier channels are written beside the files as JSON. Unless all
    files are copied, the prepared module is compared too.

    Args:
        model: The model to export.
        reference: The exported model in torch.
        files: The files to write, all of one format.
        texts: Texts of the data.
        destination: Folder to write into.
        ready: Files that were exported from the same model before, by path in the artefact folder; they are copied
            instead of exported again.

    Returns:
        One line for each comparison that failed.

    Raises:
        InputError: If the model gives the same answer to every text, or if the recipe chooses schemes for roles or names
            of weights that the model does not have.
    """
    from pocketbert.export.prepare import PreparedPredictor

    place, family = format_place(files[0].format), model.folder.family
    pairs = sample_pairs()[:8] if family.uses_segments and takes_texts_and_pairs(model.task) else ()
    probe_texts = [*texts[:16], *project_texts(model.task, model.tokenizer), *pairs]
    name = "student" if model.recipe.student else model.recipe.teacher.model
    check_spread(reference, model.tokenizer, probe_texts, name)
    module = prepare_module(model, reference, place.format, tokenize_batches(model.tokenizer, probe_texts))
    outliers = _write_outliers(destination, module)
    weights = list_weights(module, place.exported_scheme(model.recipe))
    check_weight_choices(model.recipe.quantize, weights, place.format)
    ready, results = ready or {}, list[Parity]()
    if any(file.path not in ready for file in files):
        if outliers:
            print_note(f"  {_summarize_outliers(outliers)}")
        prepared = PreparedPredictor(module, family, model.task)
        results.append(_compare_outputs(model, reference, probe_texts, prepared, "prepared module", most=_FEW_TOKENS))
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
        del written
        release_memory()  # the engine holds the weights a second time, in its own order
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
    most: int | None = None,
) -> Parity:
    """Compare the outputs of a prepared module or exported file with the original torch model's; return the worst.

    Args:
        model: The model that is exported.
        reference: The original torch model.
        texts: Texts to compare on, besides drawn tokens.
        subject: The prepared module or the exported file.
        name: Name of the subject in messages.
        loss: Factor on the allowed difference, for formats that compute with fewer digits.
        most: Longest input in tokens to compare; None for the model's own. Only then are texts also padded to the lengths
            of the export, and rows of drawn tokens compared at the longest.
    """
    task, recipe = model.task, model.recipe
    bound = (recipe.export.atol or model.folder.family.parity_atol) * loss
    scored = PROBABILITIES in subject.outputs
    expected: Predictor = ScoredPredictor(reference, task.score) if scored else reference
    groups = [(PROBABILITIES,)] if scored else [g for g in task.compared if g[0] in subject.outputs]
    tokenizer = model.tokenizer if most is None else TextTokenizer(model.weights, min(most, model.length))
    lengths, drawn = list[int](), list[Encoded]()
    if most is None:
        lengths, longest = recipe.export.lengths, max(subject.lengths, default=tokenizer.max_length)
        drawn = draw_inputs(reference, tokenizer, model.folder.family.uses_segments, task, longest)
    results = []
    for names in groups:
        probe = build_probe(expected, tokenizer, texts, lengths, task, names, subject.lengths, drawn)
        results.append(compare_with_probe(subject, name, _REFERENCE, probe, names, bound))
    return worst_parity(results)


def _describe_parity_failure(result: Parity) -> str:
    """Return the message for an export whose outputs differ from the original model's by more than is allowed."""
    hint = " The mask seems to be ignored." if result.worst > 0.3 * result.mask_effect else ""
    return (
        f"parity of {result.subject}: differs from {result.reference} by {result.worst:.3g} of the logits' spread, "
        f"allowed {result.bound:.0e}.{hint}"
    )


def read_parity(folder: Path) -> list[Parity]:
    """Read the output comparisons that an export step wrote to its folder; an empty list if there is no file."""
    path = folder / PARITY_FILE
    return [Parity.model_validate(p) for p in json.loads(path.read_text())] if path.is_file() else []


def export_libraries(format: Format) -> tuple[str, ...]:
    """Return the Python packages whose versions can change exported files of a format."""
    return ("torch", "transformers", *FORMATS[format].libraries)


class Outliers(BaseModel):
    """The outlier channels of one tensor that were divided before export, for int8 ranges.

    Attributes:
        name: Path of the module that writes the tensor.
        channels: Number of channels that were divided.
        of: Number of all channels.
        ratio: Largest magnitude in the largest channel, divided by that in the median channel, before the division.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    channels: int
    of: int
    ratio: float


_OUTLIER_LIST = TypeAdapter(list[Outliers])


def _write_outliers(folder: Path, module: nn.Module) -> list[Outliers]:
    """Write the outlier channels that were divided in a module prepared for export to a JSON file, and return them.

    Channels of unusually large activations are divided by a power of two before quantization, and the weights that read
    them are multiplied by it. There is an entry for each tensor: its name, how many channels were divided, of how many,
    and how much the largest one stood out.
    """
    from pocketbert.export.prepare import list_divided_outliers

    outliers = [
        Outliers(name=o.name, channels=o.channels, of=o.of, ratio=o.ratio) for o in list_divided_outliers(module)
    ]
    write_json(folder / _OUTLIERS_FILE, _OUTLIER_LIST.dump_python(outliers, mode="json"))
    return outliers


def outlier_notes(folders: Sequence[Path]) -> list[str]:
    """Return a sentence on the divided outlier channels of each export folder that has any, without repetitions."""
    notes = []
    for folder in folders:
        path = folder / _OUTLIERS_FILE  # earlier versions wrote none
        outliers = _OUTLIER_LIST.validate_python(read_json(path)) if path.is_file() else []
        if outliers:
            notes.append(_describe_outliers(outliers))
    return list(dict.fromkeys(notes))


def _summarize_outliers(outliers: Sequence[Outliers]) -> str:
    """Return the line on divided outlier channels that an export prints: number of tensors and largest ratio."""
    tensors = "1 tensor" if len(outliers) == 1 else f"{len(outliers)} tensors"
    return (
        f"outlier channels of {tensors}, up to {max(o.ratio for o in outliers):.0f} times the median channel, divided for "
        "int8; fp32 answers stay the same"
    )


def _describe_outliers(outliers: Sequence[Outliers]) -> str:
    """Return a sentence on divided outlier channels for card and report, naming up to `_SHOWN_OUTLIERS` tensors."""
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
    """Quantize exported model files, check the stored number types, and write those of right files to ``types.json``.

    Args:
        model: The exported model.
        pairs: Pairs of an exported file and the quantized file to make of it.
        destination: Folder to write into.
        calibration: Function that returns the rows on which static schemes measure activation ranges.

    Returns:
        Sentences on files whose number types are wrong or whose ranges could not be measured; empty if all are right.

    Raises:
        InputError: If the quantizer has no scheme for one of the files, or if weights of it cannot have the scheme that
            the recipe chooses for them. Nothing was written then.
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
    """Return the plan by which a quantizer makes a file: format, scheme, runtime and, for static schemes, calibration.

    Schemes that the recipe sets for single weights are not in it.

    Args:
        file: The file to make.
        calibration: Function that returns the rows on which static schemes measure activation ranges.
        weights: Folder of the model, which may hold ranges that were learned in training.
        method: How ranges are chosen from the activations on these rows.
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
    recorded: Sequence[GoldenRow],
    destination: Path,
    files: Sequence[ModelFile],
    calibration: Callable[[], Rows],
) -> Sequence[str]:
    """Compute in torch each scheme that has a simulation, and write RMS errors and the activation ranges of static files.

    Args:
        model: The exported model.
        reference: The exported model in torch.
        texts: Texts of the data; empty without data.
        recorded: The golden rows, with the torch model's outputs.
        destination: Folder to write into.
        files: All files of the run.
        calibration: Function that returns the rows on which static schemes measure activation ranges.

    Returns:
        One line for each file whose simulated outputs are NaN or infinite; nothing is written then. Else empty.
    """
    simulations = _plan_simulations(model, files)
    if not simulations:
        write_simulated(destination, SimulatedErrors())
        return ()
    from pocketbert.export.prepare import PreparedPredictor
    from pocketbert.quantize.simulated import SimulatedPredictor

    golden = _drop_long_drawn_rows(recorded, model.tokenizer)
    rows = [*golden, *_make_further_rows(model, reference, texts, recorded)]
    inputs = [row.input for row in rows]
    encoded, samples = model.tokenizer.encode(inputs), tokenize_batches(model.tokenizer, inputs)
    errors: dict[str, float] = {}
    ranges: dict[str, dict[str, list[ProductRanges]]] = {}
    for format in dict.fromkeys(file.format for file in simulations):  # one prepared module in memory at a time
        own = {file: simulation for file, simulation in simulations.items() if file.format is format}
        module = PreparedPredictor(prepare_module(model, reference, format, samples), model.folder.family, model.task)
        answers: dict[tuple[Simulation, Runtime | None], list[Matrix]] = {}
        for file, simulation in own.items():
            key = simulation, file.runtime if simulation.static else None  # each has its own learned ranges
            if key not in answers:
                static_rows = calibration() if simulation.static else ()
                plan = quantization_plan(file, calibration, model.weights, model.recipe.quantize.calibration)
                predictor = SimulatedPredictor(module, simulation, static_rows, plan.learned, plan.calibration)
                # one unpadded row at a time, as files are verified
                answers[key] = run_rows(
                    predictor,
                    model.tokenizer,
                    encoded,
                    model.task,
                    label=f"{file.path}, its scheme simulated in torch",
                    reduce=lambda i, matrix: rows[i].pick(matrix),
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
        error, allowed = errors[file.path], bounds_of(file).allowed(errors[file.path])
        off = f"off by {error:.3g} of the logits' spread; allowed {allowed:.3g}"
        print_note(f"  {file.path}: simulated in torch, {off}")
    return ()


def _plan_simulations(model: RunModel, files: Sequence[ModelFile]) -> dict[ModelFile, Simulation]:
    """Return the torch simulation of each file's scheme, by file; fp32 files and others without one are left out."""
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


def _drop_long_drawn_rows(golden: Sequence[GoldenRow], tokenizer: TextTokenizer) -> list[GoldenRow]:
    """Return golden rows with fewer rows of drawn words: the shortest of these, up to `_DRAWN_TOKENS` tokens in all.

    Drawn words are there to reach all positions and words. For the bound a few of them are enough, which show how much
    worse they are rounded than sentences: without the others it hardly changes (`lab/drawn_rows.py`). The shortest row is
    always kept.
    """
    tokens = {i: len(row) for i, row in enumerate(tokenizer.encode([row.input for row in golden]))}
    drawn = sorted((i for i, row in enumerate(golden) if row.drawn), key=lambda i: tokens[i])
    ends = np.cumsum([tokens[i] for i in drawn])
    dropped = {i for i, end in zip(drawn[1:], ends[1:], strict=True) if end > _DRAWN_TOKENS}
    return [row for i, row in enumerate(golden) if i not in dropped]


def _make_further_rows(
    model: RunModel, reference: TorchPredictor, texts: Sequence[Text], golden: Sequence[GoldenRow]
) -> list[GoldenRow]:
    """Run the torch model on more texts and return golden rows of them: with `golden` up to `TEXTS` rows in all.

    Args:
        model: The exported model.
        reference: The exported model in torch.
        texts: Texts of the data, which are taken first.
        golden: Golden rows that are there already.
    """
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


def prepare_module(
    model: RunModel, reference: TorchPredictor, format: Format, samples: Sequence[Mapping[str, NDArray[np.int64]]]
) -> nn.Module:
    """Return a copy of the torch model, rewritten as for export to a format.

    Its weights are those that a quantizer gets. Weights that the rewriting does not change are shared with the model.

    Args:
        model: The model that is exported.
        reference: The same model in torch.
        format: The format.
        samples: Batches of the model's inputs, on which rewritten layers are checked.
    """
    from pocketbert.export.prepare import prepare_with_shared_weights

    layout, sentences = format_place(format).layout(model.recipe), project_text_batches(model.task, model.tokenizer)
    return prepare_with_shared_weights(
        reference.model, model.folder.family, model.task, format, layout, reference.pooling, samples, sentences
    )


def _measure_simulated_error(
    model: RunModel, file: ModelFile, answers: Sequence[Matrix], rows: Sequence[GoldenRow], golden: int
) -> float:
    """Return the RMS error of a file's simulated outputs against the torch model's, as a share of the outputs' spread.

    The error is computed on all rows and on the golden rows alone, with several heads for each head, and the largest is
    returned. If the file computes probabilities itself, as files for one client may do, it is their error.

    Args:
        model: The exported model.
        file: The file.
        answers: Simulated outputs for each row.
        rows: The rows, with the torch model's outputs; golden rows come first.
        golden: Number of golden rows among them.
    """
    expected = [row.shaped(row.reference) for row in rows]
    if file.client is not None:
        outputs = describe_file(model.source(file), file.format, file.runtime).outputs
        if PROBABILITIES in outputs:
            score = model.task.score
            answers, expected = (
                [apply_score_function(m, score).astype(np.float32) for m in part] for part in (answers, expected)
            )
    columns = [head.columns for head in model.task.heads] or [slice(None)]
    parts = [(join_texts(answers[:n]), join_texts(expected[:n])) for n in (golden, len(rows))]
    worst = max(rms_error(ours[:, own], theirs[:, own]) for ours, theirs in parts for own in columns)
    return float(f"{worst:.4g}")


def _measure_static_ranges(
    model: RunModel,
    simulations: Mapping[ModelFile, Simulation],
    module: ModulePredictor,
    calibration: Callable[[], Rows],
) -> dict[str, dict[str, list[ProductRanges]]]:
    """Measure on calibration rows the activation ranges that static files must hold.

    Args:
        model: The exported model.
        simulations: The static files of one format, with their simulated rounding.
        module: The torch module prepared for that format.
        calibration: Function that returns the calibration rows.

    Returns:
        The ranges of each product, by the path of the file and the name of the product's weight.
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
            lengths = place.lengths(model.recipe, base, model.length)
            rows = repeat_tokens(rows, longest) if simulation.fills and len(lengths) == 1 else rows
            plan = quantization_plan(file, calibration, model.weights, model.recipe.quantize.calibration)
            products = measure_product_ranges(module, rows, plan.learned, plan.calibration, plan.steps, lengths)
            measured[key] = {name: [_round_ranges(r) for r in own] for name, own in products.items()}
        ranges[file.path] = measured[key]
    return ranges


def _round_ranges(ranges: ProductRanges) -> ProductRanges:
    """Return the known ranges of a product with both ends of each rounded to six significant digits."""
    known: dict[str, Range] = {name: ends for name, ends in ranges if ends is not None}
    return ProductRanges(**{name: (float(f"{low:.6g}"), float(f"{high:.6g}")) for name, (low, high) in known.items()})
