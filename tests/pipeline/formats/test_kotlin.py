"""The Kotlin code of a folder: prompts, the end at which texts are cut, the score of a reranker. Maven compiles and runs it."""

from __future__ import annotations

from typing import Any

import pytest

from pocketbert.core.artefacts import Artefacts, Processing
from pocketbert.core.tasks import TaskName
from pocketbert.pipeline.formats.snippets import kotlin
from pocketbert.pipeline.formats.snippets.parts import quote_for_java, quote_for_kotlin
from support.card_folders import folder

PROMPTS = {"query": "query: ", "a $b": 'say "$x"\\n\n'}
CODES = {
    "onnx/model.onnx": kotlin.onnx,
    "tflite/model_int8.tflite": kotlin.litert,
    "tflite/mediapipe.tflite": kotlin.mediapipe,
}


def codes(artefacts: Artefacts) -> list[str]:
    """The code for each file of a folder, in the order of `CODES`."""
    records = {record.path: record for record in artefacts.models()}
    return [write(artefacts, records[path]) for path, write in CODES.items() if path in records]


@pytest.mark.parametrize(
    ("task", "settings", "pair", "lines"),
    [
        (
            "feature-extraction",
            {"prompts": PROMPTS, "default_prompt": "query"},
            False,
            ['answer(text: String, prompt: String = "query: "): FloatArray', "(prompt + text", '"query" to "query: ",'],
        ),
        (
            "feature-extraction",
            {"prompts": PROMPTS},
            False,
            ['answer(text: String, prompt: String = "")', r'"a \$b" to "say \"\$x\"\\n\n",'],
        ),
        (
            "text-classification",
            {"prompts": PROMPTS, "default_prompt": "a $b"},
            False,
            [r'answer(text: String, prompt: String = "say \"\$x\"\\n\n"): Pair<String, Float>', "(prompt + text"],
        ),
        (
            "regression",
            {"prompts": PROMPTS, "default_prompt": "query", "score": "sigmoid"},
            True,
            [
                'answer(first: String, second: String, prompt: String = "query: "): Float',
                "(prompt + first, second, Limits.of(",
                "return 1 / (1 + exp(-",
                "import kotlin.math.exp",
            ],
        ),
        ("regression", {"truncation_side": "left"}, False, ["tokenizer.encode(text, Limits.keepingEnd("]),
    ],
)
def test_the_code_has(task: str, settings: dict[str, Any], pair: bool, lines: list[str]) -> None:
    artefacts = folder(TaskName(task))
    processing = Processing.model_validate(artefacts.processing.model_dump() | settings)
    for code in codes(artefacts.model_copy(update={"pair": pair, "processing": processing})):
        assert [line for line in lines if line not in code] == [], code


@pytest.mark.parametrize(
    ("text", "java", "kotlin"),
    [
        ("query: ", '"query: "', '"query: "'),
        ('say "a"', r'"say \"a\""', r'"say \"a\""'),
        ("$x ${y}", '"$x ${y}"', r'"\$x \${y}"'),
        ("C:\\files\\u0041", r'"C:\\files\\u0041"', r'"C:\\files\\u0041"'),
        ("a\nb\r\t\f\x7f", r'"a\nb\r\t\u000c\u007f"', r'"a\nb\r\t\u000c\u007f"'),
        ("é\u2028🙂", r'"\u00e9\u2028\ud83d\ude42"', r'"\u00e9\u2028\ud83d\ude42"'),
    ],
)
def test_texts_are_written_as_literals(text: str, java: str, kotlin: str) -> None:
    assert quote_for_java(text) == java
    assert quote_for_kotlin(text) == kotlin
