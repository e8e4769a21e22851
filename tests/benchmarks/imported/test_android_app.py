"""Figures of the Android demo app: started behind a real adbd, read, and nothing in them believed unchecked."""

import json
import os
import shlex
import threading
import time
from pathlib import Path

import pytest

from pocketbert.benchmarks.imported import android_app, import_figures
from pocketbert.benchmarks.imported.android_app import AppPlan, measure_by_app, read_phone_record
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.statistics import Statistics, repeat_interval
from pocketbert.core.errors import ExitCode, InputError, MachineError, MissingBackendError
from pocketbert.core.types import Provenance
from support.adb_device import SERIAL, USER

JAVA = Path(__file__).parents[3] / "android_demo/core/src/test/resources/org/pocketbert/statistics/benchmark.json"
"""What BenchmarkRecordTest.java compares the app's writer with."""


# --- reading ---------------------------------------------------------------------------------------------------------------------


def make_record(change=lambda record: None):
    """One file on a phone that told everything, by a newer app of the same major schema."""
    record = json.loads(JAVA.read_text())
    del record["files"][1:]
    record["files"][0].update(first_ms=3.25)
    record["files"][0]["sustained"][1].update(after_s=60.2)
    record["phone"].update(model="Model 7")
    record |= {"schema_version": "1.7", "later": 1}
    change(record)
    return record


@pytest.fixture
def write_record(tmp_path):
    """`write_record(change, name)`: the file that the app wrote."""

    def write(change=lambda record: None, name="phone.json"):
        (tmp_path / name).write_text(json.dumps(make_record(change)))
        return tmp_path / name

    return write


def test_figures_become_a_session_of_the_phone(write_record, tmp_path):
    (result,) = import_figures([write_record()], []).sessions
    (m,) = result.measurements
    assert (m.variant, m.threads, m.length) == ("onnx/model_int8.onnx ONNX Runtime CPU", 2, 32)
    assert (m.device, m.unit, m.provenance) == ("Maker Model 7", "cpu", Provenance.MEASURED)
    assert m.wall == Statistics.of([1.0, 2.0, 4.0, 1.5, 2.5, 3.5, 1.0, 2.0, 3.0])
    assert m.wall_interval == repeat_interval([2.0, 2.5, 2.0])
    assert (m.cpu, m.cold, m.machine.system) == (None, None, "Android 14 (API 34)")
    assert result.answers[0].passed
    assert result.comparisons == []  # files that did not take turns have no ratio
    notes = "\n".join(result.protocol.notes)
    for words in (
        "loaded in 12.5 ms, first inference 3.25 ms, 3 MiB of memory",
        "60 s without a pause: median 2.00 ms in the first second, 2.50 ms in the last one, thermal status light",
        "not checked which files",
    ):
        assert words in notes
    result.write(tmp_path / "benchmark.json")
    assert BenchmarkResult.read(tmp_path / "benchmark.json").measurements == result.measurements


def test_what_the_java_code_writes_is_read():
    (result,) = import_figures([JAVA], []).sessions
    names = [m.variant for m in result.measurements]
    assert names == ["onnx/model_int8.onnx ONNX Runtime CPU", "onnx/model.onnx ONNX Runtime CPU"]
    wall = result.measurements[0].wall
    assert (wall.n, wall.p50, wall.p90) == (9, 2.0, 4.0)
    assert result.measurements[0].device == 'Maker Model "7"'
    assert "loaded in 12.5 ms, 3 MiB of memory" in "\n".join(result.protocol.notes)  # the first inference is null there


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda r: r.update(schema_version="2.0"), "schema version '2.0' cannot be read"),
        (lambda r: r["phone"].update(emulated=True), "times are no latencies"),
        (lambda r: r["files"].append(r["files"][0]), "is there twice"),
        (lambda r: r["files"][0]["cells"].append(r["files"][0]["cells"][0]), "a length is there twice"),
        (lambda r: r["files"][0]["cells"][0]["wall_ms"][0].append(1.0), "more than the 3 runs"),
        (lambda r: r["files"][0]["cells"][0]["wall_ms"][0].__setitem__(0, 0.0), "greater than 0"),
        (lambda r: r["files"][0].update(path="../../etc/passwd"), "files.0.path"),
        (lambda r: r["files"][0].update(sha256="x"), "files.0.sha256"),
        (lambda r: r["files"][0].update(processor="quantum"), "files.0.processor"),
        (lambda r: r["phone"].update(model="a\u001b[2Jb"), "phone.model"),
        (lambda r: r.pop("protocol"), "protocol"),
    ],
)
def test_nonsense_is_refused(write_record, change, said):
    with pytest.raises(InputError) as caught:
        import_figures([write_record(change)], [])
    assert said in str(caught.value)


def test_all_problems_of_all_files_are_listed_and_equal_files_refused(write_record, tmp_path):
    bad = write_record(lambda r: r["phone"].update(cores=0), "bad.json")
    with pytest.raises(InputError) as caught:
        import_figures([write_record(), write_record(name="again.json"), bad, tmp_path / "missing.json"], [])
    assert all(part in str(caught.value) for part in ("imported already", "phone.cores", "missing.json"))


def test_figures_belong_to_the_files_they_were_measured_on_and_a_page_shows_them(
    phone, write_record, pocketbert, tmp_path
):
    with pytest.raises(InputError, match="lists no such file"):
        import_figures([write_record()], [phone])
    listed = json.loads((phone / "artifacts.json").read_text())["files"]
    digest = next(f["sha256"] for f in listed if f["path"] == "onnx/model.onnx")
    source = write_record(lambda r: r["files"][0].update(sha256=digest, path="onnx/model.onnx"))
    (result,) = import_figures([source], [phone]).sessions
    assert "not checked" not in "\n".join(result.protocol.notes)
    page = tmp_path / "page.html"
    done = pocketbert("benchmark", "-m", phone, "--no-local", "--import", source, "-o", page)
    assert done.exit_code == 0, done.output
    assert "Maker Model 7" in page.read_text()
    assert "Times on another phone differ" in page.read_text()


def test_the_command_shows_the_figures_and_wrong_answers_on_the_phone_fail(write_record, pocketbert, tmp_path):
    output = tmp_path / "out.json"
    done = pocketbert("benchmark", "--import", write_record(), "-o", output)
    assert done.exit_code == 0, done.output
    for words in ("Maker Model 7", "2.00", "One file after the other"):
        assert words in done.stdout
    assert BenchmarkResult.read(output).device == "Maker Model 7"
    wrong = write_record(lambda r: r["files"][0]["answers"].update(largest=0.5), "wrong.json")
    failed = pocketbert("benchmark", "--import", wrong)
    assert failed.exit_code == 3
    assert "largest difference 0.5" in failed.stderr


# --- measuring -------------------------------------------------------------------------------------------------------------------


def make_case(path, threads, length, **changes):
    """What the app writes after one start of its benchmark."""

    def change(record):
        file = record["files"][0]
        file.update(path=path, threads=threads, format=path.partition("/")[0], sustained=[], **changes)
        file["cells"][0]["length"] = length

    return json.dumps(make_record(change))


@pytest.fixture
def measure(android, reach, monkeypatch, tmp_path):
    """`measure(records, *plan)`: let the app, an `am` that answers by model, threads and length, measure.

    `measure.install(records)` only puts it on the device, and `measure.called()` is what was asked of it.
    """
    reach(android)
    monkeypatch.setattr(android_app, "_POLL_S", 0.02)
    monkeypatch.setattr(android_app, "_RECORD", "/data/local/tmp/benchmark.json")  # there is no /sdcard
    monkeypatch.setattr(android_app, "_KEPT_RECORD", "/data/local/tmp/benchmark.json.before-pocketbert")
    shims = android.root.parent / "shims"
    called = shims / "called"

    def install(records):
        cases = "".join(f"  {shlex.quote(key)}) cat > $out <<'X'\n{text}\nX\n;;\n" for key, text in records.items())
        script = (
            '#!/bin/sh\nout=/data/local/tmp/benchmark.json\necho "$*" >> /usr/local/bin/called\n[ $1 = force-stop ] && exit 0\n'
            'echo "Starting: Intent { cmp=$3 }"\n'
            f'case "$6,${{12}},${{15}}" in\n{cases}  *) echo "Error: Activity class {{$3}} does not exist." >&2;;\nesac\n'
        )
        (shims / "am").write_text(script)
        (shims / "am").chmod(0o755)
        called.write_text("")
        called.chmod(0o666)

    def run(records, *plan, **more):
        install(records)
        measure_by_app(SERIAL, AppPlan(*plan, **more), tmp_path / "phone.json")
        return read_phone_record(tmp_path / "phone.json")

    run.install, run.called = install, lambda: called.read_text().splitlines()
    yield run
    (shims / "am").unlink(missing_ok=True)
    for path in android.temporary.glob("benchmark.json*"):
        path.unlink()


A, B = "onnx/a.onnx", "onnx/b.onnx"


def test_every_file_length_and_number_of_threads_is_started_and_collected(measure, android, tmp_path):
    records = {f"{A},{t},{n}": make_case(A, t, min(n, 32)) for t in (1, 2) for n in (16, 32, 64)}  # 64 is clipped to 32
    failed = json.dumps({"error": "the self-test failed: 0.9 of 0.1"})
    records |= {f"{B},{t},{n}": failed for t in (1, 2) for n in (16, 32, 64)}
    told = measure(records, [A, B], [1, 2], [16, 32, 64], 3, seconds=30)
    assert [(f.path, f.threads, [c.length for c in f.cells]) for f in told.files] == [
        (A, 1, [16, 32]),
        (A, 2, [16, 32]),
    ]
    assert told.protocol.took_s == 6 * 4.5
    starts = [line for line in measure.called() if line.startswith("start ")]
    assert len(starts) == 12
    lasting = ["--ei length 16 --ei seconds 30" in line and "--ei threads 1 " in line for line in starts]
    assert lasting == [True, *[False] * 5] * 2  # once for each file
    assert measure.called()[-1] == "force-stop org.pocketbert.demo"
    assert android.left() == []
    (tmp_path / "phone.json").unlink()
    with pytest.raises(InputError, match="b.onnx, 1 threads, 16 tokens: the app did not measure: the self-test failed"):
        measure(records, [B], [1], [16], 3)
    with pytest.raises(MissingBackendError, match="the demo app org.pocketbert.demo is not installed") as caught:
        measure(records, ["onnx/c.onnx"], [1], [16], 3)
    assert caught.value.exit_code == ExitCode.MISSING
    with pytest.raises(InputError, match="Android chooses the cores of an app"):
        measure_by_app("X@big", AppPlan([], [1], [16], 3), tmp_path / "phone.json")
    assert not (tmp_path / "phone.json").exists()


def test_a_record_that_was_there_is_given_back(measure, android):
    own, records = android.temporary / "benchmark.json", {f"{A},1,16": make_case(A, 1, 16)}
    own.write_text("of somebody")
    os.chown(own, USER, USER)
    measure(records, [A], [1], [16], 3)
    assert own.read_text() == "of somebody"
    assert [p.name for p in android.temporary.iterdir()] == ["benchmark.json"]
    own.rename(android.temporary / "benchmark.json.before-pocketbert")  # an earlier command that could not give it back
    own.write_text("of that command")
    measure(records, [A], [1], [16], 3)
    assert own.read_text() == "of somebody"


def test_a_phone_that_is_lost_gets_its_record_back(start_android, reach, measure):
    device = start_android()
    reach(device)
    own, called = device.temporary / "benchmark.json", device.root.parent / "shims/called"
    (device.root.parent / "shims/am").write_text("#!/bin/sh\necho $* >> /usr/local/bin/called\n")
    (device.root.parent / "shims/am").chmod(0o755)
    called.write_text("")
    called.chmod(0o666)
    own.write_text("of somebody")
    os.chown(own, USER, USER)

    def unplug_when_it_measures():
        while "start " not in called.read_text():
            time.sleep(0.01)
        device.unplug()

    watcher = threading.Thread(target=unplug_when_it_measures)
    watcher.start()
    with pytest.raises(MachineError, match="the device was lost"):
        measure_by_app(SERIAL, AppPlan([A], [1], [16], 3), device.root.parent / "none.json")
    watcher.join()
    end = time.monotonic() + 20
    while sorted(p.name for p in device.temporary.iterdir()) != ["benchmark.json"] and time.monotonic() < end:
        time.sleep(0.05)
    assert own.read_text() == "of somebody"
    assert called.read_text().splitlines()[-1] == "force-stop org.pocketbert.demo"


def test_an_app_that_does_not_end(measure, monkeypatch):
    monkeypatch.setattr(android_app, "_MEASUREMENT_S", 0.1)
    with pytest.raises(MachineError, match="the demo app wrote nothing within"):
        measure({f"{A},1,16": '{"kind": "pocketbert-'}, [A], [1], [16], 3)  # for ever half written


def test_the_command_imports_what_the_phone_measured_and_refuses_what_the_app_cannot_do(
    measure, android, phone, pocketbert
):
    listed = json.loads((phone / "artifacts.json").read_text())["files"]
    models = [f for f in listed if f.get("format") in ("onnx", "tflite") and not f.get("alias_of")]
    measure.install({f"{f['path']},1,16": make_case(f["path"], 1, 16, sha256=f["sha256"]) for f in models})
    command = ("benchmark", "-m", phone, "--device", f"adb:{SERIAL}", "--app", "--threads", 1)
    done = pocketbert(*command, "--lengths", 16, "--runs", 10)
    assert done.exit_code == 0, done.output
    assert "Maker Model 7" in done.stdout
    assert android.left() == []
    before = measure.called()
    asked = ("--sustained", 90, "--gaps", 100, "--repeats", 5, "--preset", "mlperf", "--file", phone / "golden.jsonl")
    refused = pocketbert(*command, *asked)
    assert refused.exit_code == ExitCode.INPUT
    for words in (
        "--gaps: with --app: the demo app times no single calls after idle times.",
        "--repeats: with --app: 5; the demo app makes 3.",
        "--preset: with --app: the demo app cannot go on until 60 s are timed.",
        "--sustained: with --app: 90; the demo app runs for 60 minutes at most.",
        "--file: with --app: the demo app measures its own sentence.",
    ):
        assert words in refused.stderr
    assert measure.called() == before  # nothing ran
    wrong = pocketbert("benchmark", "-m", phone, "--app", "--lengths", 16)
    assert wrong.exit_code == ExitCode.INPUT
    assert "--app: needs a phone over adb" in wrong.stderr


@pytest.mark.parametrize("devices", ["adb", "local,adb"])
def test_a_budget_that_the_app_would_not_keep_is_refused(devices, phone, pocketbert):
    bounded = pocketbert("benchmark", "-m", phone, "--device", devices, "--app", "--budget", 60)
    assert bounded.exit_code == ExitCode.INPUT
    assert "--budget: with --app: the demo app makes all runs, whatever they take." in bounded.stderr
