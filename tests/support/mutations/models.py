"""Model files that are wrong byte by byte, in an artefact folder and in a Hugging Face folder."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

from support.mutations.maker import Contents, Damage, blanked, contents, cut_off, flipped, maker, one_of

KIND, SOURCE = "model", "source"
FILES = ("onnx/model.onnx", "onnx/model_int8.onnx", "tflite/model.tflite", "tflite/model_int8.tflite")
PACKAGES = ("coreml/Model.mlpackage", "coreml/Model_w8.mlpackage")
INSIDE = ("Manifest.json", "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin")


def note(folder: Path, name: str) -> None:
    """Leave beside the folder which model file was damaged, as `predict --model-file` takes it."""
    (folder.parent / "damaged.txt").write_text(name)


def bytes_of_model(listed: Callable[[random.Random, bytes], Contents]) -> Damage:
    """Register other bytes for one of the model files."""

    @wraps(listed)
    def damage(draw: random.Random, folder: Path) -> None:
        name = draw.choice([*FILES, *PACKAGES])
        note(folder, name)
        path = folder / name / draw.choice(INSIDE) if name in PACKAGES else folder / name
        before = path.read_bytes()
        path.write_bytes(one_of(draw, listed(draw, before)))
        assert path.read_bytes() != before

    return maker(KIND)(damage)


@bytes_of_model
def model_truncated(draw: random.Random, raw: bytes) -> bytes:
    return cut_off(draw, raw)


@bytes_of_model
def model_bit_flipped(draw: random.Random, raw: bytes) -> bytes:
    return flipped(draw, raw, 1)


@bytes_of_model
def model_start_flipped(draw: random.Random, raw: bytes) -> bytes:
    """Where the structure of most formats is; the length stays."""
    return flipped(draw, raw[:300], draw.randint(1, 8)) + raw[300:]


@bytes_of_model
def model_end_flipped(draw: random.Random, raw: bytes) -> bytes:
    """Where flatbuffers keep their tables."""
    return raw[:-3000] + flipped(draw, raw[-3000:], draw.choice([1, 7, 31]))


@bytes_of_model
def model_block_of_zeros(draw: random.Random, raw: bytes) -> bytes:
    return blanked(draw, raw)


@bytes_of_model
def model_of_noise(draw: random.Random, raw: bytes) -> bytes:
    return draw.choice([raw[:64], b""]) + draw.randbytes(len(raw))


@bytes_of_model
def model_empty(draw: random.Random, raw: bytes) -> list[bytes]:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    return [b"", b"\0", bytes(len(raw)), pointer]


@maker(KIND)
def models_swapped(draw: random.Random, folder: Path) -> None:
    a, b = draw.sample(FILES, 2)
    note(folder, a)
    first, second = (folder / a).read_bytes(), (folder / b).read_bytes()
    (folder / a).write_bytes(second)
    (folder / b).write_bytes(first)


@bytes_of_model
def model_pieces_mixed(draw: random.Random, raw: bytes) -> bytes:
    return raw[len(raw) // 2 :] + raw[: len(raw) // 2]


@bytes_of_model
def model_repeated(draw: random.Random, raw: bytes) -> list[bytes]:
    return [raw + more for more in (raw, b"\0", raw[-100:])]


@maker(KIND)
def package_pieces(draw: random.Random, folder: Path) -> None:
    name = draw.choice(PACKAGES)
    note(folder, name)
    path = folder / name / draw.choice(INSIDE)
    odd = draw.randrange(4)
    if odd == 0:
        path.unlink()
    elif odd == 1:
        path.unlink()
        path.mkdir()
    elif odd == 2:
        (path.parent / "more.bin").write_bytes(b"more")
    else:
        shutil.rmtree(folder / name / "Data")


@contents(SOURCE, "model.safetensors")
def weights_damaged(draw: random.Random, raw: bytes) -> list[bytes]:
    cut, ends = cut_off(draw, raw), [b"", raw + b"\0", raw[:8]]
    size = [b"\xff" * 8 + raw[8:], bytes(8) + raw[8:]]
    return [cut, *ends, *size, draw.randbytes(len(raw)), b"PK\x03\x04" + raw, raw[:8] + b"[" + raw[9:]]


@contents(SOURCE, "model.safetensors")
def weights_header_edited(draw: random.Random, raw: bytes) -> bytes:
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    name = draw.choice([k for k in header if k != "__metadata__"])
    odd = draw.randrange(9)
    if odd == 4:
        header[name] = draw.choice([None, [], 5, "x"])
    elif odd == 5:
        del header[name]
    elif odd == 6:
        header[f"{name}.x" * 50] = header.pop(name)
    else:
        key, values = {
            0: ("data_offsets", [[0, 10**15]]),
            1: ("data_offsets", [[-5, 3]]),
            2: ("shape", [[10**9, 10**9]]),
            3: ("dtype", ["F99", 5, None, "I64", "BOOL"]),
            7: ("shape", [[*header[name]["shape"][::-1], 1]]),
            8: ("shape", ["x", [-1], [1.5], None, [[]]]),
        }[odd]
        header[name][key] = one_of(draw, values)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + raw[8 + size :]


@contents(SOURCE, "config.json")
def config_damaged(draw: random.Random, raw: bytes) -> list[bytes]:
    edited = [raw[: len(raw) // 2], b"\xff" + raw, b"[" * 100_000, raw.replace(b'"', b"'"), b"\0" * 500]
    return [b"", b"{}", b"[]", b"null", *edited, draw.randbytes(300)]


VALUES: dict[str, list[Any]] = {
    "model_type": ["gpt2", 5, None, ["bert"]],
    "hidden_size": [33, -32, "x", 10**9, 10**30, 64],
    "num_attention_heads": [0, 3],
    "num_hidden_layers": [-1, 10**6],
    "vocab_size": [10, 10**10, -1],
    "max_position_embeddings": [0, -1, "x", [1], 10**10],
    "hidden_act": ["nothing", 5],
    "intermediate_size": [None],
    "id2label": [
        *({"a": "b"}, {"0": "a"}, [1, 2], "x", {"0": "a", "1": "a", "2": "b"}, {"0": None, "1": [], "2": {}}),
        *({"5": "a", "6": "b", "7": "c"}, {str(i): str(i) for i in range(5000)}),
    ],
    "problem_type": ["regression", 5],
    "architectures": [5],
    "pad_token_id": [10**9, "x"],
    "type_vocab_size": [0],
    "layer_norm_eps": ["x"],
    "hidden_dropout_prob": [7],
    "num_labels": ["x"],
}


@contents(SOURCE, "config.json")
def config_values(draw: random.Random, raw: bytes) -> str:
    key, value = draw.choice([(key, value) for key, values in VALUES.items() for value in values])
    return json.dumps({**json.loads(raw), key: value})


@maker(SOURCE)
def source_tokenizer(draw: random.Random, folder: Path) -> None:
    path = folder / "tokenizer.json"
    raw = path.read_bytes()
    odd = draw.randrange(4)
    if odd == 0:
        path.unlink()
        (folder / "vocab.txt").unlink()  # it would do
    elif odd == 1:
        path.write_bytes(draw.choice([b"", b"{}", b"null", cut_off(draw, raw), draw.randbytes(400), b"\xff" + raw]))
    elif odd == 2:
        content = json.loads(raw)
        content["model"].update(vocab={f"w{i}": i for i in range(draw.choice([0, 5000]))}, unk_token="w0")
        path.write_text(json.dumps(content))
    else:
        (folder / "tokenizer_config.json").write_text(draw.choice(["", "[]", "5", "{", "null", "[" * 9000, '"x"']))


@maker(SOURCE)
def source_pieces(draw: random.Random, folder: Path) -> None:
    weights, tokenizer = "model.safetensors", "tokenizer.json"
    for name in draw.choice([[weights], ["config.json"], [tokenizer, "vocab.txt"], [weights, tokenizer]]):
        (folder / name).unlink()
    odd = draw.randrange(4)
    if odd == 0:
        (folder / "model.safetensors.index.json").write_text("{}")
    elif odd == 1:
        pickles = [b"", b"PK\x03\x04", b"\x80\x04.", draw.randbytes(500), b"cos\nsystem\n(S'touch owned'\ntR."]
        (folder / "pytorch_model.bin").write_bytes(draw.choice(pickles))
