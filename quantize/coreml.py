"""Core ML packages with int8, 4-bit and palette weights, by coremltools.optimize, checked in the written package."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.coreml_package import DATE, add_classifier, remove_classifier, save_package
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.families.weight_records import LearnedRanges, Range, digest_of
from pocketbert.core.host.quiet import quiet, quiet_coremltools
from pocketbert.core.host.system import version_of
from pocketbert.core.types import Format, Role, Scheme
from pocketbert.quantize.calibration import Ranges
from pocketbert.quantize.rounding import (
    Simulation,
    palette_of,
    palette_of_16,
    palette_of_64,
    per_block_in_halves,
    per_block_with_offset,
    per_row_in_halves,
    per_row_with_offset,
    places_in,
)
from pocketbert.quantize.table import WEIGHTED, Plan, Reader, SchemeRow, Second, register_reader, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Use, Wanted, WeightTypes, WeightUse
from pocketbert.runtime.coreml.evaluator import Evaluator, Step
from pocketbert.runtime.coreml.package import read_package
from pocketbert.runtime.coreml.stored import StoredTensors
from pocketbert.runtime.tflite import Padding

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.stored import StoredWeight


# --- reading ---
# Reads what is stored in Core ML packages, without coremltools.


THRESHOLD = 512
"""Weights of at most this many numbers stay float: nothing is won there."""
_WEIGHT_INPUTS = {
    "linear": ("weight", Use.MATMUL),
    "conv": ("weight", Use.MATMUL),
    "gather": ("x", Use.TABLE),
}
"""Input that holds the weight, and what it is used for. A product of two stored operands is no weight."""
PALETTES = {64: "lut6", 16: "lut4"}
"""Names of weights that are places in a palette, by the palette's size; all weights of a package have palettes of their own."""
BLOCK = 32
"""Numbers that share a scale in 4 bits."""
_NAMES = {
    "fp32": "float32",
    "fp16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    "int4": "int4",
    "uint4": "uint4",
}
"""Names of number types here, by their names in Core ML; indices are none of them."""


def large_weights(path: Path) -> dict[str, Use]:
    """Find the float constants that are worth compressing, each with its use: a product's, where it has two."""
    return {w.name: use for w, use in _large(path)}


def chosen_weights(path: Path, left: frozenset[str]) -> list[str]:
    """Find the float constants that are worth compressing and have none of some digests."""
    stay = names_of(path, left)
    return [name for name in large_weights(path) if name not in stay]


def names_of(path: Path, digests: frozenset[str]) -> set[str]:
    """Find the constants with one of some digests."""
    if not digests:
        return set()
    return {name for name, numbers in stored_numbers(path) if digest_of(numbers) in digests}


def named_weights(path: Path, digests: Mapping[Scheme, frozenset[str]]) -> dict[str, Scheme]:
    """Find the float constants with some digests.

    Args:
        path: A float package.
        digests: By scheme.

    Returns:
        The scheme of each by its name.
    """
    if not digests:
        return {}
    known = {digest: scheme for scheme, own in digests.items() for digest in own}
    found = ((name, digest_of(numbers)) for name, numbers in stored_numbers(path))
    return {name: known[digest] for name, digest in found if digest in known}


def large_widths(path: Path) -> dict[str, int]:
    """Find the float constants that are worth compressing, each with the length of its rows."""
    return {w.name: w.columns for w, _ in _large(path)}


def large_numbers(path: Path) -> dict[str, int]:
    """Find the float constants that are worth compressing, each with how many numbers it has."""
    return {w.name: w.numbers for w, _ in _large(path)}


def oldest_ios(path: Path) -> int:
    """Read the oldest iOS version that opens a package."""
    from pocketbert.runtime.coreml.package import read_package

    return read_package(path).opset + 10


def _large(path: Path) -> list[tuple[StoredWeight, Use]]:
    from pocketbert.runtime.coreml.stored import StoredTensors

    found = [
        (w, _WEIGHT_INPUTS[w.reader][1])
        for w in StoredTensors(path).weights()
        if w.parameter == _WEIGHT_INPUTS.get(w.reader, ("",))[0] and w.dtype.is_float and w.numbers > THRESHOLD
    ]
    return sorted(found, key=lambda pair: pair[1] is Use.MATMUL)


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a package; without coremltools."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    stored = StoredTensors(path)
    uses = []
    for weight in stored.weights():
        parameter, use = _WEIGHT_INPUTS.get(weight.reader, ("", Use.MATMUL))
        dtype = PALETTES.get(weight.palette) or _NAMES.get(weight.dtype)
        if weight.parameter == parameter and dtype:
            uses.append(
                WeightUse(
                    name=weight.name,
                    use=use,
                    dtype=dtype,
                    numbers=weight.numbers,
                    dequantized=weight.scales > 0 or weight.palette > 0,
                    per_channel=None if weight.rows == weight.scales == 1 else weight.scales > 1,
                    block=_block(weight, dtype),
                    bits=8 if use is Use.MATMUL and weight.static else None,
                )
            )
    sizes = list(stored.sizes())
    return WeightTypes(
        uses=uses,
        int8_bytes=sum(n for is_float, n in sizes if not is_float),
        float_bytes=sum(n for is_float, n in sizes if is_float),
        operators=stored.operators(),
    )


def _block(weight: StoredWeight, dtype: str) -> int | None:
    """How many numbers of a row share a scale; a row of one block of 4-bit numbers counts, too."""
    blocks = weight.scales // weight.rows
    return weight.columns // blocks if blocks > 1 or (blocks == 1 and dtype == "int4") else None


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a package, scales of compressed tensors included."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    yield from StoredTensors(path).arrays()


FLOATS = ("float32", "float16")
"""Types that small weights may stay in."""
register_reader(Format.COREML, Reader(weight_types, stored_numbers))
for _scheme, _wanted in ((Scheme.FP32, Wanted("float32")), (Scheme.FP16, Wanted("float16"))):
    register_scheme(SchemeRow(Format.COREML, _scheme, ExpectedWeights(_wanted, _wanted, FLOATS)))


_IOS_OF_BLOCKS = 18
_PALETTES = {
    Scheme.LUT6: {Use.MATMUL: 64, Use.TABLE: 64},
    Scheme.LUT4: {Use.MATMUL: 16, Use.TABLE: 16},
    Scheme.SMALL: {Use.MATMUL: 64, Use.TABLE: 16},
}
"""Numbers in the palettes of products, and of the largest table."""


def write_smaller(source: Path, destination: Path, compress: Callable[[Any], Any]) -> None:
    """Write a copy of a package that a function of coremltools.optimize made smaller.

    Args:
        source: A float package.
        destination: Where to write.
        compress: Takes the model without its classifier, and returns the smaller one.

    Raises:
        MissingBackendError: If coremltools is not installed.
    """
    if version_of("coremltools") is None:
        raise MissingBackendError("coremltools", "pip install 'pocketbert[coreml]'")
    with quiet(), quiet_coremltools():
        import coremltools as ct

        whole = ct.models.MLModel(str(source), skip_model_load=True)
        plain = whole.get_spec()
        labels = remove_classifier(plain)
        model = compress(ct.models.MLModel(plain, weights_dir=whole.weights_dir, skip_model_load=True))
        spec = model.get_spec()
    if labels:
        add_classifier(spec, labels)
    added = dict(spec.description.metadata.userDefined)
    spec.description.CopyFrom(whole.get_spec().description)  # coremltools.optimize drops texts
    for name, value in added.items():
        if name != DATE:
            spec.description.metadata.userDefined[name] = value
    save_package(spec.SerializeToString(deterministic=True), Path(model.weights_dir) / "weight.bin", destination)


def linear_w8(source: Path, left: frozenset[str] = frozenset()) -> Callable[[Any], Any]:
    """Return what makes weights int8 per output channel with an offset, embedding tables per row.

    ``mode="linear"`` has less error than symmetric numbers.
    """
    return lambda model: _quantized(model, dict.fromkeys(chosen_weights(source, left), Scheme.W8))


def _write_linear(source: Path, destination: Path, plan: Plan) -> None:
    """Write weights with an offset: int8 per output channel, or 4 bits with 32 numbers of a row sharing scale and offset.

    Raises:
        MissingBackendError: If coremltools is not installed.
        InputError: If blocks do not divide a weight, or the package is for iOS 17 or older, which has no blocks.
    """
    chosen = dict.fromkeys(chosen_weights(source, plan.left), plan.scheme)
    chosen |= {n: s for n, s in named_weights(source, plan.seconds).items() if n in chosen}
    problems = [
        Problem(
            name,
            f"has rows of {width} numbers; 4-bit weights of Core ML have blocks of {BLOCK}.",
            f"Choose the scheme lut4 or w8, or a student whose widths are multiples of {BLOCK}.",
        )
        for name, width in large_widths(source).items()
        if chosen.get(name) is Scheme.W4 and width % BLOCK
    ]
    ios = oldest_ios(source)
    if ios < _IOS_OF_BLOCKS and Scheme.W4 in chosen.values():
        what = f"is for iOS {ios}; weights in blocks need iOS {_IOS_OF_BLOCKS}."
        problems.append(Problem(str(source), what, "Choose the scheme lut4, or export with --ios 18."))
    if problems:
        raise InputError(problems)
    write_smaller(source, destination, lambda model: _quantized(model, chosen))


_LINEAR: Mapping[Scheme, Mapping[str, Any]] = {
    Scheme.W8: {"dtype": "int8", "granularity": "per_channel"},
    Scheme.W4: {"dtype": "int4", "granularity": "per_block"},
}


def _quantized(model: Any, chosen: Mapping[str, Scheme]) -> Any:
    """Quantize weights by name."""
    import coremltools.optimize as cto

    configs = {
        scheme: cto.coreml.OpLinearQuantizerConfig(mode="linear", weight_threshold=THRESHOLD, block_size=BLOCK, **how)
        for scheme, how in _LINEAR.items()
    }
    # by name: by operation, two of them that share a bias would contradict each other
    config = cto.coreml.OptimizationConfig(op_name_configs={name: configs[s] for name, s in chosen.items()})
    return cto.coreml.linear_quantize_weights(model, config=config)


def _write_palettes(source: Path, destination: Path, plan: Plan) -> None:
    """Write weights as places in palettes, one for each tensor.

    Tables other than the largest have the palette of products: one of positions or segments moves every token.
    """
    sizes = _PALETTES[plan.scheme]
    uses = large_weights(source)
    largest = max((w for w in uses if uses[w] is Use.TABLE), key=large_numbers(source).__getitem__, default="")

    def compress(model: Any) -> Any:
        import coremltools.optimize as cto

        hows = {
            use: cto.coreml.OpPalettizerConfig(
                mode="custom", lut_function=partial(_palette, size), weight_threshold=THRESHOLD
            )
            for use, size in sizes.items()
        }
        config = cto.coreml.OptimizationConfig(
            op_name_configs={name: hows[use if name == largest else Use.MATMUL] for name, use in uses.items()}
        )
        return cto.coreml.palettize_weights(model, config=config)

    write_smaller(source, destination, compress)


def _palette(size: int, values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """What coremltools asks for: the palette in the type of the weight, and a place in it for each number."""
    palette = palette_of(values, size)
    return palette.astype(values.dtype), places_in(values, palette)


_W8 = Wanted("int8", dequantized=True, per_channel=True)
_W4 = Wanted("int4", dequantized=True, block=BLOCK)
W8_SIMULATION = Simulation(
    weights=per_row_with_offset,
    tables=per_row_with_offset,
    small=THRESHOLD,
    fixed_positions=True,
    one_graph=True,
    halves=per_row_in_halves,
)
_ROUNDINGS = {64: palette_of_64, 16: palette_of_16}
_W4_SIMULATION = replace(
    W8_SIMULATION,
    weights=per_block_with_offset,
    tables=per_block_with_offset,
    halves=per_block_in_halves,
)
_LINEAR_ROWS = {
    Scheme.W8: Second(WEIGHTED, ExpectedWeights(_W8, _W8, FLOATS), W8_SIMULATION),
    Scheme.W4: Second(WEIGHTED, ExpectedWeights(_W4, _W4, FLOATS), _W4_SIMULATION),
}
for _quantizer_scheme, _own in _LINEAR_ROWS.items():
    register_scheme(
        SchemeRow(
            Format.COREML,
            _quantizer_scheme,
            _own.weights,
            _write_linear,
            simulation=_own.simulation,
            selective=True,
            seconds={s: other for s, other in _LINEAR_ROWS.items() if s is not _quantizer_scheme},
        )
    )
for _quantizer_scheme, _sizes in _PALETTES.items():
    _products, _tables = _sizes[Use.MATMUL], _sizes[Use.TABLE]
    register_scheme(
        SchemeRow(
            Format.COREML,
            _quantizer_scheme,
            ExpectedWeights(
                Wanted(PALETTES[_products], dequantized=True, per_channel=False),
                Wanted(PALETTES[_tables], dequantized=True, per_channel=False),
                FLOATS,
                other_tables=Wanted(PALETTES[_products], dequantized=True, per_channel=False),
            ),
            _write_palettes,
            simulation=replace(
                W8_SIMULATION,
                weights=_ROUNDINGS[_products],
                tables=_ROUNDINGS[_tables],
                other_tables=_ROUNDINGS[_products],
                halves=None,
            ),
        )
    )


# --- static ---
# a8w8 for Core ML: w8, and the inputs of linear layers in int8 with ranges measured by the project's evaluator.
#
# coremltools measures ranges by running the model, which needs macOS, and keeps those of the last row only. The evaluator's
# ranges take the place of its own; ranges have an offset, which halves the error of symmetric ones.


_IOS = 17
_MEASURED = {"linear": -2, "conv": -1}
"""Operations whose inputs and results have ranges, and their axis of tokens."""

_FOLLOWING = ("leaky_relu", "tanh", "scaled_tanh", "sigmoid", "hard_sigmoid", "relu", "relu6")


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy with int8 weights and activations; nothing is written where a range cannot be measured.

    Raises:
        MissingBackendError: If coremltools is not installed.
        InputError: If there are no rows that the package takes, or it is for iOS 16.
        GateError: If the range of a tensor could not be measured.
    """
    if oldest_ios(source) < _IOS:
        what = f"is for iOS {oldest_ios(source)}; activations in 8 bits need iOS {_IOS}."
        raise InputError(Problem(str(source), what, "Choose the scheme w8, or export with --ios 17 or 18."))
    ranges = {**_measure(source, plan, destination.name), **_learned(source, plan.learned)}
    weights, others = linear_w8(source, plan.left), _others(source, plan)

    def compress(model: Any) -> Any:
        import coremltools.optimize as cto
        from coremltools.optimize.coreml import _post_training_quantization as own

        how = cto.coreml.experimental.OpActivationLinearQuantizerConfig(mode="linear")
        config = cto.coreml.OptimizationConfig(
            op_type_configs=dict.fromkeys(_MEASURED, how), op_name_configs=dict.fromkeys(others, None)
        )
        statistics = {name: {"rmin": low, "rmax": high} for name, (low, high) in ranges.items()}
        with mock.patch.object(own, "_get_activation_calibration_stats", lambda *_: statistics):
            model = cto.coreml.experimental.linear_quantize_activations(model, config, [])
        return weights(model)

    write_smaller(source, destination, compress)


def _others(source: Path, plan: Plan) -> list[str]:
    """Name the operations whose weights have another scheme, or stay as they were: what these read and make stays float."""
    weights = names_of(source, plan.left.union(*plan.seconds.values()))
    return [
        operation.attributes["name"].immediateValue.tensor.strings.values[0]
        for operation, weight in _static_products(source)
        if weight in weights
    ]


def _static_products(source: Path) -> Iterator[tuple[Any, str]]:
    """The measured operations, each with the name of its weight."""
    for operation in read_package(source).block.operations:
        if operation.type in _MEASURED:
            yield operation, operation.inputs["weight"].arguments[0].name


def _measure(source: Path, plan: Plan, title: str) -> dict[str, Range]:
    """Run the plan's rows, each at the shortest length that takes it, and choose ranges of what real tokens have."""
    evaluator = Evaluator(source)
    axes = _axes(source)
    ranges, padding = Ranges(axes, plan.calibration, plan.steps), Padding(0, plan.padding_side)
    for row in plan.rows() if plan.rows is not None else ():
        tokens = row["input_ids"].shape[1]
        length = next((n for n in evaluator.lengths if n >= tokens), None) if evaluator.lengths else tokens
        if length is None:
            continue
        real = range(length)[padding.place(tokens, length)]
        found: dict[str, NDArray[Any]] = {}

        def keep(step: Step, found: dict[str, NDArray[Any]] = found, size: int = length, real: range = real) -> None:
            if step.output in axes and isinstance(step.value, np.ndarray):
                axis = axes[step.output]
                has_tokens = step.value.ndim >= -axis and step.value.shape[axis] == size
                found[step.output] = step.value.take(real, axis) if has_tokens else step.value

        wide = padding.widened({f.name: row[f.name].astype(np.int32) for f in evaluator.inputs}, length)
        evaluator.run(wide, keep)
        ranges.add(found)
    return ranges.chosen(title)


def _learned(source: Path, learned: LearnedRanges | None) -> dict[str, Range]:
    """Find the ranges that training learned for what linear layers read and make; none without any.

    Where an activation function follows, coremltools quantizes its result, whose range is measured.
    """
    out: dict[str, Range] = {}
    if learned is None:
        return out
    stored = dict(StoredTensors(source).arrays())
    for operation, weight in _static_products(source):
        if weight in stored:
            own = learned.of(stored[weight])
            ends = (operation.inputs["x"].arguments[0].name, own.inputs), (operation.outputs[0].name, own.outputs)
            out.update({name: found for name, found in ends if found is not None})
    return out


def _axes(source: Path) -> Mapping[str, int]:
    """Names of what linear layers read and write, each with its axis of tokens.

    Where an activation function follows, coremltools quantizes its result instead.
    """
    axes: dict[str, int] = {}
    made: dict[str, int] = {}
    for operation in read_package(source).block.operations:
        read = operation.inputs["x"].arguments[0].name if "x" in operation.inputs else ""
        written = operation.outputs[0].name if operation.outputs else ""
        if operation.type in _MEASURED:
            axes[read] = axes[written] = made[written] = _MEASURED[operation.type]
        elif operation.type in _FOLLOWING and read in made:
            axes[written] = made[read]
    return axes


register_scheme(
    SchemeRow(
        Format.COREML,
        Scheme.A8W8,
        ExpectedWeights(replace(_W8, bits=8), _W8, FLOATS),
        _write,
        simulation=replace(W8_SIMULATION, static=True, outputs=True),
        selective=True,
        seconds={Scheme.W8: Second(WEIGHTED, ExpectedWeights(_W8, _W8, FLOATS), W8_SIMULATION)},
        usual={Role.FFN_DOWN: Scheme.W8},
    )
)
