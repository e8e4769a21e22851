"""Quantize Core ML packages with coremltools, and read what is stored in them without it.

Schemes, in the order in which they are registered at the end:

- ``w8`` and ``w4``: `_write_linear` stores weights as int8 per output channel, or as int4 in blocks of 32 numbers of a
  row. Both have an offset, which has less error than symmetric numbers. In a file of one of the two schemes, single
  weights can have the other.
- ``lut6``, ``lut4``, ``small``: `_write_palettes` stores weights as indices into a palette of 64 or 16 numbers per
  tensor.
- ``a8w8``: `_write_static` stores weights as ``w8``, and quantizes the inputs of linear layers to int8 in ranges that
  the project's evaluator measures. They replace the ranges of coremltools, which measures by running the model, needs
  macOS for that, and keeps the ranges of the last row only. The ranges have an offset, which halves the error of
  symmetric ones.

`read_weight_types` and `read_stored_numbers` are the reader of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families.weight_records import LearnedRanges, Range, matrix_digest
from pocketbert.core.host.quiet import silence_coremltools, silence_output
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import CONVERSION_DATE, add_classifier, remove_classifier, save_package
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.rounding import (
    Simulation,
    choose_palette,
    nearest_in_palette,
    palette_of_16,
    palette_of_64,
    per_block_in_fp16,
    per_block_with_offset,
    per_row_in_fp16,
    per_row_with_offset,
)
from pocketbert.quantize.table import (
    WEIGHTED_ROLES,
    Plan,
    Reader,
    SchemeRow,
    SecondScheme,
    register_reader,
    register_scheme,
)
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights, Use, WeightTypes, WeightUse
from pocketbert.runtime.coreml.evaluator import Evaluator, Step
from pocketbert.runtime.coreml.package import read_package
from pocketbert.runtime.coreml.stored import StoredTensors
from pocketbert.runtime.tflite import Padding

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.stored import StoredWeight

THRESHOLD = 512
"""Weights of at most this many numbers stay float: they save nothing."""
BLOCK = 32
"""Numbers that share a scale in 4 bits."""
_IOS_OF_BLOCKS = 18
_IOS_OF_STATIC = 17
_WEIGHT_INPUTS = {
    "linear": ("weight", Use.MATMUL),
    "conv": ("weight", Use.MATMUL),
    "gather": ("x", Use.TABLE),
}
"""Input of an operation that holds the weight, and the weight's use. A product of two stored operands is no weight."""
_TOKEN_AXES = {"linear": -2, "conv": -1}
"""Operations whose inputs and results have ranges in a8w8, and their axis of tokens."""
_ACTIVATIONS = ("leaky_relu", "tanh", "scaled_tanh", "sigmoid", "hard_sigmoid", "relu", "relu6")
"""Operations whose result coremltools quantizes in place of that of the product before them."""
_PALETTE_TYPES = {64: "lut6", 16: "lut4"}
"""Types of weights that are places in a palette, by its size; every weight of a package has a palette of its own."""
_TYPE_NAMES = {name: name for name in ("int8", "uint8", "int4", "uint4")} | {"fp32": "float32", "fp16": "float16"}
"""Types of weights by their names in Core ML; types of indices are missing."""
_FLOATS = ("float32", "float16")
"""Types that small weights may stay in."""
_LINEAR: Mapping[Scheme, Mapping[str, Any]] = {
    Scheme.W8: {"dtype": "int8", "granularity": "per_channel"},
    Scheme.W4: {"dtype": "int4", "granularity": "per_block"},
}
_PALETTE_SIZES = {
    Scheme.LUT6: {Use.MATMUL: 64, Use.TABLE: 64},
    Scheme.LUT4: {Use.MATMUL: 16, Use.TABLE: 16},
    Scheme.SMALL: {Use.MATMUL: 64, Use.TABLE: 16},
}
"""Numbers in the palettes of products, and of the largest table."""


# --- writing ---


def write_compressed(source: Path, destination: Path, compress: Callable[[Any], Any]) -> None:
    """Write a copy of a Core ML package, compressed by a function of coremltools.optimize.

    Args:
        source: A float package.
        destination: Where to write.
        compress: Function that takes the coremltools model without its classifier, and returns the compressed model.

    Raises:
        MissingBackendError: If coremltools is not installed.
    """
    if version_of("coremltools") is None:
        raise MissingBackendError("coremltools", "pip install 'pocketbert[coreml]'")
    with silence_output(), silence_coremltools():
        import coremltools as ct

        original = ct.models.MLModel(str(source), skip_model_load=True)
        without_classifier = original.get_spec()
        labels = remove_classifier(without_classifier)
        model = compress(ct.models.MLModel(without_classifier, weights_dir=original.weights_dir, skip_model_load=True))
        spec = model.get_spec()
    if labels:
        add_classifier(spec, labels)
    metadata = dict(spec.description.metadata.userDefined)
    spec.description.CopyFrom(original.get_spec().description)  # coremltools.optimize drops texts
    for name, value in metadata.items():
        if name != CONVERSION_DATE:
            spec.description.metadata.userDefined[name] = value
    save_package(spec.SerializeToString(deterministic=True), Path(model.weights_dir) / "weight.bin", destination)


def _write_linear(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of a Core ML package with int8 or 4-bit weights (w8, w4).

    Weights of at most `THRESHOLD` numbers, and those that the plan leaves as exported, stay float.

    Raises:
        MissingBackendError: If coremltools is not installed.
        InputError: If a weight that gets 4 bits has a row length that is no multiple of the block, or 4-bit weights are
            wanted in a package for iOS 17 or older, which has no blocks.
    """
    schemes = _weight_schemes(source, plan.left, plan.scheme)
    second_by_digest = {digest: scheme for scheme, digests in plan.seconds.items() for digest in digests}
    digests = _digests_by_name(source, frozenset(second_by_digest))
    schemes |= {name: second_by_digest[digest] for name, digest in digests.items() if name in schemes}
    problems = _block_problems(source, schemes)
    if problems:
        raise InputError(problems)
    write_compressed(source, destination, lambda model: _quantize_weights(model, schemes))


def _weight_schemes(source: Path, left: frozenset[str], scheme: Scheme) -> dict[str, Scheme]:
    """Map the name of each float weight that is large enough to compress to `scheme`.

    Weights with a digest in `left` are left out.
    """
    names_left = _digests_by_name(source, left)
    return {w.name: scheme for w, _ in _large_float_weights(source) if w.name not in names_left}


def _digests_by_name(source: Path, digests: frozenset[str]) -> dict[str, str]:
    """Return the digest of each stored constant, by name, for the constants whose digest is in `digests`."""
    if not digests:
        return {}
    stored = ((name, matrix_digest(numbers)) for name, numbers in read_stored_numbers(source))
    return {name: digest for name, digest in stored if digest in digests}


def _block_problems(source: Path, schemes: Mapping[str, Scheme]) -> list[Problem]:
    """Return a problem for each 4-bit weight whose rows cannot be cut into blocks of 32.

    If there are 4-bit weights and the package is for an iOS version without blocks, that is a problem too.
    """
    problems = [
        Problem(
            name,
            f"has rows of {width} numbers; 4-bit weights of Core ML have blocks of {BLOCK}.",
            f"Choose the scheme lut4 or w8, or a student whose widths are multiples of {BLOCK}.",
        )
        for name, width in {w.name: w.columns for w, _ in _large_float_weights(source)}.items()
        if schemes.get(name) is Scheme.W4 and width % BLOCK
    ]
    ios = _oldest_ios(source)
    if ios < _IOS_OF_BLOCKS and Scheme.W4 in schemes.values():
        what = f"is for iOS {ios}; weights in blocks need iOS {_IOS_OF_BLOCKS}."
        problems.append(Problem(str(source), what, "Choose the scheme lut4, or export with --ios 18."))
    return problems


def _oldest_ios(source: Path) -> int:
    """Return the oldest iOS version that can open a package."""
    return read_package(source).opset + 10


def _quantize_weights(model: Any, schemes: Mapping[str, Scheme]) -> Any:
    """Quantize the weights of a coremltools model and return it. `schemes` gives the scheme of each weight by name."""
    import coremltools.optimize as cto

    configs = {
        scheme: cto.coreml.OpLinearQuantizerConfig(mode="linear", weight_threshold=THRESHOLD, block_size=BLOCK, **how)
        for scheme, how in _LINEAR.items()
    }
    # by name: by operation, two of them that share a bias would contradict each other
    config = cto.coreml.OptimizationConfig(op_name_configs={name: configs[s] for name, s in schemes.items()})
    return cto.coreml.linear_quantize_weights(model, config=config)


def _write_palettes(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of a Core ML package in which each large weight is stored as indices into its own palette.

    A palette is a list of numbers; the scheme gives one palette size for tables and one for matrices. Only the largest
    embedding table gets the size for tables, the other tables that for matrices: an error in a position embedding
    affects every token.
    """
    sizes = _PALETTE_SIZES[plan.scheme]
    weights = _large_float_weights(source)
    uses = {w.name: use for w, use in weights}
    numbers = {w.name: w.numbers for w, _ in weights}
    largest_table = max((name for name in uses if uses[name] is Use.TABLE), key=numbers.__getitem__, default="")

    def palette_and_indices(size: int, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
        palette = choose_palette(values, size)
        return palette.astype(values.dtype), nearest_in_palette(values, palette)

    def compress(model: Any) -> Any:
        """Palettize the weights of a coremltools model with palettes chosen by k-means."""
        import coremltools.optimize as cto

        configs = {
            use: cto.coreml.OpPalettizerConfig(
                mode="custom", lut_function=partial(palette_and_indices, size), weight_threshold=THRESHOLD
            )
            for use, size in sizes.items()
        }
        config = cto.coreml.OptimizationConfig(
            op_name_configs={name: configs[use if name == largest_table else Use.MATMUL] for name, use in uses.items()}
        )
        return cto.coreml.palettize_weights(model, config=config)

    write_compressed(source, destination, compress)


def _write_static(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of a Core ML package with int8 weights and activations. Nothing is written if a range is missing.

    Raises:
        MissingBackendError: If coremltools is not installed.
        InputError: If no calibration row fits the lengths of the package, or the package is for iOS 16.
        GateError: If the range of a tensor could not be measured.
    """
    ios = _oldest_ios(source)
    if ios < _IOS_OF_STATIC:
        what = f"is for iOS {ios}; activations in 8 bits need iOS {_IOS_OF_STATIC}."
        raise InputError(Problem(str(source), what, "Choose the scheme w8, or export with --ios 17 or 18."))
    ranges = {**_measure_ranges(source, plan, destination.name), **_learned_ranges(source, plan.learned)}
    schemes = _weight_schemes(source, plan.left, Scheme.W8)
    float_weights = _digests_by_name(source, plan.left.union(*plan.seconds.values()))
    float_products = [
        product.attributes["name"].immediateValue.tensor.strings.values[0]
        for product, weight in _weight_products(source)
        if weight in float_weights
    ]

    def compress(model: Any) -> Any:
        """Quantize a coremltools model's activations in the measured ranges, then its weights."""
        import coremltools.optimize as cto
        from coremltools.optimize.coreml import _post_training_quantization as coremltools_quantization

        activations = cto.coreml.experimental.OpActivationLinearQuantizerConfig(mode="linear")
        config = cto.coreml.OptimizationConfig(
            op_type_configs=dict.fromkeys(_TOKEN_AXES, activations),
            op_name_configs=dict.fromkeys(float_products, None),
        )
        statistics = {name: {"rmin": low, "rmax": high} for name, (low, high) in ranges.items()}
        measured = mock.patch.object(
            coremltools_quantization, "_get_activation_calibration_stats", lambda *_: statistics
        )
        with measured:
            model = cto.coreml.experimental.linear_quantize_activations(model, config, [])
        return _quantize_weights(model, schemes)

    write_compressed(source, destination, compress)


def _measure_ranges(source: Path, plan: Plan, title: str) -> dict[str, Range]:
    """Run the calibration rows in the Core ML evaluator, and return the range of each quantized tensor, by name.

    Each row is padded to the shortest length of the package that holds it, longer rows are left out, and values at
    padding are not counted. A package for a range of lengths gets rows without padding. `title` is the name of the
    quantized file, for errors.

    Raises:
        InputError: If no row fits the package.
        GateError: If a tensor has NaN or infinite numbers, or nothing but zeros.
    """
    evaluator, axes = Evaluator(source), _ranged_tensors(source)
    ranges, padding = Ranges(axes, plan.calibration, plan.steps), Padding(0, plan.padding_side)
    for row in plan.rows() if plan.rows is not None else ():
        tokens = row["input_ids"].shape[1]
        length = next((n for n in evaluator.lengths if n >= tokens), None) if evaluator.lengths else tokens
        if length is None:
            continue
        inputs = padding.widened({f.name: row[f.name].astype(np.int32) for f in evaluator.inputs}, length)
        ranges.add(_run_for_values(evaluator, inputs, axes, range(length)[padding.place(tokens, length)], length))
    return ranges.chosen(title)


def _run_for_values(
    evaluator: Evaluator, inputs: Mapping[str, NDArray[Any]], axes: Mapping[str, int], real_tokens: range, length: int
) -> dict[str, NDArray[Any]]:
    """Run one padded row in the evaluator, and return the values of the tensors named in `axes`, with padding cut off.

    Args:
        evaluator: Evaluator of the package.
        inputs: The padded row, [1, length] by input name.
        axes: Axis of the tokens in each tensor whose values are returned.
        real_tokens: Indices of the tokens that are no padding.
        length: Length of the padded row.
    """
    values: dict[str, NDArray[Any]] = {}

    def keep(step: Step) -> None:
        if step.output in axes and isinstance(step.value, np.ndarray):
            axis = axes[step.output]
            has_tokens = step.value.ndim >= -axis and step.value.shape[axis] == length
            values[step.output] = step.value.take(real_tokens, axis) if has_tokens else step.value

    evaluator.run(inputs, keep)
    return values


def _ranged_tensors(source: Path) -> dict[str, int]:
    """Map each tensor that a linear layer or convolution reads or writes to the axis of its tokens.

    If an activation function follows a product, its result is among them: coremltools quantizes that instead of the
    product's.
    """
    axes: dict[str, int] = {}
    product_results: dict[str, int] = {}
    for operation in read_package(source).block.operations:
        read = operation.inputs["x"].arguments[0].name if "x" in operation.inputs else ""
        written = operation.outputs[0].name if operation.outputs else ""
        if operation.type in _TOKEN_AXES:
            axes[read] = axes[written] = product_results[written] = _TOKEN_AXES[operation.type]
        elif operation.type in _ACTIVATIONS and read in product_results:
            axes[written] = product_results[read]
    return axes


def _learned_ranges(source: Path, learned: LearnedRanges | None) -> dict[str, Range]:
    """Return the activation ranges that training learned, by the names of the tensors in the package.

    They are the ranges of the inputs and results of linear layers. If an activation function follows a linear layer,
    coremltools quantizes that function's result instead, whose range must be measured.
    """
    ranges: dict[str, Range] = {}
    if learned is None:
        return ranges
    stored = dict(read_stored_numbers(source))
    for product, weight in _weight_products(source):
        if weight in stored:
            known = learned.of(stored[weight])
            ends = (product.inputs["x"].arguments[0].name, known.inputs), (product.outputs[0].name, known.outputs)
            ranges.update({name: range_ for name, range_ in ends if range_ is not None})
    return ranges


def _weight_products(source: Path) -> Iterator[tuple[Any, str]]:
    """Yield each linear layer and convolution of a package, and the name of its weight."""
    for operation in read_package(source).block.operations:
        if operation.type in _TOKEN_AXES:
            yield operation, operation.inputs["weight"].arguments[0].name


# --- reading ---


def _large_float_weights(path: Path) -> list[tuple[StoredWeight, Use]]:
    """Return the float weights of a package that are large enough to be compressed, embedding tables first.

    Each is returned with its use (table or matrix), once for each operation that reads it.
    """
    weights = [
        (w, _WEIGHT_INPUTS[w.reader][1])
        for w in StoredTensors(path).weights()
        if w.parameter == _WEIGHT_INPUTS.get(w.reader, ("",))[0] and w.dtype.is_float and w.numbers > THRESHOLD
    ]
    return sorted(weights, key=lambda pair: pair[1] is Use.MATMUL)


def read_weight_types(path: Path) -> WeightTypes:
    """Read the storage types of the weights of linear layers, convolutions and lookups in a Core ML package.

    coremltools is not needed. Stored indices, and weights of other operations, are not listed.
    """
    stored = StoredTensors(path)
    uses = []
    for weight in stored.weights():
        parameter, use = _WEIGHT_INPUTS.get(weight.reader, ("", Use.MATMUL))
        dtype = _PALETTE_TYPES.get(weight.palette) or _TYPE_NAMES.get(weight.dtype)
        if weight.parameter != parameter or not dtype:
            continue
        blocks = weight.scales // weight.rows  # a row of one block of 4-bit numbers counts as blocks, too
        uses.append(
            WeightUse(
                name=weight.name,
                use=use,
                dtype=dtype,
                numbers=weight.numbers,
                dequantized=weight.scales > 0 or weight.palette > 0,
                per_channel=None if weight.rows == weight.scales == 1 else weight.scales > 1,
                block=weight.columns // blocks if blocks > 1 or (blocks == 1 and dtype == "int4") else None,
                bits=8 if use is Use.MATMUL and weight.static else None,
            )
        )
    sizes = list(stored.sizes())
    return WeightTypes(
        uses=uses,
        int8_bytes=sum(n for dtype, n in sizes if "int" in dtype and dtype.bits <= 8),
        float_bytes=sum(n for dtype, n in sizes if dtype.is_float),
        operators=stored.operators(),
    )


def read_stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Yield (name, value) of every array stored in a Core ML package, including the scales of compressed ones."""
    yield from StoredTensors(path).arrays()


# --- schemes ---


def _register() -> None:
    """Register the reader and the schemes of Core ML."""
    register_reader(Format.COREML, Reader(read_weight_types, read_stored_numbers))
    for scheme, dtype in ((Scheme.FP32, "float32"), (Scheme.FP16, "float16")):
        register_scheme(
            SchemeRow(Format.COREML, scheme, ExpectedWeights(ExpectedForm(dtype), ExpectedForm(dtype), _FLOATS))
        )

    w8, w4 = (
        ExpectedForm("int8", dequantized=True, per_channel=True),
        ExpectedForm("int4", dequantized=True, block=BLOCK),
    )
    w8_simulation = Simulation(
        weights=per_row_with_offset,
        tables=per_row_with_offset,
        small=THRESHOLD,
        fixed_positions=True,
        one_graph=True,
        halves=per_row_in_fp16,
    )
    w4_simulation = replace(
        w8_simulation, weights=per_block_with_offset, tables=per_block_with_offset, halves=per_block_in_fp16
    )
    linear = {
        Scheme.W8: SecondScheme(WEIGHTED_ROLES, ExpectedWeights(w8, w8, _FLOATS), w8_simulation),
        Scheme.W4: SecondScheme(WEIGHTED_ROLES, ExpectedWeights(w4, w4, _FLOATS), w4_simulation),
    }
    for scheme, own in linear.items():
        register_scheme(
            SchemeRow(
                Format.COREML,
                scheme,
                own.weights,
                _write_linear,
                simulation=own.simulation,
                selective=True,
                seconds={s: other for s, other in linear.items() if s is not scheme},
            )
        )

    _register_palettes(w8_simulation)
    register_scheme(
        SchemeRow(
            Format.COREML,
            Scheme.A8W8,
            ExpectedWeights(replace(w8, bits=8), w8, _FLOATS),
            _write_static,
            simulation=replace(w8_simulation, static=True, outputs=True),
            selective=True,
            seconds={Scheme.W8: linear[Scheme.W8]},
            usual={Role.FFN_DOWN: Scheme.W8},
        )
    )


def _register_palettes(w8_simulation: Simulation) -> None:
    """Register the schemes that store weights as indices into a palette of 64 or 16 values."""
    roundings = {64: palette_of_64, 16: palette_of_16}
    palettes = {n: ExpectedForm(dtype, dequantized=True, per_channel=False) for n, dtype in _PALETTE_TYPES.items()}
    for scheme, sizes in _PALETTE_SIZES.items():
        products, tables = sizes[Use.MATMUL], sizes[Use.TABLE]
        register_scheme(
            SchemeRow(
                Format.COREML,
                scheme,
                ExpectedWeights(palettes[products], palettes[tables], _FLOATS, other_tables=palettes[products]),
                _write_palettes,
                simulation=replace(
                    w8_simulation,
                    weights=roundings[products],
                    tables=roundings[tables],
                    other_tables=roundings[products],
                    halves=None,
                ),
            )
        )


_register()
