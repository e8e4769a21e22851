"""fp16 for the GPU of a phone: one length, operands of equal rank, and the operators that LiteRT's GPU delegate takes.

The table is `CheckGpuDelegateCompatibility` of LiteRT (tflite/tools/versioning/gpu_compatibility.cc, google-ai-edge/LiteRT
at 007226f4), which replaces the shorter list of the page "GPU delegates": that page knows neither BATCH_MATMUL nor GELU.
It tells what the delegate accepts, not what a driver computes: nothing is run on a GPU here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.tflite_file import dump_model, load_model
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.quantize.table import Plan, SchemeRow, register_scheme
from pocketbert.quantize.tflite.quantizer import write
from pocketbert.quantize.tflite.reading import Tensor, TfliteGraph
from pocketbert.quantize.tflite.rewrites import RankLeveller, keep_longest
from pocketbert.quantize.weights import ExpectedWeights, Wanted

MOST_AXES = 4
"""The delegate's tensors have batch, height, width and channels."""
Rule = Callable[[Sequence[Tensor], Sequence[Tensor]], str]
"""Why the delegate refuses an operator with these inputs and outputs; empty where it takes it."""


@dataclass(frozen=True)
class Refusal:
    """Operators that the delegate leaves to the CPU.

    Attributes:
        operator: Their kind.
        count: How many there are.
        reason: Why.
    """

    operator: str
    count: int
    reason: str


def _any(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return ""


def _broadcast(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    ranks = {len(t.shape) for t in inputs if len(t.shape) > 1}
    return "operands of different rank" if len(ranks) > 1 else ""


def _cast(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    kinds = inputs[0].dtype, outputs[0].dtype
    allowed = {*kinds} <= {"float32", "int32"} or ("bool" in kinds and {*kinds} <= {"bool", "float16", "float32"})
    return "" if allowed else f"from {kinds[0]} to {kinds[1]}"


def _lookup(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    if len(inputs[0].shape) != 1:
        return "indices of more than one axis"
    return "" if inputs[1].dtype in ("int8", "int4", "float32") else f"a table in {inputs[1].dtype}"


def _gather(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if len(inputs[1].shape) == 1 and inputs[1].dtype == "int32" else "indices that are no list of int32"


def _constant_axes(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if inputs[1].stored and inputs[1].dtype == "int32" else "axes that are no constant int32"


def _slice(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if len(inputs[0].shape) in (3, 4) else f"an input of {len(inputs[0].shape)} axes, not 3 or 4"


def _cumulative(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if inputs[0].dtype in ("float16", "float32") else f"sums of {inputs[0].dtype}"


def _padding(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "" if inputs[1].shape in ((3, 2), (4, 2)) else "an input that has not 3 or 4 axes"


def _choice(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    same = all(t.shape in ((), (1,), outputs[0].shape) for t in inputs[1:])
    return "" if same and inputs[0].dtype in ("bool", "float16", "float32") else "operands that are broadcast"


def _dequantize(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    return "from int16" if inputs[0].dtype == "int16" else ""


_EVERY_FORM = (
    "ABS BATCH_MATMUL CONCATENATION CONV_2D COS DIV ELU EQUAL EXP FLOOR FLOOR_DIV FLOOR_MOD "
    "FULLY_CONNECTED GELU GREATER GREATER_EQUAL HARD_SWISH LEAKY_RELU LESS LESS_EQUAL LOG LOGICAL_AND "
    "LOGICAL_NOT LOGICAL_OR LOGISTIC MAXIMUM MINIMUM NEG NOT_EQUAL PACK POW PRELU QUANTIZE RELU RELU6 "
    "RESHAPE ROUND RSQRT SIGN SIN SOFTMAX SPLIT SPLIT_V SQRT SQUARE SQUARED_DIFFERENCE SUB TANH TILE "
    "TRANSPOSE"
).split()
RULES: dict[str, Rule] = {
    **dict.fromkeys(("ADD", "MUL"), _broadcast),
    **dict.fromkeys(
        ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ALL", "REDUCE_ANY"), _constant_axes
    ),
    **dict.fromkeys(("SLICE", "STRIDED_SLICE"), _slice),
    **dict.fromkeys(("PAD", "PADV2", "MIRROR_PAD"), _padding),
    **dict.fromkeys(("SELECT", "SELECT_V2"), _choice),
    "CAST": _cast,
    "CUMSUM": _cumulative,
    "DEQUANTIZE": _dequantize,
    "EMBEDDING_LOOKUP": _lookup,
    "GATHER": _gather,
    **dict.fromkeys(_EVERY_FORM, _any),
}
"""What the delegate takes, by kind of operator; of a kind that is not here it takes none."""
_PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D")


def gpu_refusals(path: Path) -> list[Refusal]:
    """List the operators of a file that LiteRT's GPU delegate leaves to the CPU, most first."""
    counts: dict[tuple[str, str], int] = {}
    for tensors, operators in TfliteGraph(path).signatures():
        for op in operators:
            inputs, outputs = ([tensors[i] for i in indices if i >= 0] for indices in (op.inputs, op.outputs))
            reason = _refusal(op.name, inputs, outputs)
            if reason:
                counts[op.name, reason] = counts.get((op.name, reason), 0) + 1
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return [Refusal(operator, count, reason) for (operator, reason), count in ordered]


def leaves_products(refusals: Sequence[Refusal]) -> bool:
    """Tell whether a matrix product stays on the CPU: a GPU is then of no use."""
    return any(refusal.operator in _PRODUCTS for refusal in refusals)


def _refusal(name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    if name not in RULES:
        return "the delegate does not know this operator"
    if any(len(t.shape) > MOST_AXES for t in (*inputs, *outputs)):
        return f"more than {MOST_AXES} axes"
    return RULES[name](inputs, outputs)


def _write(source: Path, destination: Path, plan: Plan) -> None:
    """Write a file of the longest signature, with equal ranks and fp16 numbers."""
    model = load_model(source.read_bytes())
    keep_longest(model)
    RankLeveller(model, model.subgraphs[0]).run()
    with temporary_folder(destination.parent) as folder:
        changed = folder / "changed.tflite"
        changed.write_bytes(dump_model(model))
        write(changed, destination, plan)


_HALF = Wanted("float16", dequantized=True)
register_scheme(SchemeRow(Format.TFLITE, Scheme.FP16, ExpectedWeights(_HALF, _HALF), _write, Runtime.GPU))
