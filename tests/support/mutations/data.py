"""Data files that are wrong: compression, encoding, columns, rows.

A maker gets a folder with ``rows.jsonl``, ``rows.jsonl.gz``, ``rows.csv``, ``rows.tsv`` and ``rows.parquet``, all the same valid rows, leaves one
of them damaged and removes the others.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

from support.mutations.maker import cut_off, flipped, maker

KIND = "data"
NAMES = ("rows.jsonl", "rows.jsonl.gz", "rows.csv", "rows.tsv")
PARQUET = "rows.parquet"
MIB = 1 << 20
_UNPACKED = 32 * MIB


def _only(folder: Path, name: str) -> Path:
    for other in (*NAMES, PARQUET):
        if other != name:
            (folder / other).unlink(missing_ok=True)
    return folder / name


def _any(draw: random.Random, folder: Path) -> Path:
    return _only(folder, draw.choice(NAMES))


def _write(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def _raw(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    with gzip.open(path) as stream:
        raw = stream.read(_UNPACKED + 1)
    if len(raw) > _UNPACKED:
        raise ValueError(f"{path}: more than {_UNPACKED} bytes")  # the fuzz campaign damages what is a bomb already
    return raw


def _row(draw: random.Random, folder: Path, line: str | bytes) -> None:
    """Put a line among those of a .jsonl file."""
    path = _only(folder, draw.choice(NAMES[:2]))
    lines = _raw(path).splitlines()
    lines[draw.randrange(len(lines))] = line.encode() if isinstance(line, str) else line
    _write(path, b"\n".join(lines) + b"\n")


def _cells(draw: random.Random, folder: Path, line: str) -> None:
    """Put a line among those of a table."""
    path = _only(folder, draw.choice(NAMES[2:]))
    lines = path.read_text().splitlines()
    tab = "\t" if path.suffix == ".tsv" else ","
    lines[draw.randrange(1, len(lines))] = line.replace("|", tab)
    path.write_text("\n".join(lines) + "\n")


@maker(KIND)
def broken_gzip(draw: random.Random, folder: Path) -> None:
    path = _only(folder, "rows.jsonl.gz")
    raw = path.read_bytes()
    path.write_bytes(
        draw.choice(
            [
                raw[: draw.randint(1, len(raw) - 1)],
                raw[:10],
                raw[:-4],
                raw[:-8] + struct.pack("<II", 1, 1),
                raw + b"more",
                flipped(draw, raw[:3], 1) + raw[3:],
                raw[:200] + flipped(draw, raw[200:], 20),
                _raw(path),
                draw.randbytes(999),
                raw + b"\x1f\x8b\x08" + draw.randbytes(40),
                b"\x1f\x8b",
            ]
        )
    )


@maker(KIND)
def bomb(draw: random.Random, folder: Path) -> None:
    """A small file that grows: at most 256 MiB, so that a reader without bounds is seen and does no harm."""
    path = _only(folder, "rows.jsonl.gz")
    fill = draw.choice([b"\0", b" ", b'{"text": "', b"[", b'"', b"9", b'{"a":'])
    path.write_bytes(gzip.compress(fill * (draw.choice([16, 256]) * MIB // len(fill)), 1, mtime=0))


@maker(KIND)
def encoding(draw: random.Random, folder: Path) -> None:
    path = _any(draw, folder)
    raw = _raw(path)
    at = draw.randrange(len(raw) // 2, len(raw))
    while raw[at - 1 : at + 1].strip() != raw[at - 1 : at + 1]:
        at -= 1
    text = raw.decode()
    _write(
        path,
        draw.choice(
            [
                text.encode("utf-16"),
                text.encode("utf-32"),
                raw[:at] + b"\xff" + raw[at:],
                raw[:at] + b"\xc3" + raw[at:],
                raw[:at] + b"\xed\xa0\x80" + raw[at:],
                raw[:at] + "é".encode("latin-1") + raw[at:],
                draw.randbytes(5000),
                raw[:at] + b"\xf8\x88\x80\x80\x80" + raw[at:],
                b"\xfe\xff" + raw,
            ]
        ),
    )


@maker(KIND)
def bad_json(draw: random.Random, folder: Path) -> None:
    _row(draw, folder, draw.choice([
        "{", '{"text": "a"', "nothing", "{'text': 'a', 'label': 'lamp'}", '{"text": "a", "label": "lamp"} extra', "[" * 100_000, '{"a":' * 50_000,
        '{"text": "a\tb", "label": "lamp"}', '{"text": "\\x41", "label": "lamp"}', "NaN", '{"text": "a", "label": ' + "9" * 5000 + "}", "\\", ",", "{,}",
        b'{"text": "a\x00b", "label": "lamp"}', '{"text": undefined, "label": "lamp"}', '{"text" "a"}', "{1: 2}",
    ]))  # fmt: skip


@maker(KIND)
def no_object(draw: random.Random, folder: Path) -> None:
    _row(
        draw,
        folder,
        draw.choice(["[]", "5", '"text"', "null", "true", '["text", "label"]', "1e999", "-0", "[[1]]", "NaN"]),
    )


@maker(KIND)
def wrong_values(draw: random.Random, folder: Path) -> None:
    odd: Any = draw.choice([5, 1.5, None, [], ["a"], {}, {"a": 1}, True, "", "   ", "\n", "\ud800", "a\udfffb"])
    row = {"text": odd, "label": "lamp"}
    if draw.random() < 0.5:
        odd = draw.choice(
            [
                7,
                -1,
                1.0,
                1.5,
                None,
                [],
                ["lamp"],
                {},
                "",
                " ",
                "\ud800",
                10**30,
                1e308,
                "\0",
            ]
        )
        row = {"text": "dim the bulb", "label": odd}
    _row(draw, folder, json.dumps(row))


@maker(KIND, harmless=["data check", "run"])
def other_names(draw: random.Random, folder: Path) -> None:
    """A label that no other row has: a class, unless the recipe declares the labels."""
    name = draw.choice(["lamps", "LAMP", "9" * 400, "²", "٣"])
    _row(draw, folder, json.dumps({"text": "dim the bulb", "label": name}))


@maker(KIND)
def infinite_labels(draw: random.Random, folder: Path) -> None:
    _row(
        draw,
        folder,
        '{{"text": "dim the bulb", "label": {}}}'.format(
            draw.choice(["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
        ),
    )


@maker(KIND)
def lost_column(draw: random.Random, folder: Path) -> None:
    path = _any(draw, folder)
    name = draw.choice(["text", "label"])
    other = draw.choice(["Text", "txt", "labels", "sentence", "", "text "])
    text = _raw(path).decode()
    if ".jsonl" in path.name:
        text = text.replace(f'"{name}":', f'"{other}":')
    else:
        header, rest = text.split("\n", 1)
        text = header.replace(name, other) + "\n" + rest
    _write(path, text.encode())


@maker(KIND)
def nothing(draw: random.Random, folder: Path) -> None:
    path = _any(draw, folder)
    if ".jsonl" in path.name:
        _write(path, draw.choice([b"", b"\n", b"\n" * 100_000, b"   \n \n", b"\xef\xbb\xbf", b"{}\n"]))
    else:
        header = path.read_bytes().split(b"\n")[0]
        _write(
            path,
            draw.choice([b"", b"\n\n", header, header + b"\n", header + b"\n\n\n", b"\xef\xbb\xbf", b" "]),
        )


@maker(KIND)
def endless_line(draw: random.Random, folder: Path) -> None:
    path = _any(draw, folder)
    size = 6 * MIB
    if ".jsonl" in path.name:
        line = draw.choice([json.dumps({"text": "a " * (size // 2), "label": "lamp"}), "x" * size, " " * size])
        _write(path, line.encode() + b"\n" + _raw(path))
    else:
        tab = "\t" if path.suffix == ".tsv" else ","
        line = draw.choice([f"{'a ' * (size // 2)}{tab}lamp", f"{tab * size}", f'"{"x" * size}'])
        _write(path, _raw(path) + line.encode() + b"\n")


@maker(KIND)
def ragged_table(draw: random.Random, folder: Path) -> None:
    _cells(
        draw,
        folder,
        draw.choice(
            [
                "one cell",
                "a|lamp|more",
                "|",
                "a|",
                "|lamp",
                "a|b|c|d|e|f",
                " |lamp",
                "a| ",
                "|" * 3000,
            ]
        ),
    )


@maker(KIND)
def broken_quotes(draw: random.Random, folder: Path) -> None:
    path = _only(folder, "rows.csv")
    lines = path.read_text().splitlines()
    lines[draw.randrange(1, len(lines))] = draw.choice(
        ['"open,lamp', '"a" b,lamp', '"a"",lamp', '"' + "x" * 5 * MIB + '",lamp', '"a\n\n\nb', 'a,"lamp']
    )
    path.write_text("\n".join(lines) + "\n")


@maker(KIND)
def odd_header(draw: random.Random, folder: Path) -> None:
    path = _only(folder, draw.choice(NAMES[2:]))
    tab = "\t" if path.suffix == ".tsv" else ","
    header, rest = path.read_text().split("\n", 1)
    path.write_text(draw.choice([
        "", header + "\n" + header, f"text{tab}text", f"label{tab}text", f"{tab}", f"text{tab}label{tab}text", "text;label", "0", "text label", "\0" + header,
    ]) + "\n" + rest)  # fmt: skip


@maker(KIND)
def mixed_kinds(draw: random.Random, folder: Path) -> None:
    raw = {name: (folder / name).read_bytes() for name in NAMES}
    path = _any(draw, folder)
    others = [r for n, r in raw.items() if n != path.name]
    own, half = raw[path.name], draw.choice(others)
    if path.name == "rows.tsv" and half == raw["rows.csv"]:
        half = raw["rows.jsonl"]
    path.write_bytes(draw.choice([half, own[: len(own) // 2] + half]))


@maker(KIND)
def no_file(draw: random.Random, folder: Path) -> None:
    path = _any(draw, folder)
    raw = path.read_bytes()
    path.unlink()
    odd = draw.randrange(6)
    if odd == 0:
        path.mkdir()
    elif odd == 1:
        path.symlink_to("nowhere")
    elif odd == 2:
        path.symlink_to(path.name)
    elif odd == 3:
        os.mkfifo(path)
    elif odd == 4:
        path.mkdir()
        (path / "rows.jsonl").write_bytes(raw)


@maker(KIND)
def nul_bytes(draw: random.Random, folder: Path) -> None:
    path = _any(draw, folder)
    raw = _raw(path)
    _write(
        path,
        draw.choice([b"\0" + raw, bytes(5000), raw.replace(b"text", b"te\0t"), raw.replace(b"label", b"\0label")]),
    )


@maker(KIND, harmless=["data check"])
def cut_anywhere(draw: random.Random, folder: Path) -> None:
    """A plain file that was not copied to its end: seen where a row is cut, not where a row ends or shortens."""
    path = _only(folder, draw.choice(["rows.jsonl", "rows.csv", "rows.tsv"]))
    path.write_bytes(cut_off(draw, path.read_bytes()))


@maker(KIND)
def broken_parquet(draw: random.Random, folder: Path) -> None:
    """A table cut off, with another beginning or end, of another kind, or with a footer of noise."""
    path = _only(folder, PARQUET)
    raw = path.read_bytes()
    size = int.from_bytes(raw[-8:-4], "little")
    path.write_bytes(
        draw.choice(
            [
                raw[: draw.randint(0, len(raw) - 1)],
                raw[:-4] + b"PARE",
                raw[:4] + raw[-8:],
                raw[: -8 - size] + draw.randbytes(size) + raw[-8:],
                raw[:-8] + struct.pack("<I", draw.choice([0, 1, 1 << 20, 0xFFFFFFFF])) + raw[-4:],
                draw.randbytes(999),
                b'{"text": "a", "label": "b"}\n',
                raw + b"more",
            ]
        )
    )


@maker(KIND)
def odd_parquet(draw: random.Random, folder: Path) -> None:
    """A whole table whose columns are not texts and labels."""
    import pyarrow
    import pyarrow.parquet

    path = _only(folder, PARQUET)
    table = pyarrow.parquet.read_table(path)
    count = table.num_rows
    values = draw.choice(
        [
            {"words": ["a"] * count, "label": ["lamp"] * count},
            {"text": ["a"] * count},
            {"text": [[["a"]]] * count, "label": ["lamp"] * count},
            {"text": list(range(count)), "label": ["lamp"] * count},
            {"text": [{"a": 1}] * count, "label": ["lamp"] * count},
            {"text": ["a"] * count, "label": [["lamp"]] * count},
            {"text": ["a"] * count, "label": [{"name": "lamp"}] * count},
            {"text": [None] * count, "label": ["lamp"] * count},
            {"text": [b"\xff\xfe"] * count, "label": ["lamp"] * count},
            {"text": [], "label": []},
            {"text": [1.5] * count, "label": [float("nan")] * count},
        ]
    )
    pyarrow.parquet.write_table(pyarrow.table(values), path)
