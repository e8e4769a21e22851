"""The files of a tiny classifier in every format and scheme, and the modules that they were made of."""

from __future__ import annotations

import pytest

from support.stored_models import StoredFiles


@pytest.fixture(scope="session")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredFiles:
    """A tiny BERT and its files; read-only by convention."""
    return StoredFiles(tmp_path_factory)
