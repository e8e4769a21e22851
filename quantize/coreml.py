"""w8 for Core ML, by coremltools.optimize, checked in the written package."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.quiet import quiet, quiet_coremltools
from pocketbert.core.host.versions import version_of
from pocketbert.core.packages.coreml import DATE, save_package
from pocketbert.core.packages.coreml_classifier import add_classifier, remove_classifier
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import per_row_in_halves, per_row_with_offset
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import Reader, SchemeRow, register_reader, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Use, Wanted, WeightTypes, WeightUse

THRESHOLD = 512
"""Weights of at most this many numbers stay float: nothing is won there."""
_WEIGHT_INPUTS = {
    "linear": ("weight", Use.MATMUL),
    "conv": ("weight", Use.MATMUL),
    "gather": ("x", Use.TABLE),
}
"""Input that holds the weight, and what it is used for. A product of two stored operands is no weight."""
_NAMES = {
    "fp32": "float32",
    "fp16": "float16",
    "int8": "int8",
    "uint8": "uint8",
    "int4": "int4",
    "uint4": "uint4",
}
"""Names of number types here, by their names in Core ML; indices are none of them."""


def _write_w8(source: Path, destination: Path, plan: Plan) -> None:
    """Write a copy of a package with int8 weights.

    They are int8 per output channel with an offset (``mode="linear"``; less error than symmetric), embedding tables per row.

    Raises:
        MissingBackendError: If coremltools is not installed.
    """
    if version_of("coremltools") is None:
        raise MissingBackendError("coremltools", "pip install 'pocketbert[coreml]'")
    with quiet(), quiet_coremltools():
        import coremltools as ct
        import coremltools.optimize as cto

        how = cto.coreml.OpLinearQuantizerConfig(
            mode="linear", dtype="int8", granularity="per_channel", weight_threshold=THRESHOLD
        )
        whole = ct.models.MLModel(str(source), skip_model_load=True)
        plain = whole.get_spec()
        labels = remove_classifier(plain)
        model = ct.models.MLModel(plain, weights_dir=whole.weights_dir, skip_model_load=True)
        # by name: by operation, two of them that share a bias would contradict each other
        config = cto.coreml.OptimizationConfig(op_name_configs=dict.fromkeys(_weights(source), how))
        model = cto.coreml.linear_quantize_weights(model, config=config)
        spec = model.get_spec()
    if labels:
        add_classifier(spec, labels)
    added = dict(spec.description.metadata.userDefined)
    spec.description.CopyFrom(whole.get_spec().description)  # coremltools.optimize drops texts
    for name, value in added.items():
        if name != DATE:
            spec.description.metadata.userDefined[name] = value
    save_package(spec.SerializeToString(deterministic=True), Path(model.weights_dir) / "weight.bin", destination)


def _weights(path: Path) -> set[str]:
    """Names of the constants that are compressed."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    return {
        w.name
        for w in StoredTensors(path).weights()
        if w.parameter == _WEIGHT_INPUTS.get(w.reader, ("",))[0] and w.dtype.is_float and w.numbers > THRESHOLD
    }


def weight_types(path: Path) -> WeightTypes:
    """Read the types of all weights in a package; without coremltools."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    stored = StoredTensors(path)
    uses = []
    for weight in stored.weights():
        parameter, use = _WEIGHT_INPUTS.get(weight.reader, ("", Use.MATMUL))
        if weight.parameter == parameter and weight.dtype in _NAMES:
            uses.append(
                WeightUse(
                    name=weight.name,
                    use=use,
                    dtype=_NAMES[weight.dtype],
                    numbers=weight.numbers,
                    dequantized=weight.scales > 0,
                    per_channel=None if weight.rows == weight.scales == 1 else weight.scales > 1,
                )
            )
    sizes = [(v.dtype.kind, v.nbytes) for _, v in stored.arrays()]
    return WeightTypes(
        uses=uses,
        int8_bytes=sum(n for kind, n in sizes if kind in "iu"),
        float_bytes=sum(n for kind, n in sizes if kind == "f"),
        operators=stored.operators(),
    )


def stored_numbers(path: Path) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Name and value of everything stored in a package, scales of compressed tensors included."""
    from pocketbert.runtime.coreml.stored import StoredTensors

    yield from StoredTensors(path).arrays()


_FLOATS = ("float32", "float16")
_W8 = Wanted("int8", dequantized=True, per_channel=True)
register_reader(Format.COREML, Reader(weight_types, stored_numbers))
for _scheme, _wanted in ((Scheme.FP32, Wanted("float32")), (Scheme.FP16, Wanted("float16"))):
    register_scheme(SchemeRow(Format.COREML, _scheme, ExpectedWeights(_wanted, _wanted, _FLOATS)))
register_scheme(
    SchemeRow(
        Format.COREML,
        Scheme.W8,
        ExpectedWeights(_W8, _W8, _FLOATS),
        _write_w8,
        simulation=Simulation(
            weights=per_row_with_offset,
            tables=per_row_with_offset,
            small=THRESHOLD,
            fixed_positions=True,
            one_graph=True,
            halves=per_row_in_halves,
        ),
    )
)
