"""Columns that travel with texts: how they become inputs at the right tokens, are cut and padded with them, and are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.predict.inputs import Encoded, columns_of, split_pair, truncate_row, with_columns
from pocketbert.core.predict.tokenization import TextTokenizer
from support.forms import LANGUAGES
from support.tiny import write_own_tokenizer

LINKED = {"model_type": "ernie_thu", "entity_rows": 2, "pocketbert_form": "entities"}
SPOKEN = {"model_type": "xlm", "n_langs": 3, "lang2id": LANGUAGES, "pocketbert_form": "language"}
NAMED = [{"id": "Q1", "name": "One"}, {"id": "Q2"}]


def tokenizer_of(folder: Path, family: str, config: dict[str, Any], length: int = 32) -> TextTokenizer:
    write_own_tokenizer(folder, family)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "entities.json").write_text(json.dumps({"entities": NAMED}))
    return TextTokenizer(folder, length)


@pytest.fixture
def spoken(tmp_path: Path) -> TextTokenizer:
    return tokenizer_of(tmp_path, "xlm", SPOKEN)


@pytest.fixture
def linked(tmp_path: Path) -> TextTokenizer:
    return tokenizer_of(tmp_path, "ernie-thu", LINKED)


@pytest.fixture
def vectored(tmp_path: Path) -> TextTokenizer:
    config = {"model_type": "ernie_thu", "entity_size": 3, "entity_heads": 1, "pocketbert_form": "entity-vectors"}
    return tokenizer_of(tmp_path, "ernie-thu", config)


def mention(text: str, word: str, **more: Any) -> dict[str, Any]:
    start = text.index(word)
    return {"start": start, "end": start + len(word), **more}


def test_columns_stay_with_a_text_that_is_like_any_other() -> None:
    text = with_columns("a text", {"language": "de"})
    assert text == "a text"
    assert columns_of(text) == {"language": "de"}
    assert columns_of("a text") is None
    pair = with_columns(("one", "two"), {"entities": [{"start": 0, "end": 1}, {"start": 1, "end": 2, "part": 1}]})
    assert pair == ("one", "two")
    first, second = split_pair(pair)
    assert columns_of(first) == {"entities": [{"start": 0, "end": 1}]}
    assert columns_of(second) == {"entities": [{"start": 1, "end": 2}]}


def test_inputs_of_a_golden_row_belong_to_its_ids_where_the_folder_has_a_prompt(tmp_path: Path) -> None:
    prompts = {"prompts": {"query": "good good "}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    row = tokenizer_of(tmp_path, "xlm", SPOKEN).golden("good morning")
    assert len(row["inputs"]["langs"]) == len(row["ids"])


def test_a_language_is_that_of_every_token_and_not_of_padding_and_unknown_ones_are_refused(
    spoken: TextTokenizer,
) -> None:
    rows = spoken.encode([with_columns("good morning", {"language": "fr"}), with_columns("good", {"language": "en"})])
    assert [set(r.extra["langs"].tolist()) for r in rows] == [{2}, {1}]
    batch = spoken.pad(rows, len(rows[0]) + 3)
    assert batch["langs"].shape == batch["input_ids"].shape
    assert (batch["langs"][0] == 2 * batch["attention_mask"][0]).all()
    assert spoken.reader is not None
    with pytest.raises(InputError, match="'xx' is no language of the model; allowed: de, en, fr"):
        spoken.reader.check([with_columns("good", {"language": "xx"})])


def test_an_entity_is_at_the_first_token_of_its_mention_in_either_text(linked: TextTokenizer) -> None:
    text = "good morning vietnam"
    [plain] = linked.encode([text], places=True)
    given = [mention(text, "vietnam", id="Q2"), mention(text, "good", name="One")]
    [row] = linked.encode([with_columns(text, {"entities": given})])
    ids = row.extra["entity_ids"]
    assert plain.places is not None
    starts = plain.places.offsets[:, 0].tolist()
    assert np.flatnonzero(ids).tolist() == [1, starts.index(text.index("vietnam"))]
    assert ids[ids > 0].tolist() == [1, 2]
    short = truncate_row(row, 4)
    assert short.extra["entity_ids"].tolist() == [0, 1, *[0] * (len(short) - 2)]
    pair = with_columns(("good", "good"), {"entities": [{"start": 0, "end": 4, "id": "Q1", "part": 1}]})
    [row] = linked.encode([pair])
    assert row.places is not None
    assert np.flatnonzero(row.extra["entity_ids"]).tolist() == [int(np.flatnonzero(row.places.parts == 1)[0])]
    windows = linked.windows([pair], 2)[0]  # type: ignore[list-item]
    assert [w.extra["entity_ids"].tolist() for w in windows] == [row.extra["entity_ids"].tolist()]


def test_mentions_as_a_table_has_them_are_split_with_their_pair(linked: TextTokenizer) -> None:
    mentions = [{"start": 0, "end": 4, "id": "Q1", "part": 1}, {"start": 0, "end": 4, "id": "Q2"}]
    for cell in (mentions, json.dumps(mentions), np.array(mentions)):
        parts = split_pair(with_columns(("good", "fine"), {"entities": cell, "language": "1"}))
        assert [columns_of(part)["entities"][0]["id"] for part in parts] == ["Q2", "Q1"]  # type: ignore[index]
        assert [columns_of(part)["language"] for part in parts] == ["1", "1"]  # type: ignore[index]
        assert [row.extra["entity_ids"].max() for row in linked.encode(parts)] == [2, 1]


def test_vectors_have_an_axis_of_their_own(vectored: TextTokenizer) -> None:
    text = with_columns("good day", {"entities": [{"start": 0, "end": 4, "vector": [1, -2, 0.5]}]})
    batch = vectored.pad(vectored.encode([text]), 12)
    assert batch["entity_vectors"].shape == (1, 12, 3)
    assert batch["entity_vectors"].dtype == np.float32
    assert batch["entity_vectors"][0, 1].tolist() == [1, -2, 0.5]
    assert np.count_nonzero(batch["entity_vectors"]) == 3


def test_texts_without_columns_get_samples_that_depend_on_the_text(linked: TextTokenizer) -> None:
    texts = [f"good morning to the {n} of you all today" for n in "abcdefghijkl"]
    once, again = linked.encode(texts), linked.encode([str(t) for t in texts])
    assert all((a.extra["entity_ids"] == b.extra["entity_ids"]).all() for a, b in zip(once, again, strict=True))
    found = np.concatenate([r.extra["entity_ids"] for r in once])
    assert set(found.tolist()) == {0, 1, 2}
    noted = linked.noted(texts)
    assert all(columns_of(t) is not None for t in noted)
    for row, golden in zip(once, map(linked.golden, noted), strict=True):
        assert golden["inputs"] == {"entity_ids": row.extra["entity_ids"].tolist()}


def test_rows_without_a_text_get_samples_too(spoken: TextTokenizer) -> None:
    rows = [Encoded(np.array([0, 5 + n, 1]), np.zeros(3, np.int64), False) for n in range(3)]
    assert set(spoken.pad(rows)["langs"][:, 0].tolist()) == {0, 1, 2}


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        (None, "text 1: has no column 'entities', which files of the form 'entities' read"),
        ({"entities": None}, "has no column 'entities'"),
        ({"entities": "x"}, "is no list of mentions"),
        ({"entities": ["x"]}, "'x' is no object"),
        ({"entities": [{"start": 0, "end": 1, "id": "Q9"}]}, "'Q9' is not among the 2 entities.*--entities"),
        ({"entities": [{"start": 1, "end": 1, "id": "Q1"}]}, "is no piece of a text"),
        ({"entities": [{"start": 0, "end": 1 << 80, "id": "Q1"}]}, "is no piece of a text"),
        ({"entities": [{"start": True, "end": 2, "id": "Q1"}]}, "is no piece of a text"),
        ({"entities": [{"start": 0, "end": 2, "id": "Q1", "part": 2}]}, "is no piece of a text"),
        ({"entities": [{"start": 0, "end": 2}]}, "None is not among"),
    ],
)
def test_mentions_that_cannot_be_read_are_refused(
    linked: TextTokenizer, columns: dict[str, Any] | None, what: str
) -> None:
    assert linked.reader is not None
    with pytest.raises(InputError, match=what):
        linked.reader.check([with_columns("good", columns)])
    good = {"entities": json.dumps([{"start": 0, "end": 2, "name": "One"}])}  # as tables hold it
    linked.reader.check([with_columns("good", good)])


@pytest.mark.parametrize("vector", [None, [1.0], "abc", [1.0, 2.0, float("nan")]])
def test_broken_vectors_are_refused(vectored: TextTokenizer, vector: Any) -> None:
    assert vectored.reader is not None
    with pytest.raises(InputError, match="vector is no list of 3 finite numbers"):
        vectored.reader.check([with_columns("good", {"entities": [{"start": 0, "end": 2, "vector": vector}]})])


@pytest.mark.parametrize(
    ("entry", "what"),
    [
        ({**LINKED, "entity_rows": 3}, "lists 2 entities, not 3"),
        ({**LINKED, "entity_rows": "x"}, "entity_rows is 'x'"),
        ({**LINKED, "entity_rows": -1}, "entity_rows is -1"),
        ({**LINKED, "entity_size": 10**9, "pocketbert_form": "entity-vectors"}, "entity_size is 1000000000"),
        ({**LINKED, "pocketbert_form": 3}, "has no form '3'"),
        ({**LINKED, "pocketbert_form": None}, "has no form 'None'"),
        ({**SPOKEN, "lang2id": {"de": 0, "en": 7}}, "lang2id names numbers that are not 0 to 2"),
        ({**SPOKEN, "lang2id": {"de": "0"}}, "lang2id names numbers that are not 0 to 2"),
        ({**SPOKEN, "lang2id": [1]}, "lang2id names numbers that are not 0 to 2"),
    ],
)
def test_configurations_that_no_form_can_have_are_refused(tmp_path: Path, entry: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        tokenizer_of(tmp_path, "xlm" if "lang2id" in entry else "ernie-thu", entry)
