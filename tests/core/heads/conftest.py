"""A tokenizer of whole words and letters."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pocketbert.core.predict.tokenization import TextTokenizer


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory, make_tokenizer: Callable[..., None]) -> Path:
    """Holds tokenizer.json: words of `support.tiny_tokenizers.WORDS` are one token, others several."""
    made = tmp_path_factory.mktemp("heads")
    make_tokenizer(made)
    return made


@pytest.fixture
def tokenizer(folder: Path) -> TextTokenizer:
    """Takes 32 tokens."""
    return TextTokenizer(folder, 32)
