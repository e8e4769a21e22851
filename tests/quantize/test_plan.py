from __future__ import annotations

import numpy as np

from pocketbert.quantize.table import repeat_tokens


def test_rows_are_repeated_up_to_a_length_and_longer_ones_stay() -> None:
    rows = [{"input_ids": np.arange(n)[None], "attention_mask": np.ones((1, n), np.int64)} for n in (3, 8, 9)]
    short, whole, long = repeat_tokens(rows, 8)
    assert short["input_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 0, 1]]
    assert short["attention_mask"].tolist() == [[1] * 8]  # no padding, which ranges would have to leave out
    assert whole["input_ids"].tolist() == [list(range(8))]
    assert long["input_ids"].shape == (1, 9)
