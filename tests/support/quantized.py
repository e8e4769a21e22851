"""What the tests of quantized files share: rows of tokens, answers to them, and files of a module in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.families import Family
from pocketbert.core.predict.predictor import Predictor, join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.core.types import Format
from support.defects import NEEDS, format_of

Feed = Mapping[str, NDArray[np.int64]]
CLASSIFY = TASKS[TaskName.TEXT_CLASSIFICATION]
SUFFIX = {Format.ONNX: ".onnx", Format.TFLITE: ".tflite", Format.COREML: ".mlpackage"}


def draw_rows(count: int, seed: int = 0) -> list[Feed]:
    """Unpadded rows of 4 to 30 tokens, with more names than some graphs take."""
    draw = np.random.default_rng(seed)
    ids = [draw.integers(5, 90, (1, draw.integers(4, 31))) for _ in range(count)]
    return [{"input_ids": i, "attention_mask": np.ones_like(i), "token_type_ids": i * 0} for i in ids]


def pad_row(row: Feed, length: int, pad_id: int = 0, left: bool = False) -> Feed:
    """Fill a row with padding."""
    more = length - row["input_ids"].shape[1]
    sides = (more, 0) if left else (0, more)
    return {n: np.pad(v, ((0, 0), sides), constant_values=pad_id * (n == "input_ids")) for n, v in row.items()}


def join_rows(rows: Sequence[Feed], length: int, pad_id: int = 0) -> Feed:
    """All rows as one batch, padded to a length."""
    padded = [pad_row(row, length, pad_id) for row in rows]
    return {name: np.concatenate([row[name] for row in padded]) for name in padded[0]}


def answer_rows(predictor: Predictor, rows: Sequence[Feed], name: str = "logits") -> NDArray[np.float32]:
    """Answers [N, C] to rows that are run one by one."""
    return np.concatenate([np.asarray(predictor.run(row)[name], np.float32) for row in rows])


def answer_sentences(predictor: Predictor, tokenizer: TextTokenizer, count: int | None = None) -> Any:
    """Logits for the sample sentences of at most 40 tokens."""
    encoded = [e for e in tokenizer.encode(list(SENTENCES)[:count]) if len(e) <= 40]
    return join_texts(run_rows(predictor, tokenizer, encoded, CLASSIFY))


def export_file(
    module: Any, family: Family, path: Path, lengths: Sequence[int] = (16, 40), task: Task = CLASSIFY, form: Any = None
) -> Path:
    """Write a prepared module in the format that the path's suffix says; the test skips where it cannot be written."""
    format = format_of(path)
    pytest.importorskip(NEEDS.get(format, "onnx"), reason=f"needs pocketbert[{format}]")
    if format is Format.ONNX:
        from pocketbert.export import onnx

        rows = [r for r in draw_rows(9) if r["input_ids"].shape[1] <= lengths[-1]]
        onnx.export(module, family, task, join_rows(rows[:2], min(32, lengths[-1])), path)
    elif format is Format.TFLITE:
        from pocketbert.export import tflite

        tflite.export(module, family, task, lengths, path)
    else:
        from pocketbert.export import coreml

        info = coreml.CoremlInfo("One sentence.", "v", "a", "l", ("negative", "neutral", "positive"))
        coreml.export(module, family, task, lengths, path, form or coreml.CoremlForm(), info)
    return path
