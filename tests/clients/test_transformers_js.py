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

import pocketbert
from pocketbert import api
from pocketbert.core.tasks import TaskName
from support.clients import ODD_TEXTS, TEXTS, answers, largest, own, same_in_javascript, texts_of

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "predict.mjs"
ALL = [t.value for t in TaskName]
DTYPES = {"fp32": ("onnx/model.onnx", 2e-5), "int8": ("onnx/model_int8.onnx", 2e-3)}
"""dtype: the file, and how close; another ONNX Runtime computes there, whose int8 kernels may round otherwise."""
NO_NUMBERS = (TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING)
"""Tasks whose answers are compared as texts: without places, the client's scores are of other things."""


def predict(node: Callable[..., str], phone: Path, task: str, dtype: str, texts: list[Any]) -> list[Any]:
    """What the example prints, one answer per text."""
    given = [part for text in texts for part in ([text] if isinstance(text, str) else text)]
    out = node(EXAMPLE.read_text(encoding="utf-8"), str(phone), task, "--dtype", dtype, "--", *given)
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("task", ALL)
def test_the_example_predicts_as_the_toolkit_does(
    task: str,
    dtype: str,
    phones: Callable[[str], Path],
    node: Callable[..., str],
    measured: Callable[..., None],
) -> None:
    file, close = DTYPES[dtype]
    phone, texts = phones(task), texts_of(task, odd=False)
    if task != TaskName.QUESTION_ANSWERING:
        texts += [t for t in ODD_TEXTS[:1] if task not in (TaskName.TOKEN_CLASSIFICATION, TaskName.FILL_MASK)]
    for answer, expected in zip(predict(node, phone, task, dtype, texts), answers(phone, file, texts), strict=True):
        apart = same_in_javascript(task, answer, expected, close)
        if apart is not None or task in NO_NUMBERS:  # of no label there is no score to compare
            measured("transformers.js", task, apart, file)


PIPELINE = """
import { env, pipeline } from "@huggingface/transformers";
const [parent, name, task, text, options] = process.argv.slice(2);
env.allowRemoteModels = false; env.localModelPath = parent;
const run = await pipeline(task, name, { dtype: "fp32" });
const answer = await run(text, JSON.parse(options));
console.log(JSON.stringify(answer.tolist ? answer.tolist() : answer));
"""


def pipeline(node: Callable[..., str], phone: Path, task: str, text: str, **options: Any) -> Any:
    """The client's pipeline alone."""
    out = node(PIPELINE, f"{phone.parent}/", phone.name, task, text, json.dumps(options))
    return json.loads(out.splitlines()[-1])


@pytest.mark.parametrize("task", ["text-classification", "feature-extraction"])
def test_the_folder_packed_for_the_web_answers_as_the_int8_file(
    task: str, phones: Callable[[str], Path], node: Callable[..., str], tmp_path: Path
) -> None:
    packed = api.pack(phones(task), tmp_path / "web", platform="web")
    options = {"top_k": None} if task == TaskName.TEXT_CLASSIFICATION else {"pooling": "mean", "normalize": True}
    code = PIPELINE.replace('dtype: "fp32"', 'dtype: "q8"')  # what a browser asks for by default
    for text in TEXTS[:2]:
        out = json.loads(node(code, f"{tmp_path}/", "web", task, text, json.dumps(options)).splitlines()[-1])
        answer = out[0] if task == TaskName.FEATURE_EXTRACTION else out
        for folder, file in ((phones(task), "onnx/model_int8.onnx"), (packed, "onnx/model_quantized.onnx")):
            same_in_javascript(task, answer, answers(folder, file, [text])[0], 2e-3)


@pytest.mark.parametrize("scheme", ["small", "a8w8"])
def test_smaller_files_answer_as_the_toolkit_does(scheme: str, smaller_phone: Path, node: Callable[..., str]) -> None:
    code = PIPELINE.replace('dtype: "fp32"', f'dtype: "fp32", model_file_name: "model_{scheme}"')
    for text in TEXTS[:2]:
        asked = f"{smaller_phone.parent}/", smaller_phone.name, "text-classification", text, '{"top_k": null}'
        out = json.loads(node(code, *asked).splitlines()[-1])
        same_in_javascript(
            "text-classification", out, answers(smaller_phone, f"onnx/model_{scheme}.onnx", [text])[0], 2e-3
        )


def test_limit_the_pipeline_answers_every_regression_with_1(
    phones: Callable[[str], Path], node: Callable[..., str]
) -> None:
    answers = [pipeline(node, phones("regression"), "text-classification", text) for text in TEXTS[:2]]
    assert answers == [[{"label": "LABEL_0", "score": 1}]] * 2
    assert "a softmax, which is always 1" in (phones("regression") / "README.md").read_text(encoding="utf-8")


def test_limit_embeddings_need_pooling_and_normalize(phones: Callable[[str], Path], node: Callable[..., str]) -> None:
    phone, text = phones("feature-extraction"), TEXTS[0]
    states = np.array(pipeline(node, phone, "feature-extraction", text))
    vector = pocketbert.load(phone, file="onnx/model.onnx", threads=1).predict([text])[0].vector
    assert states.ndim == 3  # the states of all tokens, never sentence_embedding
    pooled = states[0].mean(0)
    assert largest(pooled / np.linalg.norm(pooled), vector) < 2e-5


def test_limit_of_an_overlong_text_the_last_separator_is_lost(
    phones: Callable[[str], Path], node: Callable[..., str]
) -> None:
    phone, text = phones("text-classification"), ODD_TEXTS[3]
    [answer] = predict(node, phone, "text-classification", "fp32", [text])
    [expected] = own(phone, "onnx/model.onnx", [text])
    seen = {a["label"]: a["score"] for a in answer}
    assert max(abs(seen[n] - expected[n]) for n in expected) > 1e-4


def test_limit_unknown_tokens_are_left_out_of_token_classification(
    phones: Callable[[str], Path], node: Callable[..., str]
) -> None:
    [answer] = predict(node, phones("token-classification"), "token-classification", "fp32", ["a 😀 film"])
    assert [a["word"] for a in answer] == ["a", "film"]


def test_the_example_refuses_in_one_line(phones: Callable[[str], Path], node: Callable[..., str]) -> None:
    for arguments, what in (
        (
            [str(phones("regression")), "text-classification", "x"],
            "is for regression, not for text-classification",
        ),
        ([str(EXAMPLE.parent), "regression", "x"], "is not an artefact folder"),
        ([str(phones("question-answering")), "question-answering", "x"], "Pairs are needed"),
        ([], "at least one text"),
    ):
        with pytest.raises(pytest.fail.Exception, match=what):
            node(EXAMPLE.read_text(encoding="utf-8"), *arguments)
