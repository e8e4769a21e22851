"""Texts for `predict`, from stdin and from a file."""

from __future__ import annotations

import random

from fuzz.files import read_plain
from fuzz.mutation import Place, Verdict, mutator
from fuzz.mutators.bytewise import bent
from fuzz.values import TEXTS

GOOD = b"dim the lamp in the hall\nplay my song\n"
NOT_UTF8 = [
    *(GOOD.decode().encode("utf-16"), GOOD.decode().encode("utf-32"), b"\xff\n", GOOD + b"\xc3\n", b"\xe9\n"),
    *(b"\xed\xa0\x80\n", bytes(range(128, 256)), GOOD + b"\x80", b"\xf8\x88\x80\x80\x80\n"),
    *(b"\x89PNG\r\n\x1a\n\0\0\xff", b"a" * 70_000 + b"\xff"),
]
BREAKS = [
    *(b"\n", b"\r", b"\x0b", b"\x0c", b"\x85", "\u2028".encode(), b"\0", b"\x1c", b"\x1b[2J", b" \n", b"a\rb\n", b""),
]


def _give(place: Place, raw: bytes) -> None:
    """As stdin, and as the file that `predict --file` reads."""
    for name in ("stdin", "texts.txt"):
        (place.here / name).write_bytes(raw)
    place.stdin = str(place.here / "stdin")


@mutator("stdin", verdict=Verdict.BAD, verbs=["predict"])  # the encoding of a file is detected, that of stdin is not
def not_utf8(draw: random.Random, place: Place) -> None:
    _give(place, draw.choice([*NOT_UTF8, draw.randbytes(3000) + b"\xff"]))


@mutator("stdin", verdict=Verdict.BAD, verbs=["predict"])
def closed(draw: random.Random, place: Place) -> None:
    place.stdin = "closed"


@mutator("stdin")
def long_line(draw: random.Random, place: Place) -> None:
    """One line of many megabytes."""
    unit = draw.choice([b"a ", b"x", "é".encode(), b"lamp ", b".", b"\0", "😀".encode()])
    _give(place, unit * (draw.choice([1, 8, 30, 90]) * (1 << 20) // len(unit)) + draw.choice([b"", b"\n"]))


@mutator("stdin", verdict=Verdict.FINE)
def right_texts(draw: random.Random, place: Place) -> None:
    """Texts that are odd, and texts all the same."""
    odd = [t.replace("\n", " ").replace("\0", " ").encode() for t in TEXTS if len(t) < 6000 and t.strip()]
    draw.shuffle(odd)
    end = draw.choice([b"\n", b"\r\n"])
    good = [GOOD, b"\xef\xbb\xbf" + GOOD, GOOD.rstrip(b"\n"), "中文 и русский\n".encode(), b"a lamp\n" * 300]
    _give(place, draw.choice([*good, end.join(odd) + end]))


@mutator("stdin")
def odd_texts(draw: random.Random, place: Place) -> None:
    """Texts with breaks of any kind, and empty ones."""
    unit = draw.choice(BREAKS)
    _give(place, draw.choice([unit, unit * 50, GOOD + unit + GOOD]))


@mutator("stdin")
def bent_texts(draw: random.Random, place: Place) -> None:
    _give(place, bent(draw, GOOD * draw.choice([1, 20]), read_plain(place.recipe)))
