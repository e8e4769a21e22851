"""Artefact folders of tiny random models, one for each task and one with two heads, as `pocketbert export` writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pocketbert
from pocketbert import ExportOptions, api
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import GOLDEN_FILE, read_golden
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES
from pocketbert.core.predict.answers import Prediction
from pocketbert.core.predict.scores import Confidence
from pocketbert.core.tasks import ScoreFunction, TaskName
from pocketbert.pipeline.formats.snippets import kotlin
from support.clients import CLIENT_TASKS, LENGTH, answers, plain, texts_of, write_model

SHORT = 16
"""A length of TFLite files below the longest, so that two signatures are tested."""
APP_FILE = "onnx/model_int8.onnx"
"""The file that the app opens where nobody has chosen another one."""
TEMPERATURE = 1.5
"""Of the classifier: app, engines and the card's Kotlin code divide its logits by it, or their answers are not those of Python."""
OTHER_CODE: dict[TaskName, dict[str, Any]] = {
    TaskName.FEATURE_EXTRACTION: {
        "prompts": {"query": "query: ", 'an "odd"\n\\name$': '"$x" ${y} \\u0041 \\n\n\r\t\f\x7f é 🙂 '},
        "default_prompt": "query",
    },
    TaskName.REGRESSION: {"score": ScoreFunction.SIGMOID, "truncation_side": "left"},
}
"""Tasks whose folder is processed in another way in further code of the card."""


def write_phones(folder: Path) -> None:
    """Write `folder`/TASK for every task: ONNX for all, TFLite for two heads, and for classification with its form for TFLite 2.16."""
    for task in CLIENT_TASKS:
        source = folder / "models" / task
        source.mkdir(parents=True)
        write_model(task, source)
        deep = task is TaskName.TEXT_CLASSIFICATION
        options = ExportOptions(
            task=task,
            max_length=LENGTH,
            lengths=[SHORT],
            formats=["onnx", "tflite"] if deep or task is TaskName.SEVERAL else ["onnx"],
            runtimes=["tflite216"] if deep else [],
            answer={"temperature": TEMPERATURE} if deep else {},
        )
        phone = api.export(str(source), folder / task, options)
        write_answers(phone, "onnx/model.onnx", task, folder / f"{task}.answers.jsonl")
        write_answers(phone, APP_FILE, task, folder / f"{task}.app_answers.jsonl")
        if deep:
            write_threshold_code(phone, folder / f"{task}.unknown.md")
        if settings := OTHER_CODE.get(task):
            write_other_code(phone, settings, folder / f"{task}.other.json")


def write_other_code(phone: Path, settings: dict[str, Any], destination: Path) -> None:
    """Write the settings of a folder that is processed in another way, and the card's Kotlin code for it."""
    artefacts = read_artefacts(phone)
    processing = artefacts.processing.model_copy(update=settings)
    record = next(r for r in artefacts.models() if r.path == "onnx/model.onnx")
    code = kotlin.onnx(artefacts.model_copy(update={"processing": processing}), record)
    destination.write_text(json.dumps({**settings, "code": code}), encoding="utf-8")


def write_threshold_code(phone: Path, destination: Path) -> None:
    """Write the card's Kotlin code for a file with a threshold, which the middle one of the golden rows has."""
    artefacts = read_artefacts(phone)
    record = next(r for r in artefacts.models() if r.path == "onnx/model_int8.onnx")
    texts = [row.text for row in read_golden(phone / GOLDEN_FILE) if isinstance(row.text, str)]
    answered = pocketbert.load(phone, file=record.path).predict(texts)
    sure = sorted(a.score for a in answered if isinstance(a, Prediction))
    least = round(sure[len(sure) // 2] - 1e-3, 4)
    confidence = Confidence(temperature=record.temperature, unknown=least)
    code = kotlin.onnx(artefacts, record.model_copy(update={"confidence": confidence}))
    destination.write_text(f"{least}\n{code}\n", encoding="utf-8")


def write_assets(folder: Path) -> None:
    """Pack the classifier as the app under test carries it."""
    api.pack(folder.parent / "phones" / TaskName.TEXT_CLASSIFICATION, folder, platform="android")


def write_answers(phone: Path, file: str, task: TaskName, destination: Path) -> None:
    """Write what the toolkit answers with `file`: one object per text, `text` and `answer`."""
    more = ASCII_SENTENCES if task is TaskName.TEXT_CLASSIFICATION else ()
    texts = [*texts_of(task), *more]
    with destination.open("w", encoding="utf-8") as out:
        for text, answer in zip(texts, answers(phone, file, texts), strict=True):
            out.write(json.dumps({"text": text, "answer": plain(answer)}, ensure_ascii=False) + "\n")
