"""TFLite in a run: golden rows, metadata of files for MediaPipe, its tokenizer, and files for GPUs and NPUs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.benchmarks.devices import adb, local, ssh
from pocketbert.core.compare.golden import read_golden
from pocketbert.core.compare.sample_texts import UNICODE_SENTENCES
from pocketbert.core.families import family_of, register_family, table
from pocketbert.core.model_files import dump_model
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Client, Format, Runtime, Scheme
from pocketbert.export.mediapipe import read_vocabulary
from pocketbert.export.tflite_metadata import MediaPipeInfo, load_model, write_metadata
from pocketbert.pipeline.formats import tflite
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.results import Subject, choose_recorded_rows
from pocketbert.quantize import Plan, quantize, weights
from pocketbert.quantize.tflite import gpu
from support.defects import MEDIAPIPE, MEDIAPIPE_INT8, break_file, relist, source
from support.defects import TFLITE as FP32
from support.defects import TFLITE_INT8 as INT8
from support.defects import TFLITE_OLD as OLD
from support.tiny_texts import LABELS

Cli = Callable[..., Any]
Refused = Callable[..., list[str]]
TASK = task_of("text-classification")


def test_the_tolerance_of_an_old_runtimes_file_is_wider(cli: Cli, tflite_copy: Path) -> None:
    # recorded by a new engine, run by an old one that rounds otherwise
    [row, *_] = read_golden(tflite_copy / "golden" / "golden.jsonl")
    assert row.tolerance[FP32] < row.tolerance[INT8] < row.tolerance[OLD]
    break_file(source(tflite_copy, OLD), "a_little_more")
    verified = cli("verify", "-m", tflite_copy, "--json")
    gates = json.loads(verified.stdout.splitlines()[-1])["gates"]
    failed = {(g["file"], g["name"]) for g in gates if not g["passed"]}
    assert failed == {(OLD, "stored"), (OLD, "reference")}  # golden passes


def test_golden_rows_are_recorded_for_files_that_take_them(finished_tflite: Path) -> None:
    phone = finished_tflite / "phone"
    rows = read_golden(phone / "golden.jsonl")
    lengths = [len(e) for e in TextTokenizer(phone, 40).encode([r.input for r in rows])]
    assert max(lengths) > 32 > min(lengths)
    of_one_signature = choose_recorded_rows(rows, lengths, (32,), Format.TFLITE)
    assert 12 <= len(of_one_signature) < sum(length <= 32 for length in lengths)
    for number, row in enumerate(rows):
        assert {FP32, INT8, OLD, "onnx/model.onnx"} <= set(row.outputs)
        assert (MEDIAPIPE in row.outputs) == (number in of_one_signature)
        assert set(row.tolerance) == set(row.outputs)
        if MEDIAPIPE in row.outputs:
            assert sum(row.outputs[MEDIAPIPE]) == pytest.approx(1, abs=1e-5)


# Files for MediaPipe.


def repack(path: Path, labels: tuple[str, ...], vocabulary: bytes) -> None:
    info = MediaPipeInfo("a", "b", "1", "", labels, vocabulary, "MIT")
    path.write_bytes(write_metadata(path.read_bytes(), info))


def swap_words(vocabulary: bytes) -> bytes:
    tokens = vocabulary.splitlines()
    return b"\n".join([*tokens[:10], tokens[11], tokens[10], *tokens[12:]]) + b"\n"


def lose_packed_files(path: Path) -> None:
    """The zip at the end, which a tool that copies the graph drops."""
    path.write_bytes(dump_model(load_model(path.read_bytes())))


METADATA: dict[str, tuple[str, Callable[[Path, bytes], None]]] = {
    "labels in another order": (MEDIAPIPE, lambda f, words: repack(f, ("music", "lamp", "timer"), words)),
    "another label": (MEDIAPIPE_INT8, lambda f, words: repack(f, ("lamp", "music", "times"), words)),
    "another vocabulary": (MEDIAPIPE, lambda f, words: repack(f, LABELS, swap_words(words))),
    "packed files lost": (MEDIAPIPE_INT8, lambda f, words: lose_packed_files(f)),
}


@pytest.mark.parametrize("case", METADATA)
def test_other_metadata_inside_fails_its_gate_only(case: str, refused: Refused, tflite_copy: Path) -> None:
    file, change = METADATA[case]
    change(source(tflite_copy, file), read_vocabulary(tflite_copy / "student"))
    assert refused(tflite_copy, f"{file} metadata") == [f"{file} metadata"]


def test_a_folder_with_another_vocabulary_in_its_mediapipe_file(
    cli: Cli, finished_tflite: Path, tmp_path: Path
) -> None:
    phone = Path(shutil.copytree(finished_tflite / "phone", tmp_path / "phone"))
    repack(phone / MEDIAPIPE, LABELS, swap_words(read_vocabulary(phone)))
    relist(phone, MEDIAPIPE)
    result = cli("verify", "-m", phone)
    assert result.exit_code == 3
    assert f"{MEDIAPIPE}: gate 'metadata' failed:" in result.stderr


class Engine:
    """Remembers the attention masks it was given."""

    engine, engine_version = "fake", "1"
    inputs, outputs, lengths = ("input_ids", "attention_mask", "token_type_ids"), ("logits",), (48,)

    def __init__(self) -> None:
        self.masks: list[NDArray[np.generic]] = []

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        self.masks += list(inputs["attention_mask"])
        return {"logits": np.zeros((len(inputs["input_ids"]), 2), np.float32)}


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_effect_of_mediapipes_tokenizer_is_measured_with_inputs_as_both_really_make_them(
    side: str, tmp_path: Path, make_tokenizer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_FAMILIES", dict(table._FAMILIES))
    register_family(replace(family_of("bert"), name="mine", model_types=("my-bert",), padding_side=side))
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "my-bert"}))
    engine = Engine()
    monkeypatch.setattr(tflite, "open_file", lambda *_: engine)
    effect = tflite.measure_tokenizer_effect(tmp_path / "mediapipe.tflite", tmp_path, TASK)
    assert effect.sentences == len(UNICODE_SENTENCES)
    run = len(engine.masks) // 2  # where both pad alike, sentences with equal ids have equal answers
    assert run == (round(effect.ids * effect.sentences) if side == "right" else effect.sentences)
    own, theirs = np.stack(engine.masks[:run]), np.stack(engine.masks[run:])
    assert (own.sum(1) < 48).any()
    assert own[:, 0 if side == "right" else -1].all(), "the model pads where its family does"
    assert theirs[:, 0].all(), "and MediaPipe on the right"
    settings = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    again = tflite.measure_tokenizer_effect(tmp_path / "mediapipe.tflite", tmp_path, TASK)
    assert again == effect, "both tokenizers get the default prompt"


def test_the_effect_is_measured_with_each_file_of_mediapipe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tflite, "measure_tokenizer_effect", lambda path, *_: SimpleNamespace(summary=f"of {path}"))
    files = [SimpleNamespace(path=name, client=Client.MEDIAPIPE) for name in (MEDIAPIPE, MEDIAPIPE_INT8)]
    files.append(SimpleNamespace(path=FP32, client=None))
    model: Any = SimpleNamespace(files=files, weights=None, task=TASK, source=lambda file: file.path)
    notes = format_place(Format.TFLITE).file_notes(model)
    assert notes == {name: f"of {name}" for name in (MEDIAPIPE, MEDIAPIPE_INT8)}


# Files for chips next to the CPU.


def test_the_gate_passes_where_the_gpu_takes_the_products_and_names_the_rest(
    exported_tflite: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)
    path, place = tmp_path / "model_fp16_gpu.tflite", format_place(Format.TFLITE)
    quantize(exported_tflite("bert"), path, Plan(Format.TFLITE, Scheme.FP16, Runtime.GPU))
    unread: Any = SimpleNamespace()
    form = (Format.TFLITE, Scheme.FP16, None, Runtime.GPU)
    one = Subject(path.name, path, *form, unread, unread, [], TASK, tmp_path)
    [good] = place.gates(one, ())
    assert (good.name, good.passed, good.value) == ("placement", True, 0.0)
    assert good.detail.endswith("Compiled-only: read from the graph, not run on the chip.")
    monkeypatch.delitem(gpu.RULES, "GELU")
    [partly] = place.gates(one, ())
    assert (partly.passed, partly.value) == (True, 2.0)
    assert "stays on the CPU: 2 GELU (the delegate does not know this operator)" in partly.detail
    monkeypatch.delitem(gpu.RULES, "FULLY_CONNECTED")
    [refused] = place.gates(one, ())
    assert not refused.passed
    assert "FULLY_CONNECTED" in refused.failure
    assert place.gates(replace(one, runtime=None), ()) == []


@pytest.mark.parametrize("runtime", [runtime for runtime in Runtime if runtime.accelerator])
def test_no_cpu_times_such_a_file(runtime: Runtime) -> None:
    for device in (local, adb, ssh):
        assert f"made for {runtime}" in device.DEVICE.refusal(Format.TFLITE, runtime)
