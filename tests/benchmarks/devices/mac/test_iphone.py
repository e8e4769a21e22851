"""The script with --iphone: a fake of coremltools' remote device, whose times mean nothing, and the import of what it writes."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.imported.files import import_figures
from pocketbert.cli.main import app
from support import mac_kit

TEAM = ("--iphone", "--team", "ABCDE12345")
XCRUN = """#!/bin/sh
printf '{"result": {"devices": [{"hardwareProperties": {"udid": "udid0", "productType": "iPhone99,1", "marketingName": "iPhone 99"}}]}}' > "$5"
"""


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    """An artefact folder, and a folder with an `xcrun` that knows the fake's first iPhone."""
    folder = tmp_path_factory.mktemp("iphone")
    phone = mac_kit.folder(folder / "phone", Model={"lengths": [32, 64]}, Model_w8={"refusing": ["CPU_AND_NE"]})
    (folder / "bin").mkdir()
    (folder / "bin" / "xcrun").write_text(XCRUN)
    (folder / "bin" / "xcrun").chmod(stat.S_IRWXU)
    return phone


@pytest.fixture(scope="module")
def written(kit):
    output = kit.parent / "phone-iphone.json"
    path = f"{kit.parent / 'bin'}{os.pathsep}"
    done = mac_kit.run(kit, *TEAM, "--units", "all", "cpu-and-ne", "-q", path=path, FAKE_IPHONES="Anna's iPhone")
    assert done.returncode == 0, done.stderr
    return output


def test_what_it_writes(written):
    content = json.loads(written.read_text())
    assert content["protocol"]["iphone"] is True
    assert (content["protocol"]["runs"], content["protocol"]["repeats"]) == (10, 3)
    machine = content["machine"]
    assert (machine["model"], machine["chip"], machine["system"]) == ("iPhone99,1", "iPhone 99", "iOS 26.1")
    assert "Anna" not in written.read_text()
    first, second = content["packages"]
    unit = first["units"][0]
    assert unit["load_ms"] > unit["specialize_ms"] > 0  # the fake's loads take longer each time: the second one counts
    assert unit["first_ms"] == 0.005
    assert unit["answers"]["rows"] == 3
    assert [d["device"] for d in unit["plan"]["devices"]] == ["CPU", "GPU", "Neural Engine", "undecided"]
    for cell in unit["cells"]:
        assert [len(r) for r in cell["wall_ms"]] == [10] * 3
        assert {x for r in cell["wall_ms"] for x in r} == {0.005}
        assert cell["cpu_ms"] is cell["engine_ms"] is None
    assert second["units"][1]["failed"] == "CPU_AND_NE is not available on this machine"


def test_it_becomes_measurements_of_an_iphone(kit, written):
    (result,) = import_figures([written], [kit]).sessions
    m = result.measurements[0]
    assert m.device == "iPhone 99, iPhone99,1"
    assert m.machine.system == "iOS 26.1 (23B85)"
    assert m.machine.summary.startswith("iPhone 99, arm64")
    assert (m.cpu, m.cpu_ms, m.cold, m.load.before) == (None, [], None, None)
    assert m.wall.p50 == 0.005
    assert all(c.cpu is None for c in result.comparisons)
    assert "single calls" in result.protocol.description
    assert any("iOS 26.1, on an iPhone connected to a Mac" in note for note in result.protocol.notes)
    assert any("in the runner app's process" in note for note in result.protocol.notes)


def test_the_page_takes_it(kit, written, tmp_path):
    told = CliRunner().invoke(
        app, ["benchmark", "-m", str(kit), "--no-local", "--import", str(written), "-o", str(tmp_path / "b.html")]
    )
    assert told.exit_code == 0, told.output
    assert "iPhone 99" in (tmp_path / "b.html").read_text()


def test_wrong_answers_on_the_iphone_end_with_3(tmp_path):
    phone = mac_kit.folder(tmp_path / "phone", Model={"lengths": [32], "wrong": {"ALL": 0.5}})
    done = mac_kit.run(phone, *TEAM, "--units", "all", "--runs", 1, "--repeats", 1, "-q", FAKE_IPHONES="x")
    assert done.returncode == 3, done.stderr
    assert "largest difference 0.5, allowed 0.01: WRONG" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "phones", "words"),
    [
        (TEAM, "", "0 iPhones are connected."),
        (TEAM, "a,b", "2 iPhones are connected."),
        (("--iphone", "c", "--team", "T"), "a,b", "2 iPhones are connected, 0 of them named c."),
        (("--iphone",), "a", "--iphone goes with --team, or with --profile and --bundle"),
        (("--team", "T"), "a", "--iphone goes with --team"),
        (("--iphone", "--profile", "P"), "a", "--iphone goes with --team, or with --profile and --bundle"),
    ],
    ids=["none", "two", "no such", "no team", "team without a phone", "profile without a bundle"],
)
def test_what_is_missing_is_told(kit, tmp_path, arguments, phones, words):
    done = mac_kit.run(kit, *arguments, "-o", tmp_path / "x.json", FAKE_IPHONES=phones)
    assert done.returncode == 2
    assert words in done.stderr
    assert not (tmp_path / "x.json").exists()


def test_one_of_several_is_named(kit, tmp_path):
    chosen = ("--iphone", "id1", "--profile", "P", "--bundle", "org.example", "--units", "all", "--packages")
    package = kit / "coreml" / "Model.mlpackage"
    done = mac_kit.run(
        kit, *chosen, package, "--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", FAKE_IPHONES="a,b"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "x.json").read_text())["machine"]["chip"] == "an iPhone"  # no xcrun knows it


def test_the_fake_has_the_names_and_arguments_of_coremltools():
    code = (
        "import dataclasses, inspect, json, logging; logging.getLogger('coremltools').setLevel(logging.ERROR); "
        "from coremltools.models.ml_program.experimental import async_wrapper as a, remote_device as r; "
        "of = lambda f: list(inspect.signature(f).parameters); names = lambda c: [f.name for f in dataclasses.fields(c)]; "
        "print(json.dumps([names(r.AppSigningCredentials), names(r.Device), of(r.Device.get_connected_devices), "
        "of(r.Device.prepare_for_model_debugging), of(a.MLModelAsyncWrapper.from_spec_or_path), "
        "of(a.RemoteMLModelAsyncWrapper.predict), of(a.RemoteMLModelAsyncWrapper.unload), "
        "hasattr(r.DeviceType, 'IPHONE'), 'last_predict_duration_in_nano_seconds' in dir(a.RemoteMLModelAsyncWrapper) or "
        "bool(inspect.getsource(a.RemoteMLModelAsyncWrapper).count('last_predict_duration_in_nano_seconds'))]))"
    )
    clean = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    told = {}
    for name, path in (("real", None), ("fake", str(mac_kit.FAKE))):
        env = clean if path is None else {**clean, "PYTHONPATH": path}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
        if path is None and "No module named 'coremltools'" in done.stderr:
            pytest.skip("coremltools is not installed")
        assert done.returncode == 0, done.stderr
        told[name] = json.loads(done.stdout.splitlines()[-1])
    assert told["fake"] == told["real"]


def test_the_script_is_the_folder_s_own(kit):
    assert Path(kit / "coreml" / "benchmark_on_mac.py").read_text().count("class _Iphone:") == 1
