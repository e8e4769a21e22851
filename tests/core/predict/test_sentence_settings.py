"""What a sentence-transformers folder says beside its modules: prompts, the similarity, the class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.predict.inputs import columns_of, with_columns
from pocketbert.core.predict.sentence_settings import Prompts, Similarity, read_prompts, read_similarity
from pocketbert.core.predict.tokenization import TextTokenizer
from support.published import PROMPTS, edit_json, write_sentence_model


def write_settings(folder: Path, **content: Any) -> Path:
    (folder / "config_sentence_transformers.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (None, ["query: a", ("query: b", "c"), "query: "]),
        ("passage", ["p. a", ("p. b", "c"), "p. "]),
        ("none", ["a", ("b", "c"), ""]),
    ],
)
def test_a_prompt_stands_in_front_of_the_first_text(name: str | None, expected: list[object]) -> None:
    prompts = Prompts({"query": "query: ", "passage": "p. ", "none": ""}, "query")
    assert list(prompts.put_before(["a", ("b", "c"), ""], name)) == expected


def test_a_text_keeps_the_columns_of_its_row() -> None:
    [made] = Prompts({"q": "q "}, "q").put_before([with_columns("a", {"language": "en"})])
    assert (made, columns_of(made)) == ("q a", {"language": "en"})


@pytest.mark.parametrize(("named", "message"), [({}, "the model has none"), ({"query": "q"}, "did you mean 'query'")])
def test_an_unknown_name_is_refused_with_those_that_are_known(named: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Prompts(named).put_before(["a"], "querry")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, Prompts()),
        ({"prompts": {"query": "q ", "document": None}}, Prompts({"query": "q "})),  # open in sentence-transformers 5
        ({"prompts": {"query": "q "}, "default_prompt_name": "query"}, Prompts({"query": "q "}, "query")),
        ({"prompts": None, "default_prompt_name": None}, Prompts()),
    ],
)
def test_prompts_are_read(tmp_path: Path, content: dict[str, Any], expected: Prompts) -> None:
    assert read_prompts(write_settings(tmp_path, **content)) == expected


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"prompts": ["query: "]}, "no table of at most"),
        ({"prompts": {"query": 3}}, "no table of at most"),
        ({"prompts": {"query": "x" * 20_000}}, "no table of at most"),
        ({"prompts": {"query": "q "}, "default_prompt_name": "passage"}, "'passage' is not among the prompts: query"),
    ],
)
def test_what_is_no_table_of_prompts_is_refused(tmp_path: Path, content: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_prompts(write_settings(tmp_path, **content))


@pytest.mark.parametrize("stated", [None, *Similarity])
def test_the_similarity_is_read(tmp_path: Path, stated: str | None) -> None:
    assert read_similarity(write_settings(tmp_path, similarity_fn_name=stated)) == (stated or "cosine")


def test_an_unknown_similarity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'maxsim' is unknown"):
        read_similarity(write_settings(tmp_path, similarity_fn_name="maxsim"))


def test_a_tokenizer_puts_the_default_prompt_in_front_and_takes_another(tmp_path: Path) -> None:
    tokenizer = TextTokenizer(write_sentence_model(tmp_path / "model", PROMPTS, "query"), 40)
    raw = tokenizer.with_prompt("")

    def ids(made: TextTokenizer, text: str) -> list[int]:
        return list(made.encode([text])[0].ids.tolist())

    assert ids(tokenizer, "good") == ids(raw, PROMPTS["query"] + "good") != ids(raw, "good")
    assert ids(tokenizer.with_prompt("passage"), "good") == ids(raw, PROMPTS["passage"] + "good")
    assert ids(tokenizer.with_prompt(None), "good") == ids(tokenizer, "good")
    assert tokenizer.golden("good")["ids"] == ids(raw, "good")


def test_an_artefact_folder_s_own_list_comes_first(tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path / "model", PROMPTS, "query")
    edit_json(folder / "artifacts.json", processing={"prompts": {"a": "b "}, "default_prompt": "a"})
    assert read_prompts(folder) == Prompts({"a": "b "}, "a")
    edit_json(folder / "artifacts.json", processing={})  # of an earlier version
    assert read_prompts(folder) == Prompts()
