"""The code of the model card does what PocketBERT does: it is taken out of the card and run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

import pocketbert
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.families import family_of
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.pipeline.phone.card import CardFacts, render_card
from support.client_environments import build
from support.clients import (
    TEXTS,
    answers,
    code_of,
    largest,
    own,
    plain,
    same_in_javascript,
    snippet,
    spans_of,
    texts_of,
    with_texts,
)

ALL = [t.value for t in TASKS]
ENGINES = {
    "onnx": ("Python, with only ONNX Runtime and tokenizers", "onnx/model_int8.onnx", "onnxruntime==1.31.1"),
    "tflite": ("Python, with only LiteRT and tokenizers", "tflite/model_int8.tflite", "ai-edge-litert==2.3.0"),
}
COLUMNS = {"onnx": "onnxruntime, int8", "tflite": "LiteRT, int8"}
INT8 = "onnx/model_int8.onnx"
EXACT = 1e-5


def compare(task: str, answer: Any, expected: Any) -> float:
    """A snippet's answer against the toolkit's; how far its score is from the toolkit's, 0 where it has none."""
    if task == TaskName.TEXT_CLASSIFICATION:
        label, score = answer
        assert label == max(expected, key=expected.get)
        assert score == pytest.approx(expected[label], abs=EXACT)
        return float(abs(score - expected[label]))
    if task in (TaskName.REGRESSION, TaskName.FEATURE_EXTRACTION):
        assert largest(answer, expected) < EXACT
    elif task == TaskName.MULTIPLE_CHOICE:
        assert answer[0] == expected[0]
        assert answer[1] == pytest.approx(expected[1], abs=EXACT)
    elif task == TaskName.FILL_MASK:
        assert answer == expected[: len(answer)]
    elif task == TaskName.TOKEN_CLASSIFICATION:
        assert spans_of([tag for *_, tag in answer], [(start, end) for start, end, _ in answer]) == expected
    else:
        assert answer == expected
    return 0.0


@pytest.mark.parametrize("task", ALL)
@pytest.mark.parametrize("engine", ENGINES)
def test_python_with_an_engine_and_tokenizers_alone(
    engine: str, task: str, phones: Callable[[str], Path], ask: Callable[..., Any], measured: Callable[..., None]
) -> None:
    lead, file, package = ENGINES[engine]
    phone, texts = phones(task), texts_of(task)
    python = build(f"{engine}-alone", [package, "tokenizers==0.23.3", "numpy==2.4.6"])
    code = code_of(phone, lead, "python")
    assert file in code
    if task == TaskName.QUESTION_ANSWERING:  # the toolkit runs windows as a batch, which changes dynamic int8 a little
        code, file = code.replace("_int8", ""), file.replace("_int8", "")
    rows = ask(python, "run_snippets", folder=str(phone), codes=[with_texts(code, text) for text in texts])
    model = pocketbert.load(phone, file=file, threads=1)
    for text, row, expected in zip(texts, rows, own(phone, file, texts), strict=True):
        apart = compare(task, row["answer"], expected)
        mine = np.squeeze(model.outputs([text])[-1])
        theirs = np.stack([np.asarray(row["outputs"][n], np.float32)[0] for n in TASKS[TaskName(task)].answer], -1)
        theirs = theirs[..., 0] if theirs.shape[-1] == 1 else theirs
        if task == TaskName.FILL_MASK:  # the toolkit keeps the masked places alone
            theirs = theirs[model.tokenizer.encode([text])[0].ids == model.tokenizer.mask_id]
        theirs = np.squeeze(theirs)
        assert theirs.shape == mine.shape
        raw = largest(theirs, mine)
        assert raw < EXACT * max(1.0, float(np.abs(mine).max()))
        measured(COLUMNS[engine], task, max(apart, raw), file)


@pytest.mark.parametrize("task", ALL)
def test_python_with_pocketbert(task: str, phones: Callable[[str], Path]) -> None:
    phone, text = phones(task), texts_of(task)[0]
    code = with_texts(code_of(phone, "Python, with PocketBERT", "python"), text)
    names: dict[str, Any] = {}
    exec(code.replace("path/to/this/folder", str(phone)), names)
    assert plain(names["answer"]) == own(phone, INT8, [text])[0]


def test_python_with_sentence_transformers(
    phones: Callable[[str], Path], optimum: Path, ask: Callable[..., Any]
) -> None:
    phone, texts = phones("feature-extraction"), texts_of("feature-extraction")[:2]
    code = code_of(phone, "Python, with sentence-transformers", "python").replace("path/to/this/folder", str(phone))
    rows = ask(optimum, "run_snippets", folder=str(phone), codes=[with_texts(code, text) for text in texts])
    for row, expected in zip(rows, own(phone, INT8, texts), strict=True):
        assert largest(row["answer"], expected) < EXACT


def card_of(phone: Path, **changes: Any) -> str:
    artefacts = read_artefacts(phone).model_copy(update=changes)
    return render_card(artefacts, CardFacts(family_of("bert"), "unknown"))


@pytest.fixture
def run_javascript(node: Callable[..., str], tmp_path: Path) -> Callable[..., Any]:
    """`run_javascript(phone, card, text)`: what a card's JavaScript answers, run where the folder lies under models/."""

    def call(phone: Path, card: str, text: Any) -> Any:
        (tmp_path / "models").mkdir()
        (tmp_path / "models" / "phone").symlink_to(phone)
        code = with_texts(snippet(card, "JavaScript, with", "js"), text).replace("FOLDER", "phone")
        assert code.endswith("console.log(answer);")
        code = code.replace("console.log(answer);", "console.log(JSON.stringify(answer));")
        return json.loads(node(code, cwd=tmp_path).splitlines()[-1])

    return call


@pytest.mark.parametrize(
    ("task", "pair"), [*((task, False) for task in ALL), ("text-classification", True), ("multi-label", True)]
)
def test_javascript(task: str, pair: bool, phones: Callable[[str], Path], run_javascript: Callable[..., Any]) -> None:
    phone, text = phones(task), (TEXTS[0], TEXTS[3]) if pair else texts_of(task)[0]
    card = card_of(phone, pair=True) if pair else (phone / "README.md").read_text(encoding="utf-8")
    same_in_javascript(task, run_javascript(phone, card, text), answers(phone, INT8, [text])[0])


@pytest.mark.parametrize("pair", [False, True])
def test_javascript_divides_by_the_temperature(
    pair: bool, phones: Callable[[str], Path], run_javascript: Callable[..., Any], tmp_path: Path
) -> None:
    cold = phones("text-classification")
    phone = Path(shutil.copytree(cold, tmp_path / "warm"))
    listed = json.loads((phone / "artifacts.json").read_text())
    for record in listed["files"]:
        record |= {"confidence": {"temperature": 2.5}} if record["kind"] == "model" else {}
    (phone / "artifacts.json").write_text(json.dumps(listed))
    text: Any = (TEXTS[0], TEXTS[3]) if pair else TEXTS[0]
    expected, undivided = (answers(p, INT8, [text])[0] for p in (phone, cold))
    same_in_javascript("text-classification", run_javascript(phone, card_of(phone, pair=pair), text), expected)
    assert expected.fields()["score"] < undivided.fields()["score"] - 0.01


def test_javascript_where_the_client_does_not_know_the_family(
    phones: Callable[[str], Path], run_javascript: Callable[..., Any]
) -> None:
    phone, text = phones("token-classification"), TEXTS[1]
    card = card_of(phone, family="mobilebert")
    assert "whose list for token-classification has no mobilebert" in card
    given = run_javascript(phone, card, text)["logits"]
    mine = pocketbert.load(phone, file=INT8, threads=1).outputs([text])[0]
    values = given.get("cpuData") or given.get("data")
    assert largest(list(values.values()), mine.ravel()) < 1e-3
