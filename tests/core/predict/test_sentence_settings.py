"""What a sentence-transformers folder says: how vectors are pooled, prompts, the similarity, the class."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pocketbert.core.errors import InputError
from pocketbert.core.predict.inputs import columns_of, with_columns
from pocketbert.core.predict.sentence_settings import (
    DEFAULT_POOLING,
    SETTINGS_FILE,
    Pooling,
    PoolingKind,
    Prompts,
    Similarity,
    VectorLayer,
    add_dense,
    apply_layers,
    read_dimensions,
    read_pooling,
    read_prompts,
    read_similarity,
    vector_width,
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


def test_kinds_and_layers_are_written_and_read_in_their_order(tmp_path: Path) -> None:
    draw = np.random.default_rng(3)
    wide, square = draw.normal(size=(5, 8)).astype("f"), draw.normal(size=(5, 5)).astype("f")
    gelu = {"linear.weight": wide, "linear.bias": wide[:, 0], "residual.weight": wide}
    layers = (
        VectorLayer("Dense", 5, "GELU", True, gelu),
        VectorLayer("LayerNorm", weights={"norm.weight": square[0], "norm.bias": square[1]}),
        VectorLayer("Normalize"),
        VectorLayer("Dense", 5, "Identity", weights={"linear.weight": square}),
    )
    title = "then Dense to 5 numbers, GELU plus its input, then LayerNorm, then Normalize, then Dense to 5 numbers, of length 1"
    for kinds in ((PoolingKind.MAX, PoolingKind.CLS), (PoolingKind.CLS, PoolingKind.MAX)):
        pooling = Pooling(kinds[0], True, kinds[1:], layers)
        write_modules(tmp_path, pooling, 4, 32)
        again = read_pooling(tmp_path)
        assert again is not None
        assert (again.kinds, again.normalize, again.name) == (kinds, True, "+".join(kinds))
        assert again.title.endswith(title)
        for read, written in zip(again.layers, layers, strict=True):
            assert read.title == written.title
            assert all(np.array_equal(read.weights[n], v) for n, v in written.weights.items())
    with pytest.raises(InputError, match="Dense layer takes 8 numbers, 2 pooled states have 10"):
        write_modules(tmp_path, pooling, 5, 32)


def write_layer(folder: Path, kind: str = "Dense", /, **tensors: Any) -> Path:
    """A folder with one layer behind the mean, whose weights are given."""
    made = {"linear.weight": np.ones((2, 3), "f"), "linear.bias": np.ones(2, "f")} if kind == "Dense" else {}
    kept = {name: value for name, value in {**made, **tensors}.items() if value is not None}
    save_file(kept, (folder / f"1_{kind}").mkdir() or folder / f"1_{kind}" / "model.safetensors")
    (folder / f"1_{kind}" / "config.json").write_text(
        json.dumps({"activation_function": "torch.nn.modules.activation.Tanh"})
    )
    return write_module_list(folder, ["Transformer", "Pooling", kind], MEAN)


@pytest.mark.parametrize(
    ("kind", "tensors", "settings", "message"),
    [
        ("Dense", {"linear.weight": np.full((2, 3), np.nan, "f")}, {}, "is no Dense of finite numbers: linear.weight"),
        ("Dense", {"linear.bias": np.ones(3, "f")}, {}, "is no Dense of finite numbers: linear.bias"),
        ("Dense", {"other": np.ones(3, "f")}, {}, "is no Dense of finite numbers: other"),
        ("LayerNorm", {"norm.weight": np.ones((2, 2), "f")}, {}, "is no LayerNorm of finite numbers"),
        ("Dense", {}, {"use_residual": True}, "has no residual.weight, which use_residual asks for"),
        ("Dense", {}, {"activation_function": "os.system"}, "activation 'os.system' is not served; served: Identity, Tanh"),
        ("Dense", {}, {"bias": False}, "has linear.bias, and the layer has no bias"),
        ("Dense", {"linear.bias": None}, {}, "has no linear.bias, and the layer has one"),
        ("LayerNorm", {"norm.weight": np.ones(3, "f")}, {}, "has no norm.bias, and the layer has one"),
        ("Dense", {}, {"module_input_name": "token_embeddings"}, "served: sentence_embedding, the vector"),
    ],
)  # fmt: skip
def test_layers_that_cannot_be_applied_are_refused(
    kind: str, tensors: dict[str, Any], settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = write_layer(tmp_path, kind, **tensors)
    edit_json(folder / f"1_{kind}" / "config.json", **settings)
    with pytest.raises(InputError, match=message):
        read_pooling(folder)


@pytest.mark.parametrize(("settings", "activation"), [({}, "Tanh"), ({"activation_function": "a.ReLU"}, "ReLU")])
def test_settings_that_a_layer_leaves_out_have_the_library_s_defaults(
    settings: dict[str, str], activation: str, tmp_path: Path
) -> None:
    folder = write_layer(tmp_path)
    (folder / "1_Dense" / "config.json").write_text(json.dumps(settings))
    assert (pooling := read_pooling(folder)) is not None
    assert pooling.layers[0].activation == activation
    (folder / "1_Dense" / "config.json").write_text('{"activation_function": null}')
    with pytest.raises(InputError, match="activation None is not served"):
        read_pooling(folder)


@pytest.mark.parametrize(
    ("modules", "settings", "pooling"),
    [
        (SERVED, MEAN, Pooling(PoolingKind.MEAN, True)),
        (SERVED, {"pooling_mode": "mean"}, Pooling(PoolingKind.MEAN, True)),
        (SERVED[:2], {"pooling_mode_cls_token": True}, Pooling(PoolingKind.CLS, False)),
        (["Transformer", "Pooling", "Dropout"], {"pooling_mode": "lasttoken"}, Pooling(PoolingKind.LAST_TOKEN, False)),
        (SERVED, {**MEAN, "pooling_mode_cls_token": True}, Pooling(PoolingKind.CLS, True, (PoolingKind.MEAN,))),
        (SERVED, {"pooling_mode": ["mean", "cls"]}, Pooling(PoolingKind.MEAN, True, (PoolingKind.CLS,))),
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
        ({**MEAN, "pooling_mode_medoid": True}, ["mean and pooling_mode_medoid", "mean, cls"]),
        ({"pooling_mode": "medoid"}, ["medoid"]),
        ({}, ["pools by nothing"]),
        ({"pooling_mode": "none", "include_prompt": False}, ["pools by none", "include_prompt"]),
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
        ["Transformer"],
        ["Transformer", "Pooling", "CNN", "Normalize"],
        ["Transformer", "SpladePooling"],
        ["Transformer", "Normalize", "Pooling"],
    ],
)
def test_other_modules_are_refused(modules: list[str], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="served: Transformer, Pooling"):
        read_pooling(write_module_list(tmp_path, modules, MEAN))


def test_vectors_are_cut_as_the_last_step_and_written_so_that_the_library_cuts_them_too(tmp_path: Path) -> None:
    write_settings(tmp_path, truncate_dim=3, matryoshka_dimensions=[2, 4])
    pooling = read_pooling(write_module_list(tmp_path, SERVED, MEAN))
    assert pooling is not None
    assert pooling.title == "mean of the token states, then Normalize, then its first 3 numbers"
    assert (vector_width(pooling, 5), vector_width(pooling, 2), read_dimensions(tmp_path)) == (3, 2, [2])
    vectors = np.arange(1.0, 6.0)[None]
    assert np.allclose(apply_layers(vectors, pooling.layers), vectors[:, :3] / np.linalg.norm(vectors))
    # in front of other layers: sentence-transformers has no setting for that
    inner = replace(pooling, normalize=True)
    turned = add_dense(inner, {"linear.weight": np.eye(3, dtype=np.float32)[::-1]})
    for number, written in enumerate((pooling, inner, turned, Pooling())):
        folder = tmp_path / str(number)
        folder.mkdir()
        write_settings(folder, truncate_dim=2)
        write_modules(folder, written, 5, 32)
        again = read_pooling(folder)
        assert again is not None
        assert (again.normalize, json.loads((folder / SETTINGS_FILE).read_text()).get("truncate_dim")) == (
            written.normalize,
            3 if written is pooling else None,
        )
        assert np.array_equal(apply_layers(vectors, again.layers), apply_layers(vectors, written.layers))


@pytest.mark.parametrize("length", [0, -8, 2.5, True, "16", [16]])
def test_lengths_that_vectors_cannot_be_cut_to_are_refused(length: object, tmp_path: Path) -> None:
    write_settings(tmp_path, truncate_dim=length)
    with pytest.raises(InputError, match="truncate_dim is .* no whole number above 0"):
        read_pooling(write_module_list(tmp_path, SERVED, MEAN))


def test_a_cross_encoder_pools_nothing(tmp_path: Path) -> None:
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
