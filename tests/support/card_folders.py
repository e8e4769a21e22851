"""Lists of artefact folders for tests of the card: every task, three formats, no files."""

from __future__ import annotations

from typing import Any

from pocketbert.core.artefacts import Artefacts, ModelRecord, Processing, Signature, Tensor
from pocketbert.core.predict.scores import Score
from pocketbert.core.tasks import TASKS, Level, TaskName
from pocketbert.core.types import Client, Format, Scheme

LABELS = {
    TaskName.TEXT_CLASSIFICATION: ["no", "yes"],
    TaskName.MULTI_LABEL: ["a", "b"],
    TaskName.TOKEN_CLASSIFICATION: ["O", "B-x", "I-x"],
}
OWN: dict[TaskName, dict[str, Any]] = {
    TaskName.MULTI_LABEL: {"thresholds": [0.5, 0.37]},
    TaskName.QUESTION_ANSWERING: {
        "stride": 128,
        "answer_length": 30,
        "null_answers": False,
        "pair_order": ["question", "context"],
    },
    TaskName.MULTIPLE_CHOICE: {"pair_order": ["question", "choice"]},
    TaskName.FEATURE_EXTRACTION: {"pooling": "mean", "normalize": True},
}
METRICS = {TaskName.FEATURE_EXTRACTION: "mean_cosine"}


def record(task: TaskName, format: Format, scheme: Scheme, path: str, **more: Any) -> ModelRecord:
    row = TASKS[task]
    one = dict.fromkeys((TaskName.REGRESSION, TaskName.MULTIPLE_CHOICE), 1)
    numbers = {TaskName.FEATURE_EXTRACTION: 32, TaskName.FILL_MASK: 99, **one}.get(task, len(LABELS.get(task, [])))
    middle = ["sequence"] if row.level is Level.TOKEN else []
    shape = [1, "sequence"] if task is TaskName.QUESTION_ANSWERING else [1, *middle, numbers]
    signature = Signature(
        inputs=[Tensor(name=n, dtype="int64", shape=[1, "sequence"]) for n in ("input_ids", "attention_mask")],
        outputs=[Tensor(name=n, dtype="float32", shape=shape) for n in row.outputs],
        lengths=[] if format is Format.ONNX else [16, 32],
    )
    score = Score(metric=METRICS.get(task, row.metric.name), value=0.5, others={}, rows=9, chance=0.1, finite=True)
    return ModelRecord(
        path=path,
        sha256="0" * 64,
        bytes=1000,
        format=format,
        scheme=scheme,
        signature=signature,
        scores={"eval": score},
        **more,
    )


def folder(task: TaskName, **processing: Any) -> Artefacts:
    files = [
        record(task, Format.ONNX, Scheme.FP32, "onnx/model.onnx", default=True),
        record(task, Format.ONNX, Scheme.INT8, "onnx/model_int8.onnx"),
        record(task, Format.TFLITE, Scheme.INT8, "tflite/model_int8.tflite"),
        record(task, Format.COREML, Scheme.FP16, "coreml/Model.mlpackage"),
    ]
    if task in (TaskName.TEXT_CLASSIFICATION, TaskName.FEATURE_EXTRACTION):
        files.append(record(task, Format.TFLITE, Scheme.FP32, "tflite/mediapipe.tflite", client=Client.MEDIAPIPE))
    settings = Processing(max_length=48, score=TASKS[task].score, **{**OWN.get(task, {}), **processing})
    return Artefacts(
        name="tiny",
        task=task,
        family="bert",
        labels=LABELS.get(task, []),
        pair=TASKS[task].pairs_only,
        processing=settings,
        files=files,
    )
