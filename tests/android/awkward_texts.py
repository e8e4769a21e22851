"""Texts on which tokenizers of two languages differ if they can: drawn with a fixed seed from many kinds of characters."""

from __future__ import annotations

import random
from collections.abc import Callable

from pocketbert.core.compare.sample_texts import SENTENCES, UNICODE_SENTENCES
from pocketbert.core.models.tokenizer_conversion import COMPARISON_TEXTS

FIXED = (
    "", " ", "\0", "a\0b", "\u0301", "\ufe0f", "e\u0301\u0323\u0302", "\u0323\u0301e",
    "\u1100\u1161\u11a8\uac00\u11a8", "ΑΣ ΣΑΣ", "İıIi ẞß ŉ ǰ", "ﬁﬂﬃ ½ ① Ａ㌀ ㎏ ﷺ", "a\u200d\u200cb\u2060c\ufeff",
    "👩‍👩‍👧 👍🏽 🏳️‍🌈 🇩🇪🇫🇷🇩", "क्षत्रिय ക്ഷ க்ஷ", "กำลัง ທ່ານ", "‏שָׁלוֹם‎ مَرْحَبًا",
    "\ufdd0\uffff\U0010ffff\ue000", "\u0378\U0001f7f0\U000e0100", "don't we'll I'M they'Ve 'S", "▁x ▁▁ \u2581",
    "x" * 300, "x" * 90 + "é" * 40, "[CLS] a [SEP]b[MASK] <s></s><mask>  <pad>", "[MASK]x x[MASK] x [MASK] x",
    "  \t\n\r\u00a0\u3000\u2028 a \u0085", "ＡＢＣ\u0301 Å\u030a ﬀ\u0301",
)  # fmt: skip
"""One trap each."""
SPECIAL = "[CLS] [SEP] [MASK] [PAD] [UNK] <s> </s> <mask> <pad> <unk> <special1> <cls> <sep> ## ▁ </w> <0x41> Ġ".split()
BLANKS = " \t\n\r\u000b\f\u0085\u00a0\u1680\u2003\u200b\u2028\u2029\u202f\u3000\ufeff"
MARKS = "\u0300\u0301\u0302\u0303\u0308\u030a\u0323\u0327\u0328\u0345\u034f\u0591\u05b0\u064b\u0651\u093c\u094d\u0e38\u0e48\u1dc4\u20d0\u3099"
INVISIBLE = ("\u200d", "\u200c", "\ufe0e", "\ufe0f", "\u200f", "\u202e", "\u2060", "\u00ad")
JOINED = (("\u200d", "\ufe0f", "🏽", "\u200d\ufe0f"), "👩⚕🌈🔥ab")
RANGES = [
    (int(first, 16), int(last, 16))
    for first, last in (
        pair.split("-")
        for pair in """
        00-1F 20-7E 7F-A0 A1-24F 250-36F 370-52F 530-6FF 700-8FF 900-DFF E00-10FF 1100-11FF 1200-1CFF 1D00-1FFF
        2000-20CF 20D0-2BFF 2C00-33FF 3400-9FFF A000-ABFF AC00-D7FF F900-FFFF 10000-11FFF 12000-1CFFF 1D000-1DFFF
        1E000-1EFFF 1F000-1FFFF 20000-323AF E0000-E01EF E000-10FFFF
        """.split()
    )
]


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
        lambda: "".join(_character(draw.randint(*draw.choice(RANGES))) for _ in range(draw.randint(1, 5))),
        lambda: _of_one_block(draw),
        lambda: str(draw.randint(0, 10**9)) + draw.choice(("", "%", ".5", ",000", "th", "²", "٣")),
        lambda: draw.choice("👩👨👧🏳❤🧑") + draw.choice(JOINED[0]) + draw.choice(JOINED[1]),
        lambda: "".join(chr(0x1F1E6 + draw.randrange(26)) for _ in range(draw.randint(1, 5))),
        lambda: draw.choice(INVISIBLE),
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
    return "".join(_character(draw.randint(first, last)) for _ in range(draw.randint(1, 8)))


def _character(code: int) -> str:
    """Halves of surrogate pairs are none."""
    return chr(code) if not 0xD800 <= code < 0xE000 else "\ufffd"
