"""What a sentence-transformers folder says: how vectors are pooled, prompts, the similarity, the class."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.predict.inputs import columns_of, with_columns
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    Pooling,
    PoolingKind,
    Prompts,
    Similarity,
    read_pooling,
    read_prompts,
    read_similarity,
    write_modules,
)
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


# Pooling

MODELS = "sentence_transformers.models"
SERVED = ["Transformer", "Pooling", "Normalize"]
EVERY = [Pooling(kind, normalize) for kind in PoolingKind for normalize in (True, False)]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": False}


def write_module_list(path: Path, modules: list[str], settings: dict[str, Any] | None = None) -> Path:
    """A folder as sentence-transformers writes it."""
    places = {"Transformer": "", "Normalize": "2_Normalize"}
    listed = [
        {"idx": i, "name": str(i), "path": places.get(m, f"1_{m}"), "type": f"{MODELS}.{m}"}
        for i, m in enumerate(modules)
    ]
    (path / "modules.json").write_text(json.dumps(listed))
    if settings is not None:
        (path / "1_Pooling").mkdir()
        (path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    return path


@pytest.mark.parametrize("pooling", EVERY, ids=str)
def test_what_is_written_is_read_again(pooling: Pooling, tmp_path: Path) -> None:
    write_modules(tmp_path, pooling, 384, 128)
    assert read_pooling(tmp_path) == pooling
    assert json.loads((tmp_path / "1_Pooling/config.json").read_text())["word_embedding_dimension"] == 384
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 128


@pytest.mark.parametrize(
    ("modules", "settings", "pooling"),
    [
        (SERVED, MEAN, Pooling(PoolingKind.MEAN, True)),
        (SERVED, {"pooling_mode": "mean"}, Pooling(PoolingKind.MEAN, True)),
        (SERVED, {"pooling_mode": ["mean"]}, Pooling(PoolingKind.MEAN, True)),
        (SERVED[:2], {"pooling_mode_cls_token": True}, Pooling(PoolingKind.CLS, False)),
        (None, {}, None),
    ],
)
def test_flags_and_names_are_both_read(
    modules: list[str] | None, settings: dict[str, Any], pooling: Pooling | None, tmp_path: Path
) -> None:
    if modules is not None:
        write_module_list(tmp_path, modules, settings)
    assert read_pooling(tmp_path) == pooling
    assert Pooling(PoolingKind.MEAN, True) == DEFAULT_POOLING


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({**MEAN, "pooling_mode_max_tokens": True}, ["mean and pooling_mode_max_tokens", "mean, cls"]),
        ({"pooling_mode_lasttoken": True}, ["pooling_mode_lasttoken"]),
        ({"pooling_mode": "weightedmean"}, ["weightedmean"]),
        ({}, ["pools by nothing"]),
        ({"pooling_mode": "max", "include_prompt": False}, ["pools by max", "include_prompt"]),
    ],
)
def test_modes_that_are_not_served_are_named(settings: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        read_pooling(write_module_list(tmp_path, ["Transformer", "Pooling"], settings))
    assert all(text in str(caught.value) for text in said)
    assert "1_Pooling/config.json" in str(caught.value)


@pytest.mark.parametrize(
    "modules",
    [
        [],
        ["Transformer"],
        ["Transformer", "Pooling", "Dense", "Normalize"],
        ["Pooling", "Transformer"],
        ["Transformer", "SpladePooling"],
        ["Transformer", "Normalize", "Pooling"],
    ],
)
def test_other_modules_are_refused(modules: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="served: Transformer, Pooling"):
        read_pooling(write_module_list(tmp_path, modules, MEAN))


def test_vectors_that_are_cut_are_refused_and_a_cross_encoder_pools_nothing(tmp_path: Path) -> None:
    write_settings(tmp_path, truncate_dim=16)
    with pytest.raises(InputError, match="truncate_dim is 16: .* the files give all"):
        read_pooling(write_module_list(tmp_path, ["Transformer", "Pooling"], MEAN))
    write_settings(tmp_path, model_type="CrossEncoder")
    assert read_pooling(write_module_list(tmp_path, ["Transformer"])) is None


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(InputError, match="not a list of modules"):
        read_pooling(tmp_path)
    listed = [{"type": f"{MODELS}.Transformer", "path": ""}, {"type": f"{MODELS}.Pooling", "path": "../.."}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match="leaves the folder"):
        read_pooling(tmp_path)
    with pytest.raises(InputError, match="file not found"):
        read_pooling(write_module_list(tmp_path, ["Transformer", "Pooling"]))
    with pytest.raises(InputError, match="not a table of settings"):
        read_pooling(write_module_list(tmp_path, ["Transformer", "Pooling"], []))  # type: ignore[arg-type]
