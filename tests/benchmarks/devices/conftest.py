"""Android devices that one test uses."""

import os

import pytest

from support import adb_device


@pytest.fixture
def start_phone(tmp_path):
    """`start_phone(**changes)`: a device that only this test uses."""
    why_not = adb_device.missing()
    if why_not:
        pytest.skip(why_not)
    made = []

    def start(**changes):
        folder = tmp_path / f"phone{len(made)}"
        folder.mkdir()
        made.append(adb_device.start(folder, **changes))
        return made[-1]

    yield start
    for one in made:
        one.stop()


@pytest.fixture
def reach(monkeypatch, tmp_path):
    """`reach(phone)`: its client and the runners are found."""
    runners = adb_device.write_runners(tmp_path / "runners")

    def use(one):
        monkeypatch.setenv("PATH", f"{one.tools}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("POCKETBERT_ADB_RUNNERS", str(runners))
        return runners

    return use
