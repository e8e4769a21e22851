"""Stages that make files: ONNX with its parity gate, int8 with its type gate, golden rows."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.checkpoints import load_model
from pocketbert.core.errors import GateError
from pocketbert.core.evaluate import yardstick
from pocketbert.core.files import write_json
from pocketbert.core.golden import FILE_NAME, TOKENS_FILE_NAME, GoldenRow, write_golden
from pocketbert.core.model_folder import ModelFolder, open_model_folder
from pocketbert.core.parity import Parity, build_probe, compare, padded_logits
from pocketbert.core.predictor import run_encoded
from pocketbert.core.progress import say
from pocketbert.core.recipe import Recipe
from pocketbert.core.sample_texts import SENTENCES, sample_pairs
from pocketbert.core.tasks import ready_task
from pocketbert.core.tokenization import Text, TextTokenizer
from pocketbert.core.torch_predictor import TorchPredictor
from pocketbert.core.types import Scheme
from pocketbert.runtime.engines import open_file

PARITY_FILE = "parity.json"
GOLDEN_ROWS = 40
FP32_TOLERANCE = 1e-3
INT8_TOLERANCE = 0.25
"""Golden tolerances relative to the spread of the logits: engines and ISAs round dynamic int8 differently."""


@dataclass(frozen=True)
class ModelFile:
    """Where a model file is in the run folder, and where it goes in the artefact folder."""

    source: str
    target: str
    scheme: Scheme


FP32 = ModelFile("onnx/model.onnx", "onnx/model.onnx", Scheme.FP32)
INT8 = ModelFile("onnx-int8/model_int8.onnx", "onnx/model_int8.onnx", Scheme.INT8)


def model_files(recipe: Recipe) -> list[ModelFile]:
    """Files that a recipe makes, the fp32 one first."""
    return [FP32, *([INT8] if recipe.quantize.scheme is Scheme.INT8 else [])]


def make_onnx(
    recipe: Recipe, weights: Path, texts: Sequence[Text], length: int, target: Path,
    name: str = "onnx/model.onnx", ready: Path | None = None,
) -> Sequence[str]:  # fmt: skip
    """Export one ONNX file, or take a ready one, and compare wrapper and file with the untouched model."""
    from pocketbert.export import onnx
    from pocketbert.export.prepare import PreparedPredictor, prepare

    folder = open_model_folder(str(weights))
    task, family = ready_task(recipe.task), folder.family
    model = load_model(folder, task)
    tokenizer = TextTokenizer(weights, length)
    bound = recipe.export.atol or family.parity_atol
    output, side = task.outputs[0], family.padding_side
    reference = TorchPredictor(model, task, family.inputs)
    probe = build_probe(reference, tokenizer, probe_texts(folder, texts), recipe.export.lengths, output, side)
    results, file = [], target / "model.onnx"
    if ready is not None:
        shutil.copyfile(ready, file)
    else:
        module = prepare(model, family, task)
        prepared = PreparedPredictor(module, family, task)
        results.append(compare(prepared, "prepared module", "transformers", probe, output, bound))
        rows = tokenizer.encode(list(SENTENCES[:2]))
        example = tokenizer.pad(rows, max(min(32, length), *map(len, rows)), side)
        onnx.export(module, family, task, example, file, recipe.export.opset)
    results.append(compare(open_file(file), name, "transformers", probe, output, bound))
    write_json(target / PARITY_FILE, [json.loads(r.model_dump_json()) for r in results])
    say(
        f"  parity: {results[-1].worst:.1e} of the logits' spread, bound {bound:.0e}, {len(results[-1].shapes)} shapes"
    )
    return [parity_failure(r) for r in results if not r.passed]


def parity_failure(result: Parity) -> str:
    """One line on a failed comparison."""
    hint = " The mask seems to be ignored." if result.worst > 0.3 * result.mask_effect else ""
    return (
        f"parity of {result.subject}: differs from {result.reference} by {result.worst:.3g} of the logits' spread, "
        f"allowed {result.bound:.0e}.{hint}"
    )


def read_parity(folder: Path) -> list[Parity]:
    """Comparisons that an export stage made."""
    path = folder / PARITY_FILE
    return [Parity.model_validate(p) for p in json.loads(path.read_text())] if path.is_file() else []


def probe_texts(folder: ModelFolder, texts: Sequence[Text]) -> list[Text]:
    """Real texts of every kind: the data's, the project's own, and pairs where segments matter."""
    pairs = list(sample_pairs()[:8]) if folder.family.uses_segments else []
    return [*texts[:16], *SENTENCES, *pairs]


def make_int8(source: Path, target: Path) -> Sequence[str]:
    """Quantize and check the types in the result."""
    from pocketbert.quantize.onnx import quantize_int8

    try:
        types = quantize_int8(source, target / "model_int8.onnx")
    except GateError as error:
        return error.failures
    write_json(target / "types.json", types.model_dump())
    say(f"  {types.int8_matmuls} matrix products and {types.int8_embeddings} tables in int8, "
        f"{types.int8_bytes / 1e6:.1f} MB int8, {types.float_bytes / 1e6:.2f} MB float left")  # fmt: skip
    return ()


def make_golden(
    recipe: Recipe, run: Path, weights: Path, texts: Sequence[Text], length: int, target: Path
) -> Sequence[str]:
    """Write golden rows: what the torch model and every file answer, and the tokenizer's own golden rows."""
    folder = open_model_folder(str(weights))
    task, side = ready_task(recipe.task), folder.family.padding_side
    tokenizer = TextTokenizer(weights, length)
    rows = golden_texts(folder, texts)
    encoded = tokenizer.encode(rows)
    output = task.outputs[0]

    def answers(predictor: Any) -> np.ndarray:
        return np.asarray(run_encoded(predictor, tokenizer, encoded, padding_side=side)[output], np.float32)

    torch_model = TorchPredictor(load_model(folder, task), task, folder.family.inputs)
    reference, padded = answers(torch_model), padded_logits(torch_model, tokenizer, encoded, output, side)
    files = {f.target: (answers(open_file(run / f.source)), f.scheme) for f in model_files(recipe)}
    broken = [p for p, (v, _) in files.items() if not np.isfinite(v).all()]
    if broken:
        return [f"{p}: NaN or infinite logits on golden rows." for p in broken]
    scale = yardstick(reference)
    tolerance = {
        p: (FP32_TOLERANCE if s is Scheme.FP32 else INT8_TOLERANCE) * scale for p, (_, s) in files.items()
    }
    labels = folder.labels or []
    golden = [
        GoldenRow(
            text=text, label=labels[int(reference[i].argmax())], reference=_plain(reference[i]),
            outputs={p: _plain(v[i]) for p, (v, _) in files.items()}, tolerance=tolerance, padded=_plain(padded[i]),
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
    mixed = [*texts[: GOLDEN_ROWS - 12], *own[-12:]] if texts else own
    return mixed + (list(sample_pairs()[:4]) if folder.family.uses_segments else [])


def _plain(row: np.ndarray) -> list[float]:
    return [float(v) for v in row]
