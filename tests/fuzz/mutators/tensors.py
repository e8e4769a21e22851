"""Weights: tensors of other shape, type or value, missing and additional ones, in a file that is whole."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuzz.mutation import Place, Verdict, mutator
from fuzz.plain import read_plain

Tensors = dict[str, tuple[str, NDArray[Any]]]
TYPES = {
    "F32": np.float32,
    "F16": np.float16,
    "I64": np.int64,
    "I32": np.int32,
    "U32": np.uint32,
    "U8": np.uint8,
    "BOOL": np.bool_,
    "F64": np.float64,
    "C64": np.complex64,
}


def read(path: Path) -> Tensors:
    """The tensors of a file, by name: name of the type, and values."""
    raw = read_plain(path)
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    out: Tensors = {}
    for name, entry in header.items():
        if name != "__metadata__":
            a, b = entry["data_offsets"]
            values = np.frombuffer(raw[8 + size + a : 8 + size + b], TYPES[entry["dtype"]]).reshape(entry["shape"])
            out[name] = (entry["dtype"], values.copy())
    return out


def write(path: Path, tensors: Tensors) -> None:
    """Write a file that is whole."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blobs, at = [], 0
    for name, (kind, values) in tensors.items():
        blob = values.tobytes()
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def _cast(values: NDArray[Any], kind: str) -> tuple[str, NDArray[Any]]:
    return kind, values.astype(TYPES[kind])


def _matrix(draw: random.Random, tensors: Tensors) -> str:
    return draw.choice([n for n, (_, v) in tensors.items() if v.ndim == 2 and v.size > 8])


@mutator("model", verdict=Verdict.BAD)
def wrong_tensors(draw: random.Random, place: Place) -> None:
    """A tensor that no model of this configuration has."""
    path = place.model / "model.safetensors"
    tensors = read(path)
    name = draw.choice(list(tensors))
    kind, values = tensors[name]
    way = draw.randrange(9)
    if way == 0:
        del tensors[_matrix(draw, tensors)]
    elif way == 1:
        tensors[name] = (kind, np.concatenate([values, values[:1]]))
    elif way == 2:
        tensors[name] = _cast(values, draw.choice(["BOOL", "I32", "U32", "I64", "U8", "C64"]))
    elif way == 3:
        bent = values.copy()
        bent.reshape(-1)[draw.randrange(bent.size)] = draw.choice([np.nan, np.inf, -np.inf])
        tensors[name] = (kind, bent)
    elif way == 4:
        tensors = {n: (k, np.zeros_like(v)) for n, (k, v) in tensors.items()}
    elif way == 5:
        more = {n.replace("layer.1.", "layer.2."): t for n, t in tensors.items() if "layer.1." in n}
        tensors = {**tensors, **more}
    elif way == 6:
        tensors = {n: _cast(v, draw.choice(["BOOL", "I32", "C64"])) for n, (k, v) in tensors.items()}
    elif way == 7:
        tensors[name] = (kind, values.reshape(*values.shape, 1))
    else:
        tensors["bert.encoder.layer.0.attention.self.distance_embedding.weight"] = (kind, np.ones((63, 16), np.float32))
    write(path, tensors)


@mutator("model")
def odd_tensors(draw: random.Random, place: Place) -> None:
    """Tensors with values that may or may not do."""
    path = place.model / "model.safetensors"
    tensors = read(path)
    name = draw.choice(list(tensors))
    kind, values = tensors[name]
    way = draw.randrange(5)
    if way == 0:
        tensors[name] = (kind, values * np.float32(draw.choice([0, -1, 1e6, 1e30, 1e-30])))
    elif way == 1:
        tensors[name] = (kind, np.zeros_like(values))
    elif way == 2:
        tensors[draw.choice(["x", "classifier.more", "", "bert.pooler.dense.weight.extra", "\x1b[2J"])] = (kind, values)
    elif way == 3:
        tensors = {n: (k, np.full_like(v, draw.choice([1e30, 1e-30, 3.0]))) for n, (k, v) in tensors.items()}
    else:
        tensors[name] = _cast(values, draw.choice(["F16", "F64"]))
    write(path, tensors)


@mutator("model", verdict=Verdict.FINE)
def right_tensors(draw: random.Random, place: Place) -> None:
    """The same weights in another order or precision, or with buffers that older versions saved."""
    path = place.model / "model.safetensors"
    tensors = read(path)
    way = draw.randrange(4)
    if way == 0:
        tensors = dict(reversed(tensors.items()))
    elif way == 1:
        tensors = {n: _cast(v, "F16") for n, (_, v) in tensors.items()}
    elif way == 2:
        tensors = {n: _cast(v, "F64") for n, (_, v) in tensors.items()}
    else:
        tensors["bert.embeddings.position_ids"] = ("I64", np.arange(64)[None])
    write(path, tensors)
