"""Words that a masked-language model expects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.core.families import TokenizerKind, family_of
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill import augment as augment_masked
from pocketbert.distill.augment import MaskedWords
from pocketbert.distill.word_vectors import WordReader

TEXTS = ["good music, never foxes again", "happy", "the quick brown fox jumps over the lazy dog", "foxes"]
HEADS = {
    "bert": "cls.predictions.decoder",
    "distilbert": "vocab_projector",
    "roberta": "lm_head.decoder",
    "mobilebert": "cls.predictions.decoder",
}


@pytest.fixture
def asked(
    tiny_model: Callable[..., Path], make_classifier: Callable[..., Any]
) -> Callable[..., tuple[Any, MaskedWords, WordReader]]:
    """`asked(family, count, positions)`: model, what asks it, its tokenizer."""

    def build(family: str = "bert", count: int = 4, positions: int = 64) -> tuple[Any, MaskedWords, WordReader]:
        folder = tiny_model(family)
        model = make_classifier(family, 2, ("a", "b"), auto_class="AutoModelForMaskedLM")
        reader = WordReader(folder, TokenizerKind.WORDPIECE)
        mask = TextTokenizer(folder, 48).mask_id
        assert mask is not None
        return model, MaskedWords(model, family_of(family), reader, mask, positions, count), reader

    return build


@pytest.mark.parametrize("family", list(HEADS))
def test_a_planted_preference_of_the_head_comes_out(asked: Any, family: str) -> None:
    model, masked, reader = asked(family, 1)
    wanted = next(i for i, w in reader.vocabulary().items() if w == "weather")
    with torch.no_grad():
        bias = model.get_submodule(HEADS[family]).bias
        bias.zero_()
        bias[wanted] = 1e6
        bias[reader.pieces(["a"])[0][0]] = 1e7  # a letter: more probable, and no candidate
    read = reader.read(TEXTS)
    found = masked.candidates(read)
    assert [len(f) for f in found] == [sum(w.token is not None for w in t.words) for t in read]
    assert found[0] == [("weather",)] * 2
    assert found[3] == []
    (own,) = masked.candidates(reader.read(["weather"]))
    assert own[0] != ("weather",)
    assert len(own[0]) == 1


def test_the_model_reads_the_hidden_word_and_then_the_text_as_it_is(
    asked: Any, tiny_model: Callable[..., Path]
) -> None:
    model, masked, reader = asked(count=6)
    (read,) = reader.read(["good music today"])
    (found,) = masked.candidates([read])
    before, after = reader.base.before.tolist(), reader.base.after.tolist()
    plain = read.ids.tolist()
    place = read.words[1].token
    assert read.words[1].text == "music"
    mask = TextTokenizer(tiny_model("bert"), 48).mask_id
    hidden = [mask if i == place else t for i, t in enumerate(plain)]
    ids = [*before, *hidden, *after, *plain, *after]
    types = [0] * (len(before) + len(hidden) + len(after)) + [1] * (len(plain) + len(after))
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([types])).logits[0, 1 + place]
    entries = reader.vocabulary()
    best = sorted((i for i in entries if entries[i] != "music"), key=lambda i: -logits[i])[:6]
    assert found[1] == tuple(entries[i] for i in sorted(best))


def test_candidates_do_not_depend_on_what_is_asked_together(asked: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, masked, reader = asked()
    read = reader.read(TEXTS)
    together = masked.candidates(read)
    assert together == [masked.candidates([r])[0] for r in read]
    monkeypatch.setattr(augment_masked, "_TOKENS_AT_ONCE", 1)
    assert masked.candidates(read) == together


def test_long_texts_are_read_around_the_word(asked: Any) -> None:
    model, masked, reader = asked(positions=24)
    widths = []
    model.register_forward_pre_hook(
        lambda _, args, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    (read,) = reader.read([" ".join(["good music night fox"] * 30)])
    (found,) = masked.candidates([read])
    assert len(found) == len(read.words)
    assert all(found)
    assert max(widths) <= 24
