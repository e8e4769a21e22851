"""What an agent tells of its machine's energy, temperatures and clock, on folders in place of /sys."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from pocketbert.benchmarks.devices.on_target import agent
from pocketbert.benchmarks.devices.remote import _AgentState, _RemoteWatch
from pocketbert.benchmarks.load import Unread


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with two packages, one group of cores and one thermal zone."""
    for name in ("POWERCAP", "CPUFREQ", "THERMAL"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(agent, name, tmp_path / name)
    files = {
        "POWERCAP/intel-rapl:0/energy_uj": 100,
        "POWERCAP/intel-rapl:0/max_energy_range_uj": 999_999,
        "POWERCAP/intel-rapl:1/energy_uj": 999_990,
        "POWERCAP/intel-rapl:1/max_energy_range_uj": 999_999,
        "POWERCAP/intel-rapl:0:0/energy_uj": 5,
        "CPUFREQ/policy0/scaling_governor": "ondemand",
        "CPUFREQ/policy0/scaling_cur_freq": 600_000,
        "CPUFREQ/policy0/scaling_max_freq": 1_200_000,
        "CPUFREQ/policy0/cpuinfo_max_freq": 2_400_000,
        "THERMAL/thermal_zone0/temp": 61_000,
    }
    for name, value in files.items():
        write(tmp_path, name, value)
    return tmp_path


def write(system: Path, name: str, value: object) -> None:
    (system / name).parent.mkdir(exist_ok=True)
    (system / name).write_text(f"{value}\n")


def state() -> _AgentState:
    """What an agent of this process answers, as it arrives."""

    class Silent(agent._Agent):
        def __init__(self) -> None:
            self._workers = {}

    return _AgentState.model_validate(json.loads(json.dumps(Silent().do_state())))


def test_energy_of_the_packages_is_that_between_two_states(system: Path) -> None:
    watch = _RemoteWatch(state)
    write(system, "POWERCAP/intel-rapl:0/energy_uj", 500_100)
    write(system, "POWERCAP/intel-rapl:1/energy_uj", 499_989)  # it started again at zero
    found = watch.stop()
    assert found.energy is not None
    assert found.energy.joules == pytest.approx(0.999999)
    assert "energy 1.0 J" in found.summary and "RAPL, processor packages" in found.summary


def test_counters_that_cannot_be_read_are_no_figure_and_no_error(system: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path, **settings: Any) -> str:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refused)
        told = agent._energy_counters()
    assert told == {"unread": "root-only"}
    for change, why in (("none", Unread.CONTENT), (None, Unread.ABSENT)):
        if change is None:
            monkeypatch.setattr(agent, "POWERCAP", system / "nowhere")
        else:
            write(system, "POWERCAP/intel-rapl:0/energy_uj", change)
        found = _RemoteWatch(state).stop()
        assert found.energy is not None
        assert (found.energy.joules, found.energy.why) == (None, why)


def test_an_emulator_has_no_energy_of_its_own(system: Path) -> None:
    assert _RemoteWatch(state, real=False).stop().energy is None


def test_heat_is_told_with_the_limit_of_the_clock(system: Path) -> None:
    found = state().heat
    assert (list(found.celsius), found.clock) == ([61.0], 0.5)
    (system / "CPUFREQ/policy0/cpuinfo_max_freq").unlink()
    assert state().heat.clock is None
