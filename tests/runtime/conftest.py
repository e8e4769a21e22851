"""A small artefact folder, put together by hand."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketbert.core.artefacts import Artefacts, FileRecord, Kind, ModelRecord, Processing, write_artefacts
from pocketbert.core.compare.evaluate import logit_spread
from pocketbert.core.compare.golden import GoldenRow, write_golden
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.predict.predictor import join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import ScoreFunction, TaskName, task_of
from pocketbert.core.types import Format, Scheme, Status
from pocketbert.runtime.onnx import OnnxPredictor
from support.fixtures import cli

LABELS = ["negative", "neutral", "positive"]
MAX_LENGTH = 32
FILES = {"onnx/model.onnx": (Scheme.FP32, 1e-3), "onnx/model_int8.onnx": (Scheme.INT8, 0.25)}
"""Scheme of each file, and its tolerance as a share of the spread of the logits."""


@pytest.fixture(scope="session")
def packed(
    tiny_model: Callable[..., Path], exported: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """An artefact folder with an fp32 and an int8 file; int8 is the default. Copy it before changing it."""
    from pocketbert.quantize import Plan, quantize

    folder, source = tmp_path_factory.mktemp("packed"), tiny_model("bert", 2)
    (folder / "onnx").mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt"):
        shutil.copyfile(source / name, folder / name)
    shutil.copyfile(exported("bert"), folder / "onnx/model.onnx")
    quantize(folder / "onnx/model.onnx", folder / "onnx/model_int8.onnx", Plan(Format.ONNX, Scheme.INT8))
    tokenizer, texts = TextTokenizer(folder, MAX_LENGTH), list(SENTENCES[:6])
    outputs = {}
    for path in FILES:
        rows = run_rows(
            OnnxPredictor(folder / path), tokenizer, tokenizer.encode(texts), task_of("text-classification")
        )
        outputs[path] = join_texts(rows)
    reference = outputs["onnx/model.onnx"]
    tolerance = {path: share * logit_spread(reference) for path, (_, share) in FILES.items()}
    golden = [
        GoldenRow(
            text=text,
            label=LABELS[int(reference[i].argmax())],
            reference=reference[i].tolist(),
            outputs={path: v[i].tolist() for path, v in outputs.items()},
            tolerance=tolerance,
        )
        for i, text in enumerate(texts)
    ]
    write_golden(folder / "golden.jsonl", golden)
    write_artefacts(
        folder,
        Artefacts(
            name="tiny",
            task=TaskName.TEXT_CLASSIFICATION,
            family="bert",
            labels=LABELS,
            processing=Processing(max_length=MAX_LENGTH, score=ScoreFunction.SOFTMAX),
            files=[describe_file(folder, p) for p in sorted(folder.rglob("*")) if p.is_file()],
        ),
    )
    return folder


def describe_file(folder: Path, path: Path) -> FileRecord:
    name = path.relative_to(folder).as_posix()
    facts = {"path": name, "sha256": sha256_file(path), "bytes": path.stat().st_size}
    if name not in FILES:
        return FileRecord(**facts, kind=Kind.DOCUMENT)
    scheme = FILES[name][0]
    return ModelRecord(
        **facts,
        kind=Kind.MODEL,
        format=Format.ONNX,
        scheme=scheme,
        default=scheme is Scheme.INT8,
        status=Status.PASSED,
        signature=OnnxPredictor(path).signature,
    )


@pytest.fixture
def phone(packed: Path, tmp_path: Path) -> Path:
    """A copy of the artefact folder that a test may change."""
    return Path(shutil.copytree(packed, tmp_path / "phone"))
