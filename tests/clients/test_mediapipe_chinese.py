"""Chinese WordPiece rows in the real MediaPipe Tasks: its ids and answers are ours; cased vocabularies are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch"):
    pytest.importorskip(_package)

import torch

from pocketbert.core.families import find_family
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format
from pocketbert.export import tflite
from pocketbert.export.mediapipe import MediaPipeTokenizer, explain_refusal
from pocketbert.export.prepare import prepare
from pocketbert.export.tflite_metadata import MediaPipeInfo, write_metadata
from support.tiny import tiny_classifier
from support.tiny_tokenizers import vocabulary, write_wordpiece

CHARACTERS = "的一是不了人我在有他这中大来上个国和也子时道说出而要于就下得可你年生自会那后能对着事其里所去行过家十用发天如然作方成者多日都三小军二无同么经法当起与好看学进种将还分此心前面又定见只主没公从"
TEXTS = (
    "我看这个国家的天",
    "他说：“你好！”",
    "大家都在学法，也不去看。",
    "我用 PocketBERT 3 年了",
    "这是 the film 的中文",
    "𠮷家",  # beyond the basic plane
    "没有见过的字：龘靐",
    "好，好；好？好！",
    "ＡＢＣ１２３ 全角",
    "2026年11月23日",
)
TASK, LABELS, LENGTH = TASKS[TaskName.TEXT_CLASSIFICATION], ("坏", "一般", "好"), 32
ROWS = ("bert-wwm", "macbert", "ernie")


def write_vocabulary(folder: Path) -> int:
    """The ASCII vocabulary of the tests, with characters and their continuations, and Chinese marks."""
    folder.mkdir(exist_ok=True)
    return write_wordpiece(folder, [*vocabulary(0), *CHARACTERS, *(f"##{c}" for c in CHARACTERS), *"，。！？：；“”"])


@pytest.mark.parametrize("name", ROWS)
def test_the_answers_to_chinese_texts_are_torchs(
    name: str, tmp_path: Path, environment: Callable[..., Path], ask: Callable[..., Any]
) -> None:
    size, family = write_vocabulary(tmp_path), find_family(name)
    assert explain_refusal(tmp_path, TASK.name, pair=False) is None
    model = tiny_classifier(family.graph, 2, LABELS, vocab_size=size)
    with torch.no_grad():
        model.classifier.weight *= 10
    ours, info = (
        TextTokenizer(tmp_path, LENGTH),
        MediaPipeInfo(name, "", "1", "", LABELS, (tmp_path / "vocab.txt").read_bytes()),
    )
    theirs = MediaPipeTokenizer(info.vocabulary, LENGTH)
    rows = ours.encode(list(TEXTS))
    assert [r.ids.tolist() for r in rows] == [r.ids.tolist() for r in theirs.encode(list(TEXTS))]
    path = tmp_path / "mediapipe.tflite"
    tflite.export_mediapipe(prepare(model, family, TASK, Format.TFLITE), family, TASK, LENGTH, path)
    path.write_bytes(write_metadata(path.read_bytes(), info))
    asked = {"verb": "classify", "model": str(path), "texts": list(TEXTS)}
    answers = ask(environment("mediapipe", ["mediapipe==1.2.2"]), "mediapipe_client.py", asked, offline=True)["rows"]
    with torch.inference_mode():
        expected = [torch.softmax(model(input_ids=torch.from_numpy(r.ids[None])).logits, -1)[0].numpy() for r in rows]
    assert answers[0]["names"] == list(LABELS)
    assert np.std(expected, 0).max() > 1e-3  # else equal answers would prove nothing
    np.testing.assert_allclose([a["scores"] for a in answers], expected, atol=1e-5)


def test_a_cased_chinese_vocabulary_is_refused(tmp_path: Path) -> None:
    write_vocabulary(tmp_path)
    file = tmp_path / "tokenizer.json"
    file.write_text(
        file.read_text("utf-8")
        .replace('"lowercase":true', '"lowercase":false')
        .replace('"lowercase": true', '"lowercase": false'),
        "utf-8",
    )
    assert "lower-cases every text" in str(explain_refusal(tmp_path, TASK.name, pair=False))
