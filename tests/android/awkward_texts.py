"""Texts on which tokenizers of two languages differ if they can: drawn with a fixed seed from many kinds of characters."""

from __future__ import annotations

import random
from collections.abc import Callable

from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.models.tokenizer_conversion import COMPARISON_TEXTS

FIXED = (
    "",
    " ",
    "\0",
    "a\0b",
    "\u0301",
    "\ufe0f",
    "e\u0301\u0323\u0302",
    "\u0323\u0301e",
    "\u1100\u1161\u11a8\uac00\u11a8",
    "ΑΣ ΣΑΣ",
    "İıIi ẞß ŉ ǰ",
    "ﬁﬂﬃ ½ ① Ａ㌀ ㎏ ﷺ",
    "a\u200d\u200cb\u2060c\ufeff",
    "👩‍👩‍👧 👍🏽 🏳️‍🌈 🇩🇪🇫🇷🇩",
    "क्षत्रिय ക്ഷ க்ஷ",
    "กำลัง ທ່ານ",
    "‏שָׁלוֹם‎ مَرْحَبًا",
    "\ufdd0\uffff\U0010ffff\ue000",
    "\u0378\U0001f7f0\U000e0100",
    "don't we'll I'M they'Ve 'S",
    "▁x ▁▁ \u2581",
    "x" * 300,
    "x" * 90 + "é" * 40,
    "[CLS] a [SEP]b[MASK] <s></s><mask>  <pad>",
    "[MASK]x x[MASK] x [MASK] x",
    "  \t\n\r\u00a0\u3000\u2028 a \u0085",
    "ＡＢＣ\u0301 Å\u030a ﬀ\u0301",
)
"""One trap each."""
SPECIAL = """
[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <mask> <pad> <unk> <special1> <cls> <sep> ## ▁ </w> <0x41> Ġ
""".split()
BLANKS = " \t\n\r\u000b\f\u0085\u00a0\u1680\u2003\u200b\u2028\u2029\u202f\u3000\ufeff"
MARKS = "\u0300\u0301\u0302\u0303\u0308\u030a\u0323\u0327\u0328\u0345\u034f\u0591\u05b0\u064b\u0651\u093c\u094d\u0e38\u0e48\u1dc4\u20d0\u3099"
RANGES: tuple[tuple[int, int], ...] = (
    (0x00, 0x1F),
    (0x20, 0x7E),
    (0x7F, 0xA0),
    (0xA1, 0x24F),
    (0x250, 0x36F),
    (0x370, 0x52F),
    (0x530, 0x6FF),
    (0x700, 0x8FF),
    (0x900, 0xDFF),
    (0xE00, 0x10FF),
    (0x1100, 0x11FF),
    (0x1200, 0x1CFF),
    (0x1D00, 0x1FFF),
    (0x2000, 0x20CF),
    (0x20D0, 0x2BFF),
    (0x2C00, 0x33FF),
    (0x3400, 0x9FFF),
    (0xA000, 0xABFF),
    (0xAC00, 0xD7FF),
    (0xF900, 0xFFFF),
    (0x10000, 0x11FFF),
    (0x12000, 0x1CFFF),
    (0x1D000, 0x1DFFF),
    (0x1E000, 0x1EFFF),
    (0x1F000, 0x1FFFF),
    (0x20000, 0x323AF),
    (0xE0000, 0xE01EF),
    (0xE000, 0x10FFFF),
)


def awkward_texts(count: int, seed: int = 23) -> list[str]:
    """Texts that two tokenizers may read differently.

    Args:
        count: How many.
        seed: Of the draw; the same texts each time.
    """
    draw = random.Random(seed)
    words = [w for t in (*SENTENCES, *UNICODE_SENTENCES, *COMPARISON_TEXTS) for w in t.split(" ")]
    sources: list[Callable[[], str]] = [
        lambda: draw.choice(words),
        lambda: draw.choice(words).upper(),
        lambda: draw.choice(words) + draw.choice(".,!?;:'\"-…。"),
        lambda: draw.choice(SPECIAL),
        lambda: draw.choice(BLANKS) * draw.randint(1, 3),
        lambda: draw.choice("aeiouAEIOUnçक가かΩ🙂") + "".join(draw.choices(MARKS, k=draw.randint(1, 4))),
        lambda: "".join(_drawn(draw) for _ in range(draw.randint(1, 5))),
        lambda: _of_one_block(draw),
        lambda: str(draw.randint(0, 10**9)) + draw.choice(("", "%", ".5", ",000", "th", "²", "٣")),
        lambda: (
            draw.choice("👩👨👧🏳❤🧑")
            + draw.choice(("\u200d", "\ufe0f", "🏽", "\u200d\ufe0f"))
            + draw.choice("👩⚕🌈🔥ab")
        ),
        lambda: "".join(chr(0x1F1E6 + draw.randrange(26)) for _ in range(draw.randint(1, 5))),
        lambda: draw.choice(("\u200d", "\u200c", "\ufe0e", "\ufe0f", "\u200f", "\u202e", "\u2060", "\u00ad")),
        lambda: draw.choice(("'s", "'T", "'re", "n't", "'", "''", "``", "'LL", "’s")),
    ]
    out = [*FIXED, *SENTENCES, *UNICODE_SENTENCES, *COMPARISON_TEXTS]
    while len(out) < count:
        joint = draw.choice(("", "", " ", " ", "  "))
        size = draw.randint(1, 120) if draw.random() < 0.02 else draw.randint(1, 9)
        out.append(joint.join(draw.choice(sources)() for _ in range(size)))
    return out[:count]


def _of_one_block(draw: random.Random) -> str:
    first, last = draw.choice(RANGES)
    return "".join(_valid(draw.randint(first, last)) for _ in range(draw.randint(1, 8)))


def _drawn(draw: random.Random) -> str:
    return _valid(draw.randint(*draw.choice(RANGES)))


def _valid(code: int) -> str:
    """A character; halves of surrogate pairs are none."""
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ufffd"
