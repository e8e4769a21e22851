"""Model files that are wrong byte by byte, in an artefact folder and in a Hugging Face folder."""

from __future__ import annotations

import json
import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.mutations.maker import blanked, cut_off, flipped, maker

KIND, SOURCE = "model", "source"
ONNX = ("onnx/model.onnx", "onnx/model_int8.onnx")
TFLITE = ("tflite/model.tflite", "tflite/model_int8.tflite")
PACKAGES = ("coreml/Model.mlpackage", "coreml/Model_w8.mlpackage")
INSIDE = ("Manifest.json", "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin")
MARK = "damaged.txt"
"""Beside the folder: path of the model file that was damaged, as `predict --model-file` takes it."""


def _chosen(draw: random.Random, folder: Path) -> Path:
    """A file of a model, with its name left beside the folder."""
    name = draw.choice([*ONNX, *TFLITE, *PACKAGES])
    (folder.parent / MARK).write_text(name)
    return folder / name / draw.choice(INSIDE) if name in PACKAGES else folder / name


def _rewrite(draw: random.Random, folder: Path, change: Callable[[bytes], bytes]) -> None:
    path = _chosen(draw, folder)
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before


@maker(KIND)
def model_truncated(draw: random.Random, folder: Path) -> None:
    _rewrite(draw, folder, lambda raw: cut_off(draw, raw))


@maker(KIND)
def model_bit_flipped(draw: random.Random, folder: Path) -> None:
    _rewrite(draw, folder, lambda raw: flipped(draw, raw, 1))


@maker(KIND)
def model_start_flipped(draw: random.Random, folder: Path) -> None:
    """Where the structure of most formats is; the length stays."""
    _rewrite(draw, folder, lambda raw: flipped(draw, raw[:300], draw.randint(1, 8)) + raw[300:])


@maker(KIND)
def model_end_flipped(draw: random.Random, folder: Path) -> None:
    """Where flatbuffers keep their tables."""
    _rewrite(draw, folder, lambda raw: raw[:-3000] + flipped(draw, raw[-3000:], draw.choice([1, 7, 31])))


@maker(KIND)
def model_block_of_zeros(draw: random.Random, folder: Path) -> None:
    _rewrite(draw, folder, lambda raw: blanked(draw, raw))


@maker(KIND)
def model_of_noise(draw: random.Random, folder: Path) -> None:
    _rewrite(draw, folder, lambda raw: draw.choice([raw[:64], b""]) + draw.randbytes(len(raw)))


@maker(KIND)
def model_empty(draw: random.Random, folder: Path) -> None:
    _rewrite(
        draw,
        folder,
        lambda raw: draw.choice(
            [
                b"",
                b"\0",
                bytes(len(raw)),
                b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            ]
        ),
    )


@maker(KIND)
def models_swapped(draw: random.Random, folder: Path) -> None:
    a, b = draw.sample([*ONNX, *TFLITE], 2)
    (folder.parent / MARK).write_text(a)
    first, second = (folder / a).read_bytes(), (folder / b).read_bytes()
    (folder / a).write_bytes(second)
    (folder / b).write_bytes(first)


@maker(KIND)
def model_pieces_mixed(draw: random.Random, folder: Path) -> None:
    _rewrite(draw, folder, lambda raw: raw[len(raw) // 2 :] + raw[: len(raw) // 2])


@maker(KIND)
def model_repeated(draw: random.Random, folder: Path) -> None:
    _rewrite(draw, folder, lambda raw: raw + draw.choice([raw, b"\0", raw[-100:]]))


@maker(KIND)
def package_pieces(draw: random.Random, folder: Path) -> None:
    name = draw.choice(PACKAGES)
    (folder.parent / MARK).write_text(name)
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


def _json(path: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@maker(SOURCE)
def weights_damaged(draw: random.Random, folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(
        draw.choice(
            [
                cut_off(draw, raw),
                b"",
                raw + b"\0",
                raw[:8],
                b"\xff" * 8 + raw[8:],
                bytes(8) + raw[8:],
                draw.randbytes(len(raw)),
                b"PK\x03\x04" + raw,
                raw[:8] + b"[" + raw[9:],
            ]
        )
    )


@maker(SOURCE)
def weights_header_edited(draw: random.Random, folder: Path) -> None:
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    name = draw.choice([k for k in header if k != "__metadata__"])
    odd = draw.randrange(9)
    if odd == 0:
        header[name]["data_offsets"] = [0, 10**15]
    elif odd == 1:
        header[name]["data_offsets"] = [-5, 3]
    elif odd == 2:
        header[name]["shape"] = [10**9, 10**9]
    elif odd == 3:
        header[name]["dtype"] = draw.choice(["F99", 5, None, "I64", "BOOL"])
    elif odd == 4:
        header[name] = draw.choice([None, [], 5, "x"])
    elif odd == 5:
        del header[name]
    elif odd == 6:
        header[f"{name}.x" * 50] = header.pop(name)
    elif odd == 7:
        header[name]["shape"] = [*header[name]["shape"][::-1], 1]
    else:
        header[name]["shape"] = draw.choice(["x", [-1], [1.5], None, [[]]])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + size :])


@maker(SOURCE)
def config_damaged(draw: random.Random, folder: Path) -> None:
    path = folder / "config.json"
    raw = path.read_bytes()
    path.write_bytes(
        draw.choice(
            [
                b"",
                b"{}",
                b"[]",
                b"null",
                raw[: len(raw) // 2],
                b"\xff" + raw,
                b"[" * 100_000,
                raw.replace(b'"', b"'"),
                b"\0" * 500,
                draw.randbytes(300),
            ]
        )
    )


@maker(SOURCE)
def config_values(draw: random.Random, folder: Path) -> None:
    key, value = draw.choice([
        ("model_type", "gpt2"), ("model_type", 5), ("model_type", None), ("model_type", ["bert"]), ("hidden_size", 33), ("hidden_size", -32), ("hidden_size", "x"),
        ("hidden_size", 10**9), ("hidden_size", 10**30), ("hidden_size", 64), ("num_attention_heads", 0), ("num_attention_heads", 3), ("num_hidden_layers", -1),
        ("num_hidden_layers", 10**6), ("vocab_size", 10), ("vocab_size", 10**10), ("vocab_size", -1), ("max_position_embeddings", 0), ("max_position_embeddings", -1),
        ("max_position_embeddings", "x"), ("max_position_embeddings", [1]), ("max_position_embeddings", 10**10), ("hidden_act", "nothing"), ("hidden_act", 5),
        ("intermediate_size", None), ("id2label", {"a": "b"}), ("id2label", {"0": "a"}), ("id2label", [1, 2]), ("id2label", "x"), ("id2label", {"0": "a", "1": "a", "2": "b"}),
        ("id2label", {"0": None, "1": [], "2": {}}), ("id2label", {"5": "a", "6": "b", "7": "c"}), ("id2label", {str(i): str(i) for i in range(5000)}),
        ("problem_type", "regression"), ("problem_type", 5), ("architectures", 5), ("pad_token_id", 10**9), ("pad_token_id", "x"), ("type_vocab_size", 0),
        ("layer_norm_eps", "x"), ("hidden_dropout_prob", 7), ("num_labels", "x"),
    ])  # fmt: skip
    _json(folder / "config.json", lambda c: c.update({key: value}))


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
        vocabulary = {f"w{i}": i for i in range(draw.choice([0, 5000]))}
        _json(path, lambda c: c["model"].update(vocab=vocabulary, unk_token="w0"))
    else:
        (folder / "tokenizer_config.json").write_text(draw.choice(["", "[]", "5", "{", "null", "[" * 9000, '"x"']))


@maker(SOURCE)
def source_pieces(draw: random.Random, folder: Path) -> None:
    for name in draw.choice(
        [
            ["model.safetensors"],
            ["config.json"],
            ["tokenizer.json", "vocab.txt"],
            ["model.safetensors", "tokenizer.json"],
        ]
    ):
        (folder / name).unlink()
    odd = draw.randrange(4)
    if odd == 0:
        (folder / "model.safetensors.index.json").write_text("{}")
    elif odd == 1:
        (folder / "pytorch_model.bin").write_bytes(
            draw.choice([b"", b"PK\x03\x04", b"\x80\x04.", draw.randbytes(500), b"cos\nsystem\n(S'touch owned'\ntR."])
        )
