"""The search for texts that reach labels: chosen where there are some, composed where not, the same every time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, Task, TaskName
from pocketbert.pipeline.make import golden as reaching
from pocketbert.pipeline.make.golden import (
    _compute_label_margins,
    _draw_one_token_words,
    _find_label_texts,
    _LabelTexts,
)
from support.tiny_tokenizers import vocabulary

TOKENS = vocabulary(0)
CLASSES, SEVERAL, TAGS = (
    TASKS[n] for n in (TaskName.TEXT_CLASSIFICATION, TaskName.MULTI_LABEL, TaskName.TOKEN_CLASSIFICATION)
)


class Keywords(torch.nn.Module):
    """Each label counts its words; label 0 is the answer to texts without any."""

    def __init__(self, words: Sequence[Sequence[str]], needed: Sequence[float], tokens: bool = False) -> None:
        super().__init__()
        table = torch.zeros(len(TOKENS), len(words))
        for label, own in enumerate(words):
            for word in own:
                table[TOKENS.index(word), label] = 1
        self.table, self.tokens = torch.nn.Embedding.from_pretrained(table), tokens
        self.needed = torch.tensor(needed)

    def get_input_embeddings(self) -> torch.nn.Module:
        return self.table

    def forward(self, input_ids: Any, attention_mask: Any) -> dict[str, Any]:
        counts = self.table(input_ids) * attention_mask[..., None]
        # no word counts twice
        counted = counts if self.tokens else counts.sum(1) - 0.5 * torch.relu(counts.sum(1) - 2)
        return {"logits": counted - self.needed}


def found(
    tokenizer: TextTokenizer, model: torch.nn.Module, task: Task, wanted: Sequence[int], texts: Sequence[str] = ()
) -> _LabelTexts:
    reference = TorchPredictor(model, task, ("input_ids", "attention_mask"))
    return _find_label_texts(reference, tokenizer, wanted, texts)


@pytest.fixture(scope="module")
def tokenizer(tiny_model: Callable[..., Path]) -> TextTokenizer:
    return TextTokenizer(tiny_model("bert", 2), 40)


MODEL = Keywords([(), ("fox",), ("dog", "year"), ("music", "poor", "jumps"), ()], [0.0, 0.5, 1.5, 2.4, 99.0])


def test_texts_are_composed_for_every_label_that_can_be_reached(tokenizer: TextTokenizer) -> None:
    made = found(tokenizer, MODEL, CLASSES, [1, 2, 3, 4])
    assert (made.missing, made.timed_out) == ([4], False)
    assert 1 <= len(made.texts) <= 3
    assert all(isinstance(t, str) for t in made.texts)
    reference = TorchPredictor(MODEL, CLASSES, ("input_ids", "attention_mask"))
    answers = [reference.run(tokenizer.pad(tokenizer.encode([t])))["logits"].argmax() for t in made.texts]
    assert {int(a) for a in answers} == {1, 2, 3}
    assert found(tokenizer, MODEL, CLASSES, [1, 2, 3, 4]) == made, "the same texts every time"


def test_given_texts_come_first(tokenizer: TextTokenizer) -> None:
    texts = ["a day", "the fox", "play music"]
    assert found(tokenizer, MODEL, CLASSES, [1], texts) == _LabelTexts(["the fox"], [], False)


def test_labels_that_may_hold_together_share_a_text(tokenizer: TextTokenizer) -> None:
    model = Keywords([("fox",), ("dog",), ("year",)], [0.5, 0.5, 0.5])
    made = found(tokenizer, model, SEVERAL, [0, 1, 2], ["a fox", "dog and fox"])
    assert made.missing == []
    assert len(made.texts) <= 3


def test_tags_of_tokens(tokenizer: TextTokenizer) -> None:
    model = Keywords([(), ("fox",), ("dog",)], [0.0, 0.5, 0.5], tokens=True)
    made = found(tokenizer, model, TAGS, [1, 2])
    assert made.missing == []


def test_the_gradient_finds_what_single_words_do_not_show(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    # single words are tried from the front of the list; the keywords are behind
    words, ids = _draw_one_token_words(tokenizer, len(TOKENS))
    late = sorted(range(len(words)), key=lambda i: words[i] in ("fox", "dog"))
    monkeypatch.setattr(reaching, "_draw_one_token_words", lambda *_: ([words[i] for i in late], ids[late]))
    monkeypatch.setattr(reaching, "_SINGLE_WORDS", 64)
    made = found(tokenizer, Keywords([(), ("fox", "dog")], [0.0, 1.5]), CLASSES, [1])
    assert made.missing == []
    assert {"fox", "dog"} & set(cast(str, made.texts[0]).split())


def test_a_search_without_budget_or_time_finds_nothing_and_says_which_it_was(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(reaching, "_WORK", 0)
        assert found(tokenizer, MODEL, CLASSES, [1], ["fox"]) == _LabelTexts([], [1], False)
    monkeypatch.setattr(reaching, "_SECONDS", -1.0)
    assert found(tokenizer, MODEL, CLASSES, [1], ["fox"]) == _LabelTexts([], [1], True)


def test_no_more_labels_than_rows_may_be_added(tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaching, "_MOST_LABELS", 1)
    made = found(tokenizer, MODEL, CLASSES, [1, 2])
    assert len(made.texts) == 1
    assert made.missing == [2]


def test_words_are_one_token_inside_a_text(tokenizer: TextTokenizer) -> None:
    words, ids = _draw_one_token_words(tokenizer, len(TOKENS))
    assert {"fox", "dog", "music"} <= set(words)
    assert not any(w.startswith("##") or w.startswith("[") for w in words)
    for word, id in zip(words, ids, strict=True):
        assert tokenizer.encode([f"the {word}"])[0].ids[2:-1].tolist() == [id]


def test_margins() -> None:
    assert _compute_label_margins(np.array([[3, 1, 2.5]], np.float32), CLASSES).tolist() == [0.5, -2, -0.5]
    assert _compute_label_margins(np.array([[3, -1]], np.float32), SEVERAL).tolist() == [3, -1]
    assert _compute_label_margins(np.array([[3, 1], [0, 4]], np.float32), TAGS).tolist() == [2, 4]
    assert _compute_label_margins(np.array([[-2]], np.float32), CLASSES).tolist() == [-2]
