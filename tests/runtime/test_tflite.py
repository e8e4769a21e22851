from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest

from pocketbert.core.errors import ExitCode, InputError, MissingBackendError
from pocketbert.core.predict.predictor import feed
from pocketbert.core.types import Format, Scheme
from pocketbert.runtime import tflite as engine
from pocketbert.runtime.engines import open_file
from pocketbert.runtime.tflite import _ENGINES, TflitePredictor, _installed_engine

needs_litert = pytest.mark.skipif(
    engine.version_of("ai-edge-litert") is None, reason="needs pocketbert[tflite-runtime]"
)


def batch(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 100 + 5
    mask = np.ones_like(ids)
    mask[:, length - 3 :] = np.arange(rows)[:, None] % 2
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


# Running.


@needs_litert
def test_each_text_goes_to_the_smallest_signature_that_fits(
    exported_tflite: Callable[[str], Path], open_tiny: Callable[..., Any]
) -> None:
    predictor, tokenizer = TflitePredictor(exported_tflite("bert"), 1), open_tiny("bert", 2)[2]
    assert predictor.lengths == (16, 32, 40)
    for words, length in ((1, 16), (14, 16), (15, 32), (30, 32), (31, 40), (38, 40)):
        [row] = tokenizer.encode(["good " * words])
        inputs = feed(predictor, tokenizer, [row])
        assert inputs["input_ids"].shape == (1, length)
        at_the_longest = predictor.run(feed(predictor, tokenizer, [row], length=40))["logits"]
        np.testing.assert_allclose(predictor.run(inputs)["logits"], at_the_longest, atol=1e-5)
    with pytest.raises(InputError, match="41 tokens; the file takes 16, 32, 40"):
        feed(predictor, tokenizer, tokenizer.encode(["good " * 39]))


@needs_litert
def test_batches_are_run_row_by_row(exported_tflite: Callable[[str], Path]) -> None:
    predictor, inputs = TflitePredictor(exported_tflite("bert"), 1), batch(5, 16)
    together = predictor.run(inputs)["logits"]
    assert (together.shape, together.dtype) == ((5, 3), np.float32)
    alone = [predictor.run({k: v[i : i + 1] for k, v in inputs.items()})["logits"] for i in range(5)]
    np.testing.assert_array_equal(together, np.concatenate(alone))
    assert len(np.unique(together[:, 0])) == 5


@needs_litert
def test_answers_are_the_callers_own(exported_tflite: Callable[[str], Path]) -> None:
    # an interpreter hands out views of its memory that the next run overwrites
    predictor, inputs = TflitePredictor(exported_tflite("bert"), 1), batch(2, 16)
    first = predictor.run({k: v[:1] for k, v in inputs.items()})["logits"]
    kept = first.copy()
    predictor.run({k: v[1:] for k, v in inputs.items()})
    np.testing.assert_array_equal(first, kept)
    before = {k: v.copy() for k, v in inputs.items()}
    predictor.run(inputs)
    assert all(np.array_equal(before[k], v) and v.dtype == np.int64 for k, v in inputs.items())


@needs_litert
def test_signatures_do_not_disturb_each_other(exported_tflite: Callable[[str], Path]) -> None:
    predictor = TflitePredictor(exported_tflite("bert"), 2)
    alone = {n: TflitePredictor(exported_tflite("bert"), 1).run(batch(1, n))["logits"] for n in (16, 32, 40)}
    for length in (40, 16, 32, 16, 40):
        np.testing.assert_allclose(predictor.run(batch(1, length))["logits"], alone[length], atol=1e-5)


@needs_litert
@pytest.mark.parametrize("length", [1, 15, 17, 41])
def test_another_length_is_refused_with_those_that_fit(exported_tflite: Callable[[str], Path], length: int) -> None:
    predictor = TflitePredictor(exported_tflite("bert"), 1)
    with pytest.raises(InputError, match=rf"model.tflite: takes 16, 32, 40 tokens, not {length}\."):
        predictor.run({k: v[:, :length] for k, v in batch(1, 48).items()})


@needs_litert
def test_a_token_that_the_table_does_not_have_is_an_input_error(
    exported_tflite: Callable[[str], Path],
) -> None:
    predictor, inputs = TflitePredictor(exported_tflite("bert"), 1), batch(2, 16)
    right = predictor.run(inputs)["logits"]
    for wrong in (10_000, -1):
        with pytest.raises(
            InputError, match=r"model.tflite: litert .* cannot run the file on this input: .+"
        ) as caught:
            predictor.run({**inputs, "input_ids": np.full_like(inputs["input_ids"], wrong)})
        assert len(str(caught.value).splitlines()) == 1
    np.testing.assert_array_equal(predictor.run(inputs)["logits"], right)


@needs_litert
def test_more_inputs_than_the_graph_wants_are_ignored(exported_tflite: Callable[[str], Path]) -> None:
    predictor, inputs = TflitePredictor(exported_tflite("distilbert"), 1), batch(1, 16)
    assert predictor.inputs == ("input_ids", "attention_mask")
    fewer = {k: v for k, v in inputs.items() if k != "token_type_ids"}
    np.testing.assert_array_equal(predictor.run(inputs)["logits"], predictor.run(fewer)["logits"])


@needs_litert
def test_a_format_is_opened_by_its_engine(
    exported_tflite: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    predictor = open_file(exported_tflite("bert"), Format.TFLITE, threads=1)
    assert predictor.engine == "litert"
    assert predictor.engine_version.count(".") >= 1
    assert tuple(capfd.readouterr()) == ("", "")


# Files that are none.

CHILD = """
import json, pathlib, sys
import numpy as np
from pocketbert.core.errors import InputError
from pocketbert.runtime.tflite import TflitePredictor
for path in json.loads(sys.stdin.read()):
    print("opening", path, flush=True)
    try:
        predictor = TflitePredictor(pathlib.Path(path), 1)
        length = predictor.lengths[0]
        ones = np.ones((1, length), np.int64)
        predictor.run({"input_ids": ones, "attention_mask": ones, "token_type_ids": ones})
    except InputError as error:
        print("refused", error, flush=True)
    else:
        print("ran", path, flush=True)
"""


def outcomes(paths: list[Path]) -> list[str]:
    """What a process of its own says of each file: `ran`, or why it was refused. It must live to say it."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([str(p) for p in paths]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-2000:]}"
    found = [line for line in done.stdout.splitlines() if not line.startswith("opening")]
    assert len(found) == len(paths)
    return found


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="none.tflite: file not found"):
        TflitePredictor(tmp_path / "none.tflite")


@needs_litert
def test_files_of_another_kind_are_refused(exported: Callable[[str], Path], tmp_path: Path) -> None:
    for name, raw in (
        ("empty", b""),
        ("short", b"TFL3"),
        ("text", b"garbage" * 50),
        ("onnx", exported("bert").read_bytes()),
    ):
        path = tmp_path / f"{name}.tflite"
        path.write_bytes(raw)
        with pytest.raises(InputError, match=f"{name}.tflite: is no TFLite file") as caught:
            TflitePredictor(path)
        assert len(str(caught.value).splitlines()) == 1


@needs_litert
def test_damaged_files_are_refused_and_the_process_lives(
    exported_tflite: Callable[[str], Path], tmp_path: Path
) -> None:
    from pocketbert.quantize import Plan, quantize

    quantize(exported_tflite("bert"), tmp_path / "int8.tflite", Plan(Format.TFLITE, Scheme.INT8))
    paths = []
    for source in (exported_tflite("bert"), tmp_path / "int8.tflite"):
        raw = source.read_bytes()
        sizes = [8, 9, 64, *(int(len(raw) * i / 13) for i in range(1, 13)), len(raw) - 4096, len(raw) - 1]
        for size in sizes:
            paths.append(tmp_path / f"{source.stem}-{size}.tflite")
            paths[-1].write_bytes(raw[:size])
    header = b"\x1c\x00\x00\x00TFL3"
    for i, raw in enumerate((header, header + b"\x00" * 200, header + b"\xff" * 200, b"\xff\xff\xff\x7fTFL3")):
        paths.append(tmp_path / f"made-{i}.tflite")
        paths[-1].write_bytes(raw)
    for path, line in zip(paths, outcomes(paths), strict=True):
        assert line.startswith(f"refused {path}: litert "), line
        assert "refuses the file: " in line


@needs_litert
def test_changed_bytes_never_end_the_process(exported_tflite: Callable[[str], Path], tmp_path: Path) -> None:
    # most are weights, and the file still runs; what it answers is for golden rows and sha256 to judge
    raw, draw, paths = exported_tflite("bert").read_bytes(), np.random.default_rng(4), []
    for i in range(60):
        changed = bytearray(raw)
        for place in draw.integers(8, len(raw), 4):
            changed[place] = int(draw.integers(0, 256))
        paths.append(tmp_path / f"{i}.tflite")
        paths[-1].write_bytes(changed)
    found = outcomes(paths)
    assert {line.split()[0] for line in found} == {"ran", "refused"}


@needs_litert
def test_weights_that_are_gone_are_an_input_error(exported_tflite: Callable[[str], Path], tmp_path: Path) -> None:
    # the engine opens such a file, and fails when it runs
    from pocketbert.core.model_files import dump_model
    from pocketbert.export.tflite_metadata import load_model

    model = load_model(exported_tflite("bert").read_bytes())
    for buffer in model.buffers:
        if buffer.data is not None and len(buffer.data) > 20_000:  # the words
            buffer.data = None
    (tmp_path / "a.tflite").write_bytes(dump_model(model))
    with pytest.raises(InputError, match=r"a.tflite: litert .* (cannot run|refuses) the file"):
        TflitePredictor(tmp_path / "a.tflite").run(batch(1, 16))


@needs_litert
def test_a_file_with_other_inputs_is_refused(tmp_path: Path) -> None:
    raw = one_operator([4])
    (tmp_path / "a.tflite").write_bytes(raw)
    with pytest.raises(InputError, match=r"a.tflite: has no signature with inputs of shape \[1, length\]"):
        TflitePredictor(tmp_path / "a.tflite")


def one_operator(shape: list[int]) -> bytes:
    """A graph that negates one float input, without a signature that has a length."""
    flatbuffers = pytest.importorskip("flatbuffers")
    from ai_edge_litert import schema_py_generated as schema

    model, graph = schema.ModelT(), schema.SubGraphT()
    graph.tensors = []
    for name in (b"x", b"y"):
        tensor = schema.TensorT()
        tensor.name, tensor.shape, tensor.type, tensor.buffer = name, shape, schema.TensorType.FLOAT32, 0
        graph.tensors.append(tensor)
    code, op = schema.OperatorCodeT(), schema.OperatorT()
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.NEG
    code.version = 1
    op.opcodeIndex, op.inputs, op.outputs = 0, [0], [1]
    graph.inputs, graph.outputs, graph.operators = [0], [1], [op]
    signature, places = schema.SignatureDefT(), []
    for name, index in (("x", 0), ("y", 1)):
        place = schema.TensorMapT()
        place.name, place.tensorIndex = name.encode(), index
        places.append(place)
    signature.signatureKey, signature.subgraphIndex = b"negate", 0
    signature.inputs, signature.outputs = places[:1], places[1:]
    model.version, model.operatorCodes, model.subgraphs = 3, [code], [graph]
    model.buffers, model.signatureDefs = [schema.BufferT()], [signature]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


# Which engine.


class FakeRunner:
    def __init__(self, length: int) -> None:
        self.length = length

    def get_input_details(self) -> dict[str, Any]:
        return {"input_ids": {"shape": np.array([1, self.length]), "dtype": np.int32, "index": 0}}

    def get_output_details(self) -> dict[str, Any]:
        return {"logits": {"shape": np.array([1, 2]), "dtype": np.float32, "index": 1}}

    def __call__(self, input_ids: np.ndarray) -> dict[str, np.ndarray]:
        assert input_ids.dtype == np.int32
        return {"logits": np.full((1, 2), self.length, np.float32)}


class FakeInterpreter:
    """What all three engines have in common; the old ones list no operators."""

    made: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, model_path: str, num_threads: int) -> None:
        self.made.append({"model_path": model_path, "num_threads": num_threads})

    def allocate_tensors(self) -> None: ...

    def get_signature_list(self) -> dict[str, Any]:
        return {"seq_8": {}, "seq_4": {}}

    def get_signature_runner(self, key: str) -> FakeRunner:
        return FakeRunner(int(key.removeprefix("seq_")))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "a.tflite").write_bytes(b"\x1c\x00\x00\x00TFL3" + bytes(64))
    return tmp_path / "a.tflite"


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Only these distributions are there, all with the same interpreter."""
    have = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(engine, "version_of", have.get)
    monkeypatch.setattr(FakeInterpreter, "made", [])
    for one in _ENGINES:
        parts = one.module.split(".")
        for end in range(1, len(parts) + 1):
            fake = ModuleType(".".join(parts[:end]))
            fake.Interpreter = FakeInterpreter  # type: ignore[attr-defined]
            fake.__path__ = []
            there = any(d in have for d in one.distributions)
            monkeypatch.setitem(sys.modules, fake.__name__, fake if there else None)


@pytest.mark.parametrize(
    ("versions", "name", "version"),
    [
        ({"ai_edge_litert": "2.3.0", "tflite_runtime": "2.14.0", "tensorflow": "2.18.0"}, "litert", "2.3.0"),
        ({"tflite_runtime": "2.14.0", "tensorflow": "2.18.0"}, "tflite_runtime", "2.14.0"),
        ({"tensorflow": "2.18.0"}, "tensorflow", "2.18.0"),
        ({"tensorflow_cpu": "2.17.1"}, "tensorflow", "2.17.1"),
    ],
)
def test_engines_in_their_order(
    monkeypatch: pytest.MonkeyPatch, file: Path, versions: dict[str, str], name: str, version: str
) -> None:
    install(monkeypatch, **versions)
    predictor = TflitePredictor(file, threads=3)
    assert (predictor.engine, predictor.engine_version) == (name, version)
    assert FakeInterpreter.made == [{"model_path": str(file), "num_threads": 3}]
    assert predictor.lengths == (4, 8)
    found = predictor.run({"input_ids": np.ones((3, 8), np.int64)})
    assert found["logits"].tolist() == [[8, 8]] * 3
    assert predictor.coverage is None  # these do not tell
    found_engine = _installed_engine()
    assert found_engine is not None
    assert found_engine[0].name == name


def test_every_engine_is_one_that_the_format_names() -> None:
    from pocketbert.core.formats import FORMATS

    assert set(FORMATS[Format.TFLITE].engines) <= {d for e in _ENGINES for d in e.distributions}


def test_without_an_engine_the_command_is_named(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    install(monkeypatch)
    assert _installed_engine() is None
    with pytest.raises(MissingBackendError) as caught:
        open_file(file, Format.TFLITE)
    assert str(caught.value) == (
        "ai-edge-litert is not installed. Install it with: pip install 'pocketbert[tflite-runtime]'"
    )
    assert caught.value.exit_code == ExitCode.MISSING == 4


def test_an_engine_that_cannot_be_imported_is_missing(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    # as tflite-runtime 2.14 beside numpy 2: installed, and of no use
    install(monkeypatch, tflite_runtime="2.14.0")
    monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", None)
    with pytest.raises(MissingBackendError, match=r"tflite_runtime.interpreter \(.*pocketbert\[tflite-runtime\]"):
        TflitePredictor(file)


@pytest.mark.parametrize("error", [ValueError, RuntimeError])
def test_what_the_engine_refuses_is_an_input_error_on_one_line(
    monkeypatch: pytest.MonkeyPatch, file: Path, error: type[Exception]
) -> None:
    install(monkeypatch, tflite_runtime="2.14.0")

    def refuse(self: FakeInterpreter) -> None:
        raise error("Didn't find op for builtin opcode 'GELU' version '1'.\nRegistration failed.\n")

    monkeypatch.setattr(FakeInterpreter, "allocate_tensors", refuse)
    with pytest.raises(InputError) as caught:
        TflitePredictor(file)
    assert str(caught.value) == (
        f"{file}: tflite_runtime 2.14.0 refuses the file: Didn't find op for builtin opcode 'GELU' version '1'."
    )
