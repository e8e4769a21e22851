"""Model folders: configurations, tokenizers and weights of other content."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.files import change_json, read_json, read_plain, write_json
from fuzz.mutation import Place, Verdict, mutator
from fuzz.values import NAN, one_pair

Tensors = dict[str, tuple[str, NDArray[Any]]]
"""Name of the type, and values, by the name of the tensor."""
TYPES = {
    **{"F16": np.float16, "F32": np.float32, "F64": np.float64, "C64": np.complex64, "BOOL": np.bool_},
    **{"I32": np.int32, "I64": np.int64, "U8": np.uint8, "U32": np.uint32},
}
CONTRADICTIONS: dict[str, list[Any]] = {
    "num_hidden_layers": [1, 3],
    "hidden_size": [64],
    "vocab_size": [40],
    "intermediate_size": [32],
    "max_position_embeddings": [32],
    "type_vocab_size": [1],
    "id2label": [
        *({"0": "lamp", "1": "music", "3": "timer"}, {"0": "lamp", "1": "", "2": "timer"}),
        *({"0": "lamp", "1": "lamp", "2": "timer"}, {"0": "lamp", "1": "music"}, {"0": "\ud800", "1": "b", "2": "c"}),
    ],
    "label2id": [{"lamp": 2, "music": 1, "timer": 0}],
    "layer_norm_eps": [1e300, NAN, -1.0],
    "position_embedding_type": ["relative_key"],
    "model_type": ["roberta", "electra"],
    "num_attention_heads": [3, 0],
}
"""What the weights or the other keys contradict."""
SETTINGS: dict[str, list[Any]] = {
    "num_labels": [10**9, 10**6, -1, "x", 0],
    "_attn_implementation": ["flash_attention_2"],
    "chunk_size_feed_forward": [3],
    "pad_token_id": [-1, 10**9, None, 1e400],
    "hidden_dropout_prob": [NAN, 7],
    "attention_probs_dropout_prob": [1.0],
    "classifier_dropout": [9],
    "output_hidden_states": ["x", True],
    "output_attentions": [True],
    "return_dict": [False],
    "is_decoder": [True],
    "add_cross_attention": [True],
    "tie_word_embeddings": [False],
    "torchscript": [True],
    "use_cache": ["x"],
    "torch_dtype": ["float16", "nothing"],
    "dtype": ["bfloat16"],
    "hidden_act": ["gelu_new", "relu", "", ["gelu"]],
    "problem_type": ["multi_label_classification", "regression"],
    "architectures": [[], None, ["BertModel"], ["BertForMaskedLM"], ["x" * 9000]],
    "auto_map": [{"AutoConfig": "evil.Config"}],
    "initializer_range": [-1.0, NAN],
    "quantization_config": [{"quant_method": "bitsandbytes"}, 5],
    "text_config": [{}],
    "pruned_heads": [{"0": [0]}],
    "_name_or_path": ["/dev/zero"],
    "transformers_version": ["99.0"],
    "id2label": [{str(i): f"l{i}" for i in range(100_000)}, {}, None],
    "label2id": [None, 5],
    "prefix": ["x" * 10**6],
    "max_length": [-1],
    "layer_norm_eps": [0, "1e-12"],
}
"""Keys of transformers with values that it may or may not take."""


def _configure(place: Place, **changes: Any) -> None:
    path = place.model / "config.json"
    write_json(path, {**read_json(path), **changes})


@mutator("model")
def config_values_any(draw: random.Random, place: Place) -> None:
    change_json(draw, place.model / "config.json")


@mutator("model", verdict=Verdict.BAD)
def contradictions(draw: random.Random, place: Place) -> None:
    key, value = one_pair(draw, CONTRADICTIONS)
    _configure(place, **{key: value})


@mutator("model")
def settings(draw: random.Random, place: Place) -> None:
    key, value = one_pair(draw, SETTINGS)
    _configure(place, **{key: value})


@mutator("model")
def tokenizer_values(draw: random.Random, place: Place) -> None:
    change_json(draw, place.model / draw.choice(["tokenizer.json", "tokenizer_config.json"]))


@mutator("model", verdict=Verdict.BAD)
def empty_tokenizers(draw: random.Random, place: Place) -> None:
    """A tokenizer that cannot give what the model reads."""
    path = place.model / "tokenizer.json"
    content = read_json(path)
    model, words = content["model"], content["model"]["vocab"]
    unset = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    bpe = {"type": "BPE", "vocab": {}, "merges": [], **unset, "fuse_unk": False, "byte_fallback": False}
    vocabularies = [{**words, "lamp": 100_000}, {}, {k: v + 50 for k, v in words.items()}]
    models = [bpe, *({**model, "vocab": v} for v in vocabularies)]
    write_json(path, {**content, **draw.choice([{"post_processor": None}, *({"model": m} for m in models)])})
    (place.model / "vocab.txt").unlink()


@mutator("model", verdict=Verdict.FINE)
def right_model(draw: random.Random, place: Place) -> None:
    """The same model saved in another way that is as good."""
    path = place.model / "config.json"
    way = draw.randrange(6)
    if way == 0:
        path.write_text(json.dumps(read_json(path)))
    elif way == 1:
        dropout = draw.choice([0.0, 0.3])
        _configure(place, hidden_dropout_prob=dropout, more={"a": [1]}, transformers_version="4.30.0")
        _configure(place, _name_or_path="org/model")
    elif way == 2:
        (place.model / draw.choice(["vocab.txt", "tokenizer_config.json"])).unlink()
    elif way == 3:
        for one in place.model.iterdir():
            one.rename(place.here / f"blob-{one.name}")
            one.symlink_to(f"../blob-{one.name}")  # as the Hub's cache keeps them
    elif way == 4:
        _configure(place, num_labels=3, problem_type="single_label_classification", use_cache=True)
        _configure(place, gradient_checkpointing=False)
    else:
        for one in place.model.iterdir():
            one.chmod(0o444)


# weights: a file that is whole, with other tensors


def _read_tensors(place: Place) -> Tensors:
    raw = read_plain(place.model / "model.safetensors")
    start = 8 + struct.unpack("<Q", raw[:8])[0]
    out: Tensors = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            a, b = entry["data_offsets"]
            values = np.frombuffer(raw[start + a : start + b], TYPES[entry["dtype"]])
            out[name] = (entry["dtype"], values.reshape(entry["shape"]).copy())
    return out


def _write_tensors(place: Place, tensors: Tensors) -> None:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs = b""
    for name, (kind, values) in tensors.items():
        blob = values.tobytes()
        header[name] = {"dtype": kind, "shape": values.shape, "data_offsets": [len(blobs), len(blobs) + len(blob)]}
        blobs += blob
    text = json.dumps(header).encode()
    (place.model / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + blobs)


def _cast(values: NDArray[Any], kind: str) -> tuple[str, NDArray[Any]]:
    return kind, values.astype(TYPES[kind])


def _cast_all(tensors: Tensors, kind: str) -> Tensors:
    return {name: _cast(values, kind) for name, (_, values) in tensors.items()}


@mutator("model", verdict=Verdict.BAD)
def wrong_tensors(draw: random.Random, place: Place) -> None:
    """A tensor that no model of this configuration has."""
    tensors = _read_tensors(place)
    name = draw.choice(list(tensors))
    kind, values = tensors[name]
    way = draw.randrange(9)
    if way == 0:
        del tensors[draw.choice([n for n, (_, v) in tensors.items() if v.ndim == 2 and v.size > 8])]
    elif way == 1:
        tensors[name] = (kind, np.concatenate([values, values[:1]]))
    elif way == 2:
        tensors[name] = _cast(values, draw.choice(["BOOL", "I32", "U32", "I64", "U8", "C64"]))
    elif way == 3:
        values.reshape(-1)[draw.randrange(values.size)] = draw.choice([np.nan, np.inf, -np.inf])
    elif way == 4:
        tensors = {n: (k, np.zeros_like(v)) for n, (k, v) in tensors.items()}
    elif way == 5:
        tensors |= {n.replace("layer.1.", "layer.2."): t for n, t in tensors.items() if "layer.1." in n}
    elif way == 6:
        tensors = _cast_all(tensors, draw.choice(["BOOL", "I32", "C64"]))
    elif way == 7:
        tensors[name] = (kind, values.reshape(*values.shape, 1))
    else:
        tensors["bert.encoder.layer.0.attention.self.distance_embedding.weight"] = (kind, np.ones((63, 16), np.float32))
    _write_tensors(place, tensors)


@mutator("model")
def odd_tensors(draw: random.Random, place: Place) -> None:
    """Tensors with values that may or may not do."""
    tensors = _read_tensors(place)
    name = draw.choice(list(tensors))
    kind, values = tensors[name]
    way = draw.randrange(5)
    if way == 0:
        tensors[name] = (kind, values * np.float32(draw.choice([0, -1, 1e6, 1e30, 1e-30])))
    elif way == 1:
        tensors[name] = (kind, np.zeros_like(values))
    elif way == 2:
        more = ["x", "classifier.more", "", "bert.pooler.dense.weight.extra", "\x1b[2J"]
        tensors[draw.choice(more)] = (kind, values)
    elif way == 3:
        tensors = {n: (k, np.full_like(v, draw.choice([1e30, 1e-30, 3.0]))) for n, (k, v) in tensors.items()}
    else:
        tensors[name] = _cast(values, draw.choice(["F16", "F64"]))
    _write_tensors(place, tensors)


@mutator("model", verdict=Verdict.FINE)
def right_tensors(draw: random.Random, place: Place) -> None:
    """The same weights in another order or precision, or with buffers that older versions saved."""
    tensors = _read_tensors(place)
    positions: Tensors = {**tensors, "bert.embeddings.position_ids": ("I64", np.arange(64)[None])}
    turned = dict(reversed(tensors.items()))
    _write_tensors(place, draw.choice([turned, _cast_all(tensors, "F16"), _cast_all(tensors, "F64"), positions]))
