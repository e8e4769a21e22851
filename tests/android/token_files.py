"""Writes tokenizers, texts, and what the `tokenizers` library makes of them, for the tests of the Java tokenizers.

strings.jsonl has a text a line; of each kind, there are KIND/tokenizer.json and KIND/rows.jsonl. A row names its texts by their
number and, where it has them, the limits and the end that is cut; then come the encodings, each as lists of ids, segment ids,
starts, ends (code points), words, parts (-1 of special tokens), and whether something was cut off.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
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


def write_token_files(folder: Path, strings: int = STRINGS) -> None:
    """Write everything into a folder, for so many texts."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = awkward_texts(strings)
    _write_lines(folder / "strings.jsonl", texts)
    for name, content in tokenizer_kinds():
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "tokenizer.json").write_text(content, encoding="utf-8")
        count = strings // 4 if name.startswith(FEWER) else strings
        _write_lines(folder / name / "rows.jsonl", library_rows(Tokenizer.from_str(content), texts[:count]))


def _write_lines(path: Path, values: Iterable[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(value, separators=(",", ":")) + "\n" for value in values)


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
        if room > 0 and special > 0:  # without a frame the library does not tell the text of tokens in later windows
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
