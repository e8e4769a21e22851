"""Writes tokenizers, texts, and what the `tokenizers` library makes of them, for the tests of the Java tokenizers.

    cd tests && python -m android.token_files DIR [--strings 10000]

makes DIR/strings.jsonl (a text a line) and, of each kind, DIR/KIND/tokenizer.json and DIR/KIND/rows.jsonl. A row names its texts by
their number and, where it has them, the limits and the end that is cut; then come the encodings, each as lists of ids, segment ids, starts, ends (code points),
words, parts (-1 of special tokens), and whether something was cut off.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tokenizers import Encoding, Tokenizer

from android.awkward_texts import awkward_texts
from android.tokenizer_kinds import tokenizer_kinds

STRINGS = 10_000
PAIRS = 10
"""One row in so many is a pair as well, one has limits, and one is read in windows."""
FEWER = ("normalizer-", "splitter-")
"""Kinds of single steps, which are compared on fewer texts."""


def write_token_files(folder: Path, strings: int = STRINGS) -> dict[str, int]:
    """Write everything.

    Args:
        folder: Where to; made if it is not there.
        strings: How many texts.

    Returns:
        The number of rows of each kind.
    """
    folder.mkdir(parents=True, exist_ok=True)
    texts = awkward_texts(strings)
    _write_lines(folder / "strings.jsonl", texts)
    out = {}
    for name, content in tokenizer_kinds():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "tokenizer.json").write_text(content, encoding="utf-8")
        count = strings // 4 if name.startswith(FEWER) else strings
        out[name] = _write_lines(folder / name / "rows.jsonl", library_rows(Tokenizer.from_str(content), texts[:count]))
    return out


def _write_lines(path: Path, values: Any) -> int:
    count = 0
    with path.open("w", encoding="utf-8") as file:
        for value in values:
            file.write(json.dumps(value, separators=(",", ":")) + "\n")
            count += 1
    return count


def library_rows(tokenizer: Tokenizer, texts: list[str]) -> Iterator[dict[str, Any]]:
    """What the library makes of texts: alone, in pairs, cut to a length, and in windows."""
    draw = random.Random(5)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    for i, encoding in enumerate(tokenizer.encode_batch(texts)):
        yield {"texts": [i], "encodings": [_columns(encoding, False)]}
    special = tokenizer.num_special_tokens_to_add(True)
    for i in range(0, len(texts) - 1, PAIRS):
        pair = (texts[i], texts[i + 1])
        tokenizer.no_truncation()
        yield {"texts": [i, i + 1], "encodings": [_columns(tokenizer.encode(*pair), False)]}
        most = special + draw.randint(1, 24)
        for side in ("right", "left"):
            tokenizer.enable_truncation(most, direction=side)
            for numbers in ([i], [i, i + 1]):
                made = tokenizer.encode(*(texts[n] for n in numbers))
                cut = [_columns(made, bool(made.overflowing))]
                yield {"texts": numbers, "most": most, "left": side == "left", "encodings": cut}
        tokenizer.no_truncation()
        room = most - special - len(tokenizer.encode(pair[0], add_special_tokens=False).ids)
        if (
            room > 0 and special > 0
        ):  # without a frame the library does not say which text the tokens of later windows come from
            stride = draw.randint(0, 6)
            tokenizer.enable_truncation(most, stride=min(stride, room - 1), strategy="only_second")
            first = tokenizer.encode(*pair)
            windows = [_columns(e, bool(first.overflowing)) for e in (first, *first.overflowing)]
            yield {"texts": [i, i + 1], "most": most, "stride": stride, "encodings": windows}


def _columns(encoding: Encoding, truncated: bool) -> list[Any]:
    parts = [-1 if p is None else p for p in encoding.sequence_ids]
    words = [-1 if w is None else w for w in encoding.word_ids]
    starts, ends = [s for s, _ in encoding.offsets], [e for _, e in encoding.offsets]
    return [encoding.ids, encoding.type_ids, starts, ends, words, parts, truncated]


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strings", type=int, default=STRINGS)
    options = parser.parse_args()
    for name, rows in write_token_files(options.folder, options.strings).items():
        print(f"{name}: {rows:,} rows")
    return 0


if __name__ == "__main__":
    sys.exit(main())
