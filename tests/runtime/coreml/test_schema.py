"""Our protobuf classes read what coremltools writes: names, numbers and kinds of fields are the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from coremltools.proto import FeatureTypes_pb2, MIL_pb2, Model_pb2

from pocketbert.runtime.coreml.package import _parse_model
from pocketbert.runtime.coreml.proto import mlpackage_pb2


def messages(module: Any) -> Iterator[tuple[str, Any]]:
    """Every message by its name inside the proto package, nested ones included."""
    todo = [(m.name, m) for m in module.DESCRIPTOR.message_types_by_name.values()]
    while todo:
        name, message = todo.pop()
        yield name, message
        todo += [(f"{name}.{m.name}", m) for m in message.nested_types]


THEIRS = {n: m for module in (Model_pb2, FeatureTypes_pb2, MIL_pb2) for n, m in messages(module)}


@pytest.mark.parametrize("name", sorted(n for n, _ in messages(mlpackage_pb2)))
def test_fields_have_the_numbers_of_coremltools(name: str) -> None:
    ours = dict(messages(mlpackage_pb2))[name]
    theirs = {f.name: f for f in THEIRS[name].fields}
    for field in ours.fields:
        other = theirs[field.name]
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
        for kind in ("message_type", "enum_type"):
            mine, yours = getattr(field, kind), getattr(other, kind)
            assert (mine and mine.name) == (yours and yours.name)
        if field.enum_type:
            assert {v.name: v.number for v in field.enum_type.values} == {
                v.name: v.number for v in other.enum_type.values
            }


def test_a_saved_model_reads_the_same(bert16: Path) -> None:
    data = next(bert16.rglob("model.mlmodel")).read_bytes()
    theirs, ours = Model_pb2.Model(), _parse_model(data)
    theirs.ParseFromString(data)
    mine = {k: len(f.block_specializations[f.opset].operations) for k, f in ours.mlProgram.functions.items()}
    assert mine == {k: len(f.block_specializations[f.opset].operations) for k, f in theirs.mlProgram.functions.items()}
    # nothing was skipped as unknown: what is written again is as long
    assert len(ours.SerializeToString()) == len(data)
