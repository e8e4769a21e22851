from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.predict.sentence_settings import DEFAULT_POOLING, Pooling, PoolingKind, read_pooling, write_modules

MODELS = "sentence_transformers.models"
EVERY = [Pooling(kind, normalize) for kind in PoolingKind for normalize in (True, False)]
MEAN = {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": False}


def folder(path: Path, modules: list[str], settings: dict[str, Any] | None = None) -> Path:
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


def test_a_folder_without_modules_says_nothing(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None
    assert Pooling(PoolingKind.MEAN, True) == DEFAULT_POOLING


def test_the_demo_teacher_takes_the_mean() -> None:
    from pocketbert.core.errors import MissingBackendError
    from pocketbert.core.models.folder import DEMO_TEACHER, open_model_folder

    try:
        path = open_model_folder(DEMO_TEACHER).path
    except MissingBackendError:
        pytest.skip("needs the demo teacher")
    assert read_pooling(path) in (None, DEFAULT_POOLING)


@pytest.mark.parametrize("settings", [MEAN, {"pooling_mode": "mean"}, {"pooling_mode": ["mean"]}])
def test_flags_and_names_are_both_read(settings: dict[str, Any], tmp_path: Path) -> None:
    path = folder(tmp_path, ["Transformer", "Pooling", "Normalize"], settings)
    assert read_pooling(path) == Pooling(PoolingKind.MEAN, True)


def test_the_first_token_without_normalization(tmp_path: Path) -> None:
    settings = {**MEAN, "pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    assert read_pooling(folder(tmp_path, ["Transformer", "Pooling"], settings)) == Pooling(PoolingKind.CLS, False)


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
        read_pooling(folder(tmp_path, ["Transformer", "Pooling"], settings))
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
        read_pooling(folder(tmp_path, modules, MEAN))


def test_vectors_that_are_cut_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config_sentence_transformers.json").write_text('{"truncate_dim": 16}')
    with pytest.raises(InputError, match="truncate_dim is 16: .* the files give all"):
        read_pooling(folder(tmp_path, ["Transformer", "Pooling"], MEAN))


def test_a_cross_encoder_pools_nothing(tmp_path: Path) -> None:
    (tmp_path / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder"}')
    assert read_pooling(folder(tmp_path, ["Transformer"])) is None


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "modules.json").write_text("{}")
    with pytest.raises(InputError, match="not a list of modules"):
        read_pooling(tmp_path)
    listed = [{"type": f"{MODELS}.Transformer", "path": ""}, {"type": f"{MODELS}.Pooling", "path": "../.."}]
    (tmp_path / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(InputError, match="leaves the folder"):
        read_pooling(tmp_path)
    with pytest.raises(InputError, match="file not found"):
        read_pooling(folder(tmp_path, ["Transformer", "Pooling"]))
    with pytest.raises(InputError, match="not a table of settings"):
        read_pooling(folder(tmp_path, ["Transformer", "Pooling"], []))  # type: ignore[arg-type]
