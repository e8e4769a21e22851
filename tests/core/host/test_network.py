"""The Hub is asked briefly: a refused connection or no answer ends at once, a copy in the cache is used."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from pocketbert.core.data.examples import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.host import system as network
from pocketbert.core.host.system import check_hub


@pytest.fixture(autouse=True)
def clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network._answers.cache_clear()
    for name in ("HTTPS_PROXY", "https_proxy", "HF_HUB_CACHE", "HF_DATASETS_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")


@pytest.fixture
def port() -> Iterator[int]:
    """A port that nobody listens on."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def test_nobody_answers(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert "cannot be reached" in check_hub("models", "org/model")
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-host.invalid")
    assert "no-such-host.invalid cannot be reached" in check_hub("models", "org/model")


def test_somebody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        assert check_hub("models", "org/model") == ""


@pytest.mark.parametrize("folder", ["hub/datasets--org--rows", "datasets/org___rows"])
def test_a_copy_in_the_cache_is_used(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    (tmp_path / folder).mkdir(parents=True)
    monkeypatch.setattr(network.sys, "modules", {})
    assert check_hub("datasets", "org/rows") == ""
    assert os.environ["HF_HUB_OFFLINE"] == "1"


def test_the_line_to_write_instead(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(InputError) as caught:
        read_examples(DataSource(dataset="org/rows", split="train", text="sentence", label="intent"))
    assert "{path: rows.csv, text: sentence, label: intent}" in str(caught.value)
