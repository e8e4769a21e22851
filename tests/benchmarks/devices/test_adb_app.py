"""`--device adb --app`: the demo app behind a real adbd; `am` is a script that writes what the app writes."""

import json
import os
import shlex
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.imported import android_app as by_app
from pocketbert.benchmarks.imported.android_app import (
    AppPlan,
    PhoneRecord,
    _merge_records,
    measure_by_app,
    read_phone_record,
)
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
    """`phone_with_app(records)`: a phone with an `am` that answers by model, threads and length; returns it and what was called."""
    if adb_device.missing():
        pytest.skip(adb_device.missing())
    monkeypatch.setattr(by_app, "_POLL_S", 0.02)
    monkeypatch.setattr(by_app, "_RECORD", "/data/local/tmp/benchmark.json")  # there is no /sdcard
    monkeypatch.setattr(by_app, "_KEPT_RECORD", "/data/local/tmp/benchmark.json.before-pocketbert")
    place = tmp_path / "device"
    place.mkdir()
    device = adb_device.start(place)
    monkeypatch.setenv("PATH", f"{device.tools}{os.pathsep}{os.environ['PATH']}")

    def use(records):
        cases = "".join(f"  {shlex.quote(key)}) cat > $out <<'X'\n{text}\nX\n;;\n" for key, text in records.items())
        script = (
            '#!/bin/sh\nout=/data/local/tmp/benchmark.json\necho "$*" >> /usr/local/bin/called\n[ $1 = force-stop ] && exit 0\n'
            'echo "Starting: Intent { cmp=$3 }"\n'
            f'case "$6,${{12}},${{15}}" in\n{cases}  *) echo "Error: Activity class {{$3}} does not exist." >&2;;\nesac\n'
        )
        (place / "shims/am").write_text(script)
        (place / "shims/am").chmod(0o755)
        called = place / "shims/called"
        called.write_text("")
        called.chmod(0o666)
        return device, lambda: called.read_text().splitlines()

    yield use
    device.stop()


def test_every_file_length_and_number_of_threads_is_started_and_collected(phone_with_app, tmp_path):
    texts = {f"onnx/a.onnx,{t},{n}": json.dumps(record("onnx/a.onnx", t, n)) for t in (1, 2) for n in (16, 32)}
    texts["onnx/b.onnx,1,16"] = json.dumps({"error": "the self-test failed: 0.9 of 0.1"})
    texts |= {f"onnx/b.onnx,{t},{n}": texts["onnx/b.onnx,1,16"] for t in (1, 2) for n in (16, 32)}
    device, called = phone_with_app(texts)
    plan = AppPlan(["onnx/a.onnx", "onnx/b.onnx"], [1, 2], [16, 32], 3, seconds=30)
    measure_by_app(SERIAL, plan, tmp_path / "phone.json")
    told = read_phone_record(tmp_path / "phone.json")
    assert [(f.path, f.threads, [c.length for c in f.cells]) for f in told.files] == [
        ("onnx/a.onnx", 1, [16, 32]),
        ("onnx/a.onnx", 2, [16, 32]),
    ]
    assert told.protocol.took_s == 4 * 4.5
    starts = [line for line in called() if line.startswith("start ")]
    assert len(starts) == 8
    lasting = ["--ei length 16 --ei seconds 30" in line and "--ei threads 1 " in line for line in starts]
    assert lasting == [True, *[False] * 3] * 2  # once for each file
    assert called()[-1] == "force-stop org.pocketbert.demo"
    assert device.left() == []
    with pytest.raises(InputError, match="b.onnx, 1 threads, 16 tokens: the app did not measure: the self-test failed"):
        measure_by_app(SERIAL, AppPlan(["onnx/b.onnx"], [1], [16], 3), tmp_path / "none.json")
    with pytest.raises(MissingBackendError, match="the demo app org.pocketbert.demo is not installed") as caught:
        measure_by_app(SERIAL, AppPlan(["onnx/c.onnx"], [1], [16], 3), tmp_path / "none.json")
    assert caught.value.exit_code == ExitCode.MISSING
    assert not (tmp_path / "none.json").exists()


def test_a_record_that_was_there_is_given_back(phone_with_app, tmp_path):
    device, _ = phone_with_app({"onnx/a.onnx,1,16": json.dumps(record("onnx/a.onnx", 1, 16))})
    plan, own = AppPlan(["onnx/a.onnx"], [1], [16], 3), device.temporary / "benchmark.json"
    own.write_text("of somebody")
    os.chown(own, adb_device.USER, adb_device.USER)
    measure_by_app(SERIAL, plan, tmp_path / "phone.json")
    assert own.read_text() == "of somebody"
    assert [p.name for p in device.temporary.iterdir()] == ["benchmark.json"]
    own.rename(device.temporary / "benchmark.json.before-pocketbert")  # an earlier command that could not give it back
    own.write_text("of that command")
    measure_by_app(SERIAL, plan, tmp_path / "phone.json")
    assert own.read_text() == "of somebody"


def test_a_phone_that_is_lost_gets_its_record_back(phone_with_app, tmp_path):
    device, called = phone_with_app({"onnx/a.onnx,1,16": '{"kind": '})
    own = device.temporary / "benchmark.json"
    own.write_text("of somebody")
    os.chown(own, adb_device.USER, adb_device.USER)

    def unplug_when_it_measures():
        while not any(line.startswith("start ") for line in called()):
            time.sleep(0.01)
        device.unplug()

    watcher = threading.Thread(target=unplug_when_it_measures)
    watcher.start()
    with pytest.raises(MachineError, match="the device was lost"):
        measure_by_app(SERIAL, AppPlan(["onnx/a.onnx"], [1], [16], 3), tmp_path / "none.json")
    watcher.join()
    end = time.monotonic() + 20
    while sorted(p.name for p in device.temporary.iterdir()) != ["benchmark.json"] and time.monotonic() < end:
        time.sleep(0.05)
    assert own.read_text() == "of somebody"
    assert called()[-1] == "force-stop org.pocketbert.demo"


def test_an_app_that_does_not_end(phone_with_app, monkeypatch, tmp_path):
    phone_with_app({"onnx/a.onnx,1,16": '{"kind": "pocketbert-'})  # for ever half written
    monkeypatch.setattr(by_app, "_MEASUREMENT_S", 0.1)
    with pytest.raises(MachineError, match="the demo app wrote nothing within"):
        measure_by_app(SERIAL, AppPlan(["onnx/a.onnx"], [1], [16], 3), tmp_path / "none.json")


def test_the_command_imports_what_the_phone_measured(phone_with_app, phone, tmp_path):
    listed = json.loads((phone / "artifacts.json").read_text())["files"]
    models = [f for f in listed if f.get("format") in ("onnx", "tflite") and not f.get("alias_of")]
    texts = {f"{f['path']},1,16": json.dumps(record(f["path"], 1, 16, sha256=f["sha256"])) for f in models}
    device, called = phone_with_app(texts)
    command = ["benchmark", "-m", str(phone), "--device", f"adb:{SERIAL}", "--app", "--threads", "1"]
    done = CliRunner().invoke(app, [*command, "--lengths", "16", "--runs", "10"])
    assert done.exit_code == 0, done.output
    assert "Maker Model" in done.stdout
    assert device.left() == []
    asked = [
        "--sustained",
        "90",
        "--gaps",
        "100",
        "--repeats",
        "5",
        "--preset",
        "mlperf",
        "--file",
        str(phone / "golden.jsonl"),
    ]
    before = called()
    refused = CliRunner().invoke(app, [*command, *asked])
    assert refused.exit_code == ExitCode.INPUT
    for words in (
        "--gaps: with --app: the demo app times no single calls after idle times.",
        "--repeats: with --app: 5; the demo app makes 3.",
        "--preset: with --app: the demo app cannot go on until 60 s are timed.",
        "--sustained: with --app: 90; the demo app runs for 60 minutes at most.",
        "--file: with --app: the demo app measures its own sentence.",
    ):
        assert words in refused.stderr
    assert called() == before  # nothing ran
    bounded = CliRunner().invoke(app, [*command, "--budget", "60"])
    assert "--budget: with --app: the demo app makes all runs, whatever they take." in bounded.stderr
    wrong = CliRunner().invoke(app, ["benchmark", "-m", str(phone), "--app", "--lengths", "16"])
    assert wrong.exit_code == ExitCode.INPUT
    assert "--app: needs a phone over adb" in wrong.stderr


def test_cores_cannot_be_chosen(tmp_path):
    with pytest.raises(InputError, match="Android chooses the cores of an app"):
        measure_by_app("X@big", AppPlan([], [1], [16], 3), tmp_path / "none.json")


def test_a_length_that_the_app_clipped_is_kept_once():
    one = PhoneRecord.model_validate(record("onnx/a.onnx", 1, 32))
    assert [c.length for c in _merge_records([one, one]).files[0].cells] == [32]
