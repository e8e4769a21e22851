"""A pruned table: the same answers on rows that are read as before."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.vocabulary import (
    count_pieces,
    prune_config,
    prune_embeddings,
    read_tokenizer_json,
    select_pieces,
    write_pruned_tokenizer,
)
from support.tiny import NAMES, tiny_classifier, write_own_tokenizer

TEXTS = ["set an alarm for half past six", "a film far better than i had expected", "play music"]


@pytest.mark.parametrize(
    "family", ["bert", "distilbert", "mobilebert", "roberta", "albert", "deberta-v2", "xlnet", "xlm"]
)
def test_logits_of_training_rows_do_not_change_at_all(family: str, tmp_path: Path) -> None:
    from pocketbert.core.families import find_family

    told, row = write_own_tokenizer(tmp_path, family), find_family(family)
    model = tiny_classifier(family, 2, NAMES, seed=1, **told)
    model.config.to_json_file(tmp_path / "config.json")
    whole = TextTokenizer(tmp_path, 32, padding_side=row.padding_side)
    rows = whole.encode(TEXTS)
    config = model.config.to_dict()
    kept = select_pieces(read_tokenizer_json(tmp_path), config, count_pieces(rows))
    destination = tmp_path / "pruned"
    destination.mkdir()
    size = row.config_names.get("vocab_size", "vocab_size")
    content = json.loads((tmp_path / "config.json").read_text())
    write_pruned_tokenizer(tmp_path, prune_config(content, kept, size), kept, destination)
    own = TextTokenizer(destination, 32, padding_side=row.padding_side)
    smaller = prune_embeddings(model, row, kept)
    table, before = smaller.get_input_embeddings().weight, model.get_input_embeddings().weight
    assert torch.equal(table, before[list(kept.kept_ids)])
    assert len(table) < len(before)
    made = [answers(m, t, row) for m, t in ((model, whole), (smaller, own))]
    assert torch.equal(*made), "padding included"


def answers(model: Any, tokenizer: TextTokenizer, row: Any) -> torch.Tensor:
    padded = tokenizer.pad(tokenizer.encode(TEXTS))
    with torch.no_grad():
        made: torch.Tensor = model(**{name: torch.from_numpy(padded[name]) for name in row.inputs}).logits
    return made


def test_a_head_that_guesses_words_is_no_table(
    open_tiny: Callable[..., tuple[Any, ModelFolder, TextTokenizer]],
) -> None:
    from pocketbert.distill.vocabulary import PieceSelection

    _, folder, _ = open_tiny("bert")
    model = tiny_classifier("bert", 1, (), auto_class="AutoModelForMaskedLM")
    with pytest.raises(ValueError, match="is the table of word embeddings"):
        prune_embeddings(model, folder.family, PieceSelection((0, 1), 3))
