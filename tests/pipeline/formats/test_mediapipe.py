"""What the model card states of MediaPipe's tokenizer is measured with inputs that the model and MediaPipe really make."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pocketbert.core.compare.sample_texts import UNICODE_SENTENCES
from pocketbert.core.families import family_of, register_family, table
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.tasks import task_of
from pocketbert.pipeline.formats import tflite as mediapipe

LENGTH = 48
TASK = task_of("text-classification")


class Engine:
    """Remembers the attention masks it was given."""

    engine, engine_version = "fake", "1"
    inputs, outputs, lengths = ("input_ids", "attention_mask", "token_type_ids"), ("logits",), (LENGTH,)

    def __init__(self) -> None:
        self.masks: list[NDArray[np.generic]] = []

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        self.masks += list(inputs["attention_mask"])
        return {"logits": np.zeros((len(inputs["input_ids"]), 2), np.float32)}


@pytest.mark.parametrize("side", ["right", "left"])
def test_the_model_pads_where_its_family_does_and_mediapipe_on_the_right(
    side: str, tmp_path: Path, make_tokenizer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "_FAMILIES", dict(table._FAMILIES))
    register_family(replace(family_of("bert"), name="mine", model_types=("my-bert",), padding_side=side))
    make_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "my-bert"}))
    engine = Engine()
    monkeypatch.setattr(mediapipe, "open_file", lambda *_: engine)
    effect = mediapipe.measure_tokenizer_effect(tmp_path / "mediapipe.tflite", tmp_path, TASK)
    assert effect.sentences == len(UNICODE_SENTENCES) == len(engine.masks) / 2
    own, theirs = np.stack(engine.masks[: effect.sentences]), np.stack(engine.masks[effect.sentences :])
    assert (own.sum(1) < LENGTH).any()
    assert own[:, 0 if side == "right" else -1].all()
    assert theirs[:, 0].all()


def test_both_tokenizers_get_the_default_prompt(
    tmp_path: Path, make_tokenizer: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tokenizer(tmp_path)
    monkeypatch.setattr(mediapipe, "open_file", lambda *_: Engine())
    plain = mediapipe.measure_tokenizer_effect(tmp_path / "mediapipe.tflite", tmp_path, TASK)
    settings = {"prompts": {"query": "query: "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(settings))
    assert mediapipe.measure_tokenizer_effect(tmp_path / "mediapipe.tflite", tmp_path, TASK) == plain
