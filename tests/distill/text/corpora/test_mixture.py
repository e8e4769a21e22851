"""Sampling from corpora: shares, rounds, repeatability."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.core.recipe.data import CorpusSettings
from pocketbert.distill.text.corpus import Corpus, _Mixture, mix_corpora, open_corpus
from pocketbert.distill.text.writer import write_corpus

SIZES = (5, 12, 40)
SETTINGS = CorpusSettings(length=16, shortest=1)


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> list[Corpus]:
    """Three corpora of 5, 12 and 40 rows; row i of the first is one `a` and i `x`, and so on."""
    root = tmp_path_factory.mktemp("corpora")
    make_tokenizer(root)
    out = []
    for word, size in zip("abc", SIZES, strict=True):
        texts = [word + " x" * (i % 13) for i in range(size)]
        write_corpus(texts, root, SETTINGS, root / word, 4)
        out.append(open_corpus(root / word))
    return out


def taken(mixture: _Mixture, source: int) -> Counter[int]:
    return Counter(mixture.places[mixture.sources == source].tolist())


@given(
    shares=st.lists(st.floats(0.2, 5), min_size=1, max_size=3),
    rows=st.integers(30, 200),
    seed=st.integers(0, 99),
)
def test_each_source_gives_its_share_and_no_row_twice_before_all_were_taken(
    corpora: list[Corpus], shares: list[float], rows: int, seed: int
) -> None:
    sources = corpora[: len(shares)]
    mixture = mix_corpora(sources, shares, rows, seed)
    assert len(mixture) == rows == len(mixture.lengths)
    for i, (share, size) in enumerate(zip(shares, SIZES, strict=False)):
        counts = taken(mixture, i)
        assert abs(counts.total() - share / sum(shares) * rows) < 1
        times = [counts[row] for row in range(size)]
        assert max(times) - min(times) <= 1
        assert sum(times) == counts.total(), "only rows that the source has"


def test_rows_are_those_of_the_sources(corpora: list[Corpus]) -> None:
    mixture = mix_corpora(corpora, [1, 1, 2], 60, seed=3)
    for row, ids in enumerate(mixture.ids(range(60))):
        origin = corpora[mixture.sources[row]]
        assert ids.tolist() == origin.ids([mixture.places[row]])[0].tolist()
        assert len(ids) == mixture.lengths[row]
    assert [r.tolist() for r in mixture.ids([7, 7, 2])] == [mixture.ids([i])[0].tolist() for i in (7, 7, 2)]
    assert mixture.ids([]) == []
    with pytest.raises(IndexError):
        mixture.ids([60])


def test_sources_are_mixed_through_the_whole_length(corpora: list[Corpus]) -> None:
    mixture = mix_corpora(corpora[1:], [1, 1], 200, seed=0)
    assert all(0 < mixture.sources[start : start + 50].sum() < 50 for start in range(0, 200, 50))


def test_n_rows_of_one_source(corpora: list[Corpus]) -> None:
    few = mix_corpora([corpora[2]], [1], 10, seed=1)
    assert max(taken(few, 0).values()) == 1
    whole = mix_corpora([corpora[2]], [0.3], 40, seed=1)
    assert taken(whole, 0) == Counter(range(40))
    assert (whole.counts == corpora[2].counts).all()
    assert whole.places.tolist() != list(range(40))
    assert taken(mix_corpora([corpora[2]], [1], 10, seed=2), 0) != taken(few, 0)


def test_later_rounds_come_in_another_order(corpora: list[Corpus]) -> None:
    # the 4 rows that were taken once more than the others are the first of the last round
    orders = {
        frozenset(row for row, _ in taken(mix_corpora([corpora[1]], [1], 12 * n + 4, 5), 0).most_common(4))
        for n in range(4)
    }
    assert len(orders) == 4


def test_expected_counts_are_in_proportion(corpora: list[Corpus]) -> None:
    mixture = mix_corpora(corpora[:2], [1, 2], 15, seed=0)
    assert mixture.counts.dtype == np.int64
    assert (mixture.counts == corpora[0].counts + np.rint(corpora[1].counts * (10 / 12))).all()


def test_the_same_rows_in_another_process(corpora: list[Corpus]) -> None:
    folders = [str(c.folder) for c in corpora]
    code = (
        "from pathlib import Path; from pocketbert.distill.text.corpus import open_corpus;"
        "from pocketbert.distill.text.corpus import mix_corpora;"
        f"m = mix_corpora([open_corpus(Path(f)) for f in {folders!r}], [1, 2, 3], 90, 11);"
        "print([r.tolist() for r in m.ids(range(90))])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    here = mix_corpora(corpora, [1, 2, 3], 90, 11)
    assert answer.strip() == str([r.tolist() for r in here.ids(range(90))])


@pytest.mark.parametrize(
    ("shares", "rows", "message"),
    [
        ([1, 1], 9, "2 shares for 3 corpora"),
        ([1, 0, 1], 9, r"shares\.1: 0; a share is a positive number"),
        ([1, 1, float("nan")], 9, r"shares\.2: nan"),
        ([1, 1, -1], 9, r"shares\.2"),
        ([1, 1, float("inf")], 9, r"shares\.2"),
        ([1, 1, 1], 0, "rows: 0; at least 1"),
        ([1, 100, 100], 20, r"shares\.0: 1 of 201 is less than one of 20 rows"),
    ],
)
def test_shares_that_make_no_sense_are_refused(
    corpora: list[Corpus], shares: list[float], rows: int, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        mix_corpora(corpora, shares, rows, seed=0)


def test_nothing_to_mix_is_refused() -> None:
    with pytest.raises(InputError, match="0 shares for 0 corpora"):
        mix_corpora([], [], 4, seed=0)


def test_corpora_of_two_tokenizers_are_refused(
    corpora: list[Corpus], tmp_path: Path, make_tokenizer: Callable[..., None]
) -> None:
    make_tokenizer(tmp_path, pad_id=1)
    write_corpus(["the film"], tmp_path, SETTINGS, tmp_path / "c")
    with pytest.raises(InputError, match="another tokenizer"):
        mix_corpora([corpora[0], open_corpus(tmp_path / "c")], [1, 1], 4, seed=0)
