"""Rows: cells, labels and tables of odd shape or size."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fuzz.files import MIB, read_plain, unpacked
from fuzz.mutation import Place, Verdict, mutator
from fuzz.values import SURROGATES, TEXTS, odd


def _keep(place: Place, name: str) -> Path:
    for path in place.rows.glob("rows.*"):
        if path.name != name:
            path.unlink()
    return place.rows / name


def only(draw: random.Random, place: Place) -> Path:
    """One of the files of rows, the others removed."""
    return _keep(place, draw.choice(sorted(p.name for p in place.rows.glob("rows.*"))))


def _write_lines(path: Path, lines: Iterable[bytes]) -> None:
    raw = b"".join(line + b"\n" for line in lines)
    path.write_bytes(gzip.compress(raw, 1, mtime=0) if path.suffix == ".gz" else raw)


def _json_rows(draw: random.Random, place: Place) -> tuple[Path, list[dict[str, Any]]]:
    path = _keep(place, draw.choice(["rows.jsonl", "rows.jsonl.gz"]))
    return path, [json.loads(line) for line in unpacked(path).splitlines()]


def _put_rows(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    _write_lines(path, (json.dumps(r).encode() for r in rows))


@mutator("rows")
def odd_cells(draw: random.Random, place: Place) -> None:
    path, rows = _json_rows(draw, place)
    for _ in range(draw.choice([1, 1, 5, len(rows)])):
        value = draw.choice([odd(draw), draw.choice(TEXTS), draw.choice(SURROGATES)])
        draw.choice(rows)[draw.choice(["text", "label", "more"])] = value
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
def nothing_to_see(draw: random.Random, place: Place) -> None:
    """A label that differs by what nobody sees, or a text without anything to see."""
    path, rows = _json_rows(draw, place)
    row = draw.choice(rows)
    if draw.random() < 0.5:
        row["label"] = draw.choice(["{}\u200b", "\ufeff{}", "{}\0"]).format(row["label"])
    else:
        row["text"] = draw.choice(["\u200b", "\0", "\u200b\u200b ", "\u00a0", "\ufeff", "\x1b", "\u2060"])
    _put_rows(path, rows)


@mutator("rows", verdict=Verdict.FINE, verbs=["check"])
def labels_in_blanks(draw: random.Random, place: Place) -> None:
    """Blanks around a label, which are no part of it."""
    path, rows = _json_rows(draw, place)
    row = draw.choice(rows)
    row["label"] = draw.choice(["{} ", " {}", "{}\n", "\t{}"]).format(row["label"])
    _put_rows(path, rows)


@mutator("rows", verdict=Verdict.BAD, verbs=["check"])
def key_twice(draw: random.Random, place: Place) -> None:
    """A row of JSON with a key twice, or a table with a column twice."""
    path = _keep(place, draw.choice(["rows.jsonl", "rows.csv", "rows.parquet"]))
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path)
        more = table.append_column(draw.choice(["text", "label"]), pyarrow.array(["lamp"] * table.num_rows))
        pyarrow.parquet.write_table(more, path)
        return
    lines = unpacked(path).splitlines()
    if path.suffix == ".csv":
        lines[0] = draw.choice([b"text,text", b"label,label", b"text,label,label"])
    else:
        lines[draw.randrange(len(lines))] = b'{"text": "a lamp", "label": "lamp", "label": "music"}'
    _write_lines(path, lines)


@mutator("rows")
def long_cells(draw: random.Random, place: Place) -> None:
    """Cells, lines and headers of many megabytes."""
    size = draw.choice([1, 5, 30, 90]) * MIB
    path = _keep(place, draw.choice(["rows.jsonl", "rows.csv", "rows.tsv", "rows.parquet", "rows.jsonl.gz"]))
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        texts = ["a lamp", draw.choice(["a ", "x"]) * (size // 2), "a song"]
        pyarrow.parquet.write_table(pyarrow.table({"text": texts, "label": ["lamp", "lamp", "music"]}), path)
        return
    lines = unpacked(path).splitlines()
    tab = b"\t" if path.suffix == ".tsv" else b","
    if "json" in path.name:
        lines.insert(1, json.dumps({"text": "a " * (size // 2), "label": "lamp"}).encode())
    elif draw.random() < 0.4:
        lines[0] += b"".join(tab + b"c%d" % i for i in range(size // 40))
    else:
        lines.insert(1, b"a " * (size // 2) + tab + b"lamp")
    _write_lines(path, lines)


@mutator("rows")
def sparse_table(draw: random.Random, place: Place) -> None:
    """A table that is followed by gigabytes of nothing."""
    path = only(draw, place)
    with path.open("r+b") as stream:
        stream.truncate(path.stat().st_size + (draw.choice([50, 1000, 3000]) << 20))


@mutator("rows")
def packed_nothing(draw: random.Random, place: Place) -> None:
    """A small archive of very many empty lines, short rows, or one endless line."""
    unit = draw.choice([b"\n", b" ", b"{}\n", b"[]\n", b"x\n", b'{"text": "a", "label": "lamp"}\n'])
    right = len(unit) > 3  # rows that are answered: 20 MiB of them are minutes of work, and nobody's fault
    with gzip.open(_keep(place, "rows.jsonl.gz"), "wb", 1) as stream:
        for _ in range(draw.choice([1, 64, 1024] if len(unit) == 1 else [1, 2] if right else [1, 20])):
            stream.write(unit * (MIB // len(unit)))


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
    same = [raw.rstrip(b"\n"), raw + b"\n"]
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in raw.splitlines()]
        more = b"".join(json.dumps({**r, "more": [1, None]}).encode() + b"\n" for r in rows)
        turned = b"".join(json.dumps(dict(reversed(r.items()))).encode() + b"\r\n" for r in rows)
        smiling = raw + b'{"text": "\\u00e9 \\ud83d\\ude00 lamp", "label": "lamp"}\n'
        same += [more, turned, smiling, raw.replace(b"\n", b"\n\n"), raw * 3]
    else:
        same += [b"\xef\xbb\xbf" + raw, raw.replace(b"\n", b"\r\n")]
    path.write_bytes(draw.choice(same))
