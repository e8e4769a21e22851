"""`--device adb --app`: the demo app behind a real adbd; `am` is a script that writes what the app writes."""

import json
import os
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.devices.adb import app as by_app
from pocketbert.benchmarks.devices.adb.app import AppPlan, measure_by_app, merged
from pocketbert.benchmarks.devices.android.record import PhoneRecord, read_phone_record
from pocketbert.cli.main import app
from pocketbert.core.errors import ExitCode, InputError, MachineError, MissingBackendError
from support import adb_device
from support.adb_device import SERIAL

JAVA = Path(__file__).parents[3] / "android_demo/core/src/test/resources/org/pocketbert/statistics/benchmark.json"
"""What BenchmarkRecordTest.java compares the app's writer with."""


def record(path, threads, length, **changes):
    """A record of the app for one start of its benchmark."""
    content = json.loads(JAVA.read_text())
    del content["files"][1:]
    file = content["files"][0]
    file.update(path=path, threads=threads, format=path.partition("/")[0], sustained=[], **changes)
    file["cells"][0]["length"] = length
    return content


@pytest.fixture
def phone_with_app(monkeypatch, tmp_path):
    """`phone_with_app(records)`: a phone with an `am` that answers by model, threads and length."""
    if adb_device.missing():
        pytest.skip(adb_device.missing())
    monkeypatch.setattr(by_app, "POLL_S", 0.02)
    monkeypatch.setattr(by_app, "RECORD", "/data/local/tmp/benchmark.json")  # there is no /sdcard
    place = tmp_path / "device"
    place.mkdir()
    device = adb_device.start(place)
    monkeypatch.setenv("PATH", f"{device.tools}{os.pathsep}{os.environ['PATH']}")

    def use(records):
        cases = "".join(f"  {shlex.quote(key)}) cat > $out <<'X'\n{text}\nX\n;;\n" for key, text in records.items())
        script = (
            "#!/bin/sh\nout=/data/local/tmp/benchmark.json\n[ $1 = force-stop ] && exit 0\n"
            'echo "Starting: Intent { cmp=$3 }"\n'
            f'case "$6,${{12}},${{15}}" in\n{cases}  *) echo "Error: Activity class {{$3}} does not exist." >&2;;\nesac\n'
        )
        (place / "shims/am").write_text(script)
        (place / "shims/am").chmod(0o755)

    yield use
    device.stop()


def test_every_file_length_and_number_of_threads_is_started_and_collected(phone_with_app, tmp_path):
    texts = {f"onnx/a.onnx,{t},{n}": json.dumps(record("onnx/a.onnx", t, n)) for t in (1, 2) for n in (16, 32)}
    texts["onnx/b.onnx,1,16"] = json.dumps({"error": "the self-test failed: 0.9 of 0.1"})
    texts |= {f"onnx/b.onnx,{t},{n}": texts["onnx/b.onnx,1,16"] for t in (1, 2) for n in (16, 32)}
    phone_with_app(texts)
    plan = AppPlan(["onnx/a.onnx", "onnx/b.onnx"], [1, 2], [16, 32], 3)
    measure_by_app(SERIAL, plan, tmp_path / "phone.json")
    told = read_phone_record(tmp_path / "phone.json")
    assert [(f.path, f.threads, [c.length for c in f.cells]) for f in told.files] == [
        ("onnx/a.onnx", 1, [16, 32]),
        ("onnx/a.onnx", 2, [16, 32]),
    ]
    assert told.protocol.took_s == 4 * 4.5
    with pytest.raises(InputError, match="b.onnx, 1 threads, 16 tokens: the app did not measure: the self-test failed"):
        measure_by_app(SERIAL, AppPlan(["onnx/b.onnx"], [1], [16], 3), tmp_path / "none.json")
    with pytest.raises(MissingBackendError, match="the demo app org.pocketbert.demo is not installed") as caught:
        measure_by_app(SERIAL, AppPlan(["onnx/c.onnx"], [1], [16], 3), tmp_path / "none.json")
    assert caught.value.exit_code == ExitCode.MISSING
    assert not (tmp_path / "none.json").exists()


def test_an_app_that_does_not_end(phone_with_app, monkeypatch, tmp_path):
    phone_with_app({"onnx/a.onnx,1,16": '{"kind": "pocketbert-'})  # for ever half written
    monkeypatch.setattr(by_app, "RUN_S", 0.1)
    with pytest.raises(MachineError, match="the demo app wrote nothing within"):
        measure_by_app(SERIAL, AppPlan(["onnx/a.onnx"], [1], [16], 3), tmp_path / "none.json")


def test_the_command_imports_what_the_phone_measured(phone_with_app, phone, tmp_path):
    listed = json.loads((phone / "artifacts.json").read_text())["files"]
    models = [f for f in listed if f.get("format") in ("onnx", "tflite") and not f.get("alias_of")]
    texts = {f"{f['path']},1,16": json.dumps(record(f["path"], 1, 16, sha256=f["sha256"])) for f in models}
    phone_with_app(texts)
    command = ["benchmark", "-m", str(phone), "--device", f"adb:{SERIAL}", "--app", "--threads", "1"]
    done = CliRunner().invoke(app, [*command, "--lengths", "16", "--runs", "10"])
    assert done.exit_code == 0, done.output
    assert "Maker Model" in done.stdout
    wrong = CliRunner().invoke(app, ["benchmark", "-m", str(phone), "--app", "--lengths", "16"])
    assert wrong.exit_code == ExitCode.INPUT
    assert "--app: needs a phone over adb" in wrong.stderr


def test_cores_cannot_be_chosen(tmp_path):
    with pytest.raises(InputError, match="Android chooses the cores of an app"):
        measure_by_app("X@big", AppPlan([], [1], [16], 3), tmp_path / "none.json")


def test_a_length_that_the_app_clipped_is_kept_once():
    one = PhoneRecord.model_validate(record("onnx/a.onnx", 1, 32))
    assert [c.length for c in merged([one, one]).files[0].cells] == [32]
