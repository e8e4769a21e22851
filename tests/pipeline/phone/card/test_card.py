"""What the model card says of every task; its code is run by tests/clients/test_card_snippets.py."""

from __future__ import annotations

import re

import pytest

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.families import family_of
from pocketbert.core.predict.scores import Confidence
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.phone.card import CardFacts, render_card
from support.card_folders import METRICS, folder, record
from support.tiny import BASIC

SAYS = {
    TaskName.TEXT_CLASSIFICATION: [
        "2 labels: `no`, `yes`.",
        "Softmax over the logits",
        "classLabel_probs",
        "answer.label",
    ],
    TaskName.MULTI_LABEL: ["2 labels: `a`, `b`.", "`a` 0.5, `b` 0.37", "thresholds = [0.5, 0.37];", "answer.labels"],
    TaskName.REGRESSION: [
        "one number, in the units of the training data",
        "which is always 1",
        "answer.value",
        "logits.data[0]",
        "return logits[0]",
    ],
    TaskName.TOKEN_CLASSIFICATION: [
        "3 tags: `O`, `B-x`, `I-x`.",
        "first token is the word's",
        "code points",
        "answer.spans",
    ],
    TaskName.QUESTION_ANSWERING: [
        "Every question gets an answer.",
        "at most 30 tokens long",
        "share 128 tokens",
        "in the order question, context",
        "`start_logits`, `end_logits`.",
        "answer.text",
        "windows",
    ],
    TaskName.FILL_MASK: ["tokens for the masked places", "answer.places[0]", "model.tokenizer.mask_token"],
    TaskName.FEATURE_EXTRACTION: [
        "one vector of 32 numbers per text",
        "mean of the token states, of length 1",
        'pooling: "mean", normalize: true',
        "SentenceTransformer(",
        "TextEmbedder",
        "answer.vector",
    ],
}


def card(artefacts: Artefacts) -> str:
    return render_card(artefacts, CardFacts(family_of("bert"), "unknown"))


@pytest.mark.parametrize("task", list(TaskName))
def test_the_card_says_what_its_task_needs(task: TaskName) -> None:
    text = card(folder(task))
    for words in SAYS[task]:
        assert words in text, words
    prose = re.sub(r"```.*?```", "", text, flags=re.S)
    assert ("0 labels" in prose, "None" in prose) == (False, False)
    assert ("0.5000 nats" in prose) == (task is TaskName.FILL_MASK)
    metric = METRICS.get(task, TASKS[task].metric.name)
    assert f"| {metric} (eval" in text
    assert ("lower is better" in text) == (task is TaskName.FILL_MASK)
    for others in (t for t in TaskName if t is not task):
        assert not re.search(rf'pipeline\("{others}"', text) or others is TaskName.TEXT_CLASSIFICATION
    for code in re.findall(r"```python\n(.*?)```", text, re.S):
        compile(code, "card", "exec")
    assert len(re.findall(r"^```(?:kotlin|swift|js|python)$", text, re.M)) * 2 == text.count("```")


@pytest.mark.parametrize("task", list(TaskName))
def test_every_output_that_decides_is_named_in_every_language(task: TaskName) -> None:
    text = card(folder(task))
    for language in ("kotlin", "swift"):
        codes = [
            c
            for c in re.findall(rf"```{language}\n(.*?)```", text, re.S)
            if "MLModel" not in c and "mediapipe" not in c
        ]
        assert codes
        for name in TASKS[task].answer:
            assert all(f'"{name}"' in code for code in codes), (language, name)


def test_questions_without_an_answer() -> None:
    text = card(folder(TaskName.QUESTION_ANSWERING, null_answers=True))
    assert "A question has no answer if" in text
    assert 'context[best[1]:best[2]] if best[0] >= min(nulls) else ""' in text
    assert "or with none." in text


def test_pairs_are_shown_as_pairs() -> None:
    text = card(folder(TaskName.TEXT_CLASSIFICATION).model_copy(update={"pair": True}))
    assert '("your text", "the second text")' in text
    assert "its text-classification pipeline takes no pairs" in text
    assert 'text_pair: "the second text"' in text


def test_a_long_list_of_labels_is_cut() -> None:
    names = [f"label {i}" for i in range(70)]
    text = card(folder(TaskName.TEXT_CLASSIFICATION).model_copy(update={"labels": names}))
    assert "70 labels: `label 0`" in text
    assert "`label 59`, and 10 more in `config.json`." in text
    assert "label 60" not in text


def test_a_family_that_the_client_does_not_know_gets_code_all_the_same() -> None:
    text = card(folder(TaskName.TOKEN_CLASSIFICATION).model_copy(update={"family": "mobilebert"}))
    assert "whose list for token-classification has no mobilebert" in text
    assert "onnxruntime-node" in text


def test_a_scheme_that_the_client_has_no_name_for_is_opened_by_its_own() -> None:
    artefacts = folder(TaskName.TEXT_CLASSIFICATION)
    odd = record(TaskName.TEXT_CLASSIFICATION, Format.ONNX, Scheme.W8, "onnx/model_w8.onnx")
    text = card(artefacts.model_copy(update={"files": [odd]}))
    assert '{ dtype: "fp32", model_file_name: "model_w8" }' in text


@pytest.mark.parametrize("task", list(TaskName))
@pytest.mark.parametrize("family", BASIC)
def test_code_that_runs_onnx_runtime_switches_its_reports_off_before(task: TaskName, family: str) -> None:
    text = card(folder(task).model_copy(update={"family": family}))
    first_use = re.compile(
        r"import .*onnxruntime, |SentenceTransformer\(|ort\.InferenceSession|OrtEnvironment\.get|try ORT"
    )
    codes = re.findall(r"```\w+\n(.*?)```", text, re.S)
    using = [(code, use) for code in codes if (use := first_use.search(code))]
    assert len(using) >= 3  # Python, Kotlin, Swift
    for code, use in using:
        assert "ORT_DISABLE_TELEMETRY" in code[: use.start()], code
    assert ("goo.gle/mediapipe-privacy" in text) == ("MediaPipe Tasks, `com.google" in text)


def test_each_file_has_its_temperature_in_text_and_code() -> None:
    artefacts = folder(TaskName.TEXT_CLASSIFICATION)
    plain_card = card(artefacts)
    assert "temperature" not in plain_card
    sure = {"fitted_rows": 1500, "measured_on": "eval", "rows": 9, "error_before": 0.05, "error": 0.01}
    warm = [
        r.model_copy(update={"confidence": Confidence(temperature=1.5 + i / 8, **sure)})
        for i, r in enumerate(artefacts.models())
    ]
    text = card(artefacts.model_copy(update={"files": warm}))
    for one in warm:
        told = f"`{one.path}` {one.temperature:g} (fitted on 1,500 held-out rows; expected calibration error on eval 5.00 points"
        assert told in text
    code = "\n".join(re.findall(r"```\w+\n(.*?)```", text, re.S))
    of = {r.path: f"{r.temperature:g}" for r in warm}
    small = of["onnx/model.onnx"]
    for line in (
        f'logits = run(e)["logits"][0] / {small}   # the temperature of this file',
        f"s.score ** (1 / {small})",
        f"exp((it - largest) / {small}f)",
        f"exp((it - largest) / {of['tflite/model_int8.tflite']}f)",
        f"it.score().pow(1 / {of['tflite/mediapipe.tflite']}f)",
        f"pow($0.doubleValue, 1 / {of['coreml/Model.mlpackage']})",
    ):
        assert line in code, line
    assert "import kotlin.math.pow" in code
    assert "kotlin.math.pow" not in plain_card
    mixed = card(artefacts.model_copy(update={"files": [warm[0], *artefacts.models()[1:]]}))
    assert "The softmax of `onnx/model_int8.onnx`, " in mixed


@pytest.mark.parametrize("temperature", [1.0, 1.5])
def test_the_code_of_every_client_gives_no_label_below_the_threshold(temperature: float) -> None:
    made = folder(TaskName.TEXT_CLASSIFICATION, unknown=0.55)
    files = [r.model_copy(update={"confidence": Confidence(temperature=temperature)}) for r in made.models()]
    text = card(made.model_copy(update={"files": files}))
    assert "below 0.55 (`processing.unknown` of `artifacts.json`) is unknown" in text
    code = [c for c in re.findall(r"```\w+\n(.*?)```", text, re.S) if "pocketbert.load" not in c and "gradle" not in c]
    answering = [c for c in code if "answer" in c]
    assert len(answering) >= 6
    for one in answering:
        assert re.search(r"(>=|<) 0\.55.* below this file's threshold: unknown", one), one
    for code_of in (r"Pair<String\?, Float>", r"label: String\?, ", r"0\.55 \? every : \[\]", r"0\.55 else None"):
        assert re.search(code_of, text), code_of
    plain_card = card(folder(TaskName.TEXT_CLASSIFICATION))
    assert "threshold: unknown" not in plain_card
    assert "String?" not in plain_card


def test_each_file_has_its_threshold_in_text_and_code() -> None:
    made = folder(TaskName.TEXT_CLASSIFICATION, unknown_accuracy=0.95)
    figures = {"measured_on": "eval", "answered": 0.8125, "answered_accuracy": 0.9625}
    files = [
        r.model_copy(update={"confidence": Confidence(unknown=0.5 + i / 64, **figures)})
        for i, r in enumerate(made.models())
    ]
    text = card(made.model_copy(update={"files": files}))
    assert "fitted so that at least 95 % of the others are right" in text
    for one in files:
        least = f"{one.confidence.unknown:g}"
        assert f"`{one.path}` {least} (eval: answers 81.2 %, 96.2 % of them right)" in text
    code = "\n".join(re.findall(r"```\w+\n(.*?)```", text, re.S))
    of = {r.path: f"{r.confidence.unknown:g}" for r in files}
    for line in (
        f"if scores.max() >= {of['onnx/model.onnx']} else None",
        f"every[0].score >= {of['onnx/model.onnx']} ?",
        f"takeIf {{ probability >= {of['tflite/model_int8.tflite']}f }}",
        f"takeIf {{ best.score() >= {of['tflite/mediapipe.tflite']}f }}",
        f"probability < {of['coreml/Model.mlpackage']} ? nil : label",
    ):
        assert line in code, line


def test_pairs_divide_logits_in_javascript() -> None:
    artefacts = folder(TaskName.TEXT_CLASSIFICATION).model_copy(update={"pair": True})
    files = [r.model_copy(update={"confidence": Confidence(temperature=1.5)}) for r in artefacts.models()]
    text = card(artefacts.model_copy(update={"files": files}))
    assert "const divided = logits.data.map(x => x / 1.5);" in text
    assert "softmax(divided)" in text
