"""Model folders that must not be exported: wrong configurations, weights and tokenizers, and sound ones that must."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.tasks import TASKS, TaskName
from support.tiny import GRAPHS, GUESSING

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
LAYER = "bert.encoder.layer.1.output.dense.weight"


@pytest.fixture
def folder(tmp_path: Path, tiny_model: Callable[..., Path]) -> Path:
    return Path(shutil.copytree(tiny_model("bert", 2), tmp_path / "bert"))


def edit(path: Path, **values: Any) -> None:
    content = {**json.loads(path.read_text()), **values}
    path.write_text(json.dumps(content))


def refused(folder: Path) -> str:
    with pytest.raises(InputError) as caught:
        load_model(open_model_folder(str(folder)), TASK)
    return str(caught.value)


CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "a billion labels": ({"num_labels": 10**9, "id2label": None}, "num_labels is 1000000000"),
    "a number of 40 digits": ({"hidden_size": 10**40}, "more than 30 digits"),
    "an immense vocabulary": ({"vocab_size": 10**9}, "vocab_size"),
    "no number": ({"vocab_size": "x"}, "vocab_size is 'x'"),
    "a list": ({"vocab_size": [1]}, r"vocab_size is \[1\]"),
    "a flag": ({"num_attention_heads": True}, "num_attention_heads is True"),
    "a fraction": ({"hidden_size": 32.0}, "hidden_size is 32.0"),
    "negative positions": ({"max_position_embeddings": -1}, "max_position_embeddings"),
    "an infinity": ({"initializer_range": float("inf")}, "not a finite number"),
    "a NaN in a list": ({"news": [{"a": [float("nan")]}]}, "not a finite number"),
    "a share above 1": ({"hidden_dropout_prob": 7}, "hidden_dropout_prob is 7"),
    "an immense epsilon": ({"layer_norm_eps": 1e300}, "layer_norm_eps"),
    "no epsilon": ({"layer_norm_eps": 0}, "layer_norm_eps"),
    "a negative pad": ({"pad_token_id": -1}, "pad_token_id is -1"),
    "a pad beyond the table": ({"pad_token_id": 2**63}, "pad_token_id"),
    "a pad in a list": ({"pad_token_id": [0]}, "pad_token_id"),
    "one layer fewer": ({"num_hidden_layers": 1}, "says 1 layers, the weights have 2"),
    "one layer more": ({"num_hidden_layers": 3}, "says 3 layers, the weights have 2"),
    "a decoder": ({"is_decoder": True}, "is_decoder"),
    "other positions": ({"position_embedding_type": "relative_key"}, "only 'absolute' is computed"),
    "quantized": ({"quantization_config": {"bits": 4}}, "quantization_config"),
    "layers that differ": ({"per_layer_config": {"0": {"hidden_size": 8}}}, "per_layer_config"),
    "a strange dtype": ({"dtype": "load"}, "dtype is 'load'"),
    "keys with a gap": ({"id2label": {"0": "a", "1": "b", "3": "c"}}, "not the numbers 0 to 2"),
    "keys that are no numbers": ({"id2label": {"a": "b"}}, "keys that are not numbers"),
    "an empty name": ({"id2label": {"0": "", "1": "b", "2": "c"}}, "empty or not text"),
    "a name that is a list": ({"id2label": {"0": [], "1": "b", "2": "c"}}, "empty or not text"),
    "one name twice": ({"id2label": {"0": "a", "1": "a", "2": "c"}}, "one name for two labels"),
    "half a surrogate pair": ({"id2label": {"0": "\ud800", "1": "b", "2": "c"}}, "not Unicode"),
    "labels in a list": ({"id2label": ["a", "b", "c"]}, "names by number"),
    "labels that contradict": ({"label2id": {"negative": 1, "neutral": 0, "positive": 2}}, "not the inverse"),
    "numbers that contradict": ({"num_labels": 7}, "num_labels is 7"),
    "architectures": ({"architectures": 5}, "architectures is 5"),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations(name: str, folder: Path) -> None:
    values, said = CONFIGS[name]
    edit(folder / "config.json", **values)
    with pytest.raises(InputError, match=said):
        load_model(open_model_folder(str(folder)), TASK)


@pytest.mark.parametrize(
    "values",
    [
        {"chunk_size_feed_forward": 3},
        {"output_hidden_states": True, "output_attentions": True},
        {"return_dict": False, "torchscript": True},
        {"_attn_implementation": "flash_attention_2", "attn_implementation": "flash_attention_2"},
        {"dtype": "float16"},
        {"to_json_file": "x", "attribute_map": {"hidden_size": "vocab_size"}, "auto_map": 5},
    ],
    ids=lambda v: next(iter(v)),
)
def test_switches_of_transformers_change_nothing(
    values: dict[str, Any], folder: Path, tiny_model: Callable[..., Path]
) -> None:
    edit(folder / "config.json", **values)
    ids = torch.tensor([[2, 5, 9, 3]])
    with torch.no_grad():
        answers = [load_model(open_model_folder(str(f)), TASK)(ids).logits for f in (folder, tiny_model("bert", 2))]
    assert torch.equal(*answers)


State = dict[str, torch.Tensor]
WEIGHTS: dict[str, tuple[Callable[[State], Any], str]] = {
    "unread in the encoder": (lambda s: s | {"bert.encoder.layer.0.adapter.weight": torch.ones(3)}, "read by no class"),
    "unread beside it": (lambda s: s | {"second_classifier.weight": torch.ones(3)}, "read by no class of BERT"),
    "a layer more": (lambda s: s | {LAYER.replace("layer.1", "layer.2"): torch.ones(3)}, "the weights have 3"),
    "a NaN no text reaches": (lambda s: s["bert.embeddings.position_embeddings.weight"][-1].fill_(torch.nan), "NaN"),
    "an infinity": (lambda s: s[LAYER][0].fill_(torch.inf), "infinite"),
    "an immense number": (lambda s: s[LAYER][0].fill_(1e30), "immense"),
    "flags": (lambda s: s | {LAYER: s[LAYER] > 0}, "not floating-point numbers: .*bool"),
    "complex numbers": (lambda s: s | {LAYER: s[LAYER].to(torch.complex64)}, "not floating-point numbers: .*complex64"),
    "whole numbers": (lambda s: s | {LAYER: s[LAYER].to(torch.int32)}, "not floating-point numbers: .*int32"),
    "eight bits": (lambda s: s | {LAYER: s[LAYER].to(torch.float8_e4m3fn)}, "not floating-point numbers: .*float8"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights(name: str, folder: Path) -> None:
    change, said = WEIGHTS[name]
    state = load_file(folder / "model.safetensors")
    made = change(state)
    save_file(made if isinstance(made, dict) else state, folder / "model.safetensors")
    with pytest.raises(InputError, match=said):
        load_model(open_model_folder(str(folder)), TASK)


BINS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sparse": lambda v: v.to_sparse(),
    "quantized": lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8),
    "meta": lambda v: v.to("meta"),
    "one number for all": lambda v: torch.zeros(1).expand(v.shape),
}


@pytest.mark.parametrize("name", BINS)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_bin_files(name: str, folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({**state, LAYER: BINS[name](state[LAYER])}, folder / "pytorch_model.bin")
    assert "not plain" in refused(folder) or "plain weights" in refused(folder)


def test_a_compressed_bin_file(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save({k: torch.zeros_like(v) for k, v in state.items()}, folder / "plain.bin")
    with (
        zipfile.ZipFile(folder / "plain.bin") as plain,
        zipfile.ZipFile(folder / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in plain.infolist():
            packed.writestr(entry.filename, plain.read(entry))
    assert "more than the file has; refused" in refused(folder)


@pytest.mark.parametrize("family", GRAPHS)
def test_a_pretrained_checkpoint_of_every_family_is_read(family: str, tiny_model: Callable[..., Path]) -> None:
    labels = Labels(("a", "b", "c"))
    guesses = ("AutoModelForMaskedLM",) if family in GUESSING else ()
    for auto in (*guesses, "AutoModelForSequenceClassification", "AutoModel"):
        made = open_model_folder(str(tiny_model(family, 2, auto_class=auto)))
        assert load_model(made, TASK, labels, new_head=True)
        assert load_model(made, TASKS[TaskName.FEATURE_EXTRACTION])
        assert load_model(made, TASKS[TaskName.TOKEN_CLASSIFICATION], labels, new_head=True)


def test_weights_of_a_distilled_pretraining_are_left_unread(folder: Path) -> None:
    state = load_file(folder / "model.safetensors")
    save_file({**state, "fit_denses.0.weight": torch.ones(3, 3)}, folder / "model.safetensors")
    assert load_model(open_model_folder(str(folder)), TASK)


def _vocabulary(content: Any, **more: int) -> None:
    content["model"]["vocab"] |= more


TOKENIZERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an id beyond the table": (lambda c: _vocabulary(c, lamp=100_000), "largest token id is 100,000"),
    "an added id beyond it": (
        lambda c: c["added_tokens"].append({**c["added_tokens"][0], "id": 10**6, "content": "zzz"}),
        "belongs to another model|not a tokenizer",
    ),
    "no vocabulary": (lambda c: c["model"].update(vocab={}), "vocabulary is empty"),
    "no frame": (lambda c: c.update(post_processor=None), "puts no special tokens around a text"),
    "a frame of strangers": (
        lambda c: c["post_processor"]["special_tokens"]["[CLS]"].update(ids=[77]),
        "adds '.CLS.', which the vocabulary does not have under that number",
    ),
    "a frame that repeats": (
        lambda c: c["post_processor"]["single"].extend([{"Sequence": {"id": "A", "type_id": 0}}] * 20),
        "does not have each text once",
    ),
    "special tokens only": (
        lambda c: c["model"].update(vocab={t["content"]: t["id"] for t in c["added_tokens"]}),
        "special tokens only",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(name: str, folder: Path) -> None:
    change, said = TOKENIZERS[name]
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=said):
        load_model(open_model_folder(str(folder)), TASK)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_fifo_is_never_waited_for(name: str, folder: Path) -> None:
    (folder / name).unlink()
    (folder / "vocab.txt").unlink()
    os.mkfifo(folder / name)
    with pytest.raises(InputError):
        from pocketbert.core.models.checkpoints import save_tokenizer

        _ = open_model_folder(str(folder)).weights
        save_tokenizer(folder, 32, folder)
