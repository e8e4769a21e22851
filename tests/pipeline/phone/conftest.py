"""The classifier folders that tests of artefact folders export."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from support.tiny import write_classifier


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`model(family, std=0.15)`: a tiny random classifier in Hugging Face layout; transformers' own weights for std 0."""

    @cache
    def build(family: str, std: float = 0.15) -> Path:
        return write_classifier(tmp_path_factory.mktemp(f"classifier-{family}"), family, std)

    return build
