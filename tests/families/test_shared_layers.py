"""A family whose layers share their weights, as ALBERT's: registered by a program, loaded, captured, exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, TokenizerKind, family_of, register_family
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.export.prepare import prepare
from support.plugins import fresh_tables
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
DEPTH = 4
LABELS = ("negative", "neutral", "positive")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    row = Family(
        name="shared",
        title="shared layers",
        model_types=("albert",),
        classes="Albert",
        tokenizer=TokenizerKind.SENTENCEPIECE,
        inputs=("input_ids", "attention_mask", "token_type_ids"),
        layer_path="albert.encoder.albert_layer_groups",
        stored_layers="num_hidden_groups",
        tiny={
            "hidden_size": 32,
            "embedding_size": 16,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            "pad_token_id": 0,
        },
    )
    with fresh_tables(monkeypatch):
        register_family(row)
        tiny_classifier("shared", DEPTH, LABELS).save_pretrained(tmp_path)
        write_tokenizer(tmp_path)
        yield tmp_path


def test_the_depth_may_be_larger_than_the_weights(folder: Path) -> None:
    model = load_model(open_model_folder(str(folder)), TASK)
    assert (model.config.num_hidden_layers, len(model.albert.encoder.albert_layer_groups)) == (DEPTH, 1)


def test_a_count_of_stored_layers_that_the_weights_do_not_have_is_refused(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_groups": 2}))
    with pytest.raises(InputError, match="says 2 layers, the weights have 1"):
        load_model(open_model_folder(str(folder)), TASK)


@torch.no_grad()
def test_every_run_of_a_layer_is_captured_and_the_graph_gives_the_same_numbers(folder: Path) -> None:
    row, model = family_of("albert"), load_model(open_model_folder(str(folder)), TASK)
    ids = torch.randint(5, 90, (2, 13), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "token_type_ids": torch.zeros_like(ids)}
    inputs["attention_mask"][1, 6:] = 0
    expected = model(**inputs).logits
    torch.testing.assert_close(prepare(model, row, TASK)(*inputs.values())[0], expected, rtol=1e-4, atol=1e-4)
    with record_attention(model, row, range(DEPTH)) as recorder:
        model(**inputs)
    assert sorted(recorder.scores) == list(range(DEPTH))
