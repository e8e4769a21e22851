"""w8 for Core ML, by coremltools.optimize, checked in the written package."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.errors import MissingBackendError
from pocketbert.core.host.quiet import quiet, quiet_coremltools
from pocketbert.core.host.versions import version_of
from pocketbert.core.packages.coreml import DATE, save_package
from pocketbert.core.packages.coreml_classifier import add_classifier, remove_classifier
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize.coreml import reading
from pocketbert.quantize.coreml.reading import FLOATS, large_weights
from pocketbert.quantize.plan import Plan
from pocketbert.quantize.rounding import per_row_in_halves, per_row_with_offset
from pocketbert.quantize.simulation import Simulation
from pocketbert.quantize.table import SchemeRow, register_scheme
from pocketbert.quantize.weights import ExpectedWeights, Wanted


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
            mode="linear", dtype="int8", granularity="per_channel", weight_threshold=reading.THRESHOLD
        )
        whole = ct.models.MLModel(str(source), skip_model_load=True)
        plain = whole.get_spec()
        labels = remove_classifier(plain)
        model = ct.models.MLModel(plain, weights_dir=whole.weights_dir, skip_model_load=True)
        # by name: by operation, two of them that share a bias would contradict each other
        config = cto.coreml.OptimizationConfig(op_name_configs=dict.fromkeys(large_weights(source), how))
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


_W8 = Wanted("int8", dequantized=True, per_channel=True)
register_scheme(
    SchemeRow(
        Format.COREML,
        Scheme.W8,
        ExpectedWeights(_W8, _W8, FLOATS),
        _write_w8,
        simulation=Simulation(
            weights=per_row_with_offset,
            tables=per_row_with_offset,
            small=reading.THRESHOLD,
            fixed_positions=True,
            one_graph=True,
            halves=per_row_in_halves,
        ),
    )
)
