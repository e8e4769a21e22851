"""A tokenizer of whole words and letters, and rows of data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from pocketbert.core.data.examples import Example, Label
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import TextTokenizer

Rows = Callable[..., list[Example]]
Scored = Callable[..., Score]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> Path:
    """Holds tokenizer.json: words of `conftest.WORDS` are one token, others several."""
    made = tmp_path_factory.mktemp("heads")
    make_tokenizer(made)
    return made


@pytest.fixture
def tokenizer(folder: Path) -> TextTokenizer:
    """Takes 32 tokens."""
    return TextTokenizer(folder, 32)


@pytest.fixture(scope="session")
def rows() -> Rows:
    """`rows((text, label), ((text, pair), label), ...)`: examples."""

    def build(*entries: tuple[str | tuple[str, str], Label | None]) -> list[Example]:
        pairs = [((t, None) if isinstance(t, str) else t, label) for t, label in entries]
        return [Example(text, pair, label, i) for i, ((text, pair), label) in enumerate(pairs, 1)]

    return build


@pytest.fixture(scope="session")
def scored() -> Scored:
    """`scored(head, prepared, outputs)`: a score by way of what the head keeps, as evaluation does it."""

    def score(head: Head, prepared: Prepared, outputs: Sequence[Matrix]) -> Score:
        with np.errstate(invalid="ignore"):
            return head.score([head.reduce(i, m, prepared) for i, m in enumerate(outputs)], prepared)

    return score


@pytest.fixture(scope="session")
def same() -> Callable[[Score, Score], None]:
    """`same(first, second)`: two scores are equal but for rounding."""

    def check(first: Score, second: Score) -> None:
        assert second.value == pytest.approx(first.value, rel=1e-6, abs=1e-9)
        assert second.others == pytest.approx(first.others, rel=1e-6, abs=1e-9)
        assert (second.metric, second.rows, second.finite) == (first.metric, first.rows, first.finite)
        assert second.chance == pytest.approx(first.chance)

    return check
