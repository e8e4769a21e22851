"""Machines without a home folder or a network: the Hub is asked briefly, a copy in the cache is used."""

from __future__ import annotations

import os
import pwd
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.core.host import system as network
from pocketbert.core.host.system import check_hub, expand_home, home_folder, installed_versions, version_of
from pocketbert.runtime.selftest import result_cache_file


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


def test_nobody_answers_and_the_line_to_write_instead(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert "cannot be reached" in check_hub("models", "org/model")
    monkeypatch.setenv("HF_ENDPOINT", "http://no-such-host.invalid")
    assert "no-such-host.invalid cannot be reached" in check_hub("models", "org/model")
    with pytest.raises(InputError) as caught:
        read_examples(DataSource(dataset="org/rows", split="train", text="sentence", label="intent"))
    assert "{path: rows.csv, text: sentence, label: intent}" in str(caught.value)


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


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No HOME, and a user that the database does not know, as containers have them."""

    def unknown(*_: Any) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "POCKETBERT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


def test_without_a_home_folder_paths_are_refused_and_nothing_is_remembered(
    homeless: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert home_folder() is None
    for name in ("~", "~/model", "~nobody/model"):
        with pytest.raises(InputError, match="Write the path without '~'"):
            expand_home(name, "-m")
    assert expand_home("model", "-m") == Path("model")
    assert result_cache_file("selftest", "k") is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert result_cache_file("selftest", "k") == Path("/caches/pocketbert/selftest/k.json")


@pytest.mark.parametrize(
    ("variable", "value", "hub"),
    [
        ("HF_HOME", "$HOME/hf", "hf/hub"),
        ("HF_HUB_CACHE", "~/copies", "copies"),
        ("HUGGINGFACE_HUB_CACHE", "~/older", "older"),
        ("XDG_CACHE_HOME", "~/caches", "caches/huggingface/hub"),
    ],
)
def test_variables_of_the_hub_are_expanded_as_its_libraries_do(
    variable: str, value: str, hub: str, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(network.sys, "modules", {})
    for name, content in (("HF_ENDPOINT", f"http://127.0.0.1:{port}"), ("HOME", str(tmp_path)), (variable, value)):
        monkeypatch.setenv(name, content)
    assert "the cache has no copy" in check_hub("models", "org/model")
    (tmp_path / hub / "models--org--model").mkdir(parents=True)
    assert check_hub("models", "org/model") == ""


def test_versions_are_found_without_importing() -> None:
    assert version_of("numpy") is not None
    assert version_of("pocketbert-no-such-package") is None
    assert set(installed_versions(("numpy", "pocketbert-no-such-package"))) == {"numpy"}
