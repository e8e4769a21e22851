"""Core ML packages with int8, 4-bit and palette weights, by coremltools.optimize, checked in the written package."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.quiet import quiet, quiet_coremltools
from pocketbert.core.host.versions import version_of
from pocketbert.core.packages.coreml import DATE, save_package
from pocketbert.core.packages.coreml_classifier import add_classifier, remove_classifier
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.coreml import reading
from pocketbert.quantize.coreml.reading import BLOCK, FLOATS, large_weights
from pocketbert.quantize.palettes import palette_of, places_in
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import (
    palette_of_16,
    palette_of_64,
    per_block_in_halves,
    per_block_with_offset,
    per_row_in_halves,
    per_row_with_offset,
)
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import WEIGHTED, SchemeRow, Second, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Use, Wanted

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
    return lambda model: _quantized(model, dict.fromkeys(reading.chosen_weights(source, left), Scheme.W8))


def _write_linear(source: Path, destination: Path, plan: Plan) -> None:
    """Write weights with an offset: int8 per output channel, or 4 bits with 32 numbers of a row sharing scale and offset.

    Raises:
        MissingBackendError: If coremltools is not installed.
        InputError: If blocks do not divide a weight, or the package is for iOS 17 or older, which has no blocks.
    """
    chosen = dict.fromkeys(reading.chosen_weights(source, plan.left), plan.scheme)
    chosen |= {n: s for n, s in reading.named_weights(source, plan.seconds).items() if n in chosen}
    problems = [
        Problem(
            name,
            f"has rows of {width} numbers; 4-bit weights of Core ML have blocks of {BLOCK}.",
            f"Choose the scheme lut4 or w8, or a student whose widths are multiples of {BLOCK}.",
        )
        for name, width in reading.large_widths(source).items()
        if chosen.get(name) is Scheme.W4 and width % BLOCK
    ]
    ios = reading.oldest_ios(source)
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
        scheme: cto.coreml.OpLinearQuantizerConfig(
            mode="linear", weight_threshold=reading.THRESHOLD, block_size=BLOCK, **how
        )
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
    largest = max((w for w in uses if uses[w] is Use.TABLE), key=reading.large_numbers(source).__getitem__, default="")

    def compress(model: Any) -> Any:
        import coremltools.optimize as cto

        hows = {
            use: cto.coreml.OpPalettizerConfig(
                mode="custom", lut_function=partial(_palette, size), weight_threshold=reading.THRESHOLD
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
    small=reading.THRESHOLD,
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
for _scheme, _own in _LINEAR_ROWS.items():
    register_scheme(
        SchemeRow(
            Format.COREML,
            _scheme,
            _own.weights,
            _write_linear,
            simulation=_own.simulation,
            selective=True,
            seconds={s: other for s, other in _LINEAR_ROWS.items() if s is not _scheme},
        )
    )
for _scheme, _sizes in _PALETTES.items():
    _products, _tables = _sizes[Use.MATMUL], _sizes[Use.TABLE]
    register_scheme(
        SchemeRow(
            Format.COREML,
            _scheme,
            ExpectedWeights(
                Wanted(reading.PALETTES[_products], dequantized=True, per_channel=False),
                Wanted(reading.PALETTES[_tables], dequantized=True, per_channel=False),
                FLOATS,
                other_tables=Wanted(reading.PALETTES[_products], dequantized=True, per_channel=False),
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
