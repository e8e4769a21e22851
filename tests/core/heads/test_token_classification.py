"""Tags of words: targets at first tokens, spans of characters, and their scores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.heads import make_head
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.heads.token_classification import find_words
from pocketbert.core.predict.spans import Span
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of
from support.head_rows import check_not_finite_spoils, make_rows, score_outputs

TASK = task_of("token-classification")
TAGS = ("O", "B-per", "I-per", "B-loc", "I-loc")
HEAD = make_head(TASK, Labels(TAGS))
TEXT = "Zoe met Bob, in New Yorkville."
"""zo ##e is no word of the vocabulary: names are spelt with several tokens."""
SPANS = (Span(0, 3, "per"), Span(8, 11, "per"), Span(16, 29, "loc"))
WORDS = ["Zoe", "met", "Bob", ",", "in", "New", "Yorkville", "."]
WANTED = [["B-per", "O", "B-per", "O", "O", "B-loc", "I-loc", "O"], ["O", "O"], ["B-per"]]


def outputs(
    prepared: Any, tags: list[list[str]] | None = None, head: Any = HEAD, size: float = 5.0
) -> list[np.ndarray]:
    """Logits that give each word its tag at its first token; the gold ones where none are given. Others are noise."""
    draw, out = np.random.default_rng(0), []
    for i, encoded in enumerate(prepared.encoded):
        matrix = draw.normal(size=(len(encoded), len(head.labels))).astype(np.float32)
        for word, token in enumerate(find_words(encoded)[0]):
            id = prepared.targets["labels"][i][token] if tags is None else head.labels.names.index(tags[i][word])
            matrix[token, id] += size + matrix[token].max() - matrix[token].min()
        out.append(matrix)
    return out


@pytest.fixture
def prepared(tokenizer: TextTokenizer) -> Any:
    return HEAD.prepare(make_rows((TEXT, SPANS), ("good day", ()), ("bob", (Span(0, 3, "per"),))), tokenizer, "a.jsonl")


def test_the_first_token_of_each_word_has_its_tag_and_no_other_token(prepared: Any, tokenizer: TextTokenizer) -> None:
    first, places = find_words(prepared.encoded[0])
    assert [TEXT[a:b] for a, b in places] == WORDS
    assert len(prepared.encoded[0]) > len(WORDS) + 2, "some words have several tokens"
    for encoded, target, tags in zip(prepared.encoded, prepared.targets["labels"], WANTED, strict=True):
        first = find_words(encoded)[0]
        assert [TAGS[target[i]] for i in first] == tags
        assert set(np.delete(target, first).tolist()) == {IGNORED_LABEL}
        assert len(target) == len(encoded)
    with pytest.raises(ValueError, match="places"):
        find_words(tokenizer.encode([TEXT])[0])


def write_blank_tokenizer(folder: Path, kind: str) -> TextTokenizer:
    """Return a tokenizer whose tokens hold the blank in front of them, as DeBERTa's (Metaspace) and ModernBERT's (bytes) do."""
    blank = {"metaspace": "▁", "bytes": "Ġ"}[kind]
    words = [f"{blank}{word}" for word in ("Zoe", "lives", "in", "New", "York")]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, "Zoe"]
    made = Tokenizer(models.WordLevel({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    splitters = {"metaspace": pre_tokenizers.Metaspace(), "bytes": pre_tokenizers.ByteLevel(add_prefix_space=False)}
    made.pre_tokenizer = splitters[kind]
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text('{"model_type": "deberta-v2", "pad_token_id": 0}')
    return TextTokenizer(folder, 16)


@pytest.mark.parametrize("kind", ["metaspace", "bytes"])
def test_the_blank_before_a_word_is_no_part_of_it(kind: str, tmp_path: Path) -> None:
    tokenizer, text = write_blank_tokenizer(tmp_path, kind), "Zoe lives in New York"
    spans = (Span(0, 3, "per"), Span(13, 21, "loc"))
    [raw] = [tokenizer.golden(text)["offsets"]]
    assert [12, 16] in raw, "the tokenizer counts the blank to the word"
    prepared = HEAD.prepare(make_rows((text, spans)), tokenizer, "a.jsonl")
    first = find_words(prepared.encoded[0])[0]
    assert [TAGS[prepared.targets["labels"][0][i]] for i in first] == ["B-per", "O", "O", "B-loc", "I-loc"]
    right = outputs(prepared)
    assert score_outputs(HEAD, prepared, right).value == 1
    [answer] = HEAD.answers(right, prepared)
    assert [(s.start, s.end, s.text) for s in answer.spans] == [(0, 3, "Zoe"), (13, 21, "New York")]
    [window] = tokenizer.windows([("Zoe", text)], 4)[0]
    assert [
        text[a:b] for (a, b), part in zip(window.places.offsets, window.places.parts, strict=True) if part == 1
    ] == text.split()


@pytest.mark.parametrize("listed", [True, False, None])
def test_punctuation_is_a_word_of_its_own_where_the_tokenizer_leaves_it_beside_words(
    listed: bool | None, tmp_path: Path
) -> None:
    blanks = write_blank_tokenizer(tmp_path, "metaspace")
    assert blanks.splits_punctuation
    spelt = json.loads((tmp_path / "tokenizer.json").read_text())
    pieces = ["<unk>", "▁", "▁Rome", "▁it", ".", "'", "s", "(", "...", "...)"]
    spelt["model"] = {
        "type": "Unigram",
        "unk_id": 0,
        "vocab": [[piece, -1.0 - i / 100] for i, piece in enumerate(pieces)],
    }
    spelt["post_processor"] = None
    (tmp_path / "tokenizer.json").write_text(json.dumps(spelt))
    if listed is not None:  # an artefact folder says what its answers were recorded with
        flag = {"splits_punctuation": True} if listed else {}
        (tmp_path / "artifacts.json").write_text(json.dumps({"processing": {"max_length": 64, **flag}}))
    tokenizer, text = TextTokenizer(tmp_path, 64), "it's (Rome's) 東京. Rome..."
    first, places = find_words(tokenizer.encode([text], places=True)[0])
    words = [text[a:b] for a, b in places]
    apart = ["it", "'", "s", "(", "Rome", "'", "s", ")", "東京", ".", "Rome", "..."]
    assert words == (text.split() if listed is False else apart)
    assert len(set(first)) == len(first)


def test_tokenizers_that_split_at_punctuation_themselves_keep_their_words(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    assert not tokenizer.splits_punctuation
    assert not write_blank_tokenizer(tmp_path, "bytes").splits_punctuation


def test_a_long_context_is_not_divided_at_punctuation_for_each_of_its_windows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a pair nobody reads words, and the time would grow with the square of the context's length."""
    tokenizer = write_blank_tokenizer(tmp_path, "metaspace")
    monkeypatch.setattr("pocketbert.core.predict.tokenization._split_words", None)
    [windows] = tokenizer.windows([("Rome?", "Rome it. " * 200)], stride=4)
    assert len(windows) > 2


def test_an_unknown_label_is_refused_and_offsets_count_code_points(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InputError, match="a.jsonl:1: span label 'pers' is not in the label set; did you mean 'per'"):
        HEAD.prepare(make_rows(("bob", (Span(0, 3, "pers"),))), tokenizer, "a.jsonl")
    made = HEAD.prepare(make_rows(("naïve 👍 bob", (Span(8, 11, "per"),))), tokenizer, "")
    [answer] = HEAD.answers(outputs(made), made)
    assert [s.text for s in answer.spans] == ["bob"]


# Scores


def test_spans_are_scored_at_first_tokens_and_one_wrong_end_is_wrong_twice(prepared: Any) -> None:
    score = score_outputs(HEAD, prepared, outputs(prepared))
    assert (score.metric, score.value, score.rows, score.finite) == ("span_f1", 1.0, 3, True)
    assert score.others == {"precision": 1.0, "recall": 1.0}
    # every word a "per": right are Zoe and Bob and bob, of 11 words and 4 spans
    assert score.chance == pytest.approx(2 * 3 / (11 + 4))
    noisy = outputs(prepared, size=0.01)
    for encoded, matrix in zip(prepared.encoded, noisy, strict=True):
        rest = np.setdiff1d(np.arange(len(encoded)), find_words(encoded)[0])
        matrix[rest] = 99.0 * np.eye(5, dtype=np.float32)[rest % 5]
    assert score_outputs(HEAD, prepared, noisy).value == 1.0
    score = score_outputs(HEAD, prepared, outputs(prepared, [[*WANTED[0][:6], "O", "O"], *WANTED[1:]]))
    assert (score.value, score.others) == (pytest.approx(3 / 4), {"precision": 3 / 4, "recall": 3 / 4})
    nothing = score_outputs(HEAD, prepared, outputs(prepared, [["O"] * 8, ["O"] * 2, ["O"]]))
    assert (nothing.value, nothing.finite) == (0.0, True)
    check_not_finite_spoils(HEAD, prepared, outputs(prepared), [(1, 0, 4), (0, -1, 0)])


@settings(max_examples=25)
@given(st.permutations(range(3)), st.permutations(range(5)), st.integers(0, 999))
def test_rows_and_tags_in_another_order_score_the_same(
    folder: Path, order: list[int], tags: list[int], seed: int
) -> None:
    tokenizer, draw = TextTokenizer(folder, 32), np.random.default_rng(seed)
    entries = [(TEXT, SPANS), ("good day", (Span(5, 8, "loc"),)), ("bob", (Span(0, 3, "per"),))]
    made = HEAD.prepare(make_rows(*entries), tokenizer, "")
    logits = [o + draw.normal(size=o.shape).astype(np.float32) * 6 for o in outputs(made)]
    other = make_head(TASK, Labels(tuple(TAGS[i] for i in tags)))
    again = other.prepare(make_rows(*(entries[i] for i in order)), tokenizer, "")
    first = score_outputs(HEAD, made, logits)
    second = score_outputs(other, again, [logits[i][:, tags] for i in order])
    assert (second.value, second.chance) == pytest.approx((first.value, first.chance))
    assert second.others == pytest.approx(first.others)


def test_a_text_that_was_cut_misses_what_was_behind(folder: Path) -> None:
    text = f"bob {'good ' * 12}bob"
    rows = make_rows((text, (Span(0, 3, "per"), Span(len(text) - 3, len(text), "per"))))
    whole, short = (HEAD.prepare(rows, TextTokenizer(folder, n), "a.jsonl") for n in (32, 8))
    assert score_outputs(HEAD, whole, outputs(whole)).value == 1.0
    assert score_outputs(HEAD, short, outputs(short)).others == {"precision": 1.0, "recall": 0.5}
    # the same where a file of a smaller length reads rows that were tokenized for a longer one
    shorter = whole.within(8)
    assert [e.truncated for e in shorter.encoded] == [True]
    tokens = outputs(whole)[0]
    score = score_outputs(HEAD, shorter, [tokens[np.r_[0:7, len(tokens) - 1]]])
    assert score.others == {"precision": 1.0, "recall": 0.5}


# Answers


def test_answers_name_the_characters(prepared: Any) -> None:
    logits = outputs(prepared, size=4.0)
    first, second, third = HEAD.answers(logits, prepared)
    assert [(s.start, s.end, s.label, s.text) for s in first.spans] == [
        (0, 3, "per", "Zoe"),
        (8, 11, "per", "Bob"),
        (16, 29, "loc", "New Yorkville"),
    ]
    assert second.spans == ()
    assert third.spans[0].text == "bob"
    chosen = logits[0][[find_words(prepared.encoded[0])[0][i] for i in (5, 6)]].astype(np.float64)
    shares = (np.exp(chosen) / np.exp(chosen).sum(-1, keepdims=True)).max(-1)
    assert first.spans[2].score == pytest.approx(shares.mean())


# Sets of tags without prefixes


def test_without_prefixes_each_word_is_a_span(tokenizer: TextTokenizer) -> None:
    head = make_head(TASK, Labels(("ADP", "NOUN", "PROPN", "VERB")))
    gold = (Span(0, 3, "PROPN"), Span(4, 7, "VERB"), Span(8, 11, "PROPN"), Span(13, 15, "ADP"), Span(16, 29, "PROPN"))
    made = head.prepare(make_rows((TEXT, gold)), tokenizer, "a.jsonl")
    assert [TEXT[s.start : s.end] for s in made.truth[0]] == ["Zoe", "met", "Bob", "in", "New", "Yorkville"]
    first = find_words(made.encoded[0])[0]
    trained = [head.labels.names[i] if i >= 0 else None for i in made.targets["labels"][0][first]]
    assert trained == ["PROPN", "VERB", "PROPN", None, "ADP", "PROPN", "PROPN", None]
    spoken = ["PROPN", "VERB", "PROPN", "NOUN", "ADP", "PROPN", "PROPN", "NOUN"]
    logits = outputs(made, [spoken], head)
    [answer] = head.answers(logits, made)
    assert [(s.text, s.label) for s in answer.spans] == list(zip(WORDS, spoken, strict=True))
    # the comma and the full stop have no gold tag, and count as found
    assert score_outputs(head, made, logits).others == {"precision": 6 / 8, "recall": 1.0}


@pytest.mark.parametrize(
    ("names", "spans"),
    [(("O", "x"), [(0, 3), (4, 8)]), (("O", "B-x", "I-x"), [(0, 8)]), (("O", "x", "I-y"), [(0, 8)])],
)
def test_neighbours_of_one_tag(tokenizer: TextTokenizer, names: tuple[str, ...], spans: Any) -> None:
    head = make_head(TASK, Labels(names))
    made = head.prepare(make_rows(("bob good day", (Span(0, 8, "x"),))), tokenizer, "a.jsonl")
    [answer] = head.answers(outputs(made, head=head), made)
    assert [(s.start, s.end) for s in answer.spans] == spans
    assert score_outputs(head, made, outputs(made, head=head)).value == 1.0
