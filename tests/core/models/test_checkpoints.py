"""Weights and configurations: what is loaded and saved as transformers does it, and what must not be loaded."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.data.labels import Labels
from pocketbert.core.disk import weight_files
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.families import find_family
from pocketbert.core.models import checkpoints
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.models.tokenizers import save_tokenizer
from pocketbert.core.models.weights import missing_weights
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from support.published import edit_json
from support.tiny import GRAPHS, GUESSING

TASK, ENCODER = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FEATURE_EXTRACTION]
WHOLE = [
    *((family, TaskName.TEXT_CLASSIFICATION) for family in GRAPHS),
    *((f, TaskName.FILL_MASK) for f in GUESSING if TaskName.FILL_MASK not in find_family(f).invalid_tasks),
]
LAYER = "bert.encoder.layer.1.output.dense.weight"
State = dict[str, torch.Tensor]


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Callable[..., Path]) -> Path:
    """A copy of a tiny model that a test may change."""
    return Path(shutil.copytree(tiny_model("bert", 2), tmp_path / "bert"))


def rewrite(folder: Path, change: Callable[[State], State]) -> ModelFolder:
    state = change(load_file(folder / "model.safetensors"))
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    return open_model_folder(str(folder))


def write_bin(folder: Path, content: Any) -> ModelFolder:
    torch.save(content, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return open_model_folder(str(folder))


def without(part: str) -> Callable[[State], State]:
    return lambda state: {k: v for k, v in state.items() if part not in k}


def logits(model: Any, folder: ModelFolder) -> torch.Tensor:
    tokenizer = TextTokenizer(folder.path, 32)
    inputs = tokenizer.pad(tokenizer.encode(list(SENTENCES[:6])))
    return torch.from_numpy(TorchPredictor(model, TASK, folder.family.inputs).run(inputs)["logits"])


# Saving and loading


@pytest.mark.parametrize("family", GRAPHS)
def test_a_model_of_every_family_is_saved_and_given_other_heads(
    family: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    source, five = open_model_folder(str(tiny_model(family, 2))), Labels(("a", "b", "c", "d", "e"))
    model = load_model(source, TASK)
    save_model(model, source, Labels(("negative", "neutral", "positive")), 32, tmp_path)
    again = open_model_folder(str(tmp_path))
    assert torch.equal(logits(load_model(again, TASK), again), logits(model, source))
    assert not model.training
    other = load_model(source, TASK, five, new_head=True)
    assert (logits(other, source).shape, other.config.id2label) == ((6, 5), five.id2label)
    assert logits(load_model(source, TASK, five), source).shape == (6, 3), "a head is replaced only when asked"
    # weights that were saved from the bare encoder
    prefix, whole = f"{model.base_model_prefix}.", model.state_dict()
    bare = rewrite(tmp_path, lambda s: {k.removeprefix(prefix): v for k, v in s.items() if k.startswith(prefix)})
    with pytest.raises(InputError, match="no trained head"):
        load_model(bare, TASK)
    made = load_model(bare, TASK, Labels(("a", "b", "c")), new_head=True).state_dict()
    assert [k for k, v in whole.items() if k.startswith(prefix) and not torch.equal(v, made[k])] == []


def test_transformers_reads_what_is_saved(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    import transformers

    source = open_model_folder(str(tiny_model("bert", 2)))
    model = load_model(source, TASK)
    save_model(model, source, Labels(("no", "maybe", "yes")), 32, tmp_path)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert torch.equal(logits(again, source), logits(model, source))
    ours = TextTokenizer(tmp_path, 32).encode(list(SENTENCES))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)(list(SENTENCES), truncation=True)["input_ids"]
    assert [e.ids.tolist() for e in ours] == theirs
    text = (tmp_path / "config.json").read_text()
    config = json.loads(text)
    assert config["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
    assert config["label2id"] == {"no": 0, "maybe": 1, "yes": 2}
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["problem_type"] == "single_label_classification"
    assert str(tmp_path) not in text
    assert str(source.path) not in text


@pytest.mark.parametrize("family", GRAPHS)
def test_a_pretrained_checkpoint_of_every_family_is_read_and_saved_with_every_weight(
    family: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    auto = "AutoModelForMaskedLM" if family in GUESSING else "AutoModel"
    source = open_model_folder(str(tiny_model(family, 2, auto_class=auto)))
    model = load_model(source, ENCODER)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.125)
    save_model(model, source, Labels(()), 32, tmp_path)
    again = load_model(open_model_folder(str(tmp_path)), ENCODER).state_dict()
    assert [k for k, v in model.state_dict().items() if not torch.equal(v, again[k])] == []
    assert load_model(source, TASKS[TaskName.TOKEN_CLASSIFICATION], Labels(("a", "b", "c")), new_head=True)


@pytest.mark.parametrize(("family", "task"), WHOLE, ids=str)
def test_a_whole_checkpoint_is_loaded_as_if_random_numbers_had_been_drawn_before(
    family: str, task: TaskName, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = open_model_folder(str(tiny_model(family, 2, auto_class=TASKS[task].auto_class)))
    missing = list[list[str]]()
    monkeypatch.setattr(
        checkpoints, "missing_weights", lambda *args: missing.append(missing_weights(*args)) or missing[-1]
    )
    model = load_model(source, TASKS[task])
    assert missing == [[]], "no number was drawn, tied weights or not"
    monkeypatch.setattr(checkpoints, "missing_weights", lambda *_: ["one"])
    drawn = load_model(source, TASKS[task])
    for ours, theirs in (
        (model.named_parameters(), drawn.named_parameters()),
        (model.named_buffers(), drawn.named_buffers()),
    ):
        left, right = dict(ours), dict(theirs)
        assert left.keys() == right.keys()
        assert [name for name in left if not torch.equal(left[name], right[name])] == []


def random_numbers() -> tuple[list[float], list[float], float]:
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


@pytest.mark.parametrize("task", [TaskName.TEXT_CLASSIFICATION, TaskName.FILL_MASK])
def test_loading_leaves_the_global_random_states_alone(task: TaskName, folder: Path) -> None:
    opened = open_model_folder(str(folder))
    states: Any = torch.get_rng_state(), np.random.get_state(), random.getstate()
    wanted = random_numbers()
    for restore, state in zip((torch.set_rng_state, np.random.set_state, random.setstate), states, strict=True):
        restore(state)
    load_model(opened, TASKS[task], Labels(("a", "b")), new_head=task is TaskName.FILL_MASK)
    assert random_numbers() == wanted


# Heads


def test_a_missing_head_is_refused_or_made_anew_always_the_same_and_a_missing_torch_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = rewrite(folder, without("classifier"))
    message = "no trained head for text-classification .*classifier.weight.*Fine-tune it first"
    with pytest.raises(InputError, match=message):
        load_model(opened, TASK)
    first, second = (load_model(opened, TASK, Labels(("a", "b")), new_head=True) for _ in range(2))
    assert logits(first, opened).shape == (6, 2)
    assert torch.equal(first.classifier.weight, second.classifier.weight)
    monkeypatch.setattr(checkpoints, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"torch is not installed.*pip install 'pocketbert\[train"):
        load_model(open_model_folder(str(folder)), TASK)


@pytest.mark.parametrize("before", ["module.", "_orig_mod.module.", "model."])
def test_a_part_with_which_all_names_begin_is_left_out(
    before: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = open_model_folder(str(folder))
    expected = logits(load_model(source, TASK), source)
    changed = rewrite(folder, lambda state: {before + k: v for k, v in state.items()})
    assert torch.equal(logits(load_model(changed, TASK), changed), expected)
    assert f"begin with '{before}', which is left out" in capsys.readouterr().err


def test_weights_in_several_parts_are_read(folder: Path) -> None:
    source = open_model_folder(str(folder))
    model = load_model(source, TASK)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    assert len(open_model_folder(str(folder)).weight_files) > 2
    assert torch.equal(logits(load_model(open_model_folder(str(folder)), TASK), source), logits(model, source))


def test_pickled_weights_in_several_parts_are_read(folder: Path) -> None:
    source = open_model_folder(str(folder))
    expected, state = logits(load_model(source, TASK), source), load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"pytorch_model-{i % 3}.bin" for i, name in enumerate(state)}
    for part in set(places.values()):
        torch.save({name: value for name, value in state.items() if places[name] == part}, folder / part)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))
    edit_json(folder / "config.json", architectures=None)  # found by the names in the index
    opened = open_model_folder(str(folder))
    assert (opened.task, len(opened.weight_files)) == (TASK.name, 3)
    assert opened.fp32_bytes >= sum(value.numel() * 4 for value in state.values())
    assert torch.equal(logits(load_model(opened, TASK), opened), expected)
    (folder / "pytorch_model-1.bin").unlink()
    with pytest.raises(InputError, match="1 of 3 parts are missing: pytorch_model-1.bin"):
        load_model(open_model_folder(str(folder)), TASK)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "xlnet"])
@pytest.mark.parametrize(
    "task",
    [TaskName.TEXT_CLASSIFICATION, TaskName.TOKEN_CLASSIFICATION, TaskName.QUESTION_ANSWERING, TaskName.FILL_MASK],
)
def test_the_task_is_found_by_the_weights_where_no_class_is_named(
    family: str, task: TaskName, tiny_model: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if task in find_family(family).invalid_tasks:
        pytest.skip(find_family(family).invalid_tasks[task])
    folder = shutil.copytree(tiny_model(family, 2, ("a", "b"), TASKS[task].auto_class), tmp_path / "model")
    edit_json(folder / "config.json", architectures=None)
    assert open_model_folder(str(folder)).task is task
    assert "config.json names no class; its weights have the names of a model ...For" in capsys.readouterr().err


def test_a_head_left_out_is_told_tags_show_the_task_and_nothing_is_guessed_where_heads_are_alike(
    folder: Path, capsys: pytest.CaptureFixture[str], tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    edit_json(folder / "config.json", architectures=["BertModel"])
    assert open_model_folder(str(folder)).task is TaskName.FEATURE_EXTRACTION
    said = capsys.readouterr().err
    assert "config.json names BertModel, but its weights have a head, which is left out" in said
    assert 'delete "architectures" there to export a model ...ForSequenceClassification' in said
    edit_json(folder / "config.json", architectures=None, id2label=TAGS, label2id=None)
    assert open_model_folder(str(folder)).task is TaskName.TOKEN_CLASSIFICATION
    folder = shutil.copytree(tiny_model("modernbert", 2), tmp_path / "alike")
    edit_json(folder / "config.json", architectures=None)
    assert open_model_folder(str(folder)).task is None


def test_weights_of_another_family_do_not_fit_by_leaving_a_part_out(folder: Path) -> None:
    encoder = rewrite(
        folder, lambda state: {k.replace("bert.", "roberta."): v for k, v in state.items() if "bert." in k}
    )
    with pytest.raises(InputError, match="weights are missing"):
        load_model(encoder, ENCODER)


TAGS = {"0": "O", "1": "B-PER", "2": "I-PER"}


def test_a_pooler_may_be_missing_where_it_is_not_read(folder: Path) -> None:
    def cut(state: State) -> State:
        return {k: v[:10].clone() if k == "bert.pooler.dense.bias" else v for k, v in state.items()}

    with pytest.raises(InputError, match=r"bert.pooler.dense.bias \(10,\) instead of \(32,\)"):
        load_model(rewrite(folder, cut), ENCODER)
    opened = rewrite(folder, without(".pooler."))
    with pytest.raises(InputError, match="pooler"):
        load_model(opened, TASK)
    assert load_model(opened, TASK, new_head=True).training is False
    load_model(opened, ENCODER)


# Weights


def test_half_precision_weights_become_fp32_and_those_of_a_distilled_pretraining_are_left_unread(folder: Path) -> None:
    unread = {"fit_denses.0.weight": torch.ones(3, 3), "loss_fct.weight": torch.ones(3)}
    opened = rewrite(folder, lambda s: {k: v.half() for k, v in (s | unread).items()})
    assert {p.dtype for p in load_model(opened, TASK).parameters()} == {torch.float32}


def change_layer(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[State], State]:
    return lambda state: state | {LAYER: change(state[LAYER])}


def fill_last_position(state: State) -> State:
    state["bert.embeddings.position_embeddings.weight"][-1].fill_(torch.nan)
    return state


WEIGHTS: dict[str, tuple[Callable[[State], State], str]] = {
    "unread in the encoder": (lambda s: s | {"bert.encoder.layer.0.adapter.weight": torch.ones(3)}, "read by no class"),
    "a layer more": (lambda s: s | {LAYER.replace("layer.1", "layer.2"): torch.ones(3)}, "the weights have 3"),
    "a weight fewer": (without(LAYER), f"1 weights are missing, e.g. {LAYER}"),
    "another shape": (change_layer(lambda v: v[:10]), r"output.dense.weight \(10, .*\) instead of"),
    "a NaN no text reaches": (fill_last_position, "NaN"),
    "an infinity": (change_layer(lambda v: v.index_fill(0, torch.tensor([0]), torch.inf)), "infinite"),
    "an immense number": (change_layer(lambda v: v.index_fill(0, torch.tensor([0]), 1e30)), "immense"),
    "flags": (change_layer(lambda v: v > 0), "not floating-point numbers: .*bool"),
    "eight bits": (change_layer(lambda v: v.to(torch.float8_e4m3fn)), "not floating-point numbers: .*float8"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_refused(name: str, folder: Path) -> None:
    change, said = WEIGHTS[name]
    opened = rewrite(folder, change)
    for new_head in (False, True):
        with pytest.raises(InputError, match=said):
            load_model(opened, TASK, new_head=new_head)


@pytest.mark.parametrize("trained", [False, True], ids=["weights", "training program"])
def test_a_bin_file_of_weights_is_read(trained: bool, folder: Path, tiny_model: Callable[..., Path]) -> None:
    state = load_file(folder / "model.safetensors")
    opened = write_bin(
        folder, {"epoch": 1, "state_dict": {f"model.{k}": v for k, v in state.items()}} if trained else state
    )
    right = open_model_folder(str(tiny_model("bert", 2)))
    assert torch.equal(logits(load_model(opened, TASK), opened), logits(load_model(right, TASK), right))


class Malicious:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.proof}",)


@pytest.mark.parametrize("plain_pickle", [True, False])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_bin_file_that_runs_code_is_refused(folder: Path, tmp_path: Path, plain_pickle: bool) -> None:
    proof = tmp_path / "code-ran"
    opened = write_bin(folder, {"a": Malicious(proof)})
    if plain_pickle:
        (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Malicious(proof)}))
    with pytest.raises(InputError, match="cannot be read as plain weights.*Convert it to model.safetensors"):
        load_model(opened, TASK)
    assert not proof.exists()


BINS: dict[str, Callable[[State], Any]] = {
    "a list": lambda s: [1, 2],
    "a tensor": lambda s: torch.zeros(3),
    "sparse": change_layer(lambda v: v.to_sparse()),
    "meta": change_layer(lambda v: v.to("meta")),
    "one number for all": change_layer(lambda v: torch.zeros(1).expand(v.shape)),
}


@pytest.mark.parametrize("name", BINS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_bin_files_of_other_things_are_refused(name: str, folder: Path) -> None:
    opened = write_bin(folder, BINS[name](load_file(folder / "model.safetensors")))
    with pytest.raises(InputError, match=r"not plain|plain weights|does not hold a state dict of tensors"):
        load_model(opened, TASK)


def test_bin_files_are_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = write_bin(folder, {k: torch.zeros_like(v) for k, v in load_file(folder / "model.safetensors").items()})
    with zipfile.ZipFile(folder / "pytorch_model.bin") as plain:
        entries = {entry.filename: plain.read(entry) for entry in plain.infolist()}
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in entries.items():
            packed.writestr(name, content)
    with pytest.raises(InputError, match="more than the file has; refused"):
        load_model(opened, TASK)
    monkeypatch.setattr(weight_files, "_MAX_BIN_BYTES", 10)
    with pytest.raises(InputError, match="refused"):
        load_model(opened, TASK)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_fifo_is_never_waited_for(name: str, folder: Path) -> None:
    for file in (name, "vocab.txt"):
        (folder / file).unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError):
        _ = open_model_folder(str(folder)).weight_files
        save_tokenizer(folder, 32, folder)


@pytest.mark.parametrize(
    ("name", "target", "said"),
    [
        ("tokenizer.json", "tokenizer.json", "leads back to itself"),
        ("special_tokens_map.json", "special_tokens_map.json", "leads back to itself"),
        ("vocab.txt", "nowhere", "file not found"),
        ("model.safetensors", "/proc/self/mem", "is empty"),
        ("model.safetensors", "/dev/null", "has neither"),
    ],
)
def test_links_to_no_file_are_refused_at_once(name: str, target: str, said: str, folder: Path) -> None:
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target)
    with pytest.raises(InputError, match=f"{name}.*{said}|{said}.*{name}"):
        load_model(open_model_folder(str(folder)), TASK)


# Configurations

CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "heads that do not divide": ({"hidden_size": 33}, "config.json"),
    "a billion labels": ({"num_labels": 10**9, "id2label": None}, "num_labels is 1000000000"),
    "a number of 40 digits": ({"hidden_size": 10**40}, "more than 30 digits"),
    "an immense vocabulary": ({"vocab_size": 10**9}, "vocab_size"),
    "no number": ({"vocab_size": "x"}, "vocab_size is 'x'"),
    "a flag": ({"num_attention_heads": True}, "num_attention_heads is True"),
    "a fraction": ({"hidden_size": 32.0}, "hidden_size is 32.0"),
    "negative positions": ({"max_position_embeddings": -1}, "max_position_embeddings"),
    "an infinity": ({"initializer_range": float("inf")}, "not a finite number"),
    "a share above 1": ({"hidden_dropout_prob": 7}, "hidden_dropout_prob is 7"),
    "an immense epsilon": ({"layer_norm_eps": 1e300}, "layer_norm_eps"),
    "a negative pad": ({"pad_token_id": -1}, "pad_token_id is -1"),
    "one layer fewer": ({"num_hidden_layers": 1}, "says 1 layers, the weights have 2"),
    "a decoder": ({"is_decoder": True}, "is_decoder"),
    "other positions": ({"position_embedding_type": "relative_key"}, "only 'absolute' is computed"),
    "quantized": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "layers that differ": ({"per_layer_config": {"0": {"hidden_size": 8}}}, "per_layer_config"),
    "a strange dtype": ({"dtype": "load"}, "dtype is 'load'"),
    "keys with a gap": ({"id2label": {"0": "a", "1": "b", "3": "c"}}, "not the numbers 0 to 2"),
    "keys that are no numbers": ({"id2label": {"a": "b"}}, "keys that are not numbers"),
    "an empty name": ({"id2label": {"0": "", "1": "b", "2": "c"}}, "empty or not text"),
    "one name twice": ({"id2label": {"0": "a", "1": "a", "2": "c"}}, "one name for two labels"),
    "half a surrogate pair": ({"id2label": {"0": "\ud800", "1": "b", "2": "c"}}, "not Unicode"),
    "labels in a list": ({"id2label": ["a", "b", "c"]}, "names by number"),
    "labels that contradict": ({"label2id": {"negative": 1, "neutral": 0, "positive": 2}}, "not the inverse"),
    "numbers that contradict": ({"num_labels": 7}, "num_labels is 7"),
    "architectures": ({"architectures": 5}, "architectures is 5"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_that_are_refused(name: str, folder: Path) -> None:
    values, said = CONFIGS[name]
    edit_json(folder / "config.json", **values)
    with pytest.raises(InputError, match=said):
        load_model(open_model_folder(str(folder)), TASK)


@pytest.mark.parametrize(
    "values",
    [
        {"chunk_size_feed_forward": 3, "output_hidden_states": True, "output_attentions": True},
        {"return_dict": False, "torchscript": True, "dtype": "float16"},
        {"_attn_implementation": "flash_attention_2", "attn_implementation": "flash_attention_2"},
        {"to_json_file": "x", "attribute_map": {"hidden_size": "vocab_size"}, "auto_map": 5},
    ],
    ids=lambda v: next(iter(v)),
)
def test_switches_of_transformers_change_nothing(
    values: dict[str, Any], folder: Path, tiny_model: Callable[..., Path]
) -> None:
    edit_json(folder / "config.json", **values)
    ids = torch.tensor([[2, 5, 9, 3]])
    with torch.no_grad():
        answers = [load_model(open_model_folder(str(f)), TASK)(ids).logits for f in (folder, tiny_model("bert", 2))]
    assert torch.equal(*answers)


NUMBERS = {"id2label": {"0": 0, "1": 1, "2": 2}, "label2id": {"0": 0, "1": 1, "2": 2}}


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        (NUMBERS, ["0", "1", "2"]),
        ({"label2id": {"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2}}, ["negative", "neutral", "positive"]),
        ({"label2id": {"NEGATIVE": 0, "neutral": 1}}, ["negative", "neutral", "positive"]),
    ],
    ids=["numbers", "default names", "other names"],
)
def test_labels_that_transformers_accepts_are_read(values: dict[str, Any], labels: list[str], folder: Path) -> None:
    edit_json(folder / "config.json", **values)
    opened = open_model_folder(str(folder))
    assert opened.labels == labels
    assert list(load_model(opened, TASK).config.id2label.values()) == labels
