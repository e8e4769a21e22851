"""The files in the real MediaPipe Tasks, and its tokenizer against our emulation of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

import torch
from ai_edge_litert import schema_py_generated as schema

from pocketbert.core.compare.sample_texts import ASCII_SENTENCES, SENTENCES, UNICODE_SENTENCES
from pocketbert.core.families import family_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.export import tflite
from pocketbert.export.mediapipe import MediaPipeTokenizer, explain_refusal
from pocketbert.export.prepare import prepare
from pocketbert.export.tflite_metadata import MediaPipeInfo, metadata_problems, pack_files, write_metadata
from pocketbert.quantize import Plan, quantize

LABELS = ("negative", "not so sure", "très bien")
LENGTH = 48
LETTERS = (
    "abcdefgh ABC.,!?'-#[]_$ \t\n",
    "aàâäÀÉßſıİ жЯЩ ",
    "中文字㐀豈、。！ ab",
    "😀👍\u200d\ufe0f☕ ab.",
    "".join(map(chr, range(1, 0x250))),
    "".join(map(chr, range(0x250, 0x3100))),
)
NASTY = (
    "", " ", "\n", "[MASK] [CLS] [SEP] [PAD] [UNK] [unused1] ##ing", "a\0b", "a\vb\fc\x01d\x7fe",
    "a\u00a0b\u3000c\u200bd\u200de\ufefff", "x" * 100, "x" * 101, "п" * 50 + " " + "п" * 51, "word " * 300,
    "\ufffd \ud7ff \ue000", "ﬁ ǅ İ ı ſ K", "e\u0301 \u0301 \u0301a", "한국어 한국어", "👨‍👩‍👧‍👦 🇩🇪 ☕️",
    "\U0001f600\U00020000\U0002a6df\U0002ceb0\U00030000", "don't can't U.S.A. $5.00 a_b ~`^|<>=+",
    "\r\n\t\u2028x\u2029y\x85z", "\u1b4e\U00010ed0\U0001e5ff", "٣ ४ ５ Ａｂｃ。「」",
)  # fmt: skip


@pytest.fixture(scope="module")
def mediapipe(environment: Callable[..., Path], ask: Callable[..., Any]) -> Callable[..., Any]:
    """`mediapipe(verb, model, texts)`: the rows that MediaPipe answers."""
    python = environment("mediapipe", ["mediapipe==1.2.2"])

    def call(verb: str, model: Path, texts: Sequence[str]) -> Any:
        answer = ask(
            python,
            "mediapipe_client.py",
            {"verb": verb, "model": str(model), "texts": list(texts)},
            offline=True,
        )
        return answer["rows"] if "rows" in answer else answer["error"]

    return call


class Ids(torch.nn.Module):
    """Gives the ids back, so that the client's tokenizer can be read out; the third input is not used."""

    def forward(self, **inputs: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"ids": (inputs["input_ids"] * inputs["attention_mask"]).to(torch.float32)}


def write_ids_model(path: Path, length: int, vocabulary: bytes) -> Path:
    sample = {n: torch.full((1, length), i, dtype=torch.int32) for i, n in enumerate(tflite.MEDIAPIPE_INPUTS)}
    tflite._convert({"ids": (Ids().eval(), sample)}, path)
    info = MediaPipeInfo("ids", "", "1", "", (), vocabulary)
    path.write_bytes(write_metadata(path.read_bytes(), info))
    return path


def many_texts() -> list[str]:
    draw = random.Random(0)
    texts = [*SENTENCES, *ASCII_SENTENCES, *UNICODE_SENTENCES, *NASTY]
    for _ in range(1500):
        letters = draw.choice(LETTERS) + draw.choice(LETTERS)
        texts.append("".join(draw.choices(letters, k=draw.randrange(1, 60))))
    for _ in range(300):
        points = (draw.randrange(1, 0x110000) for _ in range(30))
        texts.append("".join(chr(c) for c in points if not 0xD800 <= c < 0xE000))
    return texts


def test_the_emulation_gives_mediapipes_ids(
    tmp_path: Path, make_tokenizer: Callable[..., None], mediapipe: Callable[..., Any]
) -> None:
    make_tokenizer(tmp_path)
    extra = ["café", "cafe", "中", "##中", "😀", "é", "##é", "п", "##п", "。", "\u00a0", "ß", "##ı"]
    with (tmp_path / "vocab.txt").open("a", encoding="utf-8") as stream:
        stream.writelines(f"{token}\n" for token in extra)
    vocabulary = (tmp_path / "vocab.txt").read_bytes()
    model = write_ids_model(tmp_path / "ids.tflite", LENGTH, vocabulary)
    texts, tokenizer = many_texts(), MediaPipeTokenizer(vocabulary, LENGTH)
    seen = mediapipe("ids", model, texts)
    wrong = [t for t, a, b in zip(texts, tokenizer.encode(texts), seen, strict=True) if a.ids.tolist() != b]
    assert not wrong, f"{len(wrong)} of {len(texts)}: {wrong[:3]!r}"


def test_every_code_point_is_cut_as_mediapipe_cuts_it(tmp_path: Path, mediapipe: Callable[..., Any]) -> None:
    """Between two letters it is a blank, a word of its own, or part of the word."""
    vocabulary = b"[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n##a\nb\n"
    length = 40_000
    model = write_ids_model(tmp_path / "ids.tflite", length, vocabulary)
    points = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]
    texts = [" ".join(f"a{c}a b" for c in points[i : i + 9000]) for i in range(0, len(points), 9000)]
    tokenizer = MediaPipeTokenizer(vocabulary, length)
    for text, row, seen in zip(texts, tokenizer.encode(texts), mediapipe("ids", model, texts), strict=True):
        assert seen == row.ids.tolist(), repr(text[:20])


def balance(model: Any, tokenizer: TextTokenizer) -> None:
    """Make every label likely: a random head answers the same to all texts."""
    logits = np.log(probabilities(model, tokenizer, ASCII_SENTENCES))
    with torch.no_grad():
        model.classifier.bias -= torch.from_numpy(logits.mean(0))
        model.classifier.weight *= 10
        model.classifier.bias *= 10


@pytest.fixture(scope="module")
def classifier(
    tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Any, make_classifier: Any
) -> Callable[..., Any]:
    """`classifier(family, **config changes)`: model in torch, folder, MediaPipe file, and the information in it."""

    @cache
    def build(name: str, **changes: Any) -> tuple[Any, Path, Path, MediaPipeInfo]:
        folder = tmp_path_factory.mktemp(f"mediapipe-{name}")
        make_tokenizer(folder)
        model, family = make_classifier(name, 2, LABELS, **changes), family_of(name)
        task = TASKS[TaskName.TEXT_CLASSIFICATION]
        assert explain_refusal(folder, task.name, pair=False) is None
        balance(model, TextTokenizer(folder, LENGTH))
        path = folder / "mediapipe.tflite"
        tflite.export_mediapipe(prepare(model, family, task, Format.TFLITE), family, task, LENGTH, path)
        info = MediaPipeInfo(
            f"tiny {name}", "A random classifier.", "1", "tests", LABELS, (folder / "vocab.txt").read_bytes()
        )
        path.write_bytes(write_metadata(path.read_bytes(), info))
        assert metadata_problems(path.read_bytes(), LABELS, info.vocabulary) == []
        return model, folder, path, info

    return build


def probabilities(model: Any, tokenizer: TextTokenizer, texts: Sequence[str]) -> np.ndarray:
    """What the untouched torch model answers to each text alone, unpadded."""
    rows = []
    for row in tokenizer.encode(list(texts)):
        with torch.inference_mode():
            logits = model(input_ids=torch.from_numpy(row.ids[None])).logits
        rows.append(torch.softmax(logits, -1)[0].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("name", ["bert", "distilbert"])
def test_the_classifier_gives_torchs_probabilities(
    name: str, classifier: Callable[..., Any], mediapipe: Callable[..., Any], tmp_path: Path
) -> None:
    model, folder, path, info = classifier(name)
    rows = mediapipe("classify", path, ASCII_SENTENCES)
    assert rows[0]["names"] == list(LABELS)
    expected = probabilities(model, TextTokenizer(folder, LENGTH), ASCII_SENTENCES)
    assert len(set(expected.argmax(-1))) == len(LABELS)  # else equal labels would prove nothing
    np.testing.assert_allclose([r["scores"] for r in rows], expected, atol=1e-5)
    # beyond ASCII the ids are MediaPipe's own, and the emulation knows them
    own = probabilities(model, MediaPipeTokenizer(info.vocabulary, LENGTH), UNICODE_SENTENCES)
    rows = mediapipe("classify", path, UNICODE_SENTENCES)
    np.testing.assert_allclose([r["scores"] for r in rows], own, atol=1e-5)


def test_int8_gives_the_same_labels_in_both_orders(
    classifier: Callable[..., Any], mediapipe: Callable[..., Any], tmp_path: Path
) -> None:
    _, _, path, info = classifier("bert", intermediate_size=4096)
    plain = np.array([r["scores"] for r in mediapipe("classify", path, ASCII_SENTENCES)])
    small = tmp_path / "int8.tflite"
    quantize(path, small, Plan(Format.TFLITE, Scheme.INT8))
    packed = schema.Model.GetRootAs(small.read_bytes(), 0)
    assert any(packed.Buffers(i).Offset() > 1 for i in range(packed.BuffersLength()))  # weights lie behind
    after = {
        "files again": pack_files(small.read_bytes(), info.files),
        "metadata": write_metadata(small.read_bytes(), info),
    }
    answers = []
    for what, content in after.items():
        assert metadata_problems(content, LABELS, info.vocabulary) == [], what
        file = tmp_path / "one.tflite"
        file.write_bytes(content)
        answers.append(np.array([r["scores"] for r in mediapipe("classify", file, ASCII_SENTENCES)]))
    np.testing.assert_array_equal(*answers)
    assert np.abs(answers[0] - plain).max() < 0.05
    top = np.sort(plain, -1)
    sure = top[:, -1] - top[:, -2] > 0.1  # a random model is often undecided
    assert sure.sum() >= 30
    assert (answers[0].argmax(-1) == plain.argmax(-1))[sure].all()
    # and MediaPipe's own TFLite computes this file as LiteRT does
    np.testing.assert_allclose(litert(small, MediaPipeTokenizer(info.vocabulary, LENGTH)), answers[0], atol=1e-5)


def litert(path: Path, tokenizer: TextTokenizer) -> np.ndarray:
    """What LiteRT answers to the sentences, padded as MediaPipe pads them."""
    from ai_edge_litert.interpreter import Interpreter

    runner = Interpreter(model_path=str(path)).get_signature_runner()
    rows = [tokenizer.pad([row], LENGTH) for row in tokenizer.encode(ASCII_SENTENCES)]
    feeds = [{name: value.astype(np.int32) for name, value in row.items()} for row in rows]
    return np.concatenate([runner(**feed)[tflite.PROBABILITIES] for feed in feeds])


def test_mediapipe_refuses_what_the_gate_refuses(
    classifier: Callable[..., Any], mediapipe: Callable[..., Any], tmp_path: Path
) -> None:
    _, _, path, info = classifier("bert")
    small = tmp_path / "int8.tflite"
    quantize(path, small, Plan(Format.TFLITE, Scheme.INT8))  # drops the packed files
    assert metadata_problems(small.read_bytes(), LABELS, info.vocabulary)
    assert isinstance(mediapipe("classify", small, ["ok"]), str)


def test_the_embedder_gives_torchs_embeddings(
    tmp_path: Path,
    make_tokenizer: Callable[..., None],
    make_classifier: Callable[..., Any],
    mediapipe: Callable[..., Any],
) -> None:
    make_tokenizer(tmp_path)
    model = make_classifier("bert", 2, LABELS).bert
    family, task = family_of("bert"), TASKS[TaskName.FEATURE_EXTRACTION]
    path = tmp_path / "mediapipe.tflite"
    tflite.export_mediapipe(prepare(model, family, task, Format.TFLITE), family, task, LENGTH, path)
    info = MediaPipeInfo("tiny", "", "1", "", (), (tmp_path / "vocab.txt").read_bytes(), "Mean of the token states.")
    path.write_bytes(write_metadata(path.read_bytes(), info))
    assert metadata_problems(path.read_bytes(), (), info.vocabulary) == []
    expected = []
    for row in TextTokenizer(tmp_path, LENGTH).encode(list(ASCII_SENTENCES)):
        with torch.inference_mode():
            mean = model(input_ids=torch.from_numpy(row.ids[None])).last_hidden_state[0].mean(0)
        expected.append((mean / mean.norm()).numpy())
    np.testing.assert_allclose(mediapipe("embed", path, ASCII_SENTENCES), expected, atol=1e-5)
