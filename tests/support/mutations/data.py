"""Data files that are wrong: compression, encoding, columns, rows.

A maker gets a folder with ``rows.jsonl``, ``rows.jsonl.gz``, ``rows.csv``, ``rows.tsv`` and ``rows.parquet``, all the
same valid rows, leaves one of them damaged and removes the others.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import struct
from collections.abc import Callable, Collection
from functools import wraps
from pathlib import Path
from typing import Any

from support.mutations.maker import Contents, Damage, cut_off, flipped, maker, one_of

KIND = "data"
JSON_NAMES, TABLE_NAMES = ("rows.jsonl", "rows.jsonl.gz"), ("rows.csv", "rows.tsv")
NAMES = (*JSON_NAMES, *TABLE_NAMES)
PARQUET = "rows.parquet"
MIB = 1 << 20
MOST_UNPACKED = 32 * MIB
Listed = Callable[..., Contents]


def keep(folder: Path, name: str) -> Path:
    """Remove the other files."""
    for other in (*NAMES, PARQUET):
        if other != name:
            (folder / other).unlink(missing_ok=True)
    return folder / name


def write(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw, mtime=0) if path.suffix == ".gz" else raw)


def unpacked(path: Path) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    with gzip.open(path) as stream:
        raw = stream.read(MOST_UNPACKED + 1)
    if len(raw) > MOST_UNPACKED:
        raise ValueError(f"{path}: more than {MOST_UNPACKED} bytes")  # the fuzz campaign damages what is a bomb already
    return raw


def separator(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","


def rows_of(*names: str, packed: bool = False, harmless: Collection[str] = ()) -> Callable[[Listed], Damage]:
    """Register contents of one of these files, told for a generator, the path and the (unless `packed`, unpacked) bytes."""

    def register(listed: Listed) -> Damage:
        @wraps(listed)
        def damage(draw: random.Random, folder: Path) -> None:
            path = keep(folder, one_of(draw, names))
            made = one_of(draw, listed(draw, path, path.read_bytes() if packed else unpacked(path)))
            path.write_bytes(made) if packed else write(path, made)

        return maker(KIND, harmless)(damage)

    return register


def line_of(*names: str, harmless: Collection[str] = ()) -> Callable[[Listed], Damage]:
    """Register lines that stand in the place of a row of one of these files; | in them is the separator of a table."""

    def register(listed: Listed) -> Damage:
        @wraps(listed)
        def damage(draw: random.Random, folder: Path) -> None:
            line = one_of(draw, listed(draw))
            path = keep(folder, one_of(draw, names))
            line = line if isinstance(line, bytes) else line.replace("|", separator(path)).encode()
            lines = unpacked(path).splitlines()
            lines[draw.randrange(int(path.name in TABLE_NAMES), len(lines))] = line
            write(path, b"\n".join(lines) + b"\n")

        return maker(KIND, harmless)(damage)

    return register


@rows_of("rows.jsonl.gz", packed=True)
def broken_gzip(draw: random.Random, path: Path, raw: bytes) -> list[bytes]:
    return [
        *(raw[: draw.randint(1, len(raw) - 1)], raw[:10], raw[:-4], raw[:-8] + struct.pack("<II", 1, 1), raw + b"more"),
        *(flipped(draw, raw[:3], 1) + raw[3:], raw[:200] + flipped(draw, raw[200:], 20), unpacked(path)),
        *(draw.randbytes(999), raw + b"\x1f\x8b\x08" + draw.randbytes(40), b"\x1f\x8b"),
    ]


@rows_of("rows.jsonl.gz", packed=True)
def bomb(draw: random.Random, path: Path, raw: bytes) -> bytes:
    """A small file that grows: at most 256 MiB, so that a reader without bounds is seen and does no harm."""
    fill = draw.choice([b"\0", b" ", b'{"text": "', b"[", b'"', b"9", b'{"a":'])
    return gzip.compress(fill * (draw.choice([16, 256]) * MIB // len(fill)), 1, mtime=0)


@rows_of(*NAMES)
def encoding(draw: random.Random, path: Path, raw: bytes) -> list[bytes]:
    at = draw.randrange(len(raw) // 2, len(raw))
    while raw[at - 1 : at + 1].strip() != raw[at - 1 : at + 1]:
        at -= 1
    text = raw.decode()
    # bytes that neither UTF-8 nor Windows' cp1252 has; UTF-32 is read with a mark only
    inside = [raw[:at] + o + raw[at:] for o in (b"\x81", b"\x8d\xc3 ", b"\xed\xa0\x90", b"\xf8\x88\x90\x80\x80")]
    return [text.encode("utf-32-be"), text.encode("cp037"), *inside, draw.randbytes(5000), b"\xfe\xff" + raw]


@line_of(*JSON_NAMES)
def bad_json(draw: random.Random) -> list[Any]:
    return [
        *("{", '{"text": "a"', "nothing", "{'text': 'a', 'label': 'lamp'}", '{"text": "a", "label": "lamp"} extra'),
        *("[" * 100_000, '{"a":' * 50_000, '{"text": "a\tb", "label": "lamp"}', '{"text": "\\x41", "label": "lamp"}'),
        *("NaN", '{"text": "a", "label": ' + "9" * 5000 + "}", "\\", ",", "{,}"),
        b'{"text": "a\x00b", "label": "lamp"}',
        *('{"text": undefined, "label": "lamp"}', '{"text" "a"}', "{1: 2}"),
    ]


@line_of(*JSON_NAMES)
def no_object(draw: random.Random) -> list[str]:
    return ["[]", "5", '"text"', "null", "true", '["text", "label"]', "1e999", "-0", "[[1]]", "NaN"]


@line_of(*JSON_NAMES, harmless=["data check"])
def wrong_values(draw: random.Random) -> str:
    """A text that is none, or a label that is none: a row without a label is left out and counted."""
    text: Any = draw.choice([5, 1.5, None, [], ["a"], {}, {"a": 1}, True, "", "   ", "\n", "\ud800", "a\udfffb"])
    row = {"text": text, "label": "lamp"}
    if draw.random() < 0.5:
        label = draw.choice([7, -1, 1.0, 1.5, [], ["lamp"], {}, "\ud800", 10**30, 1e308, "\0"])
        row = {"text": "dim the bulb", "label": label}
    return json.dumps(row)


@line_of(*JSON_NAMES, harmless=["data check", "run"])
def other_names(draw: random.Random) -> str:
    """A label that no other row has: a class, unless the recipe declares the labels."""
    return json.dumps({"text": "dim the bulb", "label": draw.choice(["lamps", "LAMP", "9" * 400, "²", "٣"])})


@line_of(*JSON_NAMES)
def infinite_labels(draw: random.Random) -> list[str]:
    odd = ("Infinity", "-Infinity", "1e999", "-1e999")
    return [f'{{"text": "dim the bulb", "label": {label}}}' for label in odd]


@rows_of(*NAMES)
def lost_column(draw: random.Random, path: Path, raw: bytes) -> bytes:
    name = draw.choice(["text", "label"])
    other = draw.choice(["Text", "txt", "labels", "sentence", "", "text "])
    if ".jsonl" in path.name:
        return raw.replace(f'"{name}":'.encode(), f'"{other}":'.encode())
    header, rest = raw.decode().split("\n", 1)
    return (header.replace(name, other) + "\n" + rest).encode()


@rows_of(*NAMES)
def nothing(draw: random.Random, path: Path, raw: bytes) -> list[bytes]:
    if ".jsonl" in path.name:
        return [b"", b"\n", b"\n" * 100_000, b"   \n \n", b"\xef\xbb\xbf", b"{}\n"]
    header = raw.split(b"\n")[0]
    return [b"", b"\n\n", header, header + b"\n", header + b"\n\n\n", b"\xef\xbb\xbf", b" "]


@rows_of(*NAMES)
def endless_line(draw: random.Random, path: Path, raw: bytes) -> bytes:
    size = 6 * MIB
    if ".jsonl" in path.name:
        line = draw.choice([json.dumps({"text": "a " * (size // 2), "label": "lamp"}), "x" * size, " " * size])
        return line.encode() + b"\n" + raw
    tab = separator(path)
    line = draw.choice([f"{'a ' * (size // 2)}{tab}lamp", tab * size, f'"{"x" * size}'])
    return raw + line.encode() + b"\n"


@line_of(*TABLE_NAMES)
def ragged_table(draw: random.Random) -> list[str]:
    return ["one cell", "a|lamp|more", "|lamp", "a|b|c|d|e|f", " |lamp", "|" * 3000]


@line_of("rows.csv")
def broken_quotes(draw: random.Random) -> list[str]:
    return ['"open,lamp', '"a" b,lamp', '"a"",lamp', '"' + "x" * 5 * MIB + '",lamp', '"a\n\n\nb', 'a,"lamp']


@rows_of(*TABLE_NAMES)
def odd_header(draw: random.Random, path: Path, raw: bytes) -> list[bytes]:
    header, rest = raw.decode().split("\n", 1)
    odd = ["", header + "\n" + header, "text|text", "label|text", "|", "text|label|text", "text;label", "0"]
    return [(h.replace("|", separator(path)) + "\n" + rest).encode() for h in (*odd, "text label", "\0" + header)]


@maker(KIND)
def mixed_kinds(draw: random.Random, folder: Path) -> None:
    raw = {name: (folder / name).read_bytes() for name in NAMES}
    path = keep(folder, draw.choice(NAMES))
    own, half = raw[path.name], draw.choice([r for n, r in raw.items() if n != path.name])
    if path.name == "rows.tsv" and half == raw["rows.csv"]:
        half = raw["rows.jsonl"]
    if path.name == "rows.jsonl" and half == raw["rows.jsonl.gz"]:  # read, whatever its name is
        half = raw["rows.csv"]
    path.write_bytes(draw.choice([half, own[: len(own) // 2] + half]))


@maker(KIND)
def no_file(draw: random.Random, folder: Path) -> None:
    path = keep(folder, draw.choice(NAMES))
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


@rows_of(*NAMES)
def nul_bytes(draw: random.Random, path: Path, raw: bytes) -> list[bytes]:
    return [b"\0" + raw, bytes(5000), raw.replace(b"text", b"te\0t"), raw.replace(b"label", b"\0label")]


@rows_of("rows.jsonl", *TABLE_NAMES, harmless=["data check"])
def cut_anywhere(draw: random.Random, path: Path, raw: bytes) -> bytes:
    """A plain file that was not copied to its end: seen where a row is cut, not where a row ends or shortens."""
    return cut_off(draw, raw)


@rows_of(PARQUET)
def broken_parquet(draw: random.Random, path: Path, raw: bytes) -> list[bytes]:
    """A table cut off, with another beginning or end, of another kind, or with a footer of noise."""
    size = int.from_bytes(raw[-8:-4], "little")
    cut = raw[: draw.randint(0, len(raw) - 1)]
    noise = raw[: -8 - size] + draw.randbytes(size) + raw[-8:]
    longer = raw[:-8] + struct.pack("<I", draw.choice([0, 1, 1 << 20, 0xFFFFFFFF])) + raw[-4:]
    other = [draw.randbytes(999), b'{"text": "a", "label": "b"}\n', raw + b"more"]
    return [cut, raw[:-4] + b"PARE", raw[:4] + raw[-8:], noise, longer, *other]


@maker(KIND)
def odd_parquet(draw: random.Random, folder: Path) -> None:
    """A whole table whose columns are not texts and labels."""
    import pyarrow
    import pyarrow.parquet

    path = keep(folder, PARQUET)
    count = pyarrow.parquet.read_table(path).num_rows
    lamps = ["lamp"] * count
    values = draw.choice(
        [
            {"words": ["a"] * count, "label": lamps},
            {"text": ["a"] * count},
            {"text": [[["a"]]] * count, "label": lamps},
            {"text": list(range(count)), "label": lamps},
            {"text": [{"a": 1}] * count, "label": lamps},
            {"text": ["a"] * count, "label": [["lamp"]] * count},
            {"text": ["a"] * count, "label": [{"name": "lamp"}] * count},
            {"text": [None] * count, "label": lamps},
            {"text": [b"\xff\xfe"] * count, "label": lamps},
            {"text": [], "label": []},
            {"text": [1.5] * count, "label": [float("nan")] * count},
        ]
    )
    pyarrow.parquet.write_table(pyarrow.table(values), path)
