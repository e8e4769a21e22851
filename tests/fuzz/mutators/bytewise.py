"""Files changed byte by byte: flipped, cut, repeated, spliced."""

from __future__ import annotations

import random
from pathlib import Path

from fuzz.files import LIST, files, read_plain, sign
from fuzz.mutation import Place, Verdict, mutator
from fuzz.mutators.rows import only

WORDS = [
    *(b"\0", b"\xff", b"\r", b"\n", b"\xef\xbb\xbf", b"{}", b"[", b'"', b"\\", b"NaN", b"-", b"9" * 400),
    *(b"\x7f\xff\xff\xff", b"\x80", b"\xed\xa0\x80", b"%", b",", b"\t"),
]
SHORT = 1 << 16


def bent(draw: random.Random, raw: bytes, other: bytes = b"") -> bytes:
    """Bytes after one to four changes."""
    for _ in range(draw.choice([1, 1, 2, 4])):
        size = len(raw)
        a, b = sorted(draw.randrange(size + 1) for _ in range(2))
        b = min(b, a + draw.choice([1, 16, 4096, size]))
        way = draw.randrange(8)
        if way == 0 and size:
            changed = bytearray(raw)
            for _ in range(draw.choice([1, 1, 3, 50])):
                changed[draw.randrange(size)] ^= 1 << draw.randrange(8)
            raw = bytes(changed)
        elif way == 1:
            raw = raw[:a]
        elif way == 2:
            raw = raw[:a] + raw[b:]
        elif way == 3:
            raw = raw[:b] + raw[a:b] * draw.choice([1, 2, 100]) + raw[b:] if b - a < SHORT else raw + raw[:a]
        elif way == 4:
            raw = raw[:a] + draw.choice(WORDS) + raw[a:]
        elif way == 5:
            raw = raw[:a] + draw.randbytes(b - a if b - a < SHORT else 64) + raw[b:]
        elif way == 6:
            raw = raw[:a] + bytes(b - a) + raw[b:]
        else:
            raw = raw[:a] + other[a:b] + raw[b:]
    return raw


def _bend(draw: random.Random, path: Path, others: list[Path]) -> bool:
    raw = read_plain(path)
    made = bent(draw, raw, read_plain(draw.choice(others)))
    path.write_bytes(made)
    return made != raw


@mutator("recipe")
def recipe_bytes(draw: random.Random, place: Place) -> None:
    _bend(draw, place.recipe, [place.here / "train.jsonl"])


@mutator("rows")
def row_bytes(draw: random.Random, place: Place) -> None:
    path = only(draw, place)
    _bend(draw, path, [place.recipe, path])


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def folder_bytes(draw: random.Random, place: Place) -> Verdict | None:
    """A file of the artefact folder with other bytes, which the list does not know of."""
    found = [p for p in files(place.phone) if p.name != LIST]
    return None if _bend(draw, draw.choice(found), found) else Verdict.FINE


@mutator("artefact")
def list_bytes(draw: random.Random, place: Place) -> None:
    _bend(draw, place.phone / LIST, files(place.phone))


@mutator("artefact")
def signed_bytes(draw: random.Random, place: Place) -> None:
    """A text file of the artefact folder with other bytes, and a list that agrees with them."""
    found = [p for p in files(place.phone) if p.suffix in (".json", ".jsonl", ".txt") and p.name != LIST]
    _bend(draw, draw.choice(found), found)
    sign(place.phone)


@mutator("model")
def model_bytes(draw: random.Random, place: Place) -> None:
    found = files(place.model)
    _bend(draw, draw.choice(found), found)
