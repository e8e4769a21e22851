"""Artefact folders that are wrong: the list, the paths in it, and the files beside the models."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.mutations.maker import blanked, contents, cut_off, flipped, maker

KIND = "folder"
LIST, GOLDEN = "artifacts.json", "golden.jsonl"
MODEL = "onnx/model_int8.onnx"
"""The file that `predict` opens."""
ODD: list[Any] = [None, 5, -1, 1.5, "x", [], {}, [[]], {"a": []}, True, "\0", 10**40, "x" * 100_000, [None]]


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads(path.read_text())
    made = change(content)
    path.write_text(json.dumps(content if made is None else made))


def model_record(content: Any, draw: random.Random) -> Any:
    """The record of the file that `predict` opens, or another model file's."""
    default = next(f for f in content["files"] if f.get("default"))
    others = [f for f in content["files"] if f["kind"] == "model"]
    return default if draw.random() < 0.7 else draw.choice(others)


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def edit_rows(folder: Path, change: Callable[[Any], None]) -> None:
    rows = [json.loads(line) for line in (folder / GOLDEN).read_text().splitlines()]
    for row in rows:
        change(row)
    (folder / GOLDEN).write_text("".join(json.dumps(r) + "\n" for r in rows))


@contents(KIND, LIST)
def list_is_no_list(draw: random.Random, raw: bytes) -> list[bytes]:
    return [
        *(b"", b"[]", b"null", b"7", b"{}", b'"x"', b"{", b"[" * 200_000, b'{"a":' * 100_000),
        *(raw[: draw.randrange(1, len(raw) - 2)], raw + b"}", raw.decode().encode("utf-16"), b"\xff" + raw),
        *(raw.replace(b'"files"', b'"fils"'), b"\0" * 1000, raw.replace(b"{", b"[", 1), b"9" * 5000, b"NaN"),
        draw.randbytes(3000),
    ]


@maker(KIND)
def other_schema(draw: random.Random, folder: Path) -> None:
    value = draw.choice(["2.0", "0.9", "", None, [], {}, 2, 1.0e30, "x", "11.0", "-1", "1" * 5000 + ".0"])
    edit(folder / LIST, lambda c: c.update(schema_version=value))


@maker(KIND)
def wrong_types(draw: random.Random, folder: Path) -> None:
    key = draw.choice(["name", "task", "family", "labels", "processing", "files"])
    fits = {"name": str, "family": str}.get(key, ())
    bad = [v for v in ODD if not isinstance(v, fits) and (v != [] or key not in ("labels", "files"))]
    edit(folder / LIST, lambda c: c.update({key: draw.choice(bad)}))


@maker(KIND)
def wrong_record_types(draw: random.Random, folder: Path) -> None:
    key = draw.choice(["path", "sha256", "bytes", "kind", "format", "scheme", "signature", "status", "scores"])
    nested = key in ("scores", "signature")
    value = draw.choice([5, "x", [1], {"inputs": 5}] if nested else [[], {"a": 1}, ["x"], 1.5, [[]]])
    edit(folder / LIST, lambda c: model_record(c, draw).update({key: value}))


@maker(KIND, harmless=["predict"])
def path_tricks(draw: random.Random, folder: Path) -> None:
    """Paths of a file that is not the one `predict` opens."""
    trick = draw.choice(
        [
            *("../outside.onnx", "/etc/passwd", "onnx/../../outside.onnx", "a\0b", "../" * 50 + "etc/passwd", "~/x"),
            *("", ".", "..", "onnx", "/", "x" * 5000, "artifacts.json", "onnx//", "./../x", "\n", "C:\\x.onnx"),
            *("file:///etc/passwd", "/dev/zero", "/dev/stdin", "onnx/model.onnx/", "\ud800"),
        ]
    )
    (folder.parent / "outside.onnx").write_bytes((folder / "onnx/model.onnx").read_bytes())
    edit(folder / LIST, lambda c: model_record(c, random.Random(0)).update(path=trick))


@maker(KIND)
def links_out(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice([MODEL, "tokenizer.json", GOLDEN, "config.json", "onnx"])
    outside = folder.parent / "elsewhere"
    outside.mkdir()
    shutil.move(path, outside / "it")
    path.symlink_to(draw.choice([outside / "it", Path(os.path.relpath(outside / "it", path.parent))]))


@maker(KIND)
def broken_links(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice([MODEL, "tokenizer.json", "onnx", LIST])
    remove(path)
    path.symlink_to(draw.choice(["nowhere", path.name, "../" * 3 + "nowhere"]))


@maker(KIND, harmless=["predict"])
def wrong_sizes(draw: random.Random, folder: Path) -> None:
    """Sizes and digests; `predict` reads those of its own file only."""
    sizes, digests = [("bytes", n) for n in (0, -1, 10**30)], [("sha256", d) for d in ("", "0" * 64, "x")]
    key, value = draw.choice([*sizes, *digests])
    edit(folder / LIST, lambda c: draw.choice(c["files"]).update({key: value}))


@maker(KIND)
def lost_files(draw: random.Random, folder: Path) -> None:
    for name in draw.sample([MODEL, "tokenizer.json", LIST], draw.randint(1, 3)):
        (folder / name).unlink()


@maker(KIND, harmless=["predict"])
def lost_other_files(draw: random.Random, folder: Path) -> None:
    names = [GOLDEN, "golden_tokens.jsonl", "config.json", "tflite/model.tflite", "onnx", "coreml", "vocab.txt"]
    remove(folder / draw.choice(names))


@maker(KIND)
def folders_for_files(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice([MODEL, "tokenizer.json", LIST])
    raw = path.read_bytes()
    path.unlink()
    path.mkdir()
    if draw.random() < 0.5:
        (path / path.name).write_bytes(raw)


@contents(KIND, "tokenizer.json", GOLDEN, LIST)
def damaged_files(draw: random.Random, raw: bytes) -> list[bytes]:
    plain = [b"", b"null", b"[]", b"{}", raw[: len(raw) // 2], b"\xff\xfe" + raw]
    return [cut_off(draw, raw), blanked(draw, raw), *plain, draw.randbytes(500)]


@contents(
    KIND,
    *("config.json", "golden_tokens.jsonl", "tokenizer_config.json", "vocab.txt", "recipe.resolved.yaml"),
    harmless=["predict"],
)
def damaged_other_files(draw: random.Random, raw: bytes) -> list[bytes]:
    damaged = [cut_off(draw, raw), blanked(draw, raw), flipped(draw, raw, 1)]
    return [*damaged, b"", b"[]", b"5", b"[" * 100_000, b"\xff" + raw]


@maker(KIND)
def wrong_golden_rows(draw: random.Random, folder: Path) -> None:
    key = draw.choice(["text", "label", "reference", "outputs", "tolerance"])
    edit_rows(folder, lambda row: row.update({key: draw.choice([5, None, [[]], {"a": {}}, ["x"], True])}))


@maker(KIND)
def moved_answers(draw: random.Random, folder: Path) -> None:
    """Recorded answers that the files do not give, or bounds that nothing can keep."""
    odd = draw.choice([1e9, float("nan"), float("inf"), -1e300])

    def move(row: Any) -> None:
        for path, values in row["outputs"].items():
            row["outputs"][path] = [odd for _ in values] if draw.random() < 0.7 else values[:1] * 99

    edit_rows(folder, move)


@maker(KIND)
def wrong_tokenizer(draw: random.Random, folder: Path) -> None:
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "special"), False)

    def change(content: Any) -> Any:
        def words(vocabulary: dict[str, int]) -> dict[str, Any]:
            return {"model": {**content["model"], "vocab": vocabulary}}

        changes = draw.choice(
            [
                *(words({}), {"model": {"type": "Nothing"}}, {"version": "9"}, None, {"post_processor": {"type": "x"}}),
                *(words({"a": -1}), words({f"w{i}": i for i in range(5000)})),
                words({"[UNK]": 10**9, "[CLS]": 4 * 10**9}),
                {"added_tokens": [{"id": 10**9, "content": "the", "normalized": True, **plain}]},
            ]
        )
        return [content] if changes is None else {**content, **changes}

    edit(folder / "tokenizer.json", change)


@maker(KIND)
def odd_processing(draw: random.Random, folder: Path) -> None:
    key, value = draw.choice(
        [
            *(("max_length", 0), ("max_length", -5), ("max_length", 10**40), ("max_length", 2), ("max_length", "x")),
            *(("score", "x"), ("score", None), ("padding_side", 5), ("max_length", None), ("max_length", 1.5)),
            *(("padding_side", "middle"), ("pair_order", 5)),
        ]
    )
    edit(folder / LIST, lambda c: c["processing"].update({key: value}))


@maker(KIND)
def odd_labels(draw: random.Random, folder: Path) -> None:
    few = [[], ["a"], ["a", "b"], ["a"] * 3]
    odd = [[str(i) for i in range(1000)], ["a", "b", None], ["", "", ""], [["a"], "b", "c"]]
    labels = draw.choice([*few, *odd])
    edit(folder / LIST, lambda c: c.update(labels=labels))


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
            record = model_record(content, random.Random(0))
            record["format"] = "onnx" if record["format"] == "tflite" else "tflite"
        else:
            content["files"] = [dict(f, path=f"{i}/x", default=False) for i, f in enumerate(files * 200)]

    edit(folder / LIST, change)


@maker(KIND)
def too_large(draw: random.Random, folder: Path) -> None:
    path = folder / draw.choice([LIST, "tokenizer.json", GOLDEN, "config.json"])
    with path.open("r+b") as stream:  # sparse: takes no disk
        stream.truncate(draw.choice([65, 3000]) << 20)
