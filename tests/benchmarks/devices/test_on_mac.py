"""The script that measures Core ML packages on a Mac or an iPhone, with a fake coremltools whose times mean nothing."""

import ast
import contextlib
import gc
import io
import json
import os
import platform
import random
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from pocketbert.benchmarks.devices.on_target import on_mac
from pocketbert.benchmarks.imported import import_figures
from pocketbert.benchmarks.imported import mac as record
from pocketbert.benchmarks.imported.mac import MAC_SCRIPT_NAME, mac_script
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.predict.predictor import split_by_text
from pocketbert.core.tasks import TASKS, Level, TaskName
from support import mac_kit

UNITS = ["all", "cpu-only", "cpu-and-gpu", "cpu-and-ne"]


@pytest.fixture
def measure(monkeypatch, capsys, tmp_path):
    """`measure(phone, *arguments, **environment)`: the folder's script in this process, cold starts too.

    It measures one run on the unit `all` where the arguments say nothing else. Its output is `measure.output`.
    """
    for name in [n for n in sys.modules if n.partition(".")[0] == "coremltools"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(mac_kit.FAKE))
    monkeypatch.setenv("PYTHONPATH", str(mac_kit.FAKE))  # for the processes that it starts
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    real, python = subprocess.run, sys.executable

    def run_here(command, **settings):
        if "--cold-start" not in command or command[0] != python:
            return real(command, **settings)
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = on_mac.main(command[2:])
        return subprocess.CompletedProcess(command, code, out.getvalue(), "")

    monkeypatch.setattr(subprocess, "run", run_here)
    output = tmp_path / "made" / "x.json"
    output.parent.mkdir()

    def run(phone, *arguments, default_output=False, **environment):
        monkeypatch.setattr(on_mac, "__file__", str(phone / "coreml" / MAC_SCRIPT_NAME))
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        words, usual = (
            [str(a) for a in arguments],
            {"--runs": "1", "--repeats": "1", "--units": "all", "-o": str(output)},
        )
        for option, value in usual.items():
            if option not in words and not (option == "-o" and default_output):
                words = [option, value, *words]
        try:
            code = on_mac.main(words)
        except SystemExit as end:
            code = end.code
        shown = capsys.readouterr()
        content = json.loads(output.read_text()) if output.is_file() else None
        return SimpleNamespace(code=code, out=shown.out, err=shown.err, content=content)

    run.output = output
    yield run
    gc.enable()  # which an interrupted measurement has switched off
    for name in [n for n in sys.modules if n.partition(".")[0] == "coremltools"]:
        del sys.modules[name]


@pytest.fixture
def folder_of(tmp_path):
    """`folder_of(**wish)`: a folder with one package for the fake coremltools."""
    return lambda **wish: mac_kit.folder(tmp_path / "phone", Model={"lengths": [32], **wish})


def answers_of(done):
    assert done.code == 0, done.err
    return done.content["packages"][0]["units"][0]["answers"]


# --- the script itself -----------------------------------------------------------------------------------------------------------


def test_on_other_systems_it_refuses_with_one_line(mac_phone, tmp_path):
    if platform.system() == "Darwin":
        pytest.skip("this is a Mac")
    command = [sys.executable, mac_phone / "coreml" / MAC_SCRIPT_NAME]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    said = f"Error: Core ML runs on Apple systems, not on {platform.system()}: copy the folder to a Mac.\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
    assert not list(tmp_path.iterdir())


def test_the_script_is_the_module_as_a_program_that_needs_coremltools_only():
    assert mac_script() == "#!/usr/bin/env python3\n" + Path(on_mac.__file__).read_text(encoding="utf-8")
    tree = ast.parse(mac_script(), feature_version=(3, 9))
    assert ast.unparse(tree.body[-1].test) == "__name__ == '__main__'"
    found = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    found |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {name.partition(".")[0] for name in found} <= sys.stdlib_module_names
    calls = [n for n in ast.walk(tree) if isinstance(n, ast.Call)]
    called = {n.args[0].value for n in calls if ast.unparse(n.func) == "importlib.import_module"}
    experimental = "coremltools.models.ml_program.experimental"
    of_iphone = {f"{experimental}.remote_device", f"{experimental}.async_wrapper"}
    assert called == {"numpy", "coremltools", "resource", "coremltools.models.compute_plan", *of_iphone}


REAL = """
import dataclasses, inspect, json, logging
logging.getLogger("coremltools").setLevel(logging.ERROR)
import coremltools as ct
from coremltools.models import compute_plan as p
from coremltools.models.ml_program.experimental import async_wrapper as a, remote_device as r
of = lambda function: list(inspect.signature(function).parameters)
names = lambda kind: [f.name for f in dataclasses.fields(kind)]
plan, wrapper = p.MLComputePlan, a.RemoteMLModelAsyncWrapper
calls = [ct.models.CompiledMLModel.__init__, ct.models.CompiledMLModel.predict, ct.models.utils.compile_model, plan.load_from_path]
calls += [plan.get_estimated_cost_for_mlprogram_operation, plan.get_compute_device_usage_for_mlprogram_operation, wrapper.predict]
calls += [r.Device.get_connected_devices, r.Device.prepare_for_model_debugging, a.MLModelAsyncWrapper.from_spec_or_path, wrapper.unload]
told = [sorted(u.name for u in ct.ComputeUnit), *map(of, calls), of(ct.models.utils.load_spec)[:1]]
told += [names(r.AppSigningCredentials), names(r.Device), hasattr(r.DeviceType, "IPHONE")]
told.append("last_predict_duration_in_nano_seconds" in inspect.getsource(wrapper))
"""


def test_the_fake_has_the_names_and_arguments_of_coremltools():
    """A fake that drifts from the installed library would test nothing."""
    real, found = pytest.importorskip("coremltools"), {}
    exec(REAL, found)
    assert found["told"][0] == sorted(on_mac.UNITS.values())
    assert on_mac.INT32 == real.proto.FeatureTypes_pb2.ArrayFeatureType.INT32
    assert all(hasattr(real.models.compute_device, f"ML{n}ComputeDevice") for n in ("CPU", "GPU", "NeuralEngine"))
    command, path = [sys.executable, "-c", f"{REAL}\nprint(json.dumps(told))"], {"PYTHONPATH": str(mac_kit.FAKE)}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **path}, check=True)
    assert json.loads(done.stdout) == found["told"]


# --- on a Mac --------------------------------------------------------------------------------------------------------------------


def test_what_it_writes_in_a_process_of_its_own(mac_json, mac_phone):
    content = json.loads(mac_json.read_text())
    assert (content["kind"], content["schema_version"]) == (record.KIND, record.SCHEMA_VERSION)
    assert content["protocol"]["inputs"] == "tokens of the golden rows"
    first, second = content["packages"]
    assert (first["lengths"], second["lengths"], second["default_length"]) == ([32, 64, 128], [64], 64)
    for package in (first, second):
        assert package["sha256"] == sha256_path(mac_phone / package["path"])
        assert [u["unit"] for u in package["units"]] == UNITS
    for unit in (*first["units"], *second["units"][:3]):
        assert min(unit["load_ms"], unit["specialize_ms"], unit["first_ms"]) > 0
        assert unit["peak_rss_bytes"] >= unit["peak_memory_bytes"] >= 0
        for cell in unit["cells"]:
            assert {np.shape(cell[name]) for name in ("wall_ms", "cpu_ms", "engine_ms") if cell[name]} == {(3, 10)}
            assert min(map(min, cell["wall_ms"])) > 0
            assert 10 <= cell["warmup_runs"] <= 60
    answers = {"rows": 3, "skipped": 0, "largest": pytest.approx(0, abs=1e-5), "tolerance": 0.01, "finite": True}
    assert first["units"][0]["answers"] == answers
    assert second["units"][3] == {"unit": "cpu-and-ne", "failed": "CPU_AND_NE is not available on this machine"}
    assert second["units"][0]["plan"] == {"absent": "MLComputePlan is not supported."}
    placed, on_cpu = (
        {d["device"]: (d["cost"], d["op_types"]) for d in first["units"][i]["plan"]["devices"]} for i in (0, 1)
    )
    linear, undecided = placed["Neural Engine"], placed["undecided"]
    assert (linear, undecided) == ((0.7, {"linear": 1}), (0.0, {"cond": 1}))
    assert on_cpu["CPU"] == (pytest.approx(0.8), {"gather": 1, "linear": 1})


def test_the_default_output_and_nothing_else_beside_it(measure, mac_phone, tmp_path):
    phone, output = shutil.copytree(mac_phone, tmp_path / "phone"), tmp_path / "phone-mac.json"
    (tmp_path / ".phone-mac.json.1.partial").write_text("somebody's")
    output.write_text("old figures")
    done = measure(phone, "--units", "all", "cpu-only", "all", default_output=True)
    assert done.code == 0, done.err
    rows = [line.split("\t")[:2] for line in done.out.splitlines() if "\t" in line]
    assert rows[0] == ["package and compute unit", "tokens"]
    assert len(rows) == 1 + 2 * 3 + 2 * 1  # units times lengths of the two packages
    assert f"written: {output}\nnext: pocketbert benchmark -m FOLDER --import phone-mac.json" in done.out
    assert json.loads(output.read_text())["kind"] == record.KIND
    assert stat.S_IMODE(output.stat().st_mode) & 0o044
    assert (tmp_path / ".phone-mac.json.1.partial").read_text() == "somebody's"
    assert {p.name for p in tmp_path.iterdir()} - {"phone", "made"} == {".phone-mac.json.1.partial", output.name}


def test_wrong_answers_are_said_and_end_with_3(measure, folder_of):
    done = measure(folder_of(wrong={"CPU_AND_NE": 0.5, "CPU_AND_GPU": float("nan")}), "-q", "--units", *UNITS)
    assert done.code == 3, done.err
    assert "cpu-and-ne: 3 answers, largest difference 0.5, allowed 0.01: WRONG" in done.out
    assert "cpu-and-gpu: 3 answers, largest difference not finite, allowed 0.01: WRONG" in done.out
    assert done.err == ""
    units = done.content["packages"][0]["units"]
    assert [u["answers"]["finite"] for u in units] == [True, True, False, True]


@pytest.mark.parametrize(
    ("wish", "lengths", "counted"),
    [
        ({"kind": "ranged", "lengths": [8, 100]}, [32, 64], (3, 0)),
        ({"kind": "ranged", "lengths": [8, -1], "default": 16}, [32, 64, 128], (3, 0)),
        ({"kind": "ranged", "lengths": [8, 20], "default": 20}, [20], (3, 0)),
        ({"kind": "fixed", "lengths": [10]}, [10], (1, 2)),  # 8, 11 and 14 tokens: two do not fit into 10
    ],
)
def test_lengths_and_answers_of_other_shapes(measure, folder_of, wish, lengths, counted):
    done = measure(folder_of(**wish))
    assert (answers_of(done)["rows"], answers_of(done)["skipped"]) == counted
    assert done.content["packages"][0]["lengths"] == lengths


def change_json(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def change_lines(path, change):
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows:
        change(row)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_float_inputs_left_padding_and_segment_ids(measure, folder_of):
    phone = folder_of(dtype="float32", inputs=["input_ids", "attention_mask", "token_type_ids"])
    change_json(phone / "artifacts.json", lambda listed: listed["processing"].update(padding_side="left"))
    answers = answers_of(measure(phone))
    assert (answers["rows"], answers["skipped"]) == (2, 1)  # the pair has no segment ids in the folder


@pytest.mark.parametrize(
    ("processing", "prompt", "rows"),
    [
        ({"prompts": {"query": "query: ", "passage": "p: "}, "default_prompt": "query"}, "query: ", 3),
        ({"prompts": {"query": "query: "}, "default_prompt": None}, "", 3),
        ({"prompts": {"query": "query: "}}, "", 3),
        ({"prompts": {"query": "query: "}, "default_prompt": "query"}, "p: ", 0),
    ],
)
def test_rows_are_found_behind_the_default_prompt(measure, folder_of, processing, prompt, rows):
    def put_in_front(row):
        text = row["text"]
        row["text"] = prompt + text if isinstance(text, str) else [prompt + text[0], text[1]]

    phone = folder_of()
    change_json(phone / "artifacts.json", lambda listed: listed["processing"].update(processing))
    change_lines(phone / "golden_tokens.jsonl", put_in_front)
    answers = answers_of(measure(phone))
    assert (answers["rows"] if answers else 0) == rows


def test_heads_called_start_and_end_are_no_question_answering(measure, folder_of):
    phone = folder_of(spans=True)
    heads = {"start": "text-classification", "end": "text-classification"}
    change_json(phone / "artifacts.json", lambda listed: listed.update(task="several", heads=heads))
    done = measure(phone)
    assert done.code == 2
    assert "has several heads (start_logits, end_logits), and one is measured" in done.err


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("task", list(TASKS))
def test_it_reads_answers_as_the_toolkit_records_them(tmp_path, task, side):
    """Outputs of one padded text, of which golden rows record some places and columns."""
    draw, ids, length = np.random.default_rng(0), [2, 9, 4, 7, 4, 3], 16
    sizes = {"last_hidden_state": (length, 300), "sentence_embedding": (300,)}
    per_text = TASKS[task].level is Level.TEXT
    out = {
        name: draw.normal(size=(1, *sizes.get(name, (3,) if per_text else (length,) if "_" in name else (length, 280))))
        for name in TASKS[task].outputs
    }
    row = np.zeros((1, length), np.int64)
    row[0, : len(ids)] = ids
    inputs = {"input_ids": row, "attention_mask": (row > 0).astype(np.int64)}
    if side == "left":
        inputs = {name: np.roll(values, length - len(ids), -1) for name, values in inputs.items()}
    mask_id = 4 if task is TaskName.FILL_MASK else None
    [matrix] = split_by_text(out, inputs, TASKS[task].answer, TASKS[task], mask_id)
    places = [] if per_text else [0, len(matrix) - 1]
    columns = [0, 5, 250] if matrix.shape[1] > 256 else []
    recorded = GoldenRow(text="", label="", reference=[], outputs={}, tolerance={}, places=places, columns=columns)

    (tmp_path / "artifacts.json").write_text(json.dumps({"task": task, "processing": {"padding_side": side}}))
    added = [{"id": 4, "content": "[MASK]"}, {"id": 3, "content": "[SEP]"}]
    (tmp_path / "tokenizer.json").write_text(json.dumps({"added_tokens": added}))
    package = object.__new__(on_mac._Package)
    package.golden, package.outputs, package.numpy = on_mac._GoldenRows(tmp_path), TASKS[task].answer, np
    found = package._recorded_values(recorded.model_dump(), ids, out)
    np.testing.assert_allclose(found, recorded.pick(matrix).ravel(), rtol=1e-6)


def test_a_folder_without_golden_rows_is_measured_with_made_up_ids(measure, folder_of):
    phone = folder_of()
    for name in ("golden.jsonl", "golden_tokens.jsonl", "artifacts.json", "config.json"):
        (phone / name).unlink()
    done = measure(phone)
    assert done.code == 0, done.err
    assert "answers not checked: golden.jsonl has none of this package" in done.out
    assert done.content["protocol"]["inputs"].startswith("ids 1 to 90")


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"uncompilable": "needs macOS 15"}, "needs macOS 15"),
        ({"lengths": [32, 64, 128], "crashing": [128]}, "cannot run 128 tokens"),
        ({"lengths": [32, 64, 128], "crashing": [64]}, "cannot run 64 tokens"),
    ],
)
def test_a_package_that_no_unit_takes(measure, folder_of, wish, reason):
    done = measure(folder_of(**wish), "--units", "cpu-and-ne")
    assert done.code == 1
    assert f"coreml/Model.mlpackage cpu-and-ne: left out: {reason}" in done.out
    assert [u["failed"] for u in done.content["packages"][0]["units"]] == [reason]


def test_a_cold_start_that_dies_takes_only_its_unit_along(measure, folder_of, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    done = measure(folder_of())
    assert done.code == 1
    assert "left out: the process ended with 1" in done.out


def test_packages_by_path_with_the_digest_of_the_toolkit(measure, folder_of, tmp_path):
    other, phone = mac_kit.package(tmp_path / "else" / "Ü.mlpackage", lengths=[16]), folder_of()
    for name in ("Data/a/weights/weight.bin", "Data/a-b", "Data/ä"):
        (other / name).parent.mkdir(parents=True, exist_ok=True)
        (other / name).write_bytes(name.encode())
    done = measure(phone, "--packages", other, phone / "coreml" / "Model.mlpackage")
    assert done.code == 0, done.err
    assert [p["path"] for p in done.content["packages"]] == ["Ü.mlpackage", "coreml/Model.mlpackage"]
    assert done.content["packages"][0]["sha256"] == sha256_path(other)


def test_wrong_usage_and_wrong_folders(measure, tmp_path):
    def refused(phone, *arguments, code=2):
        done = measure(phone, *arguments, "-q")
        assert (done.code, done.out, done.err.count("\n")) == (code, "", 1)
        return done.err

    phone = mac_kit.folder(tmp_path / "phone", Model={})
    assert "no .mlpackage at" in refused(phone, "--packages", tmp_path / "x.mlpackage")
    assert "-o: no folder" in refused(phone, "-o", tmp_path / "none" / "x.json")
    (phone / "coreml" / "Model.mlpackage" / ".DS_Store").write_text("")
    assert "coreml/Model.mlpackage is not what artifacts.json lists" in refused(phone)
    (phone / "golden.jsonl").write_text("{")
    assert "JSONDecodeError" in refused(phone, code=1)
    empty = tmp_path / "empty" / "coreml"
    empty.mkdir(parents=True)
    assert f"no .mlpackage in {empty}" in refused(empty.parent)
    odd = mac_kit.folder(tmp_path / "odd", Model={"inputs": ["input_ids", "perm_mask"]})
    assert "inputs input_ids, perm_mask; known: input_ids" in refused(odd)
    assert measure(phone, "--runs", 0).code == 2


def test_without_coremltools_the_message_is_the_command(measure, mac_phone, monkeypatch):
    monkeypatch.setitem(sys.modules, "coremltools", None)
    done = measure(mac_phone)
    assert done.code == 4
    assert "Install it with: python3 -m pip install coremltools" in done.err


def test_ctrl_c_leaves_nothing_behind(measure, folder_of, monkeypatch):
    class Interrupted(random.Random):
        def shuffle(self, x):
            raise KeyboardInterrupt

    phone = folder_of()
    monkeypatch.setattr(random, "Random", Interrupted)
    before = sorted(phone.parent.rglob("*"))
    assert measure(phone, "-q").code == 130
    assert sorted(phone.parent.rglob("*")) == before


# --- on an iPhone ----------------------------------------------------------------------------------------------------------------

TEAM = ("--iphone", "--team", "ABCDE12345", "-q")
XCRUN = """#!/bin/sh
printf '{"result": {"devices": [{"hardwareProperties": {"udid": "udid0", "productType": "iPhone99,1", "marketingName": "iPhone 99"}}]}}' > "$5"
"""


def test_an_iphone_is_measured_and_imported(measure, tmp_path):
    phone = mac_kit.folder(tmp_path / "phone", Model={"lengths": [32, 64]}, Model_w8={"refusing": ["CPU_AND_NE"]})
    (tmp_path / "xcrun").write_text(XCRUN)
    (tmp_path / "xcrun").chmod(stat.S_IRWXU)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    arguments = ("--units", "all", "cpu-and-ne", "--runs", 10, "--repeats", 3)
    done = measure(phone, *TEAM, *arguments, FAKE_IPHONES="Anna's iPhone", PATH=path)
    assert done.code == 0, done.err
    machine = done.content["machine"]
    assert (machine["model"], machine["chip"], machine["system"]) == ("iPhone99,1", "iPhone 99", "iOS 26.1")
    assert "Anna" not in json.dumps(done.content)
    first, second = done.content["packages"]
    unit = first["units"][0]
    assert unit["load_ms"] > unit["specialize_ms"] > 0  # the fake's loads take longer each time: the second one counts
    assert (unit["first_ms"], unit["answers"]["rows"]) == (0.005, 3)
    for cell in unit["cells"]:
        assert cell["wall_ms"] == [[0.005] * 10] * 3
        assert cell["cpu_ms"] is cell["engine_ms"] is None
    assert second["units"][1]["failed"] == "CPU_AND_NE is not available on this machine"
    (result,) = import_figures([measure.output], [phone]).sessions
    m = result.measurements[0]
    assert (m.device, m.machine.system) == ("iPhone 99, iPhone99,1", "iOS 26.1 (23B85)")
    assert (m.cpu, m.cpu_ms, m.cold, m.load.before, m.wall.p50) == (None, [], None, None, 0.005)
    assert all(c.cpu is None for c in result.comparisons)
    assert "iOS 26.1, on an iPhone connected to a Mac" in "\n".join(result.protocol.notes)


def test_wrong_answers_on_an_iphone_that_was_named_end_with_3(measure, folder_of):
    chosen = ("--iphone", "id1", "--profile", "P", "--bundle", "org.example")
    done = measure(folder_of(wrong={"ALL": 0.5}), *chosen, FAKE_IPHONES="a,b")
    assert done.code == 3, done.err
    assert "largest difference 0.5, allowed 0.01: WRONG" in done.out
    assert done.content["machine"]["chip"] == "an iPhone"  # no xcrun knows it


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
def test_what_is_missing_for_an_iphone_is_told(measure, mac_phone, arguments, phones, words):
    done = measure(mac_phone, *arguments, FAKE_IPHONES=phones)
    assert done.code == 2
    assert words in done.err
    assert done.content is None
