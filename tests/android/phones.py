"""Artefact folders of tiny random models, one for each task, as `pocketbert export` writes them."""

from __future__ import annotations

import json
from pathlib import Path

from clients.conftest import write_model

from pocketbert import ExportOptions, api
from pocketbert.core.compare.sample_texts import ASCII_SENTENCES
from pocketbert.core.tasks import TaskName
from support.clients import LENGTH, answers, plain, texts_of
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer

SHORT = 16
"""A length of TFLite files below the longest, so that two signatures are tested."""

APP_FILE = "onnx/model_int8.onnx"
"""The file that the app opens where nobody has chosen another one."""

TEMPERATURE = 1.5
"""Of the classifier: app, engines and the card's Kotlin code divide its logits by it, or their answers are not those of Python."""


def write_phones(folder: Path) -> None:
    """Write `folder`/TASK for every task: ONNX for all, TFLite and its form for TFLite 2.16 for classification."""
    for task in TaskName:
        source = folder / "models" / task
        source.mkdir(parents=True)
        write_model(task, source, tiny_classifier, write_tokenizer)
        deep = task is TaskName.TEXT_CLASSIFICATION
        options = ExportOptions(
            task=task,
            max_length=LENGTH,
            lengths=[SHORT],
            formats=["onnx", "tflite"] if deep else ["onnx"],
            runtimes=["tflite216"] if deep else [],
            answer={"temperature": TEMPERATURE} if deep else {},
        )
        phone = api.export(str(source), folder / task, options)
        write_answers(phone, "onnx/model.onnx", task, folder / f"{task}.answers.jsonl")
        write_answers(phone, APP_FILE, task, folder / f"{task}.app_answers.jsonl")


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
