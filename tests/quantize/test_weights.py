"""The verdict on types, on hand-made lists of weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.families.weight_records import WeightRole
from pocketbert.core.types import Format, Role, Runtime, Scheme
from pocketbert.quantize.files import find_weight_problems
from pocketbert.quantize.table import find_row, list_rows
from pocketbert.quantize.weights import SMALL, Use, WeightTypes, WeightUse

INT8 = {"dtype": "int8", "per_channel": True}
COARSE = {"dtype": "int8", "per_channel": False}
INT4 = {"dtype": "int4", "per_channel": True, "block": 32}
Weights = dict[str, object]
Row = tuple[Format, Scheme, Runtime | None]
RIGHT: dict[Row, tuple[Weights, Weights, Weights]] = {
    (Format.ONNX, Scheme.FP32, None): ({"dtype": "float32"}, {"dtype": "float32"}, {"dtype": "float32"}),
    (Format.ONNX, Scheme.INT8, None): (INT8, INT8, INT8),
    (Format.ONNX, Scheme.INT8_B32, None): ({**INT8, "block": 32}, {**INT8, "block": 32}, {**INT8, "block": 32}),
    (Format.ONNX, Scheme.SMALL, None): (INT8, {"dtype": "int4", "block": 32}, INT8),
    (Format.ONNX, Scheme.W4, None): (INT4, INT4, {**INT8, "block": 32}),
    (Format.ONNX, Scheme.A8W8, None): ({**INT8, "bits": 8}, INT8, INT8),
    (Format.ONNX, Scheme.A8W8, Runtime.OPENVINO): ({**INT8, "fused": True, "bits": 8}, INT8, INT8),
    **{
        (Format.ONNX, scheme, Runtime.QNN): (
            {**INT8, "fused": True, "bits": bits},
            {"dtype": "int8", "dequantized": True},
            {"dtype": "int8", "dequantized": True},
        )
        for scheme, bits in ((Scheme.A8W8, 8), (Scheme.A16W8, 16))
    },
    (Format.TFLITE, Scheme.FP32, None): ({"dtype": "float32"}, {"dtype": "float32"}, {"dtype": "float32"}),
    (Format.TFLITE, Scheme.FP16, None): ({"dtype": "float16", "dequantized": True},) * 3,
    (Format.TFLITE, Scheme.FP16, Runtime.GPU): ({"dtype": "float16", "dequantized": True},) * 3,
    (Format.TFLITE, Scheme.A8W8, Runtime.NPU): ({**INT8, "bits": 8}, COARSE, COARSE),
    (Format.TFLITE, Scheme.A16W8, Runtime.NPU): ({**INT8, "bits": 16}, COARSE, COARSE),
    (Format.TFLITE, Scheme.W8, None): ({**INT8, "dequantized": True},) * 3,
    (Format.TFLITE, Scheme.INT8, None): (INT8, {"dtype": "int8"}, {"dtype": "int8"}),
    (Format.TFLITE, Scheme.INT8, Runtime.TFLITE_2_16): ({"dtype": "int8"}, {"dtype": "int8"}, {"dtype": "int8"}),
    (Format.TFLITE, Scheme.SMALL, None): (INT8, INT4, INT4),
    (Format.TFLITE, Scheme.W4, None): (INT4, INT4, INT4),
    (Format.TFLITE, Scheme.A8W8, None): ({**INT8, "bits": 8}, {"dtype": "int8"}, {"dtype": "int8"}),
}
"""Row of the table → what its matrices, its largest table and its other tables are."""
ALIKE = {(Format.TFLITE, Scheme.FP16, None), (Format.TFLITE, Scheme.FP16, Runtime.GPU)}
"""Rows whose weights are stored alike; the operators differ, which the gate `placement` reads."""


def weight(name: str, use: Use = Use.MATMUL, dtype: object = "int8", **more: object) -> WeightUse:
    return WeightUse.model_validate({"numbers": SMALL, **more, "name": name, "use": use, "dtype": dtype})


def types(*uses: WeightUse, whole: bool = False) -> WeightTypes:
    integers = ["SOFTMAX"] if whole else []
    return WeightTypes(uses=list(uses), int8_bytes=3_000_000, float_bytes=250_000, operators={}, integers=integers)


def type_problems(
    types: WeightTypes, name: str, scheme: Scheme, runtime: Runtime | None = None, format: Format = Format.TFLITE
) -> list[str]:
    """The verdict of a row."""
    return find_row(format, scheme, runtime).problems(types, name)


def right(scheme: Scheme, target: Runtime | None = None, format: Format = Format.TFLITE) -> list[WeightUse]:
    """Two matrices and two tables as a scheme wants them."""
    matrix, largest, other = RIGHT[format, scheme, target]
    return [
        *(weight(f"m{i}", Use.MATMUL, **matrix) for i in range(2)),
        weight("t0", Use.TABLE, **largest, numbers=2 * SMALL),
        weight("t1", Use.TABLE, **other),
    ]


def whole_types(scheme: Scheme, target: Runtime | None, format: Format, *more: WeightUse) -> WeightTypes:
    """The types of a file as a scheme wants them, with operators in integers where it wants these too."""
    return types(*right(scheme, target, format), *more, whole=find_row(format, scheme, target).weights.whole)


@pytest.mark.parametrize(("format", "scheme", "target"), RIGHT)
def test_what_the_scheme_wants_is_no_problem(format: Format, scheme: Scheme, target: Runtime | None) -> None:
    assert type_problems(whole_types(scheme, target, format), "a.tflite", scheme, target, format) == []


@pytest.mark.parametrize(("format", "scheme", "target"), RIGHT)
def test_one_channel_has_one_scale_in_every_scheme(format: Format, scheme: Scheme, target: Runtime | None) -> None:
    head = weight("regression", Use.MATMUL, **{**RIGHT[format, scheme, target][0], "per_channel": None})
    assert type_problems(whole_types(scheme, target, format, head), "a.tflite", scheme, target, format) == []


def test_every_row_of_the_table_is_known() -> None:
    assert {(r.format, r.scheme, r.runtime) for r in list_rows() if r.format is not Format.COREML} == set(RIGHT)


@pytest.mark.parametrize("scheme", [Scheme.SMALL, Scheme.W4])
def test_the_largest_table_may_not_stay_in_the_type_of_the_others(scheme: Scheme) -> None:
    *products, largest, other = right(scheme, format=Format.ONNX)
    swapped = [largest.model_copy(update={"numbers": SMALL}), other.model_copy(update={"numbers": 2 * SMALL})]
    assert type_problems(types(*products, *swapped), "a", scheme, format=Format.ONNX) != []


@pytest.mark.parametrize(
    ("row", "other"), [(a, b) for a in RIGHT for b in RIGHT if a[0] is b[0] and a != b and {a, b} != ALIKE]
)
def test_a_file_of_another_scheme_is_a_problem(row: Row, other: Row) -> None:
    format, scheme, target = row
    found = type_problems(whole_types(other[1], other[2], format), "a.tflite", scheme, target, format)
    assert found
    assert all(line.startswith("a.tflite: ") for line in found)


def test_nothing_quantized() -> None:
    found = type_problems(types(*right(Scheme.FP32)), "a", Scheme.INT8)
    assert found == [
        "a: no matrix product has int8 weights; the quantizer did nothing.",
        "a: no embedding table has int8 numbers.",
        "a: still float: m0, m1, t0, t1 (4 in all).",
    ]


def test_one_weight_left_float_is_named() -> None:
    found = type_problems(types(*right(Scheme.INT8), weight("lost", dtype="float32")), "a", Scheme.INT8)
    assert found == ["a: still float: lost (1 in all)."]


def test_small_weights_may_stay_float_but_be_nothing_else() -> None:
    small = weight("head", dtype="float32", numbers=SMALL - 1)
    assert type_problems(types(*right(Scheme.INT8), small), "a", Scheme.INT8) == []
    half = weight("head", dtype="float16", numbers=SMALL - 1)
    assert type_problems(types(*right(Scheme.INT8), half), "a", Scheme.INT8) == ["a: still float: head (1 in all)."]
    strange = weight("head", dtype="uint16", numbers=4)
    assert type_problems(types(*right(Scheme.INT8), strange), "a", Scheme.INT8) == [
        "a: of another type: head (1 in all)."
    ]


def test_only_whole_graphs_may_have_a_few_products_in_16_bits() -> None:
    down = [weight(f"m{i}", **{**INT8, "bits": 8 if i else 16}) for i in range(3)]
    tables = [weight("t0", Use.TABLE, **COARSE)]
    found = {
        target: type_problems(types(*down, *tables, whole=target is not None), "a", Scheme.A8W8, target)
        for target in (None, Runtime.NPU)
    }
    assert found == {None: ["a: multiplied with numbers of 16 bits: m0 (1 in all)."], Runtime.NPU: []}
    most = [weight(f"m{i}", **{**INT8, "bits": 16 if i else 8}) for i in range(3)]
    assert type_problems(types(*most, *tables, whole=True), "a", Scheme.A8W8, Runtime.NPU) == [
        "a: multiplied with numbers of 16 bits: m1, m2 (2 in all)."
    ]


def test_what_computes_with_floats_in_a_whole_graph_is_named() -> None:
    found = whole_types(Scheme.A16W8, Runtime.QNN, Format.ONNX).model_copy(update={"floats": ["MatMul 'scores'"]})
    assert type_problems(found, "a", Scheme.A16W8, Runtime.QNN, Format.ONNX) == [
        "a: computed with floats, where an NPU takes integers: MatMul 'scores' (1 in all)."
    ]


def test_the_summary_names_the_integers_that_are_stored() -> None:
    assert types(*right(Scheme.W4)).summary.endswith("; 3.0 MB int4, 0.25 MB float")
    assert "; 3.0 MB int4 and int8, " in types(*right(Scheme.SMALL)).summary
    assert "; 3.0 MB int8, " in types(*right(Scheme.INT8)).summary


def test_embeddings_forgotten() -> None:
    uses = [*right(Scheme.INT8)[:2], weight("words", Use.TABLE, "float32")]
    assert type_problems(types(*uses), "a", Scheme.INT8) == [
        "a: no embedding table has int8 numbers.",
        "a: still float: words (1 in all).",
    ]


@pytest.mark.parametrize("use", Use)
def test_a_file_without_any_weight_of_a_kind_was_not_understood(use: Use) -> None:
    uses = [u for u in right(Scheme.INT8) if u.use is not use]
    assert type_problems(types(*uses), "a", Scheme.INT8) == [f"a: no {use} was found in it."]
    assert len(type_problems(types(), "a", Scheme.FP32)) == 2


def test_products_in_fp32_are_not_dynamic_int8() -> None:
    uses = [*right(Scheme.INT8), weight("slow", dequantized=True, per_channel=True)]
    assert type_problems(types(*uses), "a", Scheme.INT8) == ["a: turned into fp32 before the product: slow (1 in all)."]
    uses = [*right(Scheme.W8), weight("dynamic", dequantized=False, per_channel=True)]
    assert type_problems(types(*uses), "a", Scheme.W8) == ["a: not turned into fp32: dynamic (1 in all)."]


def test_scales_of_the_other_kind() -> None:
    uses = [*right(Scheme.INT8), weight("coarse", per_channel=False)]
    assert type_problems(types(*uses), "a", Scheme.INT8) == [
        "a: int8 weights have one scale per matrix, not per output channel: coarse (1 in all)."
    ]
    uses = [*right(Scheme.INT8, Runtime.TFLITE_2_16), weight("fine", per_channel=True)]
    assert type_problems(types(*uses), "a", Scheme.INT8, Runtime.TFLITE_2_16) == [
        "a: int8 weights have a scale per output channel, not one per matrix: fine (1 in all)."
    ]
    table = weight("rows", Use.TABLE, per_channel=True)  # both kinds are right in a dynamic file
    assert type_problems(types(*right(Scheme.INT8), table), "a", Scheme.INT8) == []


def test_a_long_list_is_shortened_and_counted() -> None:
    lost = [weight(f"w{i}", dtype="float32") for i in range(9)]
    [line] = type_problems(types(*right(Scheme.INT8), *lost), "a", Scheme.INT8)
    assert line == "a: still float: w0, w1, w2, w3, w4 (9 in all)."


def test_counts_and_the_line_for_people() -> None:
    found = types(*right(Scheme.INT8), weight("head", dtype="float32", numbers=12))
    assert (found.int8_matmuls, found.int8_embeddings) == (2, 2)
    assert found.count(Use.MATMUL, "float32") == 1
    assert found.summary == (
        "2 matrix products and 2 tables in int8, 1 matrix product in float32; 3.0 MB int8, 0.25 MB float"
    )


def test_a_table_with_the_role_of_what_projected_it_is_counted_as_a_table() -> None:
    # as DeBERTa's projected positions, in a file with two schemes
    row = find_row(Format.TFLITE, Scheme.A8W8)
    table, up = weight("positions", Use.TABLE, numbers=2 * SMALL), weight("up", **{**INT8, "bits": 8})
    roles = {"positions": Role.ATTENTION_PROJECTION, "up": Role.FFN_UP, "down": Role.FFN_DOWN}
    sizes = {"positions": 2 * SMALL}
    chosen = [
        WeightRole(name=n, role=r, digest=f"{i:064x}", numbers=sizes.get(n, SMALL), scheme=row.scheme_of(r))
        for i, (n, r) in enumerate(roles.items())
    ]
    assert find_weight_problems(Path("a"), row, types(table, up, weight("down", **INT8)), "a", chosen) == []
    static = types(table, up, weight("down", **{**INT8, "bits": 8}))
    (problem,) = find_weight_problems(Path("a"), row, static, "a", chosen)
    assert "down is to have int8 (int8), and the file has too few such weights" in problem
