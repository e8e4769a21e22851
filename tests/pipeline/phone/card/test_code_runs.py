"""The card's Python code for ONNX Runtime, run on folders with prompts, with a cut on the left, and with a reranker's sigmoid."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import pocketbert
from pocketbert.cli.main import app
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.families import family_of
from pocketbert.pipeline.phone.card import CardFacts, render_card
from support.published import PROMPTS, write_cross_encoder, write_sentence_model

LONG = " ".join(["play music", "stop the light", "a good film", "she was happy"] * 20)
CHECKPOINTS: dict[str, Callable[[Path], Path]] = {
    "encoder": lambda f: write_sentence_model(f, PROMPTS, "query"),
    "reranker": write_cross_encoder,
}
TEXTS: dict[str, list[tuple[str, ...]]] = {
    "encoder": [("a good film",), (LONG,)],
    "reranker": [("play music", "stop the light"), (LONG, LONG), ("a good film", LONG)],
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """`exported(kind)`: an artefact folder with the fp32 ONNX file; not to be changed."""

    @cache
    def build(kind: str) -> Path:
        root = tmp_path_factory.mktemp(kind)
        model = str(CHECKPOINTS[kind](root / "model"))
        options = ["-m", model, "-o", str(root / "phone"), "--format", "onnx", "--scheme", "fp32"]
        done = CliRunner().invoke(app, ["export", *options])
        assert done.exit_code == 0, done.output
        return root / "phone"

    return build


@pytest.mark.parametrize("kind", CHECKPOINTS)
@pytest.mark.parametrize("side", ["right", "left"])
def test_it_answers_as_the_toolkit(
    kind: str, side: str, exported: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = Path(shutil.copytree(exported(kind), tmp_path / "phone"))
    listed = json.loads((phone / "artifacts.json").read_text())
    listed["processing"]["truncation_side"] = side
    listed["pair"] = kind == "reranker"  # without data, nothing says that inputs are pairs
    (phone / "artifacts.json").write_text(json.dumps(listed))
    card = render_card(read_artefacts(phone), CardFacts(family_of("bert"), "unknown"))
    [code] = re.findall(r"^Python, with only ONNX Runtime[^\n]*:\n\n```python\n(.*?)\n```", card, re.M | re.S)
    monkeypatch.chdir(phone)
    model = pocketbert.load(phone, file="onnx/model.onnx", threads=1)
    for given in TEXTS[kind]:
        own, text = code, given if len(given) > 1 else given[0]
        for example, one in zip(("your text", "the second text"), given, strict=False):
            assert own.count(json.dumps(example)) == 1
            own = own.replace(json.dumps(example), json.dumps(one))
        names: dict[str, Any] = {}
        exec(own, names)
        assert names["e"].ids == model.tokenizer.encode([text])[0].ids.tolist()
        [wanted] = model.predict([text])
        value = wanted.vector if kind == "encoder" else wanted.value
        np.testing.assert_allclose(np.asarray(names["answer"], np.float64), value, atol=2e-6)
        if kind == "encoder":
            other = names["run"](names["encode"](text, prompt=names["prompts"]["passage"]))["sentence_embedding"][0]
            np.testing.assert_allclose(other, model.predict([text], prompt="passage")[0].vector, atol=2e-6)
