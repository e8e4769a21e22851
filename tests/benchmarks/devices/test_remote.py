"""What an agent tells of its machine's energy, temperatures and clock, on folders in place of /sys, and of its files."""

import errno
import json
from pathlib import Path

import pytest

from pocketbert.benchmarks.devices.on_target import agent
from pocketbert.benchmarks.devices.on_target.worker import _OnnxFile
from pocketbert.benchmarks.devices.remote import RemoteConnection, _AgentState, _RemoteWatch
from pocketbert.benchmarks.load import Unread
from pocketbert.core.types import Format, Scheme
from pocketbert.quantize import Plan, quantize
from pocketbert.quantize.onnx.qnn import fix_shape
from pocketbert.runtime.engines import EngineFile
from pocketbert.runtime.onnx import convert_shared_weights_to_uint8

PACKAGE = "POWERCAP/intel-rapl"
FILES = {
    f"{PACKAGE}:0/energy_uj": 100,
    f"{PACKAGE}:0/max_energy_range_uj": 999_999,
    f"{PACKAGE}:1/energy_uj": 999_990,
    f"{PACKAGE}:1/max_energy_range_uj": 999_999,
    f"{PACKAGE}:0:0/energy_uj": 5,
    "CPUFREQ/policy0/scaling_governor": "ondemand",
    "CPUFREQ/policy0/scaling_cur_freq": 600_000,
    "CPUFREQ/policy0/scaling_max_freq": 1_200_000,
    "CPUFREQ/policy0/cpuinfo_max_freq": 2_400_000,
    "THERMAL/thermal_zone0/temp": 61_000,
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """`write(name, value)`: a file of a machine with two packages, one group of cores and one thermal zone."""

    def write_file(name, value):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(f"{value}\n")

    for name in ("POWERCAP", "CPUFREQ", "THERMAL"):
        monkeypatch.setattr(agent, name, tmp_path / name)
    for name, value in FILES.items():
        write_file(name, value)
    return write_file


def read_state():
    """What an agent of this process answers, as it arrives."""

    class Silent(agent._Agent):
        def __init__(self):
            self._workers = {}

    return _AgentState.model_validate(json.loads(json.dumps(Silent().do_state())))


def test_energy_of_the_packages_is_that_between_two_states(write):
    watch = _RemoteWatch(read_state)
    write(f"{PACKAGE}:0/energy_uj", 500_100)
    write(f"{PACKAGE}:1/energy_uj", 499_989)  # it started again at zero
    found = watch.stop()
    assert found.energy.joules == pytest.approx(0.999999)
    assert "energy 1.0 J" in found.summary
    assert "RAPL, processor packages" in found.summary
    assert _RemoteWatch(read_state, real=False).stop().energy is None  # an emulator has none of its own


def test_counters_that_cannot_be_read_are_no_figure_and_no_error(write, tmp_path, monkeypatch):
    def refuse(path, **settings):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    def told():
        energy = _RemoteWatch(read_state).stop().energy
        return energy.joules, energy.why

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", refuse)
        assert agent._energy_counters() == {"unread": "root-only"}
    write(f"{PACKAGE}:0/energy_uj", "none")
    assert told() == (None, Unread.CONTENT)
    monkeypatch.setattr(agent, "POWERCAP", tmp_path / "nowhere")
    assert told() == (None, Unread.ABSENT)


def test_heat_is_told_with_the_limit_of_the_clock(write, tmp_path):
    found = read_state().heat
    assert (list(found.celsius), found.clock) == ([61.0], 0.5)
    (tmp_path / "CPUFREQ/policy0/cpuinfo_max_freq").unlink()
    assert read_state().heat.clock is None


def test_a_worker_tells_the_one_length_of_a_file_for_an_npu(exported, tmp_path):
    path = tmp_path / "fixed.onnx"
    path.write_bytes(exported("bert").read_bytes())
    assert _OnnxFile(str(path), 1, {}).lengths == ()
    fix_shape(path, 24)
    assert _OnnxFile(str(path), 1, {}).lengths == (24,)


FACTS = {
    **{"python": "3.11.2", "arch": "x86_64", "system": "Linux 6.1", "libc": "glibc 2.36", "cores": 2, "cpu": "a CPU"},
    **{"board": "", "parts": [], "free_bytes": 1 << 30},
}


@pytest.mark.parametrize("flags", [["avx2"], ["avx2", "avx_vnni"]], ids=" ".join)
def test_shared_int8_weights_reach_a_machine_without_vnni_as_uint8(flags, exported, tmp_path, monkeypatch):
    sent = {}

    class Channel:
        where = "there"

        def ask(self, do, payload=None, name="", **fields):
            sent[name] = payload
            return {**FACTS, "flags": flags} if do == "facts" else {}

    path = tmp_path / "model_int8.onnx"
    quantize(exported("albert"), path, Plan(Format.ONNX, Scheme.INT8))
    connection = RemoteConnection(Channel())
    monkeypatch.setattr(connection, "bring", lambda files: None)
    request = connection.send_file(EngineFile(path, Format.ONNX), 1)
    if len(flags) > 1:
        assert sent[request["path"]] == path
        return
    assert sent[request["path"]] == convert_shared_weights_to_uint8(path)
    with pytest.raises(Exception, match="x64quantprecision|zero point|Fail|FAIL"):
        _OnnxFile(str(path), 1, request["entries"])  # never with sums that saturate
    path.write_bytes(sent[request["path"]])
    _OnnxFile(str(path), 1, request["entries"])
