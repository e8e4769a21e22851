from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.types import Format, Scheme
from pocketbert.runtime.tflite import XnnpackCoverage, count_xnnpack_operators


class Interpreter:
    """Lists operators as an interpreter does: (name, inputs, outputs), the delegated pieces last."""

    def __init__(self, *nodes: tuple[str, list[int], list[int]]) -> None:
        self.nodes, self.allocated = nodes, False

    def allocate_tensors(self) -> None:
        self.allocated = True

    def _get_ops_details(self) -> list[dict[str, Any]]:
        assert self.allocated
        return [{"op_name": n, "inputs": i, "outputs": o} for n, i, o in self.nodes]


LOOKUP = ("EMBEDDING_LOOKUP", [0, 9], [1])
CHAIN = [LOOKUP, ("ADD", [1, 8], [2]), ("SOFTMAX", [2, -1], [3]), ("CAST", [3], [4]), ("ADD", [4, 2], [5])]


def test_without_a_delegate_everything_is_outside() -> None:
    found = count_xnnpack_operators(Interpreter(*CHAIN))
    assert found == XnnpackCoverage(
        partitions=0, inside={}, outside={"ADD": 2, "EMBEDDING_LOOKUP": 1, "SOFTMAX": 1, "CAST": 1}
    )


def test_what_lies_between_the_tensors_of_a_piece_is_inside() -> None:
    found = count_xnnpack_operators(Interpreter(*CHAIN, ("DELEGATE", [1, 8], [3])))
    assert found is not None
    assert found.partitions == 1
    assert found.inside == {"ADD": 1, "SOFTMAX": 1}
    assert found.outside == {"EMBEDDING_LOOKUP": 1, "CAST": 1, "ADD": 1}
    assert found.summary == ("1 XNNPACK partition with 2 operators; outside: 1 EMBEDDING_LOOKUP, 1 CAST, 1 ADD")


def test_two_pieces_with_a_hand_over_between_them() -> None:
    found = count_xnnpack_operators(Interpreter(*CHAIN, ("DELEGATE", [1, 8], [2, 3]), ("DELEGATE", [4, 2], [5])))
    assert found is not None
    assert found.partitions == 2
    assert found.inside == {"ADD": 2, "SOFTMAX": 1}
    assert found.summary == "2 XNNPACK partitions with 3 operators; outside: 1 EMBEDDING_LOOKUP, 1 CAST"


def test_nothing_outside_is_said() -> None:
    found = count_xnnpack_operators(Interpreter(("ADD", [0], [1]), ("DELEGATE", [0], [1])))
    assert found is not None
    assert found.summary == "1 XNNPACK partition with 1 operators; outside: none"


@pytest.mark.parametrize("error", [AttributeError, ValueError, RuntimeError])
def test_a_version_that_does_not_tell_is_none(error: type[Exception]) -> None:
    class Old(Interpreter):
        def _get_ops_details(self) -> list[dict[str, Any]]:
            raise error("not here")

    assert count_xnnpack_operators(Old(*CHAIN)) is None
    assert count_xnnpack_operators(object()) is None


@pytest.mark.parametrize("threads", [1, 2])
def test_a_real_file_is_one_piece_and_its_lookups(exported_tflite: Callable[[str], Path], threads: int) -> None:
    pytest.importorskip("ai_edge_litert")
    from pocketbert.quantize.tflite.reading import TfliteGraph
    from pocketbert.runtime.tflite import TflitePredictor

    predictor = TflitePredictor(exported_tflite("bert"), threads)
    found = predictor.coverage
    assert found is not None
    assert found.partitions == 1
    assert set(found.outside) == {"EMBEDDING_LOOKUP", "RESHAPE", "CAST"}
    graph = TfliteGraph(exported_tflite("bert"))
    assert sum(found.inside.values()) + sum(found.outside.values()) == len(graph.operators)
    for name, count in graph.operator_counts().items():
        assert found.inside.get(name, 0) + found.outside.get(name, 0) == count, name
    assert predictor.coverage is found  # asked once


@pytest.mark.parametrize("scheme", [Scheme.INT8, Scheme.A8W8])
def test_files_in_int8_are_one_piece_too(
    scheme: Scheme, exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_quantizer")
    from pocketbert.quantize import Plan, quantize, weights
    from pocketbert.quantize.tflite.reading import TfliteGraph
    from pocketbert.runtime.tflite import TflitePredictor

    monkeypatch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
    draw, path = np.random.default_rng(0), tmp_path / "a.tflite"
    ids = [draw.integers(5, 90, (1, n)) for n in range(4, 30)]
    rows = [{"input_ids": i, "attention_mask": np.ones_like(i), "token_type_ids": i * 0} for i in ids]
    quantize(exported_tflite("bert"), path, Plan(Format.TFLITE, scheme, rows=(lambda: rows) if scheme.static else None))
    found = TflitePredictor(path, 1).coverage
    assert found is not None
    assert found.partitions == 1
    assert set(found.outside) == {"EMBEDDING_LOOKUP", "RESHAPE", "CAST"}
    assert found.inside["FULLY_CONNECTED"] == TfliteGraph(path).operator_counts()["FULLY_CONNECTED"]
