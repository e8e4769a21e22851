"""The folder in transformers.js on Node, by examples/predict.mjs: PocketBERT's own predictions, and the client's limits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

from pocketbert import api
from pocketbert.core.tasks import TASKS, TaskName
from support.client_environments import ROOT
from support.clients import ODD_TEXTS, TEXTS, answers, largest, own, same_in_javascript, texts_of

EXAMPLE = (ROOT / "examples" / "predict.mjs").read_text(encoding="utf-8")
FP32, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
CLASSIFY, EMBED = TaskName.TEXT_CLASSIFICATION, TaskName.FEATURE_EXTRACTION
Node = Callable[..., str]
Phones = Callable[[str], Path]


def predict(node: Node, phone: Path, task: str, dtype: str, texts: list[Any]) -> list[Any]:
    """What the example prints, one answer per text."""
    if task == TaskName.MULTIPLE_CHOICE:  # one question at a time
        given = [[question, *choices] for question, choices in texts]
    else:
        given = [[part for text in texts for part in ([text] if isinstance(text, str) else text)]]
    lines = [node(EXAMPLE, str(phone), task, "--dtype", dtype, "--", *parts).splitlines() for parts in given]
    return [json.loads(line) for of_call in lines for line in of_call]


@pytest.mark.parametrize(
    ("dtype", "file", "close"),
    # another ONNX Runtime computes there, whose int8 kernels may round otherwise
    [("fp32", FP32, 2e-5), ("int8", INT8, 2e-3)],
)
@pytest.mark.parametrize("task", [t.value for t in TASKS])
def test_the_example_predicts_as_the_toolkit_does(
    task: str, dtype: str, file: str, close: float, phones: Phones, node: Node, measured: Callable[..., None]
) -> None:
    phone, texts = phones(task), texts_of(task, odd=False)
    without_places = (TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING)
    if task not in (*without_places, TaskName.FILL_MASK, TaskName.MULTIPLE_CHOICE):
        texts.append(ODD_TEXTS[0])
    for answer, expected in zip(predict(node, phone, task, dtype, texts), answers(phone, file, texts), strict=True):
        apart = same_in_javascript(task, answer, expected, close)
        # of no label there is no score to compare; without places, the client's scores are of other things
        if apart is not None or task in without_places:
            measured("transformers.js", task, apart, file)


PIPELINE = """
import { env, pipeline } from "@huggingface/transformers";
const [parent, name, task, text, options, settings] = process.argv.slice(2);
env.allowRemoteModels = false; env.localModelPath = parent;
const run = await pipeline(task, name, JSON.parse(settings));
const answer = await run(text, JSON.parse(options));
console.log(JSON.stringify(answer.tolist ? answer.tolist() : answer));
"""


def run_pipeline(node: Node, phone: Path, task: str, text: str, settings: dict[str, str], **options: Any) -> Any:
    """The client's pipeline alone, with the setting that avoids saturation of int8 products, as the card's code has it."""
    session = {"session_options": {"extra": {"session": {"x64quantprecision": "1"}}}}
    arguments = (f"{phone.parent}/", phone.name, task, text, json.dumps(options), json.dumps(settings | session))
    return json.loads(node(PIPELINE, *arguments).splitlines()[-1])


@pytest.mark.parametrize("task", [CLASSIFY, EMBED])
def test_the_folder_packed_for_the_web_answers_as_the_int8_file(
    task: str, phones: Phones, node: Node, tmp_path: Path
) -> None:
    packed = api.pack(phones(task), tmp_path / "web", platform="web")
    options: dict[str, Any] = {"top_k": None} if task == CLASSIFY else {"pooling": "mean", "normalize": True}
    for text in TEXTS[:2]:
        out = run_pipeline(node, packed, task, text, {"dtype": "q8"}, **options)  # a browser's default
        answer = out[0] if task == EMBED else out
        for folder, file in ((phones(task), INT8), (packed, "onnx/model_quantized.onnx")):
            same_in_javascript(task, answer, answers(folder, file, [text])[0], 2e-3)


@pytest.mark.parametrize("scheme", ["small", "a8w8"])
def test_smaller_files_answer_as_the_toolkit_does(scheme: str, smaller_phone: Path, node: Node) -> None:
    settings = {"dtype": "fp32", "model_file_name": f"model_{scheme}"}
    for text in TEXTS[:2]:
        out = run_pipeline(node, smaller_phone, CLASSIFY, text, settings, top_k=None)
        [expected] = answers(smaller_phone, f"onnx/model_{scheme}.onnx", [text])
        same_in_javascript(CLASSIFY, out, expected, 2e-3)


def test_limit_the_pipeline_answers_every_regression_with_1(phones: Phones, node: Node) -> None:
    phone = phones("regression")
    for text in TEXTS[:2]:
        assert run_pipeline(node, phone, CLASSIFY, text, {"dtype": "fp32"}) == [{"label": "LABEL_0", "score": 1}]
    assert "a softmax, which is always 1" in (phone / "README.md").read_text(encoding="utf-8")


def test_limit_embeddings_need_pooling_and_normalize(phones: Phones, node: Node) -> None:
    phone, text = phones(EMBED), TEXTS[0]
    states = np.array(run_pipeline(node, phone, EMBED, text, {"dtype": "fp32"}))
    assert states.ndim == 3  # the states of all tokens, never sentence_embedding
    pooled = states[0].mean(0)
    assert largest(pooled / np.linalg.norm(pooled), own(phone, FP32, [text])[0]) < 2e-5


def test_limit_of_an_overlong_text_the_last_separator_is_lost(phones: Phones, node: Node) -> None:
    phone, text = phones(CLASSIFY), ODD_TEXTS[3]
    [answer], [expected] = predict(node, phone, CLASSIFY, "fp32", [text]), own(phone, FP32, [text])
    seen = {a["label"]: a["score"] for a in answer}
    assert max(abs(seen[n] - expected[n]) for n in expected) > 1e-4


def test_limit_unknown_tokens_are_left_out_of_token_classification(phones: Phones, node: Node) -> None:
    [answer] = predict(node, phones("token-classification"), "token-classification", "fp32", ["a 😀 film"])
    assert [a["word"] for a in answer] == ["a", "film"]


def test_the_example_refuses_in_one_line(phones: Phones, node: Node) -> None:
    for arguments, what in (
        ([str(phones("regression")), CLASSIFY, "x"], "is for regression, not for text-classification"),
        ([str(ROOT / "examples"), "regression", "x"], "is not an artefact folder"),
        ([str(phones("question-answering")), "question-answering", "x"], "Pairs are needed"),
        ([], "at least one text"),
    ):
        with pytest.raises(pytest.fail.Exception, match=what):
            node(EXAMPLE, *arguments)
