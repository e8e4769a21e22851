"""Artefact folders that are wrong: the list, the paths in it, and the files beside the models."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.mutations.maker import blanked, cut_off, flipped, maker

KIND = "folder"
LIST = "artifacts.json"
READ = ("tokenizer.json", "golden.jsonl")
"""Files that a prediction reads beside the model."""
ODD: list[Any] = [None, 5, -1, 1.5, "x", [], {}, [[]], {"a": []}, True, "\0", 10**40, "x" * 100_000, [None]]


def _edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    made = change(content)
    path.write_text(json.dumps(content if made is None else made))


def _default(content: Any) -> Any:
    """The record of the file that `predict` opens."""
    return next(f for f in content["files"] if f.get("default"))


def _model(content: Any, draw: random.Random) -> Any:
    """That record, or another model file's."""
    others = [f for f in content["files"] if f["kind"] == "model"]
    return _default(content) if draw.random() < 0.7 else draw.choice(others)


@maker(KIND)
def list_is_no_list(draw: random.Random, folder: Path) -> None:
    raw = (folder / LIST).read_bytes()
    (folder / LIST).write_bytes(draw.choice([
        b"", b"[]", b"null", b"7", b"{}", b'"x"', b"{", b"[" * 200_000, b'{"a":' * 100_000, raw[: draw.randrange(1, len(raw) - 2)], raw + b"}", raw.decode().encode("utf-16"),
        b"\xff" + raw, raw.replace(b'"files"', b'"fils"'), b"\0" * 1000, raw.replace(b"{", b"[", 1), b"9" * 5000, b"NaN", draw.randbytes(3000),
    ]))  # fmt: skip


@maker(KIND)
def other_schema(draw: random.Random, folder: Path) -> None:
    value = draw.choice(["2.0", "0.9", "", None, [], {}, 2, 1.0e30, "x", "11.0", "-1", "1" * 5000 + ".0"])
    _edit(folder / LIST, lambda c: c.update(schema_version=value))


@maker(KIND)
def wrong_types(draw: random.Random, folder: Path) -> None:
    key = draw.choice(["name", "task", "family", "labels", "processing", "files"])
    bad = [
        v
        for v in ODD
        if not (key in ("name", "family") and isinstance(v, str))
        and not (isinstance(v, list) and key in ("labels", "files") and not v)
    ]
    _edit(folder / LIST, lambda c: c.update({key: draw.choice(bad)}))


@maker(KIND)
def wrong_record_types(draw: random.Random, folder: Path) -> None:
    key = draw.choice(["path", "sha256", "bytes", "kind", "format", "scheme", "signature", "status", "scores"])
    value = (
        draw.choice([[], {"a": 1}, ["x"], 1.5, [[]]])
        if key not in ("scores", "signature")
        else draw.choice([5, "x", [1], {"inputs": 5}])
    )

    def change(content: Any) -> None:
        _model(content, draw)[key] = value

    _edit(folder / LIST, change)


@maker(KIND, harmless=["predict"])
def path_tricks(draw: random.Random, folder: Path) -> None:
    """Paths of a file that is not the one `predict` opens."""
    tricks = [
        "../outside.onnx", "/etc/passwd", "onnx/../../outside.onnx", "a\0b", "../" * 50 + "etc/passwd", "~/x", "", ".", "..", "onnx", "/", "x" * 5000,
        "artifacts.json", "onnx//", "./../x", "\n", "C:\\x.onnx", "file:///etc/passwd", "/dev/zero", "/dev/stdin", "onnx/model.onnx/", "\ud800",
    ]  # fmt: skip
    trick = draw.choice(tricks)

    def change(content: Any) -> None:
        _model(content, random.Random(0))["path"] = trick

    (folder.parent / "outside.onnx").write_bytes((folder / "onnx/model.onnx").read_bytes())
    _edit(folder / LIST, change)


@maker(KIND)
def links_out(draw: random.Random, folder: Path) -> None:
    name = draw.choice(["onnx/model_int8.onnx", "tokenizer.json", "golden.jsonl", "config.json", "onnx"])
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    shutil.move(folder / name, outside / "it")
    (folder / name).symlink_to(
        draw.choice([outside / "it", Path(os.path.relpath(outside / "it", (folder / name).parent))])
    )


@maker(KIND)
def broken_links(draw: random.Random, folder: Path) -> None:
    name = draw.choice(["onnx/model_int8.onnx", "tokenizer.json", "onnx", LIST])
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    path.symlink_to(draw.choice(["nowhere", path.name, "../" * 3 + "nowhere"]))


@maker(KIND, harmless=["predict"])
def wrong_sizes(draw: random.Random, folder: Path) -> None:
    """Sizes and digests; `predict` reads those of its own file only."""
    key, value = draw.choice(
        [
            ("bytes", 0),
            ("bytes", -1),
            ("bytes", 10**30),
            ("sha256", ""),
            ("sha256", "0" * 64),
            ("sha256", "x"),
        ]
    )

    def change(content: Any) -> None:
        draw.choice(content["files"])[key] = value

    _edit(folder / LIST, change)


@maker(KIND)
def lost_files(draw: random.Random, folder: Path) -> None:
    for name in draw.sample(["onnx/model_int8.onnx", "tokenizer.json", LIST], draw.randint(1, 3)):
        (folder / name).unlink()


@maker(KIND, harmless=["predict"])
def lost_other_files(draw: random.Random, folder: Path) -> None:
    name = draw.choice(
        [
            "golden.jsonl",
            "golden_tokens.jsonl",
            "config.json",
            "tflite/model.tflite",
            "onnx",
            "coreml",
            "vocab.txt",
        ]
    )
    path = folder / name
    shutil.rmtree(path) if path.is_dir() else path.unlink()


@maker(KIND)
def folders_for_files(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice(["onnx/model_int8.onnx", "tokenizer.json", LIST])
    raw = path.read_bytes()
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / path.name).write_bytes(raw)


@maker(KIND)
def damaged_files(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice([*READ, LIST])
    raw = path.read_bytes()
    path.write_bytes(
        draw.choice(
            [
                cut_off(draw, raw),
                blanked(draw, raw),
                b"",
                b"null",
                b"[]",
                b"{}",
                raw[: len(raw) // 2],
                b"\xff\xfe" + raw,
                draw.randbytes(500),
            ]
        )
    )


@maker(KIND, harmless=["predict"])
def damaged_other_files(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice(
        [
            "config.json",
            "golden_tokens.jsonl",
            "tokenizer_config.json",
            "vocab.txt",
            "recipe.resolved.yaml",
        ]
    )
    raw = path.read_bytes()
    path.write_bytes(
        draw.choice(
            [
                cut_off(draw, raw),
                blanked(draw, raw),
                flipped(draw, raw, 1),
                b"",
                b"[]",
                b"5",
                b"[" * 100_000,
                b"\xff" + raw,
            ]
        )
    )


@maker(KIND)
def wrong_golden_rows(draw: random.Random, folder: Path) -> None:
    rows = [json.loads(line) for line in (folder / "golden.jsonl").read_text().splitlines()]
    key = draw.choice(["text", "label", "reference", "outputs", "tolerance"])
    for row in rows:
        row[key] = draw.choice([5, None, [[]], {"a": {}}, ["x"], True])
    (folder / "golden.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


@maker(KIND)
def moved_answers(draw: random.Random, folder: Path) -> None:
    """Recorded answers that the files do not give, or bounds that nothing can keep."""
    rows = [json.loads(line) for line in (folder / "golden.jsonl").read_text().splitlines()]
    odd = draw.choice([1e9, float("nan"), float("inf"), -1e300])
    for row in rows:
        for path, values in row["outputs"].items():
            row["outputs"][path] = [odd for _ in values] if draw.random() < 0.7 else values[:1] * 99
    (folder / "golden.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))


@maker(KIND)
def wrong_tokenizer(draw: random.Random, folder: Path) -> None:
    def change(content: Any) -> Any:
        return draw.choice([
            {**content, "model": {**content["model"], "vocab": {}}}, {**content, "model": {"type": "Nothing"}}, {**content, "version": "9"}, [content],
            {**content, "post_processor": {"type": "x"}}, {**content, "model": {**content["model"], "vocab": {"a": -1}}},
            {**content, "model": {**content["model"], "vocab": {f"w{i}": i for i in range(5000)}}}, {**content, "model": {**content["model"], "vocab": {"[UNK]": 10**9, "[CLS]": 4 * 10**9}}},
            {**content, "added_tokens": [{"id": 10**9, "content": "the", "single_word": False, "lstrip": False, "rstrip": False, "normalized": True, "special": False}]},
        ])  # fmt: skip

    _edit(folder / "tokenizer.json", change)


@maker(KIND)
def odd_processing(draw: random.Random, folder: Path) -> None:
    key, value = draw.choice(
        [
            ("max_length", 0),
            ("max_length", -5),
            ("max_length", 10**40),
            ("max_length", 2),
            ("max_length", "x"),
            ("score", "x"),
            ("score", None),
            ("padding_side", 5),
            ("max_length", None),
            ("max_length", 1.5),
            ("padding_side", "middle"),
            ("pair_order", 5),
        ]
    )
    _edit(folder / LIST, lambda c: c["processing"].update({key: value}))


@maker(KIND)
def odd_labels(draw: random.Random, folder: Path) -> None:
    labels = draw.choice(
        [
            [],
            ["a"],
            ["a", "b"],
            ["a"] * 3,
            [str(i) for i in range(1000)],
            ["a", "b", None],
            ["", "", ""],
            [["a"], "b", "c"],
        ]
    )
    _edit(folder / LIST, lambda c: c.update(labels=labels))


@maker(KIND)
def odd_files(draw: random.Random, folder: Path) -> None:
    def change(content: Any) -> None:
        files, odd = content["files"], draw.randrange(5)
        if odd == 0:
            files.clear()
        elif odd == 1:
            content["files"] = [f for f in files if f["kind"] != "model"]
        elif odd == 2:
            for f in files:
                f["status"] = "failed"
        elif odd == 3:
            record = _model(content, random.Random(0))
            record["format"] = "onnx" if record["format"] == "tflite" else "tflite"
        else:
            content["files"] = [dict(f, path=f"{i}/x", default=False) for i, f in enumerate(files * 200)]

    _edit(folder / LIST, change)


@maker(KIND)
def too_large(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice([LIST, "tokenizer.json", "golden.jsonl", "config.json"])
    with path.open("r+b") as stream:  # sparse: takes no disk
        stream.truncate(draw.choice([65, 3000]) << 20)
