"""Writes the Unicode tables of the Java and JavaScript tokenizers, read out of the `tokenizers` library; ``--check`` compares them anew.

Java's and Android's own tables are of another Unicode version on each release, and the library has five versions inside: Rust's, those
of three packages, and Oniguruma's. So every table is asked of the library, character by character:

    python scripts/unicode_tables.py            writes android_demo/core/src/main/resources/org/pocketbert/tokenizers/unicode.bin
                                                and the same in Base64 to runtime/javascript/src/unicode-tables.js
    python scripts/unicode_tables.py --check    exits with 1 where the file is not what the library says

Only the classes of grapheme clusters cannot be asked one by one; they come from the `regex` package and are then compared with what the
library does with every character. Takes about a minute.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import struct
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path

import regex
from tokenizers import Regex, normalizers, pre_tokenizers

FILE = Path(__file__).parents[1] / "android_demo/core/src/main/resources/org/pocketbert/tokenizers/unicode.bin"
JAVASCRIPT = Path(__file__).parents[1] / "runtime/javascript/src/unicode-tables.js"
CODES = [*range(0xD800), *range(0xE000, 0x110000)]
ALL = "".join(map(chr, CODES))
HANGUL = range(0xAC00, 0xD7A4)
CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf Co Cn Cs").split()
"""The order is the one that Java's `Unicode` class counts in."""
CLASSES = {
    "alpha": r"\p{Alpha}",
    "lower": r"\p{Lower}",
    "upper": r"\p{Upper}",
    "space": r"\s",
    "word": r"\w",
    "classword": r"[\w]",
}
"""Of these the last one differs: Oniguruma takes fractions and superior digits of Latin-1 for parts of words, but not inside [...]."""
SCRIPTS = ("Han", "Hiragana", "Katakana", "Hangul", "Thai")
BREAKS = (
    "Other",
    "CR",
    "LF",
    "Control",
    "Extend",
    "ZWJ",
    "Regional_Indicator",
    "Prepend",
    "SpacingMark",
    "L",
    "V",
    "T",
    "LV",
    "LVT",
)
CONJUNCTS = ("None", "Linker", "Consonant", "Extend")


def ranges(codes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last number of each run of consecutive numbers."""
    for _, group in itertools.groupby(enumerate(sorted(codes)), lambda pair: pair[1] - pair[0]):
        run = [code for _, code in group]
        yield run[0], run[-1]


def matched(pattern: str) -> set[int]:
    """Return the characters that a regular expression of the library matches."""
    split = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    return {ord(c) for text, _ in split.pre_tokenize_str(ALL) for c in text}


def cut(step: pre_tokenizers.PreTokenizer, frame: str, pieces: int) -> set[int]:
    """Return the characters that, in place of the X of `frame`, make a pre-tokenizer cut it into a number of pieces."""
    return {c for c in CODES if len(step.pre_tokenize_str(frame.replace("X", chr(c)))) == pieces}


def removed(step: normalizers.Normalizer) -> set[int]:
    """Return the characters that a normalizer removes."""
    return {c for c in CODES if step.normalize_str(chr(c)) == ""}


def changed(step: normalizers.Normalizer) -> dict[int, str]:
    """Return what a normalizer makes of each character that it changes.

    Korean syllables are left out, because they are calculated.
    """
    made = ((c, step.normalize_str(chr(c))) for c in CODES if c not in HANGUL)
    return {c: text for c, text in made if text != chr(c)}


def combining_classes() -> dict[int, int]:
    """Return the canonical combining class of each character that has one.

    Which characters have one is asked of the library. The numbers come from the `regex` package, since they never
    change.
    """
    nfd = normalizers.NFD()
    moved = {c for c in CODES if nfd.normalize_str(f"\u0345{chr(c)}") == f"{chr(c)}\u0345"}
    known: dict[int, int] = {}
    for value in range(1, 255):
        try:
            found = regex.compile(rf"\p{{ccc={value}}}").findall(ALL)
        except regex.error:
            continue
        known.update({ord(c): value for c in found})
    lone = {c for c in moved | {0x345} if nfd.normalize_str(chr(c)) == chr(c)}
    missing = lone - known.keys()
    assert not missing, f"no combining class is known of {sorted(map(hex, missing))}"
    return {c: known[c] for c in lone}


def compositions() -> dict[int, str]:
    """Return the pairs of characters that NFC joins, by the joined character."""
    nfc = normalizers.NFC()
    out = {}
    for code in CODES:
        pair = unicodedata.decomposition(chr(code)).split()
        if len(pair) == 2 and not pair[0].startswith("<"):
            text = "".join(chr(int(p, 16)) for p in pair)
            if nfc.normalize_str(text) == chr(code):
                out[code] = text
    joined = {text: code for code, text in out.items()}
    nfd = normalizers.NFD()
    for code in set(CODES) - set(HANGUL) - out.keys():  # of a newer Unicode than Python's
        text = nfd.normalize_str(chr(code))
        assert text == chr(code) or nfc.normalize_str(text) != chr(code) or len(text) > 2 or text in joined, hex(code)
    return out


def grapheme_classes() -> dict[int, int]:
    """Return the class of grapheme clusters of each character.

    It is the break class, plus 16 times the conjunct class, plus 64 for pictograms.
    """
    out = dict.fromkeys(CODES, 0)
    for number, name in enumerate(BREAKS[1:], 1):
        for c in regex.compile(rf"\p{{GCB={name}}}").findall(ALL):
            out[ord(c)] += number
    for number, name in enumerate(CONJUNCTS[1:], 1):
        for c in regex.compile(rf"\p{{InCB={name}}}").findall(ALL):
            out[ord(c)] += 16 * number
    for c in regex.compile(r"\p{Extended_Pictographic}").findall(ALL):
        out[ord(c)] += 64
    for code, what in list(grapheme_differences(out)):  # another class in a Unicode that the library does not have yet
        out[code] = out[code] ^ 64 if what == "pictogram" else 0
    return {c: value for c, value in out.items() if value}


def lookup_table(key: str, text: str) -> str:
    """Return a table of SentencePiece, in base64, that replaces one character by a text.

    It is a double array of the character's bytes, followed by the text.
    """
    raw = key.encode()
    array = dict[int, int]()
    node, base = 0, 0
    for i, byte in enumerate(raw):
        base = 512 * (i + 1)  # a block of its own for the children of each node
        array[node] = array.get(node, 0) | ((base ^ node) << 10)
        node = base ^ byte
        array[node] = byte | (256 if i == len(raw) - 1 else 0)
    base = 512 * (len(raw) + 1)
    array[node] |= (base ^ node) << 10
    array[base] = 1 << 31  # the text is at place 0
    units = [array.get(i, 0x80000000 | 0xFF) for i in range(max(array) + 256)]
    units[0] = array[0]
    blob = struct.pack(f"<{len(units)}I", *units)
    return base64.b64encode(struct.pack("<I", len(blob)) + blob + text.encode() + b"\0").decode()


def tables() -> dict[str, tuple[str, dict[int, int] | dict[int, str] | set[int]]]:
    """Return all tables, each with its kind: a set of characters, a small number for each, or a text for each."""
    category = {
        c: i for i, name in enumerate(CATEGORIES) if name not in ("Cn", "Cs") for c in matched(rf"\p{{{name}}}+")
    }
    bert = {"clean_text": False, "handle_chinese_chars": False, "lowercase": False}
    out: dict[str, tuple[str, dict[int, int] | dict[int, str] | set[int]]] = {
        "rust_space": ("set", cut(pre_tokenizers.WhitespaceSplit(), "aXa", 2)),
        "rust_numeric": ("set", cut(pre_tokenizers.Digits(individual_digits=False), "aX", 2)),
        "punctuation": ("set", cut(pre_tokenizers.Punctuation(), "aX", 2)),
        "word": (
            "set",
            {
                c
                for c in CODES
                if [t for t, _ in pre_tokenizers.Whitespace().pre_tokenize_str(f"a{chr(c)}")] == [f"a{chr(c)}"]
            },
        ),
        "bert_removed": ("set", removed(normalizers.BertNormalizer(True, False, False, False))),
        "nonspacing": ("set", removed(normalizers.BertNormalizer(**bert, strip_accents=True))),
        "combining": ("set", removed(normalizers.StripAccents())),
        "lowercase": ("text", changed(normalizers.Lowercase())),
        "nfd": ("text", changed(normalizers.NFD())),
        "nfkd": (
            "text",
            {c: t for c, t in changed(normalizers.NFKD()).items() if normalizers.NFD().normalize_str(chr(c)) != t},
        ),
        "composed": ("text", compositions()),
        "combining_class": ("number", combining_classes()),
        "category": ("number", {c: i + 1 for c, i in category.items()}),
        "graphemes": ("number", grapheme_classes()),
    }
    out |= {f"regex_{name}": ("set", matched(f"{pattern}+")) for name, pattern in CLASSES.items()}
    out |= {f"script_{name.lower()}": ("set", matched(rf"\p{{{name}}}+")) for name in SCRIPTS}
    return out


def packed(content: dict[str, tuple[str, dict[int, int] | dict[int, str] | set[int]]]) -> bytes:
    """Return the tables as the bytes of the file.

    They are the magic number and the number of tables, and of each table name, kind and entries, with numbers as in
    protocol buffers (7 bits a byte).
    """
    out = bytearray(b"PBU1")

    def number(value: int) -> None:
        while value >= 128:
            out.append(value & 127 | 128)
            value >>= 7
        out.append(value)

    number(len(content))
    for name, (kind, table) in content.items():
        number(len(name))
        out += name.encode()
        number(("set", "number", "text").index(kind))
        last = 0
        if isinstance(table, set):
            runs = [(a, b, 0) for a, b in ranges(table)]
        elif kind == "number":
            values = sorted({int(v) for v in table.values()})
            runs = sorted((a, b, v) for v in values for a, b in ranges(c for c, w in table.items() if w == v))
        else:
            number(len(table))
            for code, text in sorted(table.items()):
                number(code - last)
                number(len(str(text)))
                for c in str(
                    text
                ):  # near to the character itself in most cases: the difference, with the sign in the lowest bit
                    step = ord(c) - code
                    number(step << 1 if step >= 0 else -step << 1 | 1)
                last = code
            continue
        number(len(runs))
        for first, end, value in runs:
            number(first - last)
            number(end - first)
            if kind == "number":
                number(value)
            last = end
    return bytes(out)


def grapheme_differences(classes: dict[int, int]) -> Iterator[tuple[int, str]]:
    """Yield the characters for which the library finds other clusters than their classes say, with what differs.

    A character behind a letter that a table of SentencePiece replaces is lost with it, if both are one cluster of less
    than six bytes: that shows whether they are.
    """
    letter, sign, ka = (
        normalizers.Precompiled(base64.b64decode(lookup_table(key, "C"))) for key in ("b", "\u00a9", "\u0915")
    )
    joins = {BREAKS.index(n) for n in ("Extend", "ZWJ", "SpacingMark")}
    for code in CODES:
        x, value = chr(code), classes.get(code, 0)
        kind, conjunct = value & 15, CONJUNCTS[value >> 4 & 3]
        if code != 0x62 and (letter.normalize_str(f"b{x}") == "C") != (kind in joins):
            yield code, "joins what is before it"
        if letter.normalize_str(f"{x}b\u0300").endswith("C\u0300") != (kind == BREAKS.index("Prepend")):
            yield code, "joins what is behind it"
        if code != 0xA9 and sign.normalize_str(f"{x}\u200d\u00a9\u0300").endswith("C\u0300") != bool(value & 64):
            yield code, "pictogram"
        if kind in joins and code != 0x200D:
            joined = sign.normalize_str(f"\u00a9{x}\u200d\u00a9\u0300").endswith("C\u0300")
            if joined != (kind == BREAKS.index("Extend")):
                yield code, "extends"
        if ka.normalize_str(f"{x}\u094d\u0915\u0300").endswith("C\u0300") != (conjunct == "Consonant"):
            yield code, "consonant"
        linker = conjunct == "Linker" or kind == BREAKS.index("Prepend")  # one joins what is behind it in any case
        if ka.normalize_str(f"\u0915{x}\u0915\u0300").endswith("C\u0300") != linker:
            yield code, "linker"
        if ka.normalize_str(f"\u0915{x}\u094d\u0915\u0300").endswith("C\u0300") != (conjunct != "None"):
            yield code, "conjunct"


def main() -> int:
    """Compute the tables and write the file, or with ``--check`` compare it; return 1 if something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare the file with the library")
    parser.add_argument("-o", "--output", type=Path, default=FILE, help=f"default {FILE.name} of the Java sources")
    options = parser.parse_args()
    content = tables()
    made = packed(content)
    for name, (kind, table) in content.items():
        print(f"{name}: {kind}, {len(table):,} characters, {len(packed({name: (kind, table)})) - 5:,} bytes")
    wrong = list(grapheme_differences({c: int(v) for c, v in dict(content["graphemes"][1]).items()}))  # type: ignore[arg-type]
    for code, what in wrong[:20]:
        print(f"graphemes: {code:#x} differs: {what}")
    if options.check:
        same = options.output.is_file() and options.output.read_bytes() == made
        print(f"{options.output}: {'as the library says' if same else 'NOT as the library says'}")
        return int(not same or bool(wrong))
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_bytes(made)
    if options.output == FILE:
        note = "// Written by scripts/unicode_tables.py: the tables of the Java tokenizers (unicode.bin) as Base64."
        text = f'{note}\nexport const TABLES =\n  "{base64.b64encode(made).decode()}";\n'
        JAVASCRIPT.write_text(text, encoding="utf-8")
    print(f"{options.output}: {len(made):,} bytes")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
