"""Containers run with user ids that nobody registered: there is no home folder, and nothing needs one."""

from __future__ import annotations

import pwd
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.host.system import expand_home, home_folder


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """No HOME, and a user that the database does not know."""

    def unknown(*_: Any) -> Any:
        raise KeyError("getpwuid(): uid not found")

    for name in ("HOME", "POCKETBERT_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(pwd, "getpwnam", unknown)


def test_no_home_folder(homeless: None) -> None:
    assert home_folder() is None
    for name in ("~", "~/model", "~nobody/model"):
        with pytest.raises(InputError, match="Write the path without '~'"):
            expand_home(name, "-m")
    assert expand_home("model", "-m") == Path("model")


def test_nothing_is_remembered_without_a_home_folder(homeless: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from pocketbert.runtime.selftest import result_cache_file

    assert result_cache_file("selftest", "k") is None
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert result_cache_file("selftest", "k") == Path("/caches/pocketbert/selftest/k.json")
