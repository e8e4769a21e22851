"""fp16 for the GPU of a phone: one length, operands of equal rank, and a check of what LiteRT's GPU delegate accepts.

`list_gpu_refusals` lists the operators of a file that the delegate leaves to the CPU. Its table `RULES` is
`CheckGpuDelegateCompatibility` of LiteRT (tflite/tools/versioning/gpu_compatibility.cc, google-ai-edge/LiteRT at
007226f4), which replaces the shorter list of the page "GPU delegates": that page has neither BATCH_MATMUL nor GELU. The
table holds what the delegate accepts, not what a driver computes: nothing is run on a GPU here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.model_files import dump_model, load_model
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.table import Plan, SchemeRow, register_scheme
from pocketbert.quantize.tflite.quantizer import write_quantized
from pocketbert.quantize.tflite.reading import Tensor, TfliteGraph
from pocketbert.quantize.tflite.rewrites import keep_longest, level_ranks
from pocketbert.quantize.weights import ExpectedForm, ExpectedWeights

_MAX_AXES = 4
"""The delegate's tensors have batch, height, width and channels."""
_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D")
_Rule = Callable[[Sequence[Tensor], Sequence[Tensor]], str]
"""Returns why the delegate refuses an operator with these inputs and outputs; empty if it takes it."""


@dataclass(frozen=True)
class Refusal:
    """Operators of one kind that the GPU delegate leaves to the CPU for the same reason.

    Attributes:
        operator: Kind of the operators, e.g. ``GATHER``.
        count: Number of these operators.
        reason: Why the delegate refuses them.
    """

    operator: str
    count: int
    reason: str


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write an fp16 TFLite file for the GPU, with the longest signature only and operands of equal rank.

    Raises:
        MissingBackendError: If ai-edge-quantizer is not installed.
    """
    model = load_model(source.read_bytes())
    keep_longest(model)
    level_ranks(model, model.subgraphs[0])
    with temporary_folder(destination.parent) as folder:
        changed = folder / "changed.tflite"
        changed.write_bytes(dump_model(model))
        write_quantized(changed, destination, plan)


def list_gpu_refusals(path: Path) -> list[Refusal]:
    """Return the operators of a TFLite file that LiteRT's GPU delegate leaves to the CPU, with the reason.

    Operators of one kind that are refused for the same reason are counted together, the most frequent first. All
    signatures are searched.
    """
    counts = Counter[tuple[str, str]]()
    for tensors, operators in TfliteGraph(path).signatures():
        for op in operators:
            inputs, outputs = ([tensors[i] for i in indices if i >= 0] for indices in (op.inputs, op.outputs))
            if op.name not in RULES:
                reason = "the delegate does not know this operator"
            elif any(len(t.shape) > _MAX_AXES for t in (*inputs, *outputs)):
                reason = f"more than {_MAX_AXES} axes"
            else:
                reason = RULES[op.name](inputs, outputs)
            if reason:
                counts[op.name, reason] += 1
    return [Refusal(operator, count, reason) for (operator, reason), count in counts.most_common()]


def leaves_products(refusals: Sequence[Refusal]) -> bool:
    """Return whether any refused operator is a matrix product or convolution; then the GPU is useless for the model."""
    return any(refusal.operator in _PRODUCTS for refusal in refusals)


# --- rules ---


def _any_form(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return ""


def _equal_ranks(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    ranks = {len(t.shape) for t in inputs if len(t.shape) > 1}
    return "operands of different rank" if len(ranks) > 1 else ""


def _cast_types(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    kinds = inputs[0].dtype, outputs[0].dtype
    allowed = {*kinds} <= {"float32", "int32"} or ("bool" in kinds and {*kinds} <= {"bool", "float16", "float32"})
    return "" if allowed else f"from {kinds[0]} to {kinds[1]}"


def _lookup_types(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    if len(inputs[0].shape) != 1:
        return "indices of more than one axis"
    return "" if inputs[1].dtype in ("int8", "int4", "float32") else f"a table in {inputs[1].dtype}"


def _gather_indices(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if len(inputs[1].shape) == 1 and inputs[1].dtype == "int32" else "indices that are no list of int32"


def _constant_axes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if inputs[1].stored and inputs[1].dtype == "int32" else "axes that are no constant int32"


def _three_or_four_axes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if len(inputs[0].shape) in (3, 4) else f"an input of {len(inputs[0].shape)} axes, not 3 or 4"


def _float_sums(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if inputs[0].dtype in ("float16", "float32") else f"sums of {inputs[0].dtype}"


def _padding_shape(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if inputs[1].shape in ((3, 2), (4, 2)) else "an input that has not 3 or 4 axes"


def _select_shapes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    same = all(t.shape in ((), (1,), outputs[0].shape) for t in inputs[1:])
    return "" if same and inputs[0].dtype in ("bool", "float16", "float32") else "operands that are broadcast"


def _not_from_int16(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "from int16" if inputs[0].dtype == "int16" else ""


_TAKEN_IN_ANY_FORM = (
    "ABS BATCH_MATMUL CONCATENATION CONV_2D COS DIV ELU EQUAL EXP FLOOR FLOOR_DIV FLOOR_MOD "
    "FULLY_CONNECTED GELU GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND "
    "LOGICAL_NOT LOGICAL_OR LOGISTIC MAXIMUM MINIMUM NEG NOT_EQUAL PACK POW PRELU QUANTIZE RELU RELU6 "
    "RESHAPE ROUND RSQRT SIGN SIN SOFTMAX SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SUB TANH TILE "
    "TRANSPOSE"
).split()
_REDUCTIONS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ALL", "REDUCE_ANY")
RULES: dict[str, _Rule] = {
    **dict.fromkeys(("ADD", "MUL"), _equal_ranks),
    **dict.fromkeys(_REDUCTIONS, _constant_axes),
    **dict.fromkeys(("SLICE", "STRIDED_SLICE"), _three_or_four_axes),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _padding_shape),
    **dict.fromkeys(("SELECT", "SELECT_V2"), _select_shapes),
    "CAST": _cast_types,
    "CUMSUM": _float_sums,
    "DEQUANTIZE": _not_from_int16,
    "EMBEDDING_LOOKUP": _lookup_types,
    "GATHER": _gather_indices,
    **dict.fromkeys(_TAKEN_IN_ANY_FORM, _any_form),
}
"""The rule of each kind of operator; the delegate takes none of other kinds."""

_HALF = ExpectedForm("float16", dequantized=True)
register_scheme(SchemeRow(Format.TFLITE, Scheme.FP16, ExpectedWeights(_HALF, _HALF), _write, Runtime.GPU))
