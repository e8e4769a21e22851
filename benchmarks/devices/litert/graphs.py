"""The operators of a .tflite, and one of its signatures as a separate file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from pocketbert.core.packages.tflite import dump_model, load_model, tflite_schema

_CUSTOM = 32
"""``BuiltinOperator.CUSTOM`` of the TFLite schema: LiteRT writes each compiled piece as one such operator."""
DISPATCH = "DISPATCH_OP"
PRODUCTS = ("FULLY_CONNECTED", "BATCH_MATMUL", "CONV_2D")
"""Operators that nearly all of an encoder's arithmetic is in."""


def only_signature(file: bytes, key: str) -> tuple[bytes, int]:
    """A file with one signature, since an NPU takes one length and the others would be compiled too.

    Args:
        file: The .tflite.
        key: Name of the signature.

    Returns:
        The smaller file, and the index of the signature's graph in it. A file whose graphs refer to each other, or which has
        one signature, comes back as it is.
    """
    model = load_model(file)
    chosen = next(s for s in model.signatureDefs if _text(s.signatureKey) == key)
    if len(model.subgraphs) == 1 or len(model.subgraphs) != len(model.signatureDefs):
        return file, chosen.subgraphIndex
    model.subgraphs, model.signatureDefs = [model.subgraphs[chosen.subgraphIndex]], [chosen]
    chosen.subgraphIndex = 0
    return dump_model(model), 0


@dataclass(frozen=True)
class GraphOperators:
    """The operators of one graph.

    Attributes:
        counts: How many there are of each type, by their names in the TFLite schema.
        compiled: How many compiled pieces there are among them.
    """

    counts: Counter[str]
    compiled: int


def operators_of(file: bytes, graph: int, compiled_code: str = DISPATCH) -> GraphOperators:
    """Count the operators of a graph; compiled pieces are counted separately.

    Args:
        file: The .tflite.
        graph: Index of the graph.
        compiled_code: Name of the custom operator as which the compiler writes each piece.
    """
    schema = tflite_schema()
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if isinstance(value, int)}
    model: Any = schema.ModelT.InitFromObj(schema.Model.GetRootAs(file, 0))
    counts, compiled = Counter[str](), 0
    for operator in model.subgraphs[graph].operators or []:
        code = model.operatorCodes[operator.opcodeIndex]
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        if number == _CUSTOM and _text(code.customCode) == compiled_code:
            compiled += 1
        else:
            counts[names[number]] += 1
    return GraphOperators(counts, compiled)


def operator_name(number: int) -> str:
    """Name of an operator type by its number in the TFLite schema."""
    operators = vars(tflite_schema().BuiltinOperator).items()
    return next((name for name, value in operators if value == number), f"operator {number}")


def _text(value: bytes | str | None) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value or ""
