"""The steps of docs/devices.md for a Pixel, as they are written there, on the real `adbd` with stand-ins of the runners."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.cli.main import app

STEPS = (Path(__file__).parents[3] / "docs/devices.md").read_text(encoding="utf-8")


def commands(section):
    """The commands of PocketBERT in a list of steps."""
    return [shlex.split(one)[1:] for one in re.findall(r"`(pocketbert [^`]+)`", section)]


@pytest.mark.slow
def test_every_step_works_as_typed(phone, start_phone, reach, monkeypatch, tmp_path):
    device = start_phone(masks="70|f")
    reach(device)
    work = tmp_path / "work"
    work.mkdir()
    shutil.copytree(phone, work / "phone")
    monkeypatch.chdir(work)
    section = STEPS.partition("**A Pixel.**")[2].partition("\n**")[0]
    found = commands(section)
    assert [c[0] for c in found] == ["devices", *["benchmark"] * 3, "report"]
    probed, big, little, again, page = [CliRunner().invoke(app, one) for one in found]
    for done in (probed, big, little, again, page):
        assert done.exit_code == 0, done.output
    assert json.loads(probed.stdout)["facts"]["page_bytes"] > 0
    (line,) = re.findall(r"^load of adb:@big: .*", big.stdout, re.MULTILINE)
    assert re.search(r"thermal status 1, .* → thermal status 1, ", line)
    assert re.search(r"governor sched, fastest core \d+ → \d+ MHz", line)
    assert "of the baseline" in again.stdout
    assert sorted(p.name for p in work.glob("*.json")) == [
        "pixel-again.json",
        "pixel-big.json",
        "pixel-little.json",
    ]
    assert (work / "pixel.html").is_file()
    assert device.left() == []
