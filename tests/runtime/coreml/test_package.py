"""Packages are read as coremltools writes them; those that are not what they should be are refused before memory is taken."""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from coremltools.proto import FeatureTypes_pb2, MIL_pb2, Model_pb2

from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.runtime.coreml import types as limits
from pocketbert.runtime.coreml.evaluator import Evaluator
from pocketbert.runtime.coreml.package import read_package
from pocketbert.runtime.coreml.proto import mlpackage_pb2

MODEL, WEIGHTS = "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"
MANIFEST = "Manifest.json"
TRICKS = ("/etc/passwd", "../../../../etc/passwd", "../../other/model.mlmodel", "a/\0b", "..", "")


@pytest.fixture(scope="module")
def small(build_program: Callable[..., Path]) -> Path:
    """A table, a compressed linear layer, a softmax; constants in the file and in the program."""
    import coremltools as ct
    import coremltools.optimize.coreml as cto

    rng = np.random.default_rng(0)
    table, weight = (rng.normal(size=s).astype(np.float32) for s in ((40, 64), (24, 64)))

    def body(mb: Any, ids: Any) -> Any:
        x = mb.layer_norm(x=mb.gather(x=table, indices=ids, axis=0), axes=[-1], gamma=weight[0], beta=weight[1])
        x = mb.linear(x=x, weight=weight, bias=np.ones(24, np.float32))
        return mb.softmax(x=mb.matmul(x=x, y=x, transpose_y=True), axis=-1, name="result")

    plain = build_program([((1, 6), "int32")], body, "iOS16", "FLOAT16")
    config = cto.OptimizationConfig(
        op_type_configs={"linear": cto.OpLinearQuantizerConfig(mode="linear", weight_threshold=0)}
    )
    model = cto.linear_quantize_weights(ct.models.MLModel(str(plain), skip_model_load=True), config)
    path = plain.with_name("small.mlpackage")
    model.save(str(path))
    return path


IDS = {"x0": np.array([[0, 5, 39, 5, 7, 1]])}


@pytest.fixture
def package(small: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small, tmp_path / "copy.mlpackage"))


def expect_refusal(path: Path, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        Evaluator(path).run(IDS)
    assert len(str(caught.value).splitlines()) == 1


def test_the_untouched_package_runs(package: Path) -> None:
    result = np.asarray(Evaluator(package).run(IDS)["result"])
    np.testing.assert_allclose(result.sum(-1), 1, atol=2e-3)


def test_no_folder(tmp_path: Path, package: Path) -> None:
    expect_refusal(tmp_path / "none.mlpackage", "folder not found")
    expect_refusal(package / MODEL, "is a file; an .mlpackage is a folder")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "null", '{"rootModelIdentifier": "x"}', '{"itemInfoEntries": {}}', "7"]
)
def test_broken_manifests(text: str, package: Path) -> None:
    (package / MANIFEST).write_text(text)
    expect_refusal(package, "Manifest.json")


@pytest.mark.parametrize(
    ("where", "message"),
    [
        *((path, "refused|leads out|file not found|names no root model") for path in TRICKS),
        *((path, "names no root model") for path in (3, None, ["x"], {})),
    ],
)
def test_path_tricks_in_the_manifest(where: Any, message: str, package: Path) -> None:
    manifest = json.loads((package / MANIFEST).read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = where
    (package / MANIFEST).write_text(json.dumps(manifest))
    expect_refusal(package, message)


@pytest.mark.parametrize("name", [MODEL, "Data/com.apple.CoreML/weights", "Data"])
def test_links_that_lead_out_of_the_package(name: str, package: Path, tmp_path: Path) -> None:
    shutil.move(package / name, tmp_path / "outside")
    (package / name).symlink_to(tmp_path / "outside")
    expect_refusal(package, "leaves the folder|leads out")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (MANIFEST, None, "Manifest.json: file not found"),
        (WEIGHTS, b"", "less than its header"),
        (WEIGHTS, None, "weight.bin: file not found"),
        (MODEL, b"", "is no ML program"),
        (MODEL, None, "model.mlmodel: file not found"),
        (MODEL, bytes(range(256)) * 8, "no Core ML model"),
    ],
)
def test_missing_empty_and_foreign_files(name: str, content: bytes | None, message: str, package: Path) -> None:
    (package / name).unlink()
    if content is not None:
        (package / name).write_bytes(content)
    expect_refusal(package, message)


def test_a_huge_model_file_is_not_read(package: Path) -> None:
    os.truncate(package / MODEL, limits.MODEL_BYTES + 1)  # a hole: nothing is written
    expect_refusal(package, "larger than 16 MiB")


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.999])
def test_a_truncated_weight_file(share: float, package: Path) -> None:
    os.truncate(package / WEIGHTS, int((package / WEIGHTS).stat().st_size * share))
    expect_refusal(package, r"weight\.bin: ")


def constants(block: Any) -> list[Any]:
    return [
        o for o in block.operations if o.type == "const" and o.attributes["val"].WhichOneof("value") == "blobFileValue"
    ]


def find_operation(block: Any, kind: str) -> Any:
    return next(o for o in block.operations if o.type == kind)


def set_dimension(kind: Any, axis: int, size: int) -> None:
    kind.tensorType.dimensions[axis].constant.size = size


def grow_table(block: Any) -> None:
    """A table of 2**60 elements, said in both places."""
    operation = constants(block)[0]
    for kind in (operation.attributes["val"].type, operation.outputs[0].type):
        set_dimension(kind, 0, 2**60)


def fill_everything(block: Any) -> None:
    """An operation that makes 2**60 elements out of nothing."""
    operation = find_operation(block, "softmax")
    shape = block.operations.add(type="const")
    shape.outputs.add(name="huge").type.tensorType.dataType = 23
    kind = shape.outputs[0].type.tensorType
    kind.rank = 1
    kind.dimensions.add().constant.size = 2
    shape.attributes["val"].type.CopyFrom(shape.outputs[0].type)
    shape.attributes["val"].immediateValue.tensor.ints.values.extend([2**30, 2**30])
    operation.type = "fill"
    operation.inputs.clear()
    operation.inputs["shape"].arguments.add().name = "huge"
    number = operation.inputs["value"].arguments.add().value
    number.type.tensorType.dataType = 10
    number.immediateValue.tensor.bytes.values = b"\0\0"
    operations = list(block.operations)
    del block.operations[:]
    block.operations.extend([operations[-1], *operations[:-1]])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, b: setattr(find_operation(b, "softmax"), "type", "hardmax"), "hardmax .*does not know"),
        (lambda m, b: find_operation(b, "softmax").inputs["tau"].CopyFrom(find_operation(b, "softmax").inputs["axis"]), "parameter 'tau' is not known"),
        (lambda m, b: find_operation(b, "gather").inputs.pop("indices"), "lacks indices"),
        (lambda m, b: setattr(find_operation(b, "gather").inputs["indices"].arguments[0], "name", "ghost"), "reads 'ghost'"),
        (lambda m, b: find_operation(b, "softmax").blocks.add(), "nested blocks"),
        (lambda m, b: b.outputs.append("ghost"), "ghost"),
        (lambda m, b: find_operation(b, "softmax").outputs[0].type.tensorType.dimensions.pop(), "rank 3 with 2 dimensions"),
        (lambda m, b: set_dimension(find_operation(b, "softmax").outputs[0].type, 1, 5), r"declares the result fp16\[1, 5, 6\], which has shape \[1, 6, 6\]"),
        (lambda m, b: setattr(find_operation(b, "softmax").outputs[0].type.tensorType, "dataType", 11), "declares the result fp32.*which is fp16"),
        (lambda m, b: setattr(find_operation(b, "softmax").outputs[0].type.tensorType, "dataType", 13), "element type 13"),
        (lambda m, b: setattr(constants(b)[0].attributes["val"].blobFileValue, "offset", 2**50), "there is no blob at offset"),
        (lambda m, b: setattr(constants(b)[0].attributes["val"].blobFileValue, "offset", 64 * 3), "has no blob at offset|there is no blob|holds"),
        (lambda m, b: setattr(constants(b)[0].attributes["val"].blobFileValue, "fileName", "@model_path/../../../../x"), "leaves the folder"),
        (lambda m, b: setattr(constants(b)[0].attributes["val"].blobFileValue, "fileName", "/etc/passwd"), "names a weight file '/etc/passwd'"),
        (lambda m, b: grow_table(b), "holds .* bytes at offset"),
        (lambda m, b: fill_everything(b), "fill .*larger than"),
        (lambda m, b: m.mlProgram.functions["second"].CopyFrom(m.mlProgram.functions["main"]), "one is expected"),
        (lambda m, b: setattr(m.mlProgram.functions["main"], "opset", "CoreML99"), "CoreML99"),
        (lambda m, b: m.ClearField("mlProgram"), "no ML program"),
        (lambda m, b: m.description.state.add(), "keeps a state"),
        (lambda m, b: setattr(m.description.input[0], "name", "other"), r"describes the inputs \['other'\]; the program has \['x0'\]"),
        (lambda m, b: setattr(m.description.input[0].type.multiArrayType, "dataType", 65568), "describes input 'x0' as fp32"),
        (lambda m, b: m.description.output[0].type.stringType.SetInParent(), "describes output 'result' as a text"),
        (lambda m, b: b.operations.append(b.operations[0]), "defined twice"),
        (lambda m, b: find_operation(b, "constexpr_affine_dequantize").attributes.pop("scale"), "lacks scale"),
        (lambda m, b: set_dimension(find_operation(b, "constexpr_affine_dequantize").outputs[0].type, 0, 2**40), "take more than|declares the result"),
    ],
)  # fmt: skip
def test_programs_that_contradict_themselves(
    change: Callable[[Any, Any], Any], message: str, package: Path, edit: Callable[..., None]
) -> None:
    edit(package, change)
    expect_refusal(package, message)


def test_many_references_to_one_blob_are_counted(
    package: Path, edit: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits.Budget.__init__, "__defaults__", (3000,))
    expect_refusal(package, "take more than 0 MiB expanded")


@pytest.mark.parametrize("name", [MODEL, WEIGHTS, MANIFEST])
def test_damage_anywhere_is_an_error_or_harmless(name: str, package: Path) -> None:
    """Truncated, and with bytes changed, at random places: a clear error or a result, never a crash, memory bounded."""
    original = (package / name).read_bytes()
    draw = random.Random(name)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes = {"refused": 0, "ran": 0}
    for i in range(120):
        damaged = bytearray(original)
        if i % 4 == 0:
            damaged = damaged[: draw.randrange(len(original))]
        else:
            for _ in range(draw.choice((1, 1, 2, 8))):
                damaged[draw.randrange(len(damaged))] = draw.choice((0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)))
        (package / name).write_bytes(damaged)
        try:
            Evaluator(package).run(IDS)
            outcomes["ran"] += 1
        except InputError as error:
            assert str(error)
            outcomes["refused"] += 1
    assert outcomes["refused"] > 30
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300 * (1 << 10 if sys.platform == "linux" else 1 << 20)


def test_without_protobuf_the_command_is_named(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "google.protobuf.message", None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[coreml-runtime\]'"):
        read_package(package)


# The definitions of the files.


def messages(module: Any) -> Iterator[tuple[str, Any]]:
    """Every message by its name inside the proto package, nested ones included."""
    todo = [(m.name, m) for m in module.DESCRIPTOR.message_types_by_name.values()]
    while todo:
        name, message = todo.pop()
        yield name, message
        todo += [(f"{name}.{m.name}", m) for m in message.nested_types]


THEIRS = {n: m for module in (Model_pb2, FeatureTypes_pb2, MIL_pb2) for n, m in messages(module)}


OURS = dict(messages(mlpackage_pb2))


@pytest.mark.parametrize("name", sorted(OURS))
def test_fields_have_the_numbers_of_coremltools(name: str) -> None:
    theirs = {f.name: f for f in THEIRS[name].fields}
    for field in OURS[name].fields:
        other = theirs[field.name]
        assert (field.number, field.type, field.is_repeated) == (other.number, other.type, other.is_repeated)
        for kind in ("message_type", "enum_type"):
            mine, yours = getattr(field, kind), getattr(other, kind)
            assert (mine and mine.name) == (yours and yours.name)
        if field.enum_type:
            mine, yours = ({v.name: v.number for v in f.enum_type.values} for f in (field, other))
            assert mine == yours


def test_a_saved_model_reads_the_same(bert16: Path) -> None:
    data = next(bert16.rglob("model.mlmodel")).read_bytes()
    found = []
    for model in (mlpackage_pb2.Model(), Model_pb2.Model()):
        model.ParseFromString(data)
        functions = model.mlProgram.functions.items()
        found.append({k: len(f.block_specializations[f.opset].operations) for k, f in functions})
        assert len(model.SerializeToString()) == len(data), "nothing was skipped as unknown"
    assert found[0] == found[1]
