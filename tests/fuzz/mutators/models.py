"""Model folders: configurations and tokenizers of other content."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from fuzz.mutation import Place, Verdict, mutator
from fuzz.signing import read, write
from fuzz.values import changed


def _config(place: Place, changes: dict[str, Any]) -> None:
    path = place.model / "config.json"
    write(path, {**read(path), **changes})


def _change_values(draw: random.Random, path: Path) -> None:
    content = read(path)
    for _ in range(draw.choice([1, 1, 3])):
        content = changed(draw, content)
    write(path, content)


@mutator("model")
def config_values_any(draw: random.Random, place: Place) -> None:
    """A configuration with a value replaced, lost, doubled or swapped."""
    _change_values(draw, place.model / "config.json")


@mutator("model", verdict=Verdict.BAD)
def contradictions(draw: random.Random, place: Place) -> None:
    """A configuration that the weights or the other keys contradict."""
    _config(
        place,
        draw.choice(
            [
                {"num_hidden_layers": 1},
                {"num_hidden_layers": 3},
                {"hidden_size": 64},
                {"vocab_size": 40},
                {"intermediate_size": 32},
                {"max_position_embeddings": 32},
                {"type_vocab_size": 1},
                {"id2label": {"0": "lamp", "1": "music", "3": "timer"}},
                {"id2label": {"0": "lamp", "1": "", "2": "timer"}},
                {"label2id": {"lamp": 2, "music": 1, "timer": 0}},
                {"id2label": {"0": "lamp", "1": "lamp", "2": "timer"}},
                {"id2label": {"0": "lamp", "1": "music"}},
                {"layer_norm_eps": 1e300},
                {"layer_norm_eps": float("nan")},
                {"layer_norm_eps": -1.0},
                {"position_embedding_type": "relative_key"},
                {"model_type": "roberta"},
                {"model_type": "electra"},
                {"num_attention_heads": 3},
                {"num_attention_heads": 0},
                {"id2label": {"0": "\ud800", "1": "b", "2": "c"}},
            ]
        ),
    )


@mutator("model")
def settings(draw: random.Random, place: Place) -> None:
    """Keys of transformers with values that it may or may not take."""
    _config(
        place,
        draw.choice(
            [
                {"num_labels": 10**9},
                {"num_labels": 10**6},
                {"num_labels": -1},
                {"num_labels": "x"},
                {"num_labels": 0},
                {"_attn_implementation": "flash_attention_2"},
                {"chunk_size_feed_forward": 3},
                {"pad_token_id": -1},
                {"pad_token_id": 10**9},
                {"pad_token_id": None},
                {"pad_token_id": 1e400},
                {"hidden_dropout_prob": float("nan")},
                {"hidden_dropout_prob": 7},
                {"output_hidden_states": "x"},
                {"output_hidden_states": True},
                {"output_attentions": True},
                {"return_dict": False},
                {"is_decoder": True},
                {"add_cross_attention": True},
                {"tie_word_embeddings": False},
                {"torchscript": True},
                {"use_cache": "x"},
                {"torch_dtype": "float16"},
                {"torch_dtype": "nothing"},
                {"dtype": "bfloat16"},
                {"hidden_act": "gelu_new"},
                {"hidden_act": "relu"},
                {"hidden_act": ""},
                {"problem_type": "multi_label_classification"},
                {"problem_type": "regression"},
                {"architectures": []},
                {"architectures": None},
                {"architectures": ["BertModel"]},
                {"architectures": ["BertForMaskedLM"]},
                {"architectures": ["x" * 9000]},
                {"auto_map": {"AutoConfig": "evil.Config"}},
                {"initializer_range": -1.0},
                {"initializer_range": float("nan")},
                {"attention_probs_dropout_prob": 1.0},
                {"classifier_dropout": 9},
                {"quantization_config": {"quant_method": "bitsandbytes"}},
                {"quantization_config": 5},
                {"text_config": {}},
                {"pruned_heads": {"0": [0]}},
                {"_name_or_path": "/dev/zero"},
                {"transformers_version": "99.0"},
                {"id2label": {str(i): f"l{i}" for i in range(100_000)}},
                {"prefix": "x" * 10**6},
                {"max_length": -1},
                {"id2label": {}},
                {"id2label": None},
                {"label2id": None},
                {"label2id": 5},
                {"hidden_act": ["gelu"]},
                {"layer_norm_eps": 0},
                {"layer_norm_eps": "1e-12"},
            ]
        ),
    )


@mutator("model")
def tokenizer_values(draw: random.Random, place: Place) -> None:
    """A tokenizer with a value replaced, lost, doubled or swapped."""
    _change_values(draw, place.model / draw.choice(["tokenizer.json", "tokenizer_config.json"]))


@mutator("model", verdict=Verdict.BAD)
def empty_tokenizers(draw: random.Random, place: Place) -> None:
    """A tokenizer that cannot give what the model reads."""
    path = place.model / "tokenizer.json"
    content = read(path)
    vocabulary = content["model"]["vocab"]
    bpe = {
        "type": "BPE",
        "vocab": {},
        "merges": [],
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
    }
    write(
        path,
        {
            **content,
            **draw.choice(
                [
                    {"model": bpe},
                    {"post_processor": None},
                    {"model": {**content["model"], "vocab": {**vocabulary, "lamp": 100_000}}},
                    {"model": {**content["model"], "vocab": {}}},
                    {"model": {**content["model"], "vocab": {k: v + 50 for k, v in vocabulary.items()}}},
                ]
            ),
        },
    )
    (place.model / "vocab.txt").unlink()


@mutator("model", verdict=Verdict.FINE)
def right_model(draw: random.Random, place: Place) -> None:
    """The same model saved in another way that is as good."""
    path = place.model / "config.json"
    content = read(path)
    way = draw.randrange(6)
    if way == 0:
        path.write_text(json.dumps(content))
    elif way == 1:
        _config(
            place,
            {
                "hidden_dropout_prob": draw.choice([0.0, 0.3]),
                "more": {"a": [1]},
                "transformers_version": "4.30.0",
                "_name_or_path": "org/model",
            },
        )
    elif way == 2:
        (place.model / draw.choice(["vocab.txt", "tokenizer_config.json"])).unlink()
    elif way == 3:
        for one in place.model.iterdir():
            one.rename(place.here / f"blob-{one.name}")
            one.symlink_to(f"../blob-{one.name}")  # as the Hub's cache keeps them
    elif way == 4:
        _config(
            place,
            {
                "num_labels": 3,
                "problem_type": "single_label_classification",
                "use_cache": True,
                "gradient_checkpointing": False,
            },
        )
    else:
        for one in place.model.iterdir():
            one.chmod(0o444)
