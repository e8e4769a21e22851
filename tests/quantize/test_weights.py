"""The verdict on types, on hand-made lists of weights."""

from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.families.weight_records import WeightRole
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize import weights
from pocketbert.quantize.files import find_weight_problems
from pocketbert.quantize.table import find_row, list_rows
from pocketbert.quantize.weights import Use, WeightTypes, WeightUse

Weights = dict[str, Any]
Row = tuple[Format, Scheme, Runtime | None]
FLOAT, HALF = {"dtype": "float32"}, {"dtype": "float16", "dequantized": True}
PLAIN, INT8 = {"dtype": "int8"}, {"dtype": "int8", "per_channel": True}
INT8_B32, INT4 = {**INT8, "block": 32}, {"dtype": "int4", "per_channel": True, "block": 32}
UNPACKED, MATRIX = {"dtype": "int8", "dequantized": True}, {**INT8, "bits": 8}
RIGHT: dict[Row, tuple[Weights, Weights, Weights]] = {
    (Format.ONNX, Scheme.FP32, None): (FLOAT, FLOAT, FLOAT),
    (Format.ONNX, Scheme.INT8, None): (INT8, INT8, INT8),
    (Format.ONNX, Scheme.INT8_B32, None): (INT8_B32, INT8_B32, INT8_B32),
    (Format.ONNX, Scheme.SMALL, None): (INT8, {"dtype": "int4", "block": 32}, INT8),
    (Format.ONNX, Scheme.W4, None): (INT4, INT4, INT8_B32),
    (Format.ONNX, Scheme.A8W8, None): (MATRIX, INT8, INT8),
    (Format.ONNX, Scheme.A8W8, Runtime.OPENVINO): ({**MATRIX, "fused": True}, INT8, INT8),
    (Format.ONNX, Scheme.A8W8, Runtime.QNN): ({**MATRIX, "fused": True}, UNPACKED, UNPACKED),
    (Format.ONNX, Scheme.A16W8, Runtime.QNN): ({**MATRIX, "fused": True, "bits": 16}, UNPACKED, UNPACKED),
    (Format.TFLITE, Scheme.FP32, None): (FLOAT, FLOAT, FLOAT),
    (Format.TFLITE, Scheme.FP16, None): (HALF, HALF, HALF),
    (Format.TFLITE, Scheme.FP16, Runtime.GPU): (HALF, HALF, HALF),
    (Format.TFLITE, Scheme.A8W8, Runtime.NPU): (MATRIX, PLAIN, PLAIN),
    (Format.TFLITE, Scheme.A16W8, Runtime.NPU): ({**MATRIX, "bits": 16}, PLAIN, PLAIN),
    (Format.TFLITE, Scheme.W8, None): ({**INT8, "dequantized": True},) * 3,
    (Format.TFLITE, Scheme.INT8, None): (INT8, PLAIN, PLAIN),
    (Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16): (PLAIN, PLAIN, PLAIN),
    (Format.TFLITE, Scheme.SMALL, None): (INT8, INT4, INT4),
    (Format.TFLITE, Scheme.W4, None): (INT4, INT4, INT4),
    (Format.TFLITE, Scheme.A8W8, None): (MATRIX, PLAIN, PLAIN),
}
"""Row of the table → what its matrices, its largest table and its other tables are."""
ALIKE = {(Format.TFLITE, Scheme.FP16, None), (Format.TFLITE, Scheme.FP16, Runtime.GPU)}
"""Rows whose weights are stored alike; the operators differ, which the gate `placement` reads."""
TFLITE_INT8, QNN = (Format.TFLITE, Scheme.INT8, None), (Format.ONNX, Scheme.A16W8, Runtime.QNN)


def weight(name: str, form: Weights, use: Use = Use.MATMUL, **more: Any) -> WeightUse:
    return WeightUse.model_validate({"numbers": weights.SMALL, **form, **more, "name": name, "use": use})


def types(*uses: WeightUse, whole: bool = False, floats: tuple[str, ...] = ()) -> WeightTypes:
    integers = ["SOFTMAX"] if whole else []
    sizes = {"int8_bytes": 3_000_000, "float_bytes": 250_000}
    return WeightTypes(uses=list(uses), **sizes, operators={}, integers=integers, floats=list(floats))


def uses_of(row: Row) -> list[WeightUse]:
    """Two matrices and two tables as a scheme wants them."""
    matrix, largest, other = RIGHT[row]
    tables = [weight("t0", largest, Use.TABLE, numbers=2 * weights.SMALL), weight("t1", other, Use.TABLE)]
    return [weight("m0", matrix), weight("m1", matrix), *tables]


def types_of(row: Row, *more: WeightUse, **settings: Any) -> WeightTypes:
    """The types of a file as a scheme wants them, with operators in integers where it wants these too."""
    return types(*uses_of(row), *more, whole=find_row(*row).weights.whole, **settings)


def problems(found: WeightTypes, row: Row = TFLITE_INT8) -> list[str]:
    return find_row(*row).problems(found, "a")


@pytest.mark.parametrize("row", RIGHT, ids=str)
def test_what_the_scheme_wants_is_no_problem_and_every_other_scheme_is(row):
    assert problems(types_of(row), row) == []
    head = weight("regression", {**RIGHT[row][0], "per_channel": None})
    assert problems(types_of(row, head), row) == [], "one channel has one scale"
    for other in RIGHT:
        if other[0] is row[0] and other != row and {other, row} != ALIKE:
            found = problems(types_of(other), row)
            assert found, other
            assert all(line.startswith("a: ") for line in found)


def test_every_row_of_the_table_is_known():
    assert {(r.format, r.scheme, r.runtime) for r in list_rows() if r.format is not Format.COREML} == set(RIGHT)


@pytest.mark.parametrize("scheme", [Scheme.SMALL, Scheme.W4])
def test_the_largest_table_may_not_stay_in_the_type_of_the_others(scheme):
    row = (Format.ONNX, scheme, None)
    *products, largest, other = uses_of(row)
    sizes = {"numbers": largest.numbers}, {"numbers": other.numbers}
    swapped = [largest.model_copy(update=sizes[1]), other.model_copy(update=sizes[0])]
    assert problems(types(*products, *swapped), row) != []


def small(form: Weights) -> WeightUse:
    return weight("head", form, numbers=4)


ADDED: list[tuple[Row, WeightUse, list[str]]] = [
    (TFLITE_INT8, weight("lost", FLOAT), ["still float: lost (1 in all)."]),
    (TFLITE_INT8, small(FLOAT), []),
    (TFLITE_INT8, small({"dtype": "float16"}), ["still float: head (1 in all)."]),
    (TFLITE_INT8, small({"dtype": "uint16"}), ["of another type: head (1 in all)."]),
    (TFLITE_INT8, weight("slow", {**INT8, **UNPACKED}), ["turned into fp32 before the product: slow (1 in all)."]),
    ((Format.TFLITE, Scheme.W8, None), weight("dynamic", INT8), ["not turned into fp32: dynamic (1 in all)."]),
    (
        TFLITE_INT8,
        weight("coarse", PLAIN),
        ["int8 weights have one scale per matrix, not per output channel: coarse (1 in all)."],
    ),
    (
        (Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16),
        weight("fine", INT8),
        ["int8 weights have a scale per output channel, not one per matrix: fine (1 in all)."],
    ),
    (TFLITE_INT8, weight("rows", INT8, Use.TABLE), []),  # both kinds are right in a dynamic file
]


@pytest.mark.parametrize(("row", "added", "said"), ADDED, ids=lambda v: v.name if isinstance(v, WeightUse) else "")
def test_one_weight_that_is_not_as_the_others_is_named(row, added, said):
    added = added if added.numbers == 4 else added.model_copy(update={"numbers": weights.SMALL})
    assert problems(types_of(row, added), row) == [f"a: {line}" for line in said]


def test_a_quantizer_that_did_nothing_or_forgot_the_tables_is_told():
    assert problems(types_of((Format.TFLITE, Scheme.FP32, None))) == [
        "a: no matrix product has int8 weights; the quantizer did nothing.",
        "a: no embedding table has int8 numbers.",
        "a: still float: m0, m1, t0, t1 (4 in all).",
    ]
    assert problems(types(*uses_of(TFLITE_INT8)[:2], weight("words", FLOAT, Use.TABLE))) == [
        "a: no embedding table has int8 numbers.",
        "a: still float: words (1 in all).",
    ]


def test_a_long_list_is_shortened_and_counted():
    lost = [weight(f"w{i}", FLOAT) for i in range(9)]
    assert problems(types_of(TFLITE_INT8, *lost)) == ["a: still float: w0, w1, w2, w3, w4 (9 in all)."]


@pytest.mark.parametrize("use", Use)
def test_a_file_without_any_weight_of_a_kind_was_not_understood(use):
    assert problems(types(*(u for u in uses_of(TFLITE_INT8) if u.use is not use))) == [f"a: no {use} was found in it."]
    assert len(problems(types(), (Format.TFLITE, Scheme.FP32, None))) == 2


def test_only_whole_graphs_may_have_a_few_products_in_16_bits():
    table, static, npu = weight("t0", PLAIN, Use.TABLE), (Format.TFLITE, Scheme.A8W8, None), Runtime.NPU

    def matrices(*bits: int) -> list[WeightUse]:
        return [weight(f"m{i}", {**INT8, "bits": b}) for i, b in enumerate(bits)]

    assert problems(types(*matrices(16, 8, 8), table, whole=True), (*static[:2], npu)) == []
    for found, row, names in (
        (types(*matrices(16, 8, 8), table), static, "m0 (1 in all)"),
        (types(*matrices(8, 16, 16), table, whole=True), (*static[:2], npu), "m1, m2 (2 in all)"),
    ):
        assert problems(found, row) == [f"a: multiplied with numbers of 16 bits: {names}."]


def test_what_computes_with_floats_in_a_whole_graph_is_named():
    assert problems(types_of(QNN, floats=("MatMul 'scores'",)), QNN) == [
        "a: computed with floats, where an NPU takes integers: MatMul 'scores' (1 in all)."
    ]


def test_counts_and_the_line_for_people():
    found = types_of(TFLITE_INT8, small(FLOAT))
    assert (found.int8_matmuls, found.int8_embeddings, found.count(Use.MATMUL, "float32")) == (2, 2, 1)
    said = "2 matrix products and 2 tables in int8, 1 matrix product in float32; 3.0 MB int8, 0.25 MB float"
    assert found.summary == said
    assert types_of((Format.TFLITE, Scheme.W4, None)).summary.endswith("; 3.0 MB int4, 0.25 MB float")
    assert "; 3.0 MB int4 and int8, " in types_of((Format.TFLITE, Scheme.SMALL, None)).summary


def test_a_table_with_the_role_of_what_projected_it_is_counted_as_a_table():
    # as DeBERTa's projected positions, in a file with two schemes
    row = find_row(Format.TFLITE, Scheme.A8W8)
    table, up = weight("positions", PLAIN, Use.TABLE, numbers=2 * weights.SMALL), weight("up", MATRIX)
    roles = {"positions": Role.ATTENTION_PROJECTION, "up": Role.FFN_UP, "down": Role.FFN_DOWN}
    chosen = [
        WeightRole(name=n, role=r, digest=f"{i:064x}", numbers=weights.SMALL * (2 - bool(i)), scheme=row.scheme_of(r))
        for i, (n, r) in enumerate(roles.items())
    ]
    assert find_weight_problems(Path("a"), row, types(table, up, weight("down", INT8)), "a", chosen) == []
    (problem,) = find_weight_problems(Path("a"), row, types(table, up, weight("down", MATRIX)), "a", chosen)
    assert "down is to have int8 (int8), and the file has too few such weights" in problem
