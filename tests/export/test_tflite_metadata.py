"""Metadata on hand-made TFLite files of two matrix products: no converter, so everything can be broken on purpose."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_quantizer")
from ai_edge_litert import schema_py_generated as schema

from pocketbert.core.errors import GateError, InputError
from pocketbert.core.model_files import dump_model
from pocketbert.export import tflite_metadata as tflite_files
from pocketbert.export.tflite_metadata import (
    MediaPipeInfo,
    load_model,
    metadata_problems,
    pack_files,
    read_files,
    read_metadata,
    write_metadata,
)

LENGTH, WIDTH = 64, 8192  # enough int8 weights that ai-edge-quantizer stores them behind the flatbuffer
LABELS = ("negative", "neutral", "très bien")
VOCABULARY = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a\n"
INFO = MediaPipeInfo("tiny", "a test", "1", "nobody", LABELS, VOCABULARY, "Probabilities.")
INPUTS = {"input_ids": b"p_input_ids:0", "attention_mask": b"p_mask:0", "token_type_ids": b"p_types:0"}


def make(kind: str, **fields: Any) -> Any:
    """An object of the schema with these fields."""
    out = getattr(schema, f"{kind}T")()
    for name, value in fields.items():
        setattr(out, name, value)
    return out


def make_tensor(name: bytes, shape: list[int], kind: int = schema.TensorType.FLOAT32, buffer: int = 0) -> Any:
    return make("Tensor", name=name, shape=shape, type=kind, buffer=buffer, hasRank=True)


def make_operator(code: int, kind: str, inputs: list[int], output: int) -> Any:
    options = {"builtinOptionsType": getattr(schema.BuiltinOptions, kind), "builtinOptions": make(kind)}
    return make("Operator", opcodeIndex=code, inputs=inputs, outputs=[output], **options)


@cache
def build_model(
    order: tuple[str, ...] = ("attention_mask", "input_ids", "token_type_ids"), width: int = WIDTH
) -> bytes:
    """ids [1, L] as floats, times a matrix, times another: [1, 3]."""
    draw, classes = np.random.default_rng(0), len(LABELS)
    matrices = [draw.standard_normal(s).astype(np.float32) for s in ((width, LENGTH), (classes, width))]
    codes = (schema.BuiltinOperator.CAST, schema.BuiltinOperator.FULLY_CONNECTED)
    tensors = [make_tensor(INPUTS[n], [1, LENGTH], schema.TensorType.INT32) for n in order]
    tensors += [
        make_tensor(b"floats", [1, LENGTH]),
        make_tensor(b"w1", [width, LENGTH], buffer=1),
        make_tensor(b"hidden", [1, width]),
        make_tensor(b"w2", [classes, width], buffer=2),
        make_tensor(b"StatefulPartitionedCall:0", [1, classes]),
    ]
    operators = [
        make_operator(0, "CastOptions", [order.index("input_ids")], 3),
        make_operator(1, "FullyConnectedOptions", [3, 4, -1], 5),
        make_operator(1, "FullyConnectedOptions", [5, 6, -1], 7),
    ]
    names = [(n.encode(), order.index(n)) for n in sorted(order)]  # alphabetical, unlike the graph
    places = [make("TensorMap", name=name, tensorIndex=i) for name, i in (*names, (b"probabilities", 7))]
    signature = {"signatureKey": b"seq_64", "subgraphIndex": 0, "inputs": places[:3], "outputs": places[3:]}
    model = make(
        "Model",
        version=3,
        buffers=[make("Buffer"), *(make("Buffer", data=m.reshape(-1).view(np.uint8)) for m in matrices)],
        operatorCodes=[make("OperatorCode", builtinCode=c, deprecatedBuiltinCode=c, version=1) for c in codes],
        subgraphs=[make("SubGraph", tensors=tensors, operators=operators, inputs=[0, 1, 2], outputs=[7])],
        signatureDefs=[make("SignatureDef", **signature)],
    )
    return dump_model(model)


def quantize_bytes(model: bytes, folder: Path) -> bytes:
    from ai_edge_quantizer import quantizer, recipe

    source = folder / "source.tflite"
    source.write_bytes(model)
    work = quantizer.Quantizer(str(source))
    work.load_quantization_recipe(recipe.dynamic_wi8_afp32())
    return bytes(work.quantize().quantized_model)


def answer(model: bytes) -> np.ndarray:
    from ai_edge_litert.interpreter import Interpreter

    ids = np.arange(LENGTH, dtype=np.int32)[None]
    runner = Interpreter(model_content=bytes(model)).get_signature_runner()
    return np.asarray(runner(input_ids=ids, attention_mask=ids * 0, token_type_ids=ids * 0)["probabilities"])


def count_outside(model: bytes) -> int:
    packed = schema.Model.GetRootAs(model, 0)
    return sum(packed.Buffers(i).Offset() > 1 for i in range(packed.BuffersLength()))


def test_what_was_written_is_read_back() -> None:
    written = write_metadata(build_model(), INFO)
    found = read_metadata(written)
    assert found is not None
    assert (found.name, found.description, found.version) == ("tiny", "a test", "1")
    assert (found.labels_file, found.vocabulary_file) == ("labels.txt", "vocab.txt")
    assert found.min_parser_version == "1.1.0"
    assert read_files(written) == {
        "labels.txt": "negative\nneutral\ntrès bien\n".encode(),
        "vocab.txt": VOCABULARY,
    }
    assert metadata_problems(written, LABELS, VOCABULARY) == []


@pytest.mark.parametrize("order", [tuple(INPUTS), ("token_type_ids", "input_ids", "attention_mask")])
def test_the_inputs_are_named_in_the_order_of_the_graph(order: tuple[str, ...]) -> None:
    found = read_metadata(write_metadata(build_model(order), INFO))
    names = {"input_ids": "ids", "attention_mask": "mask", "token_type_ids": "segment_ids"}
    assert found is not None
    assert found.inputs == tuple(names[n] for n in order)


def test_an_embedder_has_no_labels() -> None:
    written = write_metadata(build_model(), replace(INFO, labels=()))
    found = read_metadata(written)
    assert found is not None
    assert (found.outputs, found.labels_file) == (("embedding",), None)
    assert list(read_files(written)) == ["vocab.txt"]
    assert metadata_problems(written, (), VOCABULARY) == []


def test_the_model_computes_the_same_and_its_weights_are_aligned() -> None:
    written = write_metadata(build_model(), INFO)
    np.testing.assert_array_equal(answer(written), answer(build_model()))
    packed = schema.Model.GetRootAs(written, 0)
    for i in range(packed.BuffersLength()):
        if not (buffer := packed.Buffers(i)).DataIsNone():
            assert buffer._tab.Vector(buffer._tab.Offset(4)) % 16 == 0


def test_writing_again_replaces_and_is_deterministic() -> None:
    once = write_metadata(build_model(), INFO)
    assert write_metadata(build_model(), INFO) == once
    other = write_metadata(write_metadata(build_model(), replace(INFO, labels=LABELS[::-1], name="longer name")), INFO)
    assert len(load_model(other).metadata) == 1
    assert metadata_problems(other, LABELS, VOCABULARY) == []
    assert read_metadata(other) == read_metadata(once)


def test_quantize_then_metadata_loses_no_weights(tmp_path: Path) -> None:
    small = quantize_bytes(build_model(), tmp_path)
    assert count_outside(small) >= 1  # the premise: weights behind the flatbuffer
    written = write_metadata(small, INFO)
    assert count_outside(written) == 0
    assert len(written) >= len(small)
    np.testing.assert_array_equal(answer(written), answer(small))
    assert metadata_problems(written, LABELS, VOCABULARY) == []


def test_metadata_then_quantize_needs_the_files_again(tmp_path: Path) -> None:
    small = quantize_bytes(write_metadata(build_model(), INFO), tmp_path)
    assert count_outside(small) >= 1
    problems = metadata_problems(small, LABELS, VOCABULARY)
    assert [p.split(":")[0] for p in problems] == ["no vocabulary", "no labels"]
    packed = pack_files(small, INFO.files)
    assert metadata_problems(packed, LABELS, VOCABULARY) == []
    np.testing.assert_array_equal(answer(packed), answer(small))
    # and metadata may be written over it once more
    again = write_metadata(packed, replace(INFO, version="2"))
    np.testing.assert_array_equal(answer(again), answer(small))
    assert metadata_problems(again, LABELS, VOCABULARY) == []


def test_weights_that_another_writer_cut_off_are_found(tmp_path: Path) -> None:
    """What MediaPipe's own writer does: unpack and pack again, leaving offsets that point nowhere."""
    import flatbuffers

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(quantize_bytes(build_model(), tmp_path), 0))
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    broken = pack_files(bytes(builder.Output()), {"filler.bin": b"x" * 2_000_000, **INFO.files})
    assert "cut off" in metadata_problems(broken, LABELS, VOCABULARY)[0]
    with pytest.raises(InputError, match="behind the file"):
        write_metadata(broken, INFO)


def change_model(change: Callable[[Any], None], model: bytes | None = None) -> bytes:
    """A finished file with one thing changed behind the writer's back."""
    source = model or write_metadata(build_model(width=16), INFO)
    loaded = load_model(source)
    change(loaded)
    return pack_files(dump_model(loaded), read_files(source) or {"none": b""})


def swap_inputs(model: Any) -> None:
    model.subgraphs[0].inputs = model.subgraphs[0].inputs[::-1]


def swap_names(model: Any) -> None:
    first, second = model.signatureDefs[0].inputs[:2]
    first.name, second.name = second.name, first.name


def drop_metadata(model: Any) -> None:
    model.metadata = [m for m in model.metadata if m.name != b"TFLITE_METADATA"]


def set_shape(index: int, value: list[int]) -> Callable[[Any], None]:
    return lambda m: setattr(m.subgraphs[0].tensors[index], "shape", value)


def set_kind(index: int, value: int) -> Callable[[Any], None]:
    return lambda m: setattr(m.subgraphs[0].tensors[index], "type", value)


BREAKS: dict[str, tuple[Callable[[Any], None], str, bool]] = {
    "inputs in another order": (swap_inputs, "the graph's order is", False),
    "swapped names": (swap_names, "the graph's order is", False),
    "no metadata": (drop_metadata, "no metadata", False),
    "two subgraphs": (lambda m: m.subgraphs.append(m.subgraphs[0]), "2 subgraphs", True),
    "two signatures": (lambda m: m.signatureDefs.append(m.signatureDefs[0]), "inputs [] in the signature", True),
    "two inputs": (lambda m: setattr(m.subgraphs[0], "inputs", [0, 1]), "2 in the graph", True),
    "int64 input": (set_kind(0, schema.TensorType.INT64), "not all int32", True),
    "free length": (set_shape(1, [1, 32]), "needed is one [1, L]", True),
    "batch of two": (set_shape(2, [2, LENGTH]), "needed is one [1, L]", True),
    "no batch axis": (set_shape(0, [LENGTH]), "needed is one [1, L]", True),
    "int8 output": (set_kind(7, schema.TensorType.INT8), "not float32", True),
    "two outputs": (lambda m: setattr(m.subgraphs[0], "outputs", [7, 5]), "2 outputs", True),
    "output without batch": (set_shape(7, [3]), "needed is [1, N]", True),
    "wide output": (set_shape(7, [1, 4]), "4 numbers for 3 labels", False),
}
"""What is broken, what the gate says, and whether the writer refuses it too."""


@pytest.mark.parametrize("what", BREAKS)
def test_the_gate_finds_a_broken_file_and_the_writer_refuses_what_mediapipe_cannot_run(what: str) -> None:
    change, text, refused = BREAKS[what]
    broken = change_model(change)
    (problem,) = metadata_problems(broken, LABELS, VOCABULARY)
    assert text in problem
    if refused:
        with pytest.raises(GateError):
            write_metadata(broken, INFO)


def test_the_writer_refuses_foreign_input_names() -> None:
    def rename(model: Any) -> None:
        model.signatureDefs[0].inputs[0].name = b"mask"

    with pytest.raises(GateError, match="'mask'"):
        write_metadata(change_model(rename), INFO)


@pytest.mark.parametrize(
    ("info", "text"),
    [
        (replace(INFO, labels=("neutral", "negative", "très bien")), "labels differ"),
        (replace(INFO, labels=("a", "b", "c")), "labels differ"),
        (replace(INFO, labels=()), "no labels"),
        (replace(INFO, vocabulary=VOCABULARY + b"b\n"), "vocabulary differs"),
    ],
)
def test_the_gate_compares_with_the_folder(info: MediaPipeInfo, text: str) -> None:
    (problem,) = metadata_problems(write_metadata(build_model(width=16), info), LABELS, VOCABULARY)
    assert text in problem


def test_the_gate_finds_missing_files_and_odd_vocabularies() -> None:
    good = write_metadata(build_model(width=16), INFO)
    assert "no labels" in metadata_problems(pack_files(good, {"vocab.txt": VOCABULARY}), LABELS, VOCABULARY)[0]
    assert "an embedder has labels" in metadata_problems(good, (), VOCABULARY)[0]
    blank = VOCABULARY.replace(b"[SEP]\n", b"[SEP]\n\n")
    odd = write_metadata(build_model(width=16), replace(INFO, vocabulary=blank))
    assert "empty lines" in metadata_problems(odd, LABELS, blank)[0]


def test_the_gate_survives_any_bytes() -> None:
    good = write_metadata(build_model(width=16), INFO)
    for broken in (b"", b"PK\5\6" + bytes(18), bytes(400), good[:300], good[:20] + b"\xff" * 500 + good[520:]):
        assert metadata_problems(broken, LABELS, VOCABULARY)
    at = good.index(b"M001")
    assert "identifier" in metadata_problems(good[:at] + b"M999" + good[at + 4 :], LABELS, VOCABULARY)[0]
    draw = np.random.default_rng(0)
    for _ in range(60):
        noisy = np.frombuffer(good, np.uint8).copy()
        noisy[draw.integers(at - 4, at + 600, 5)] = draw.integers(0, 256, 5)
        metadata_problems(noisy.tobytes(), LABELS, VOCABULARY)  # any answer, but no crash


def test_metadata_behind_the_flatbuffer_do_not_count() -> None:
    """MediaPipe looks at the buffer itself, not where it points to."""
    good = write_metadata(build_model(width=16), INFO)
    model = load_model(good)
    buffer = model.buffers[model.metadata[0].buffer]
    content, buffer.data = buffer.data.tobytes(), None
    buffer.offset = buffer.size = len(content)  # any value takes the same room
    start = len(dump_model(model))
    buffer.offset = start
    moved = pack_files(dump_model(model) + content, INFO.files)
    assert load_model(moved).buffers[model.metadata[0].buffer].data.tobytes() == content
    assert "no metadata" in metadata_problems(moved, LABELS, VOCABULARY)[0]


@pytest.mark.parametrize("label", ["", "two\nlines", "carriage\rreturn"])
def test_labels_that_are_no_line_are_refused(label: str) -> None:
    with pytest.raises(InputError, match="one label a line"):
        write_metadata(build_model(width=16), replace(INFO, labels=("a", label, "b")))


def test_packed_files_are_bounded_and_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = pack_files(b"model", {"a": b"12345", "b": b"6789"})
    assert packed[:5] == b"model"
    assert read_files(packed) == {"a": b"12345", "b": b"6789"}
    assert pack_files(packed, {"c": b""}) == pack_files(b"model", {"c": b""})
    assert read_files(b"model") == {}
    monkeypatch.setattr(tflite_files, "MAX_BYTES", 8)
    large = [lambda: read_files(packed), lambda: pack_files(b"", {"a": b"123456789"}), lambda: pack_files(b"", {})]
    for refused in large:
        with pytest.raises(InputError):
            refused()


def zip_up(name: str, content: str = "aaaaaaa", method: int = zipfile.ZIP_STORED) -> bytes:
    """A model with an archive behind it, whose entry may have any name."""
    stream = io.BytesIO(b"model")
    with zipfile.ZipFile(stream, "a", method) as archive:
        entry = zipfile.ZipInfo("placeholder")
        entry.filename = entry.orig_filename = name
        archive.writestr(entry, content, method)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (zip_up("a", method=zipfile.ZIP_DEFLATED), "compressed"),
        (zip_up("a", "12345").replace(b"12345", b"12346"), "not readable"),  # the checksum
        (zip_up("a")[5 + 20 :], "not readable"),
    ],
)
def test_damaged_archives_are_refused(model: bytes, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_files(model)


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/b", "a\\b", "..", "", "C:x", "a\0b"])
def test_names_that_are_paths_are_neither_written_nor_read(name: str) -> None:
    with pytest.raises(InputError, match="not a plain file name"):
        pack_files(b"model", {name: b""})
    with pytest.raises(InputError, match="not a plain file name"):
        read_files(zip_up(name))
