"""Rows: cells, labels and tables of odd shape or size."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

from fuzz.mutation import Place, Verdict, mutator
from fuzz.mutators.special import only
from fuzz.plain import read_plain, unpacked
from fuzz.values import SURROGATES, TEXTS, odd

MIB = 1 << 20


def _lines(path: Path) -> list[bytes]:
    return unpacked(path).splitlines()


def _write(path: Path, raw: bytes) -> None:
    path.write_bytes(gzip.compress(raw, 1, mtime=0) if path.suffix == ".gz" else raw)


def _keep(place: Place, name: str) -> Path:
    for path in place.rows.glob("rows.*"):
        if path.name != name:
            path.unlink()
    return place.rows / name


def _json_rows(draw: random.Random, place: Place) -> tuple[Path, list[dict[str, Any]]]:
    path = _keep(place, draw.choice(["rows.jsonl", "rows.jsonl.gz"]))
    return path, [json.loads(line) for line in _lines(path)]


def _put_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    _write(path, b"".join(json.dumps(r).encode() + b"\n" for r in rows))


@mutator("rows")
def odd_cells(draw: random.Random, place: Place) -> None:
    """Cells with values of any kind."""
    path, rows = _json_rows(draw, place)
    for _ in range(draw.choice([1, 1, 5, len(rows)])):
        row = draw.choice(rows)
        row[draw.choice(["text", "label", "more"])] = draw.choice(
            [odd(draw), draw.choice(TEXTS), draw.choice(SURROGATES)]
        )
    _put_rows(path, rows)


@mutator("rows", verdict=Verdict.BAD, verbs=["check"])
def mixed_labels(draw: random.Random, place: Place) -> None:
    """Labels that are names in some rows and numbers in others."""
    path, rows = _json_rows(draw, place)
    names = sorted({r["label"] for r in rows})
    for row in rows[:: draw.choice([2, 3, 7])]:
        row["label"] = draw.choice([names.index(row["label"]) + draw.choice([3, 10, 1000]), 0.5, True, -1])
    _put_rows(path, rows)


@mutator("rows", verdict=Verdict.BAD, verbs=["check"])
def labels_by_blank(draw: random.Random, place: Place) -> None:
    """Labels that differ by a blank, and texts without anything to see."""
    path, rows = _json_rows(draw, place)
    row = draw.choice(rows)
    if draw.random() < 0.5:
        row["label"] = draw.choice(
            [row["label"] + " ", " " + row["label"], row["label"] + "\n", row["label"] + "\u200b"]
        )
    else:
        row["text"] = draw.choice(["\u200b", "\0", "\u200b\u200b ", "\u00a0", "\ufeff", "\x1b", "\u2060"])
    _put_rows(path, rows)


@mutator("rows", verdict=Verdict.BAD, verbs=["check"])
def key_twice(draw: random.Random, place: Place) -> None:
    """A row of JSON with a key twice, or a table with a column twice."""
    name = draw.choice(["rows.jsonl", "rows.csv", "rows.parquet"])
    path = _keep(place, name)
    if name == "rows.parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        column = draw.choice(["text", "label"])
        more = pyarrow.array(["lamp"] * table.num_rows)
        pyarrow.parquet.write_table(table.append_column(column, more), path)
        return
    lines = _lines(path)
    if name == "rows.csv":
        lines[0] = draw.choice([b"text,text", b"label,label", b"text,label,label"])
    else:
        lines[draw.randrange(len(lines))] = b'{"text": "a lamp", "label": "lamp", "label": "music"}'
    _write(path, b"\n".join(lines) + b"\n")


@mutator("rows")
def long_cells(draw: random.Random, place: Place) -> None:
    """Cells, lines and headers of many megabytes."""
    size = draw.choice([1, 5, 30, 90]) * MIB
    name = draw.choice(["rows.jsonl", "rows.csv", "rows.tsv", "rows.parquet", "rows.jsonl.gz"])
    path = _keep(place, name)
    if name == "rows.parquet":
        import pyarrow
        import pyarrow.parquet

        texts = ["a lamp", draw.choice(["a ", "x"]) * (size // 2), "a song"]
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": ["lamp", "lamp", "music"]}), path)
        return
    lines = _lines(path)
    tab = b"\t" if name == "rows.tsv" else b","
    if "json" in name:
        lines.insert(1, json.dumps({"text": "a " * (size // 2), "label": "lamp"}).encode())
    elif draw.random() < 0.4:
        lines[0] += b"".join(tab + b"c%d" % i for i in range(size // 40))
    else:
        lines.insert(1, b"a " * (size // 2) + tab + b"lamp")
    _write(path, b"\n".join(lines) + b"\n")


@mutator("rows")
def sparse_table(draw: random.Random, place: Place) -> None:
    """A table that is followed by gigabytes of nothing."""
    path = only(draw, place)
    with path.open("r+b") as stream:
        stream.seek(0, 2)
        stream.truncate(stream.tell() + (draw.choice([50, 1000, 3000]) << 20))


@mutator("rows")
def packed_nothing(draw: random.Random, place: Place) -> None:
    """A small archive of very many empty lines, short rows, or one endless line."""
    path = _keep(place, "rows.jsonl.gz")
    unit = draw.choice([b"\n", b" ", b"{}\n", b"[]\n", b"x\n", b'{"text": "a", "label": "lamp"}\n'])
    size = draw.choice([1, 64, 1024]) * MIB if len(unit) == 1 else draw.choice([1, 20]) * MIB
    block = unit * (MIB // len(unit))
    with gzip.open(path, "wb", 1) as stream:
        for _ in range(size // MIB):
            stream.write(block)


@mutator("rows")
def many_labels(draw: random.Random, place: Place) -> None:
    """A label of its own for every row, and one row that has none of them."""
    path, rows = _json_rows(draw, place)
    count = draw.choice([300, 5000, 65_000])
    made = [{"text": f"the lamp {i}", "label": f"label-{i}" + "x" * draw.choice([0, 40])} for i in range(count)]
    _put_rows(path, [*made, *rows[:5]])


@mutator("rows", verdict=Verdict.BAD, verbs=["check"])
def unknown_labels(draw: random.Random, place: Place) -> None:
    """Labels that are not in the set, in all rows: one that only some training rows have is a class of its own."""
    path, rows = _json_rows(draw, place)
    for row in rows:
        row["label"] = draw.choice(["lamps", "x" * 3000, "\x1b[2J", "a\nb", 7, -1, "LAMP", "\u202e"])
    _put_rows(path, rows)


@mutator("rows", verdict=Verdict.FINE)
def right_rows(draw: random.Random, place: Place) -> None:
    """The same rows written in another way that is as good."""
    path = only(draw, place)
    if path.suffix in (".parquet", ".gz"):
        return
    raw = read_plain(path)
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in raw.splitlines()]
        raw = draw.choice(
            [
                b"".join(json.dumps({**r, "more": [1, None]}).encode() + b"\n" for r in rows),
                b"".join(json.dumps(dict(reversed(r.items()))).encode() + b"\r\n" for r in rows),
                raw.rstrip(b"\n"),
                raw.replace(b"\n", b"\n\n"),
                raw + b'{"text": "\\u00e9 \\ud83d\\ude00 lamp", "label": "lamp"}\n',
                raw * 3,
            ]
        )
    else:
        raw = draw.choice([b"\xef\xbb\xbf" + raw, raw.replace(b"\n", b"\r\n"), raw.rstrip(b"\n"), raw + b"\n"])
    path.write_bytes(raw)
