"""TFLite files: run row by row at their lengths, refused where they are none, with whichever engine is installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.errors import ExitCode, InputError, MissingBackendError
from pocketbert.core.predict.predictor import feed
from pocketbert.core.types import Format, Scheme
from pocketbert.runtime import tflite as engine
from pocketbert.runtime.engines import open_file
from pocketbert.runtime.tflite import Padding, TflitePredictor, XnnpackCoverage, count_xnnpack_operators

needs_litert = pytest.mark.skipif(
    engine.version_of("ai-edge-litert") is None, reason="needs pocketbert[tflite-runtime]"
)
NAMES = ("input_ids", "attention_mask", "token_type_ids")


def batch(rows: int, length: int) -> dict[str, np.ndarray]:
    ids = np.arange(rows * length, dtype=np.int64).reshape(rows, length) % 100 + 5
    mask = np.ones_like(ids)
    mask[:, max(length - 3, 1) :] = np.arange(rows)[:, None] % 2
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}


@pytest.fixture
def predictor(exported_tflite: Callable[[str], Path]) -> TflitePredictor:
    return TflitePredictor(exported_tflite("bert"), 1)


# Running.


@needs_litert
def test_each_text_goes_to_the_smallest_signature_that_fits(
    predictor: TflitePredictor, open_tiny: Callable[..., Any]
) -> None:
    tokenizer = open_tiny("bert", 2)[2]
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
def test_batches_are_run_row_by_row_and_signatures_do_not_disturb_each_other(
    predictor: TflitePredictor, exported_tflite: Callable[[str], Path]
) -> None:
    for length in (40, 16, 32, 16):
        inputs = batch(5, length)
        together = predictor.run(inputs)["logits"]
        assert (together.shape, together.dtype) == ((5, 3), np.float32)
        assert len(np.unique(together[:, 0])) == 5
        other = TflitePredictor(exported_tflite("bert"), 2)
        alone = [other.run({k: v[i : i + 1] for k, v in inputs.items()})["logits"] for i in range(5)]
        np.testing.assert_allclose(together, np.concatenate(alone), atol=1e-5)


@needs_litert
def test_rows_of_any_lengths_in_any_order_give_the_bits_of_the_engines_own_runner(
    predictor: TflitePredictor, exported_tflite: Callable[[str], Path]
) -> None:
    """The law behind memory that is used again: what ran before, longer or shorter, changes no answer."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(exported_tflite("bert")), num_threads=1)
    own = {n: interpreter.get_signature_runner(f"seq_{n}") for n in predictor.lengths}

    @settings(max_examples=25)
    @given(
        lengths=st.lists(st.integers(1, 40), min_size=1, max_size=6),
        side=st.sampled_from(["right", "left"]),
        pad_id=st.integers(0, 9),
        seed=st.integers(0, 99),
    )
    def law(lengths: list[int], side: str, pad_id: int, seed: int) -> None:
        padding = Padding(pad_id, side)
        runs = {n: predictor.prepare_run(n, padding) for n in lengths}
        for length in [*lengths, *reversed(lengths)]:
            ids = np.random.default_rng(seed + length).integers(5, 90, (1, length))
            inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
            wide = next(n for n in predictor.lengths if n >= length)
            widened = {name: v.astype(np.int32) for name, v in padding.widened(inputs, wide).items()}
            expected = own[wide](**widened)["logits"]
            np.testing.assert_array_equal(runs[length](inputs)["logits"], expected)
            np.testing.assert_array_equal(predictor.run(widened)["logits"], expected)

    law()


@needs_litert
@pytest.mark.parametrize("prepared", [False, True])
def test_answers_and_inputs_stay_the_callers(predictor: TflitePredictor, prepared: bool) -> None:
    """An interpreter hands out views of its memory that the next run overwrites."""
    run, inputs = predictor.prepare_run(16, Padding(0, "right")) if prepared else predictor.run, batch(3, 16)
    before = {k: v.copy() for k, v in inputs.items()}
    first, second, third = ({k: v[i : i + 1] for k, v in inputs.items()} for i in range(3))
    run(first)  # this one goes another way through the engine
    answer = run(second)["logits"]
    kept = answer.copy()
    assert not np.array_equal(run(third)["logits"], kept)
    np.testing.assert_array_equal(answer, kept)
    run(inputs)
    assert all(np.array_equal(before[k], v) and v.dtype == np.int64 for k, v in inputs.items())


@needs_litert
def test_predictors_of_one_file_work_in_threads_of_their_own(exported_tflite: Callable[[str], Path]) -> None:
    def answers(seed: int) -> list[np.ndarray]:
        predictor = TflitePredictor(exported_tflite("bert"), 1)
        runs = {n: predictor.prepare_run(n, Padding(0, "right")) for n in (5, 16)}
        feeds = {n: {name: np.roll(v[:, :n], seed, 1) for name, v in batch(1, 20).items()} for n in runs}
        return [runs[n](feeds[n])["logits"] for _ in range(20) for n in runs]

    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(answers, range(4)))
    for seed, found in enumerate(together):
        np.testing.assert_array_equal(found, answers(seed))


# Inputs that do not fit.


@needs_litert
def test_another_length_is_refused_with_those_that_fit(predictor: TflitePredictor) -> None:
    for length in (1, 15, 17, 41):
        with pytest.raises(InputError, match=rf"model.tflite: takes 16, 32, 40 tokens, not {length}\."):
            predictor.run(batch(1, length))
    with pytest.raises(InputError, match="41 tokens; the file takes 16, 32, 40"):
        predictor.prepare_run(41, Padding(0, "right"))


@needs_litert
@pytest.mark.parametrize("wrong", [10_000, -1])
def test_a_token_that_the_table_does_not_have_is_an_input_error_and_the_file_stays_usable(
    predictor: TflitePredictor, wrong: int
) -> None:
    inputs = batch(2, 16)
    right = predictor.run(inputs)["logits"]
    for run in (predictor.run, predictor.prepare_run(16, Padding(0, "right"))):
        with pytest.raises(
            InputError, match=r"model.tflite: litert .* cannot run the file on this input: .+"
        ) as caught:
            run({**inputs, "input_ids": np.full((2, 16), wrong)})
        assert len(str(caught.value).splitlines()) == 1
        np.testing.assert_array_equal(run(inputs)["logits"], right)


@needs_litert
@pytest.mark.parametrize("shape", [(1, 1), (1, 15), (16,), (0, 16)])
@pytest.mark.parametrize("name", NAMES)
def test_an_input_of_another_shape_is_refused_not_repeated(
    predictor: TflitePredictor, name: str, shape: tuple[int, ...]
) -> None:
    run, inputs = predictor.prepare_run(16, Padding(0, "right")), batch(1, 16)
    right = run(inputs)["logits"]
    with pytest.raises(InputError, match=rf"{name} has the shape .*, \(1, 16\) is wanted"):
        run({**inputs, name: np.ones(shape, np.int64)})
    np.testing.assert_array_equal(run(inputs)["logits"], right)


# Files that are none.

CHILD = """
import json, pathlib, sys
from pocketbert.core.errors import InputError
from pocketbert.runtime.tflite import TflitePredictor
for path in json.loads(sys.stdin.read()):
    print("opening", path, flush=True)
    try:
        TflitePredictor(pathlib.Path(path), 1)
    except InputError as error:
        print("refused", error, flush=True)
    else:
        print("ran", path, flush=True)
"""


@needs_litert
def test_missing_files_and_those_of_another_kind_are_refused(exported: Callable[[str], Path], tmp_path: Path) -> None:
    path = tmp_path / "a.tflite"
    with pytest.raises(InputError, match="a.tflite: file not found"):
        TflitePredictor(path)
    for raw in (b"", b"TFL3", b"garbage" * 50, exported("bert").read_bytes()):
        path.write_bytes(raw)
        with pytest.raises(InputError, match="a.tflite: is no TFLite file") as caught:
            TflitePredictor(path)
        assert len(str(caught.value).splitlines()) == 1


def write_damaged(folder: Path, sources: list[Path]) -> list[Path]:
    """Files that are cut off, or nothing but a beginning."""
    header = b"\x1c\x00\x00\x00TFL3"
    made = [header, header + b"\x00" * 200, header + b"\xff" * 200, b"\xff\xff\xff\x7fTFL3"]
    for raw in (source.read_bytes() for source in sources):
        sizes = [8, 9, 64, *(int(len(raw) * i / 13) for i in range(1, 13)), len(raw) - 4096, len(raw) - 1]
        made += [raw[:size] for size in sizes]
    paths = [folder / f"damaged-{i}.tflite" for i in range(len(made))]
    for path, raw in zip(paths, made, strict=True):
        path.write_bytes(raw)
    return paths


@needs_litert
def test_damaged_files_are_refused_and_the_process_lives(
    exported_tflite: Callable[[str], Path], tmp_path: Path
) -> None:
    from pocketbert.quantize import Plan, quantize

    small = tmp_path / "int8.tflite"
    quantize(exported_tflite("bert"), small, Plan(Format.TFLITE, Scheme.INT8))
    damaged = write_damaged(tmp_path, [exported_tflite("bert"), small])
    done = subprocess.run(
        [sys.executable, "-c", CHILD],
        input=json.dumps([str(p) for p in damaged]),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-2000:]}"
    outcomes = [line for line in done.stdout.splitlines() if not line.startswith("opening")]
    for path, line in zip(damaged, outcomes, strict=True):
        assert line.startswith(f"refused {path}: litert ") and "refuses the file: " in line, line


# Which engine.


class FakeRunner:
    given: ClassVar[list[np.ndarray]] = []
    inputs_shape: ClassVar[list[int]] = [1, -1]
    outputs_shape: ClassVar[list[int]] = [1, 2]

    def __init__(self, length: int) -> None:
        self.length = length

    def get_input_details(self) -> dict[str, Any]:
        return {"input_ids": {"shape": self._shape(self.inputs_shape), "dtype": np.int32, "index": 0}}

    def get_output_details(self) -> dict[str, Any]:
        return {"logits": {"shape": self._shape(self.outputs_shape), "dtype": np.float32, "index": 1}}

    def _shape(self, shape: list[int]) -> np.ndarray:
        return np.array([self.length if n < 0 else n for n in shape])

    def __call__(self, input_ids: np.ndarray) -> dict[str, np.ndarray]:
        assert input_ids.dtype == np.int32
        self.given.append(input_ids.copy())
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


MODULES = {
    "ai_edge_litert.interpreter": "ai-edge-litert",
    "tflite_runtime.interpreter": "tflite-runtime",
    "tensorflow.lite.python.interpreter": "tensorflow",
}
"""Module of each engine, and how the names of the distributions with it begin."""


def install(monkeypatch: pytest.MonkeyPatch, **versions: str) -> None:
    """Only these distributions are there, all with the same interpreter."""
    have = {name.replace("_", "-"): version for name, version in versions.items()}
    monkeypatch.setattr(engine, "version_of", have.get)
    monkeypatch.setattr(FakeInterpreter, "made", [])
    monkeypatch.setattr(FakeRunner, "given", [])
    for module, prefix in MODULES.items():
        parts = module.split(".")
        for end in range(1, len(parts) + 1):
            fake = ModuleType(".".join(parts[:end]))
            fake.Interpreter = FakeInterpreter  # type: ignore[attr-defined]
            fake.__path__ = []
            there = any(d.startswith(prefix) for d in have)
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
    more = {"input_ids": np.ones((3, 8), np.int64), "attention_mask": np.ones((3, 8), np.int64)}
    assert predictor.run(more)["logits"].tolist() == [[8, 8]] * 3  # what the graph does not want is ignored
    assert len(FakeRunner.given) == 3  # without functions behind the runner every run goes through it
    assert predictor.coverage is None  # these do not tell


@pytest.mark.parametrize(
    ("made", "told"), [([1, 8], [1, 8]), ([1, -1, 3], [1, "sequence", 3]), ([1, 8, -1], [1, 8, "sequence"])]
)
def test_an_output_as_wide_as_the_longest_input_is_no_sequence(
    monkeypatch: pytest.MonkeyPatch, file: Path, made: list[int], told: list[int | str]
) -> None:
    install(monkeypatch, tflite_runtime="2.14.0")
    monkeypatch.setattr(FakeRunner, "outputs_shape", made)
    signature = TflitePredictor(file).signature
    assert [t.shape for t in (*signature.inputs, *signature.outputs)] == [[1, "sequence"], told]


def test_a_shorter_row_finds_the_padding_untouched(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    install(monkeypatch, tflite_runtime="2.14.0")
    predictor = TflitePredictor(file)
    long, short = (predictor.prepare_run(n, Padding(3, "left")) for n in (8, 5))
    for run, length in ((short, 5), (long, 8), (short, 5)):
        run({"input_ids": np.full((1, length), 7)})
    assert [given.tolist() for given in FakeRunner.given] == [[[3] * 3 + [7] * 5], [[7] * 8], [[3] * 3 + [7] * 5]]


def test_without_an_engine_the_command_is_named(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    install(monkeypatch)
    said = r"ai-edge-litert is not installed. Install it with: pip install 'pocketbert\[tflite-runtime\]'"
    with pytest.raises(MissingBackendError, match=said) as caught:
        open_file(file, Format.TFLITE)
    assert caught.value.exit_code == ExitCode.MISSING == 4


def test_an_engine_that_cannot_be_imported_is_missing(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    """As tflite-runtime 2.14 beside numpy 2: installed, and of no use."""
    install(monkeypatch, tflite_runtime="2.14.0")
    monkeypatch.setitem(sys.modules, "tflite_runtime.interpreter", None)
    with pytest.raises(MissingBackendError, match=r"tflite_runtime.interpreter \(.*pocketbert\[tflite-runtime\]"):
        TflitePredictor(file)


def test_what_the_engine_refuses_is_an_input_error_on_one_line(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    def refuse(self: FakeInterpreter) -> None:
        raise RuntimeError("Didn't find op for builtin opcode 'GELU' version '1'.\nRegistration failed.\n")

    install(monkeypatch, tflite_runtime="2.14.0")
    monkeypatch.setattr(FakeInterpreter, "allocate_tensors", refuse)
    with pytest.raises(InputError, match=r"a.tflite: tflite_runtime 2.14.0 refuses the file: .* version '1'\.$"):
        TflitePredictor(file)


@pytest.mark.parametrize("shape", [[4], [2, 4], [1, 4, 2, 2]])
def test_a_file_with_other_inputs_is_refused(monkeypatch: pytest.MonkeyPatch, file: Path, shape: list[int]) -> None:
    install(monkeypatch, tflite_runtime="2.14.0")
    monkeypatch.setattr(FakeRunner, "inputs_shape", shape)
    with pytest.raises(InputError, match=r"a.tflite: has no signature with inputs of shape \[1, length\]"):
        TflitePredictor(file)


# What XNNPACK runs.


@needs_litert
def test_the_format_is_opened_by_its_engine_without_a_word(
    exported_tflite: Callable[[str], Path], capfd: pytest.CaptureFixture[str]
) -> None:
    predictor = open_file(exported_tflite("bert"), Format.TFLITE, threads=1)
    assert predictor.engine == "litert"
    assert predictor.engine_version.count(".") >= 1
    assert tuple(capfd.readouterr()) == ("", "")


class Listing:
    """Lists operators as an interpreter does: (name, inputs, outputs), the delegated pieces last; or fails as old ones do."""

    def __init__(self, *nodes: tuple[str, list[int], list[int]], error: Exception | None = None) -> None:
        self.nodes, self.error, self.allocated = nodes, error, False

    def allocate_tensors(self) -> None:
        self.allocated = True

    def _get_ops_details(self) -> list[dict[str, Any]]:
        assert self.allocated
        if self.error is not None:
            raise self.error
        return [{"op_name": n, "inputs": i, "outputs": o} for n, i, o in self.nodes]


CHAIN: list[tuple[str, list[int], list[int]]] = [
    ("EMBEDDING_LOOKUP", [0, 9], [1]), ("ADD", [1, 8], [2]), ("SOFTMAX", [2, -1], [3]), ("CAST", [3], [4]), ("ADD", [4, 2], [5]),
]  # fmt: skip
ONE, TWO = {"ADD": 1, "SOFTMAX": 1}, {"ADD": 2, "SOFTMAX": 1}
ENDS = {"EMBEDDING_LOOKUP": 1, "CAST": 1}


@pytest.mark.parametrize(
    ("pieces", "inside", "outside", "summary"),
    [
        ([], {}, {**TWO, **ENDS}, "0 XNNPACK partitions with 0 operators; outside: 2 ADD, 1 EMBEDDING_LOOKUP"),
        ([([1, 8], [3])], ONE, {**ENDS, "ADD": 1}, "1 XNNPACK partition with 2 operators; outside: 1 EMBEDDING_LOOKUP"),
        ([([1, 8], [2, 3]), ([4, 2], [5])], TWO, ENDS, "2 XNNPACK partitions with 3 operators; outside: 1 EMBEDDING_L"),
        ([([0, 9], [5])], {**TWO, **ENDS}, {}, "1 XNNPACK partition with 5 operators; outside: none"),
    ],
)
def test_what_lies_between_the_tensors_of_a_piece_is_inside(
    pieces: list[tuple[list[int], list[int]]], inside: dict[str, int], outside: dict[str, int], summary: str
) -> None:
    found = count_xnnpack_operators(Listing(*CHAIN, *(("DELEGATE", i, o) for i, o in pieces)))
    assert found == XnnpackCoverage(partitions=len(pieces), inside=inside, outside=outside)
    assert found.summary.startswith(summary)


@pytest.mark.parametrize("error", [AttributeError("old"), ValueError("old"), RuntimeError("old")])
def test_a_version_that_does_not_tell_is_none(error: Exception) -> None:
    assert count_xnnpack_operators(Listing(*CHAIN, error=error)) is None
    assert count_xnnpack_operators(object()) is None


@needs_litert
@pytest.mark.parametrize("scheme", [Scheme.FP32, Scheme.INT8, Scheme.A8W8])
def test_a_real_file_is_one_piece_and_its_lookups(
    scheme: Scheme, exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ai_edge_quantizer")
    from pocketbert.quantize import Plan, quantize, weights
    from pocketbert.quantize.tflite.reading import TfliteGraph

    path = exported_tflite("bert")
    if scheme is not Scheme.FP32:
        monkeypatch.setattr(weights, "SMALL", 512)  # tiny models have no matrix above the usual bound
        rows = [batch(1, n) for n in range(4, 30)]
        path = tmp_path / "a.tflite"
        plan = Plan(Format.TFLITE, scheme, rows=(lambda: rows) if scheme.static else None)
        quantize(exported_tflite("bert"), path, plan)
    predictor, graph = TflitePredictor(path, 1), TfliteGraph(path)
    found = predictor.coverage
    assert found is not None
    assert found.partitions == 1
    assert set(found.outside) == {"EMBEDDING_LOOKUP", "RESHAPE", "CAST"}
    assert found.inside["FULLY_CONNECTED"] == graph.operator_counts()["FULLY_CONNECTED"]
    if scheme is Scheme.FP32:
        counted = {n: found.inside.get(n, 0) + found.outside.get(n, 0) for n in (*found.inside, *found.outside)}
        assert counted == graph.operator_counts()
    assert predictor.coverage is found  # asked once
