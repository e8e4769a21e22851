"""What `pocketbert devices` tells of this moment: phones by serial number, what is missing, and the values of names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.devices import adb as look
from pocketbert.benchmarks.devices.adb import _adb_missing, _attached, _read_attached
from pocketbert.benchmarks.devices.litert_npu import find_litert_chip
from pocketbert.benchmarks.devices.protocol import Reachable
from pocketbert.benchmarks.devices.qai_hub import _qai_hub_missing
from pocketbert.benchmarks.devices.qemu import processor
from pocketbert.benchmarks.devices.qnn import find_qnn_chip
from pocketbert.benchmarks.devices.table import list_device_statuses
from pocketbert.benchmarks.devices.vela import SYSTEMS, vela_target
from pocketbert.cli.main import app
from pocketbert.core.devices import LITERT_NPU, QEMU, QNN, VELA, parse_device

LISTED = """* daemon not running; starting now at tcp:5037
* daemon started successfully
List of devices attached
2A051FDH2004XY         device usb:1-1 product:shiba model:Pixel_8 device:shiba transport_id:1
R5CT20ABCDE            unauthorized usb:1-2 transport_id:2
192.168.1.7:5555       offline transport_id:3
0123456789ABCDEF       no permissions (user in plugdev group; are your udev rules wrong?); see [http://developer.android.com/tools/device.html] usb:1-3 transport_id:4
emulator-5554          recovery transport_id:5

"""


@pytest.fixture
def client(monkeypatch, tmp_path):
    """`client(script)`: the only `adb` that is found is this shell script."""

    def use(script: str) -> None:
        (tmp_path / "adb").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "adb").chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return use


def test_phones_are_listed_by_serial_number_with_what_keeps_them_from_use(client, tmp_path):
    (tmp_path / "listed").write_text(LISTED)
    client(f'[ "$*" = "devices -l" ] && cat {tmp_path}/listed')
    assert _attached() == _read_attached(LISTED)
    good, *others = _attached()
    assert good == Reachable("adb:2A051FDH2004XY", "Pixel 8")
    assert good.words == "adb:2A051FDH2004XY (Pixel 8)"
    assert [(one.name, one.problem.split(".")[0]) for one in others] == [
        ("adb:R5CT20ABCDE", "has not allowed this computer"),
        ("adb:192.168.1.7:5555", "does not answer"),
        ("adb:0123456789ABCDEF", "may not be opened by this user"),
        ("adb:emulator-5554", "is in the state 'recovery'"),
    ]
    for one in _attached():
        parse_device(one.name)
    told = {d["name"]: d for d in json.loads(CliRunner().invoke(app, ["devices", "--json"]).stdout)}
    phones = told["adb[:[SERIAL][@CORES]]"]
    assert phones["reachable"][0] == {"name": "adb:2A051FDH2004XY", "what": "Pixel 8", "problem": ""}
    assert phones["allowed"] == {"CORES": ["little", "big", "prime"]}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo List of devices attached", []),
        ("echo cannot bind to port >&2; exit 1", [Reachable("adb", problem="cannot bind to port")]),
        ("exec sleep 30", [Reachable("adb", problem="the client does not answer within 0.2 s")]),
    ],
)
def test_a_client_without_phones_that_fails_or_hangs(client, monkeypatch, script, told):
    monkeypatch.setattr(look, "_LIST_S", 0.2 if "sleep" in script else 30)
    client(script)
    assert _attached() == told


def test_what_is_missing_for_a_phone(client, monkeypatch, tmp_path):
    client("true")
    monkeypatch.delenv("POCKETBERT_ADB_RUNNERS", raising=False)
    assert _adb_missing() == (
        "no runners are named (export POCKETBERT_ADB_RUNNERS=FOLDER, with benchmark_model and onnxruntime_perf_test built for the "
        "phone); --app needs none"
    )
    runners = tmp_path / "runners"
    runners.mkdir()
    monkeypatch.setenv("POCKETBERT_ADB_RUNNERS", str(runners))
    (runners / "benchmark_model").touch()
    assert _adb_missing() == f"POCKETBERT_ADB_RUNNERS={runners} lacks onnxruntime_perf_test; --app needs none"
    (runners / "onnxruntime_perf_test").touch()
    assert _adb_missing() == ""
    monkeypatch.setenv("PATH", str(runners))
    assert _adb_missing() == "adb is not installed (sudo apt-get install adb)"
    assert _attached() == []


def test_a_service_without_a_token(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("QAIHUB_CLIENT_INI", raising=False)
    monkeypatch.delenv("QAI_HUB_API_TOKEN", raising=False)
    told = "there is no token: neither QAI_HUB_API_TOKEN nor ~/.qai_hub/client.ini (export QAI_HUB_API_TOKEN=…)"
    assert _qai_hub_missing() == told
    settings = tmp_path / ".qai_hub" / "client.ini"
    settings.parent.mkdir()
    settings.write_text("[api]\napi_token = secret\n")
    settings.chmod(0)  # it is not opened
    assert _qai_hub_missing() == ""
    monkeypatch.setenv("QAIHUB_CLIENT_INI", str(tmp_path / "other.ini"))
    assert "other.ini" in _qai_hub_missing()
    monkeypatch.setenv("QAI_HUB_API_TOKEN", "secret")
    assert _qai_hub_missing() == ""


def test_allowed_values_are_what_the_devices_take():
    allowed = {one.info.name: {part.part: part.values for part in one.allowed} for one in list_device_statuses()}
    for name, look_up in ((QEMU, processor), (QNN, find_qnn_chip), (LITERT_NPU, find_litert_chip), (VELA, vela_target)):
        ((_, values), *_) = allowed[name].items()
        assert len(values) > 3
        for value in values:
            assert parse_device(f"{name}:{value}").argument == value
            look_up(value)
    assert set(allowed[VELA]) == {"CONFIG", "SYSTEM", "MEMORY"}
    assert allowed[VELA]["SYSTEM"] == tuple(SYSTEMS)
    for one in list_device_statuses():
        for part in one.allowed:
            assert part.part in one.info.argument
    shown = CliRunner().invoke(app, ["devices"]).stdout
    assert "SOC of qnn-host: SM8450, SM8475, SM8550, SM8650, SM8750, SM8850\n" in shown
    assert "CPU of qemu-arm64: cortex-a53, cortex-a72, cortex-a76, neoverse-n1\n" in shown
    assert "CONFIG of vela: ethos-u55-32, " in shown


def test_what_only_a_try_would_tell_is_not_tried():
    told = {one.info.name: one.reachable for one in list_device_statuses()}
    assert told["ssh"] is None
    assert told["qai-hub"] is None
    (here,) = told["local"]
    assert here.name == "local"


def test_a_name_with_a_comma_is_several_devices(small_folder):
    def refused(*devices: str) -> str:
        options = [part for one in devices for part in ("--device", one)]
        done = CliRunner().invoke(app, ["benchmark", "-m", str(small_folder), *options])
        assert done.exit_code == 2, done.output
        return done.stderr

    both = refused("locla, adb:x y", "vela")
    for wrong in ("unknown device 'locla'", "'x y' is no [SERIAL][@CORES]", "CONFIG[@SYSTEM+MEMORY] is missing"):
        assert wrong in both
    with pytest.raises(ValueError, match="device 'local,adb': no name has a comma; give each device by itself"):
        parse_device("local,adb")


@pytest.fixture
def small_folder(tmp_path: Path) -> Path:
    from support import mac_kit

    return mac_kit.folder(tmp_path / "phone", Model={})
