"""What installed packages announce, and what happens when one of them fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pocketbert.core.errors import ExitCode
from pocketbert.core.families import all_families, family_of, register_family
from pocketbert.core.plugins import (
    PluginError,
    Registry,
    list_plugins,
    load_plugins,
    register_before_lookup,
    tolerate_failed_plugins,
)
from support.plugins import fresh_tables, install

GOOD = """
from dataclasses import replace
calls = []
def register():
    from pocketbert.core.families import family_of, register_capture, register_family
    calls.append(1)
    row = replace(family_of("bert"), name="{name}", model_types=("{name}",), capture="{name}-capture")
    register_family(row)
    register_capture("{name}-capture", lambda model: None)
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of installed packages that this process looks into."""
    folder = tmp_path / "site"
    folder.mkdir()
    with fresh_tables(monkeypatch):
        monkeypatch.syspath_prepend(str(folder))
        yield folder
    for path in folder.glob("*.py"):
        sys.modules.pop(path.stem, None)


def test_a_plug_in_is_loaded_at_the_first_lookup_and_once(site: Path) -> None:
    install(site, "good_one", GOOD.format(name="good-one"))
    assert "good_one" not in sys.modules
    assert family_of("good-one").capture == "good-one-capture"
    assert all_families()[-1].name == "good-one"
    assert sys.modules["good_one"].calls == [1]
    (found,) = list_plugins()
    assert (found.name, found.distribution, found.version, found.error) == ("good_one", "good_one", "1.0", "")
    assert found.registered == ["family good-one", "capture good-one-capture"]


@pytest.mark.parametrize(
    ("code", "entry", "reason", "status"),
    [
        ("import no_such_package_at_all\ndef register(): pass", "register", "No module named", ExitCode.MISSING),
        ("def register(): return 1 / 0", "register", "ZeroDivisionError", ExitCode.INPUT),
        ("def register(): pass", "regster", "no attribute 'regster'", ExitCode.INPUT),
        ("def register(): raise SystemExit(3)", "register", "SystemExit: 3", ExitCode.INPUT),
        ("def register(to): pass", "register", "missing 1 required positional argument", ExitCode.INPUT),
        (GOOD.format(name="bert"), "register", "there is a family named 'bert' already", ExitCode.INPUT),
    ],
    ids=["import", "call", "name", "exit", "argument", "replaces"],
)
def test_a_plug_in_that_fails_is_named_with_what_to_do(
    site: Path, code: str, entry: str, reason: str, status: ExitCode
) -> None:
    install(site, "bad_one", code, entry)
    install(site, "good_one", GOOD.format(name="good-one"))
    for _ in range(2):  # at every lookup, not only at the first
        with pytest.raises(PluginError) as caught:
            family_of("bert")
        message = str(caught.value)
        assert caught.value.exit_code is status
        assert f"the plug-in 'bad_one' of the package bad_one 1.0 (bad_one:{entry}) failed" in message
        assert reason in message
        assert message.endswith("pip uninstall bad_one.")
    with tolerate_failed_plugins():
        assert family_of("bert").title == "BERT"
        assert family_of("good-one")
    assert [bool(p.error) for p in list_plugins()] == [True, False]


def test_several_failures_are_named_at_once(site: Path) -> None:
    for name in ("bad_one", "bad_two"):
        install(site, name, "import no_such_package_at_all")
    with pytest.raises(PluginError, match=r"bad_one.*bad_two") as caught:
        load_plugins()
    assert caught.value.exit_code is ExitCode.MISSING


def test_what_a_program_registers_itself_may_replace_a_row(site: Path) -> None:
    register_family(replace(family_of("bert"), title="Mine"))
    assert family_of("bert").title == "Mine"
    assert list_plugins() == ()


def run_command(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command in a process that has the packages of a folder installed."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = [str(Path(sys.executable).with_name("pocketbert")), *words]
    return subprocess.run(run, capture_output=True, text=True, env=environment, check=False)


def test_a_failing_plug_in_stops_commands_but_not_the_help_nor_doctor(tmp_path: Path) -> None:
    site = tmp_path / "site"
    install(site, "bad_one", "print('loaded')\ndef register(): return 1 / 0")
    helped = run_command(site, "export", "--help")
    assert (helped.returncode, "loaded" in helped.stdout) == (0, False)
    stopped = run_command(site, "families")
    assert (stopped.returncode, "pip uninstall bad_one" in stopped.stderr) == (ExitCode.INPUT, True)
    assert "Traceback" not in stopped.stderr
    looked = run_command(site, "doctor", "--json")
    assert looked.returncode == 0
    told = json.loads(looked.stdout.removeprefix("loaded\n"))
    (plugin,) = told["plugins"]
    assert (plugin["package"], "division by zero" in plugin["error"]) == ("bad_one 1.0", True)
    assert "division by zero" not in json.dumps(told["backends"])


def test_a_wing_that_fails_to_load_is_named_at_every_lookup() -> None:
    registry, failures = Registry[int]("number", "register_number"), [ImportError("broken"), ImportError("broken")]

    def load() -> None:
        if failures:
            raise failures.pop()
        registry.add("one", 1)

    register_before_lookup("number", load)
    for _ in range(2):
        with pytest.raises(ImportError, match="broken"):
            registry.find("one", "here")
    assert registry.find("one", "here") == 1
