from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.models import checkpoints, weights
from pocketbert.core.models.checkpoints import load_model, save_model, save_tokenizer
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from support.tiny import GRAPHS

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
State = dict[str, torch.Tensor]


@pytest.fixture
def copied(tmp_path: Path, tiny_model: Callable[..., Path]) -> Callable[[str], Path]:
    """A copy of a tiny model that a test may change."""

    def copy(family: str) -> Path:
        return Path(shutil.copytree(tiny_model(family, 2), tmp_path / family))

    return copy


def rewrite(folder: Path, change: Callable[[State], State]) -> ModelFolder:
    state = change(load_file(folder / "model.safetensors"))
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")
    return open_model_folder(str(folder))


def logits(model: Any, folder: ModelFolder) -> torch.Tensor:
    tokenizer = TextTokenizer(folder.path, 32)
    inputs = tokenizer.pad(tokenizer.encode(list(SENTENCES[:6])))
    return torch.from_numpy(TorchPredictor(model, TASK, folder.family.inputs).run(inputs)["logits"])


@pytest.mark.parametrize("family", GRAPHS)
def test_a_saved_model_answers_the_same(family: str, tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = open_model_folder(str(tiny_model(family, 2)))
    model = load_model(source, TASK)
    target = tmp_path / "saved"
    target.mkdir()
    save_model(model, source, Labels(("negative", "neutral", "positive")), 32, target)
    again = open_model_folder(str(target))
    assert torch.equal(logits(load_model(again, TASK), again), logits(model, source))
    assert not model.training


def test_transformers_reads_what_is_saved(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    import transformers

    source = open_model_folder(str(tiny_model("bert", 2)))
    model = load_model(source, TASK)
    target = tmp_path / "saved"
    target.mkdir()
    save_model(model, source, Labels(("no", "maybe", "yes")), 32, target)
    again = transformers.AutoModelForSequenceClassification.from_pretrained(target)
    assert torch.equal(logits(again, source), logits(model, source))
    assert again.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    tokenizer = transformers.AutoTokenizer.from_pretrained(target)
    ours = TextTokenizer(target, 32).encode(list(SENTENCES))
    theirs = tokenizer(list(SENTENCES), truncation=True)["input_ids"]
    assert [e.ids.tolist() for e in ours] == theirs


def test_labels_are_written_both_ways(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = open_model_folder(str(tiny_model("bert", 2)))
    save_model(load_model(source, TASK), source, Labels(("no", "maybe", "yes")), 32, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
    assert config["label2id"] == {v: int(k) for k, v in config["id2label"].items()}
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert config["problem_type"] == "single_label_classification"
    assert str(tmp_path) not in json.dumps(config)
    assert str(source.path) not in json.dumps(config)


def test_the_saved_tokenizer_neither_pads_nor_cuts(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_model("bert", 2)
    assert json.loads((source / "tokenizer.json").read_text())["padding"] is not None
    save_tokenizer(source, 20, tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert content["padding"] is None
    assert content["truncation"] is None
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 20
    assert (tmp_path / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()


def test_a_tokenizer_is_converted_from_its_vocabulary(copied: Callable[[str], Path], tmp_path: Path) -> None:
    source = copied("bert")
    before = TextTokenizer(source, 32).encode(list(SENTENCES))
    (source / "tokenizer.json").unlink()
    target = tmp_path / "converted"
    target.mkdir()
    save_tokenizer(source, 32, target)
    after = TextTokenizer(target, 32).encode(list(SENTENCES))
    assert [e.ids.tolist() for e in after] == [e.ids.tolist() for e in before]


def test_a_folder_without_any_tokenizer_is_refused(copied: Callable[[str], Path], tmp_path: Path) -> None:
    source = copied("bert")
    for name in ("tokenizer.json", "vocab.txt", "tokenizer_config.json"):
        (source / name).unlink()
    with pytest.raises(InputError, match="tokenizer"):
        save_tokenizer(source, 32, tmp_path)


def test_a_missing_head_is_refused(copied: Callable[[str], Path]) -> None:
    folder = rewrite(copied("bert"), lambda s: {k: v for k, v in s.items() if not k.startswith("classifier")})
    with pytest.raises(
        InputError, match="no trained head for text-classification .*classifier.weight.*Fine-tune it first"
    ):
        load_model(folder, TASK)
    model = load_model(folder, TASK, Labels(("a", "b")), new_head=True)
    assert logits(model, folder).shape == (6, 2)


def test_a_new_head_starts_the_same_every_time(copied: Callable[[str], Path]) -> None:
    folder = rewrite(copied("bert"), lambda s: {k: v for k, v in s.items() if not k.startswith("classifier")})
    first, second = (load_model(folder, TASK, Labels(("a", "b")), new_head=True) for _ in range(2))
    torch.rand(3)
    assert torch.equal(first.classifier.weight, second.classifier.weight)


@pytest.mark.parametrize("family", GRAPHS)
def test_a_head_for_another_label_set_is_replaced_only_when_asked(family: str, tiny_model: Callable[..., Path]) -> None:
    folder = open_model_folder(str(tiny_model(family, 2)))
    five = Labels(("a", "b", "c", "d", "e"))
    model = load_model(folder, TASK, five, new_head=True)
    assert logits(model, folder).shape == (6, 5)
    assert model.config.id2label == five.id2label
    assert logits(load_model(folder, TASK, five), folder).shape == (6, 3)


@pytest.mark.parametrize("family", GRAPHS)
def test_weights_saved_from_the_bare_encoder_fit(family: str, copied: Callable[[str], Path]) -> None:
    path = copied(family)
    whole = load_model(open_model_folder(str(path)), TASK)
    prefix = f"{whole.base_model_prefix}."
    folder = rewrite(path, lambda s: {k.removeprefix(prefix): v for k, v in s.items() if k.startswith(prefix)})
    with pytest.raises(InputError, match="no trained head"):
        load_model(folder, TASK)
    model = load_model(folder, TASK, Labels(("a", "b", "c")), new_head=True)
    for key, value in model.state_dict().items():
        if key.startswith(prefix):
            assert torch.equal(value, whole.state_dict()[key]), key


def test_keys_of_old_checkpoints_are_renamed(copied: Callable[[str], Path]) -> None:
    path = copied("bert")
    wanted = load_model(open_model_folder(str(path)), TASK).state_dict()

    def old(state: State) -> State:
        pairs = (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))
        for new_name, old_name in pairs:
            state = {k.replace(new_name, old_name): v for k, v in state.items()}
        assert any("gamma" in k for k in state)
        return state

    found = load_model(rewrite(path, old), TASK).state_dict()
    assert all(torch.equal(found[k], wanted[k]) for k in wanted)


def test_half_precision_weights_become_fp32(copied: Callable[[str], Path]) -> None:
    folder = rewrite(copied("bert"), lambda s: {k: v.half() for k, v in s.items()})
    assert {p.dtype for p in load_model(folder, TASK).parameters()} == {torch.float32}


def test_a_missing_weight_is_refused(copied: Callable[[str], Path]) -> None:
    key = "bert.encoder.layer.1.output.dense.weight"
    folder = rewrite(copied("bert"), lambda s: {k: v for k, v in s.items() if k != key})
    for new_head in (False, True):
        with pytest.raises(InputError, match=f"1 weights are missing, e.g. {key}"):
            load_model(folder, TASK, new_head=new_head)


def test_a_missing_pooler_is_part_of_a_new_head(copied: Callable[[str], Path]) -> None:
    folder = rewrite(copied("bert"), lambda s: {k: v for k, v in s.items() if ".pooler." not in k})
    with pytest.raises(InputError, match="pooler"):
        load_model(folder, TASK)
    assert load_model(folder, TASK, new_head=True).training is False


def test_a_weight_of_another_shape_is_refused(copied: Callable[[str], Path]) -> None:
    def cut(state: State) -> State:
        return {k: v[:10] if k.endswith("word_embeddings.weight") else v for k, v in state.items()}

    folder = rewrite(copied("bert"), cut)
    with pytest.raises(InputError, match=r"word_embeddings.weight \(10, 32\) instead of"):
        load_model(folder, TASK, new_head=True)


def test_a_truncated_file_is_refused(copied: Callable[[str], Path]) -> None:
    path = copied("bert")
    raw = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(raw[: len(raw) // 2])
    with pytest.raises(InputError, match="truncated"):
        load_model(open_model_folder(str(path)), TASK)


def test_a_configuration_that_transformers_refuses(copied: Callable[[str], Path]) -> None:
    path = copied("bert")
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "hidden_size": 33}))
    with pytest.raises(InputError, match=r"config.json"):
        load_model(open_model_folder(str(path)), TASK)


def as_bin(path: Path, content: Any) -> ModelFolder:
    torch.save(content, path / "pytorch_model.bin")
    (path / "model.safetensors").unlink()
    return open_model_folder(str(path))


def test_a_bin_file_of_weights_is_read(copied: Callable[[str], Path], tiny_model: Callable[..., Path]) -> None:
    path = copied("bert")
    folder = as_bin(path, load_file(path / "model.safetensors"))
    right = open_model_folder(str(tiny_model("bert", 2)))
    assert torch.equal(logits(load_model(folder, TASK), folder), logits(load_model(right, TASK), right))


class Malicious:
    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.proof}",)


@pytest.mark.parametrize("plain_pickle", [True, False])
@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_bin_file_that_runs_code_is_refused(
    copied: Callable[[str], Path], tmp_path: Path, plain_pickle: bool
) -> None:
    path, proof = copied("bert"), tmp_path / "code-ran"
    (path / "model.safetensors").unlink()
    if plain_pickle:
        (path / "pytorch_model.bin").write_bytes(pickle.dumps({"a": Malicious(proof)}))
    else:
        torch.save({"a": Malicious(proof)}, path / "pytorch_model.bin")
    with pytest.raises(InputError, match="cannot be read as plain weights.*Convert it to model.safetensors"):
        load_model(open_model_folder(str(path)), TASK)
    assert not proof.exists()


@pytest.mark.parametrize("content", [[1, 2], {"a": 3}, torch.zeros(3)])
def test_a_bin_file_of_other_things_is_refused(copied: Callable[[str], Path], content: Any) -> None:
    with pytest.raises(InputError, match="does not hold a state dict of tensors"):
        load_model(as_bin(copied("bert"), content), TASK)


def test_a_bin_file_is_bounded(copied: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_MAX_BIN_BYTES", 10)
    with pytest.raises(InputError, match="refused"):
        load_model(as_bin(copied("bert"), {"a": torch.zeros(3)}), TASK)


def test_a_missing_torch_is_named_with_its_command(
    tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"torch is not installed.*pip install 'pocketbert\[train"):
        load_model(open_model_folder(str(tiny_model("bert", 2))), TASK)


def random_numbers() -> tuple[list[float], list[float], float]:
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()


@pytest.mark.parametrize("task", [TaskName.TEXT_CLASSIFICATION, TaskName.FEATURE_EXTRACTION, TaskName.FILL_MASK])
def test_loading_leaves_the_global_random_states_alone(
    task: TaskName, tiny_model: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    sketched: list[set[str]] = []
    other_heads = weights._other_heads
    monkeypatch.setattr(weights, "_other_heads", lambda *asked: sketched.append(other_heads(*asked)) or sketched[-1])
    folder = open_model_folder(str(tiny_model("bert", 2)))
    states: tuple[Any, ...] = (torch.get_rng_state(), np.random.get_state(), random.getstate())
    wanted = random_numbers()
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])
    load_model(folder, TASKS[task], Labels(("a", "b")), new_head=task is TaskName.FILL_MASK)
    assert random_numbers() == wanted
    assert bool(sketched) == (task is not TaskName.TEXT_CLASSIFICATION)


ENCODER = TASKS[TaskName.FEATURE_EXTRACTION]


@pytest.mark.parametrize("family", GRAPHS)
def test_every_weight_of_a_saved_encoder_comes_back(
    family: str, tiny_model: Callable[..., Path], tmp_path: Path
) -> None:
    source = open_model_folder(str(tiny_model(family, 2)))
    model = load_model(source, ENCODER)
    with torch.no_grad():
        for value in model.parameters():
            value.add_(0.125)
    save_model(model, source, Labels(()), 32, tmp_path)
    again = load_model(open_model_folder(str(tmp_path)), ENCODER).state_dict()
    assert [k for k, v in model.state_dict().items() if not torch.equal(v, again[k])] == []


def test_an_encoder_may_lack_its_pooler_but_has_none_of_another_shape(copied: Callable[[str], Path]) -> None:
    def cut(state: State) -> State:
        return {k: v[:10].clone() if k == "bert.pooler.dense.bias" else v for k, v in state.items()}

    path = copied("bert")
    with pytest.raises(InputError, match=r"bert.pooler.dense.bias \(10,\) instead of \(32,\)"):
        load_model(rewrite(path, cut), ENCODER)
    load_model(rewrite(path, lambda s: {k: v for k, v in s.items() if ".pooler." not in k}), ENCODER)
