"""The stage that records golden rows: what the torch model and every file answer, and the tokenizer's own rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.checkpoints import load_model
from pocketbert.core.evaluate import yardstick
from pocketbert.core.golden import FILE_NAME, TOKENS_FILE_NAME, GoldenRow, write_golden
from pocketbert.core.model_folder import ModelFolder, open_model_folder
from pocketbert.core.parity import padded_logits
from pocketbert.core.predictor import Predictor, run_encoded
from pocketbert.core.recipe import Recipe
from pocketbert.core.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.scored import PROBABILITIES, ScoredPredictor
from pocketbert.core.tasks import ready_task
from pocketbert.core.tokenization import Text, TextTokenizer
from pocketbert.core.torch_predictor import TorchPredictor
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.model_files import ModelFile
from pocketbert.runtime.engines import open_file

ROWS = 40
_EXACT = 1e-3
"""Of files that compute in fp32, whatever they store; relative to the spread of the logits."""
_TOLERANCE = {(Format.ONNX, Scheme.INT8): 0.25, (Format.TFLITE, Scheme.INT8): 0.05, (Format.COREML, Scheme.FP16): 0.1,
              (Format.COREML, Scheme.W8): 0.1}  # fmt: skip
"""Of the others. ONNX Runtime's int8 kernels saturate on some ISAs and not on others; XNNPACK's
agree (8e-3 between x86 and arm64), and the wrong answers of an old TFLite to the default form were mostly 0.3 and more
away. Core ML's fp16 is emulated here; a device adds up in another order, some in fp16."""
_RUNTIME_TOLERANCE = 0.25
"""Of files for older runtimes. Their kernels are exact to 0.02 on trained models (SST-2, 872 rows), but an activation that
one kernel rounds up and the other one down moves the logits: 0.14 was seen on a random model of 4 layers."""


def tolerance(file: ModelFile) -> float:
    """How far a right engine may be from the recorded answers of a file, relative to their spread."""
    if file.runtime is not None:
        return _RUNTIME_TOLERANCE
    return _TOLERANCE.get((file.format, file.scheme), _EXACT)


def make_golden(
    recipe: Recipe, run: Path, weights: Path, texts: Sequence[Text], length: int, target: Path, files: Sequence[ModelFile]
) -> Sequence[str]:  # fmt: skip
    """Write golden rows.

    A text that is longer than a file takes (MediaPipe's has one length) gets no row for that file.

    Returns:
        One line for each file that answers NaN or infinity.
    """
    folder = open_model_folder(str(weights))
    task, side = ready_task(recipe.task), folder.family.padding_side
    tokenizer = TextTokenizer(weights, length)
    rows = golden_texts(folder, texts)
    encoded = tokenizer.encode(rows)
    torch_model = TorchPredictor(load_model(folder, task), task, folder.family.inputs)

    def answers(predictor: Predictor, numbers: Sequence[int]) -> NDArray[np.float32]:
        chosen = [encoded[i] for i in numbers]
        out = run_encoded(predictor, tokenizer, chosen, padding_side=side)
        return np.asarray(out[predictor.outputs[0]], np.float32)

    every = range(len(rows))
    reference = answers(torch_model, every)
    padded = padded_logits(torch_model, tokenizer, encoded, task.outputs[0], side)
    found: dict[str, dict[int, NDArray[np.float32]]] = {}
    allowed: dict[str, float] = {}
    for file in files:
        predictor = open_file(run / file.source, file.format)
        longest = max(predictor.lengths, default=length)
        numbers = [i for i in every if len(encoded[i]) <= longest]
        values = answers(predictor, numbers)
        if not np.isfinite(values).all():
            return [f"{file.target}: NaN or infinite logits on golden rows."]
        like = ScoredPredictor(torch_model, task.score) if PROBABILITIES in predictor.outputs else torch_model
        allowed[file.target] = tolerance(file) * yardstick(answers(like, every))
        found[file.target] = dict(zip(numbers, values, strict=True))
    labels = folder.labels or []
    golden = [
        GoldenRow(
            text=text, label=labels[int(reference[i].argmax())], reference=_plain(reference[i]), padded=_plain(padded[i]),
            outputs={p: _plain(v[i]) for p, v in found.items() if i in v},
            tolerance={p: allowed[p] for p, v in found.items() if i in v},
        )
        for i, text in enumerate(rows)
    ]  # fmt: skip
    write_golden(target / FILE_NAME, golden)
    token_rows = [json.dumps(tokenizer.golden(t), ensure_ascii=False) for t in rows]
    (target / TOKENS_FILE_NAME).write_text("\n".join(token_rows) + "\n", encoding="utf-8")
    return ()


def golden_texts(folder: ModelFolder, texts: Sequence[Text]) -> list[Text]:
    """Rows from the data where there is any, filled up with the project's own, and four pairs."""
    own: list[Text] = [*SENTENCES]
    mixed = [*texts[: ROWS - 12], *own[-12:]] if texts else own
    return mixed + (list(sample_pairs()[:4]) if folder.family.uses_segments else [])


def _plain(row: NDArray[np.float32]) -> list[float]:
    return [float(v) for v in row]
