"""Cut rows keep their special tokens, whatever the tokenizer puts around and between texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.data.examples import Example
from pocketbert.core.families import TokenizerKind
from pocketbert.core.heads.head import prepare_texts
from pocketbert.core.predict.inputs import truncate_row
from pocketbert.core.predict.tokenization import TextTokenizer
from support.tiny_sentencepiece import LAYOUTS
from support.tiny_tokenizers import vocabulary, write_tokenizer_of_kind

KINDS = [
    *((TokenizerKind.SENTENCEPIECE, layout) for layout in LAYOUTS),
    *((kind, "") for kind in TokenizerKind if kind is not TokenizerKind.SENTENCEPIECE),
]
TAILS = {"XLNetTokenizer": 2}
"""Special tokens behind the text where it is more than one."""


@pytest.mark.parametrize("places", [False, True])
@pytest.mark.parametrize(("kind", "layout"), KINDS)
def test_special_tokens_stay(kind: TokenizerKind, layout: str, places: bool, tmp_path: Path) -> None:
    write_tokenizer_of_kind(tmp_path, kind, vocabulary(0), layout)
    long, short = (TextTokenizer(tmp_path, n, pad_id=0, padding_side="right") for n in (80, 16))
    text, second = "good " * 60, "bad " * 50
    [row], [wanted] = long.encode([text], places), short.encode([text])
    assert truncate_row(row, 16).ids.tolist() == wanted.ids.tolist()
    [whole] = long.encode([(text, second)], places=True)
    assert whole.places is not None
    special = whole.ids[whole.places.parts < 0].tolist()
    [found] = prepare_texts([Example(text, second, None, 1)], long, places).within(16).encoded
    assert len(found) == 16
    assert [i for i in found.ids.tolist() if i in special] == special
    tail = TAILS.get(layout, 1)
    assert found.ids[-tail:].tolist() == whole.ids[-tail:].tolist()
    assert found.ids[-tail - 1] not in special
    # shorter than what stays: its end, and no more tokens than asked for
    for length in (1, 2, 3):
        few = truncate_row(row, length).ids
        assert len(few) == length
        assert np.array_equal(few[-min(tail, length) :], row.ids[-min(tail, length) :])
