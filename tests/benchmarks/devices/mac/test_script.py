import ast
import json
import os
import platform
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from pocketbert.benchmarks.devices.on_target import on_mac
from pocketbert.benchmarks.imported import mac as record
from pocketbert.benchmarks.imported.mac import MAC_SCRIPT_NAME, mac_script
from pocketbert.core.compare.golden import GoldenRow
from pocketbert.core.disk.files import sha256_path
from pocketbert.core.predict.predictor import split_by_text
from pocketbert.core.tasks import TASKS, Level, TaskName
from support import mac_kit

UNITS = ["all", "cpu-only", "cpu-and-gpu", "cpu-and-ne"]


def content_of(path):
    return json.loads(path.read_text())


def test_on_other_systems_it_refuses_with_one_line(mac_phone, tmp_path):
    for python in (sys.executable,):
        done = subprocess.run(
            [python, mac_phone / "coreml" / MAC_SCRIPT_NAME], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        if platform.system() == "Darwin":
            pytest.skip("this is a Mac")
        assert (done.returncode, done.stdout) == (2, "")
        assert (
            done.stderr
            == f"Error: Core ML runs on Apple systems, not on {platform.system()}: copy the folder to a Mac.\n"
        )
    assert not list(tmp_path.iterdir())


def test_it_needs_nothing_but_the_standard_library_and_coremltools():
    tree = ast.parse(mac_script(), feature_version=(3, 9))
    found = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    found |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    assert {name.partition(".")[0] for name in found} <= sys.stdlib_module_names
    called = {
        n.args[0].value
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "importlib.import_module"
    }
    experimental = "coremltools.models.ml_program.experimental"
    of_iphone = {f"{experimental}.remote_device", f"{experimental}.async_wrapper"}
    assert called == {"numpy", "coremltools", "resource", "coremltools.models.compute_plan", *of_iphone}
    assert "pocketbert." not in "".join(x for x in mac_script().splitlines() if "import" in x)


def test_the_script_is_the_module_as_a_program():
    assert mac_script() == "#!/usr/bin/env python3\n" + Path(on_mac.__file__).read_text(encoding="utf-8")
    assert mac_script().startswith('#!/usr/bin/env python3\n"""Measure the Core ML packages')
    tree = ast.parse(mac_script())
    names = [n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)]
    imports = [ast.unparse(n) for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    assert (len(set(names)), len(set(imports))) == (len(names), len(imports))
    assert ast.unparse(tree.body[-1].test) == "__name__ == '__main__'"


def test_what_it_writes(mac_json, mac_phone):
    content = content_of(mac_json)
    assert (content["kind"], content["schema_version"]) == (record.KIND, record.SCHEMA_VERSION)
    assert content["protocol"]["inputs"] == "tokens of the golden rows"
    assert content["versions"]["coremltools"] == "9.0-synthetic"
    assert content["machine"]["macos"] == "15.1"
    first, second = content["packages"]
    assert (first["path"], second["path"]) == ("coreml/Model.mlpackage", "coreml/Model_w8.mlpackage")
    assert (first["lengths"], second["lengths"], second["default_length"]) == ([32, 64, 128], [64], 64)
    for package in (first, second):
        assert package["sha256"] == sha256_path(mac_phone / package["path"])
        assert [u["unit"] for u in package["units"]] == UNITS
    for unit in (*first["units"], *second["units"][:3]):
        assert unit["load_ms"] > 0
        assert unit["specialize_ms"] > 0
        for cell in unit["cells"]:
            shapes = {name: np.shape(cell[name]) for name in ("wall_ms", "cpu_ms", "engine_ms") if cell[name]}
            assert set(shapes.values()) == {(3, 10)}
            assert min(map(min, cell["wall_ms"])) > 0
            assert 10 <= cell["warmup_runs"] <= 60
    assert first["units"][0]["cells"][0]["engine_ms"][0][0] == 0.005
    assert second["units"][0]["cells"][0]["engine_ms"] is None
    assert first["units"][0]["answers"] == {
        "rows": 3,
        "skipped": 0,
        "largest": pytest.approx(0, abs=1e-5),
        "tolerance": 0.01,
        "finite": True,
    }
    assert second["units"][3] == {"unit": "cpu-and-ne", "failed": "CPU_AND_NE is not available on this machine"}
    assert second["units"][0]["plan"] == {"absent": "MLComputePlan is not supported."}
    assert first["units"][0]["plan"] == {
        "constants": 1,
        "devices": [
            {"device": "CPU", "cost": 0.1, "op_types": {"gather": 1}},
            {"device": "GPU", "cost": 0.2, "op_types": {"gelu": 1}},
            {"device": "Neural Engine", "cost": 0.7, "op_types": {"linear": 1}},
            {"device": "undecided", "cost": 0.0, "op_types": {"cond": 1}},
        ],
    }
    assert first["units"][1]["plan"]["devices"][0] == {
        "device": "CPU",
        "cost": pytest.approx(0.8),
        "op_types": {"gather": 1, "linear": 1},
    }


def test_progress_table_and_default_output(mac, mac_phone, capfd):
    arguments = ["--runs", "3", "--repeats", "1", "--units", "all", "cpu-only", "all"]
    assert mac.main(arguments) == 0
    shown = capfd.readouterr()
    rows = [line.split("\t") for line in shown.out.splitlines() if "\t" in line]
    assert rows[0] == ["package and compute unit", "tokens", "p50 ms", "p90 ms"]
    assert [r[:2] for r in rows[1:]] == [
        *([f"coreml/Model.mlpackage {u}", x] for u in ("all", "cpu-only") for x in ("32", "64", "128")),
        *([f"coreml/Model_w8.mlpackage {u}", "64"] for u in ("all", "cpu-only")),
    ]
    assert "coreml/Model.mlpackage all: 3 answers, largest difference" in shown.out
    output = mac_phone.parent / "phone-mac.json"
    assert f"written: {output}\nnext: pocketbert benchmark -m FOLDER --import phone-mac.json" in shown.out
    assert stat.S_IMODE(output.stat().st_mode) & 0o044
    assert not list(mac_phone.parent.glob(".*"))
    output.unlink()


def test_wrong_answers_are_said_and_end_with_3(tmp_path):
    phone = mac_kit.folder(
        tmp_path / "phone", Model={"lengths": [32], "wrong": {"CPU_AND_NE": 0.5, "CPU_AND_GPU": float("nan")}}
    )
    done = mac_kit.run(phone, "--runs", 5, "--repeats", 1, "-o", tmp_path / "x.json", "-q")
    assert done.returncode == 3, done.stderr
    assert "cpu-and-ne: 3 answers, largest difference 0.5, allowed 0.01: WRONG" in done.stdout
    assert "cpu-and-gpu: 3 answers, largest difference not finite, allowed 0.01: WRONG" in done.stdout
    assert done.stderr == ""
    units = content_of(tmp_path / "x.json")["packages"][0]["units"]
    assert [u["answers"]["finite"] for u in units] == [True, True, False, True]


@pytest.mark.parametrize(
    ("wish", "lengths"),
    [
        ({"kind": "ranged", "lengths": [8, 100]}, [32, 64]),
        ({"kind": "ranged", "lengths": [8, -1], "default": 16}, [32, 64, 128]),
        ({"kind": "ranged", "lengths": [8, 20], "default": 20}, [20]),
        ({"kind": "fixed", "lengths": [10]}, [10]),
    ],
)
def test_lengths_and_answers_of_other_shapes(tmp_path, wish, lengths):
    phone = mac_kit.folder(tmp_path / "phone", Model=wish)
    done = mac_kit.run(phone, "--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", "--units", "all")
    assert done.returncode == 0, done.stderr
    package = content_of(tmp_path / "x.json")["packages"][0]
    assert package["lengths"] == lengths
    answers = package["units"][0]["answers"]
    # 8, 11 and 14 tokens: two do not fit into 10
    assert (answers["rows"], answers["skipped"]) == ((1, 2) if lengths == [10] else (3, 0))


def test_float_inputs_left_padding_and_segment_ids(tmp_path):
    phone = mac_kit.folder(
        tmp_path / "phone",
        Model={"dtype": "float32", "lengths": [32], "inputs": ["input_ids", "attention_mask", "token_type_ids"]},
    )
    listed = json.loads((phone / "artifacts.json").read_text())
    listed["processing"]["padding_side"] = "left"
    (phone / "artifacts.json").write_text(json.dumps(listed))
    done = mac_kit.run(phone, "--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", "--units", "all")
    assert done.returncode == 0, done.stderr
    answers = content_of(tmp_path / "x.json")["packages"][0]["units"][0]["answers"]
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
def test_rows_are_found_behind_the_default_prompt(tmp_path, processing, prompt, rows):
    phone = mac_kit.folder(tmp_path / "phone", Model={"lengths": [32]})
    listed = json.loads((phone / "artifacts.json").read_text())
    listed["processing"] |= processing
    (phone / "artifacts.json").write_text(json.dumps(listed))
    path = phone / "golden_tokens.jsonl"
    tokens = [json.loads(line) for line in path.read_text().splitlines()]
    for row in tokens:
        row["text"] = (
            prompt + row["text"] if isinstance(row["text"], str) else [prompt + row["text"][0], row["text"][1]]
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in tokens))
    done = mac_kit.run(phone, "--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", "--units", "all")
    assert done.returncode == 0, done.stderr
    answers = content_of(tmp_path / "x.json")["packages"][0]["units"][0]["answers"]
    assert (answers["rows"] if answers else 0) == rows


def test_answers_per_token_from_two_outputs(tmp_path):
    phone = mac_kit.folder(tmp_path / "phone", Model={"lengths": [32], "spans": True, "wrong": {"CPU_ONLY": 0.5}})
    path, name = phone / "golden.jsonl", "coreml/Model.mlpackage"
    tokens = [json.loads(line)["ids"] for line in (phone / "golden_tokens.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, ids in zip(rows, tokens, strict=True):
        row["places"] = [0, 3, len(ids) - 1]
        row["outputs"] = {name: [x for i in row["places"] for x in (ids[i] / 1e4, ids[i] / 2e4)]}
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", "--units", "all", "cpu-only"]
    done = mac_kit.run(phone, *arguments)
    assert done.returncode == 3, done.stderr
    right, wrong = (u["answers"] for u in content_of(tmp_path / "x.json")["packages"][0]["units"])
    assert (right["rows"], right["largest"]) == (3, pytest.approx(0, abs=1e-6))
    assert wrong["largest"] == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("task", list(TaskName))
def test_it_reads_answers_as_the_toolkit_records_them(mac, tmp_path, task, side):
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
    package = object.__new__(mac._Package)
    package.golden, package.outputs, package.numpy = mac._GoldenRows(tmp_path), TASKS[task].answer, np
    found = package._recorded_values(recorded.model_dump(), ids, out)
    np.testing.assert_allclose(found, recorded.pick(matrix).ravel(), rtol=1e-6)


def test_a_folder_without_golden_rows_is_measured_with_made_up_ids(tmp_path):
    phone = mac_kit.folder(tmp_path / "phone", Model={"lengths": [32]})
    for name in ("golden.jsonl", "golden_tokens.jsonl", "artifacts.json", "config.json"):
        (phone / name).unlink()
    done = mac_kit.run(phone, "--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", "--units", "all")
    assert done.returncode == 0, done.stderr
    assert "answers not checked: golden.jsonl has none of this package" in done.stdout
    assert content_of(tmp_path / "x.json")["protocol"]["inputs"].startswith("ids 1 to 90")


@pytest.mark.parametrize(
    ("wish", "reason"),
    [
        ({"uncompilable": "needs macOS 15"}, "needs macOS 15"),
        ({"crashing": [128]}, "cannot run 128 tokens"),
        ({"crashing": [64]}, "cannot run 64 tokens"),
    ],
)
def test_a_package_that_no_unit_takes(tmp_path, wish, reason):
    phone = mac_kit.folder(tmp_path / "phone", Model=wish)
    done = mac_kit.run(phone, "--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", "--units", "cpu-and-ne")
    assert done.returncode == 1
    assert f"coreml/Model.mlpackage cpu-and-ne: left out: {reason}" in done.stdout
    for unit in content_of(tmp_path / "x.json")["packages"][0]["units"]:
        assert unit["failed"] == reason


def test_packages_by_path(tmp_path):
    phone = mac_kit.folder(tmp_path / "phone", Model={"lengths": [32]})
    other = mac_kit.package(tmp_path / "else" / "Model.mlpackage", lengths=[16])
    arguments = ["--runs", 1, "--repeats", 1, "-o", tmp_path / "x.json", "--units", "all", "--packages"]
    assert mac_kit.run(phone, *arguments, other, phone / "coreml" / "Model.mlpackage").returncode == 0
    assert [p["path"] for p in content_of(tmp_path / "x.json")["packages"]] == [
        "Model.mlpackage",
        "coreml/Model.mlpackage",
    ]


def test_wrong_usage_and_wrong_folders(mac, tmp_path, capsys):
    def refused(phone, *arguments, code=2):
        mac.__file__ = str(phone / "coreml" / MAC_SCRIPT_NAME)
        assert mac.main([*arguments, "-q"]) == code
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.count("\n") == 1
        return shown.err

    phone = mac_kit.folder(tmp_path / "phone", Model={})
    assert "no .mlpackage at" in refused(phone, "--packages", str(tmp_path / "x.mlpackage"))
    assert "-o: no folder" in refused(phone, "-o", str(tmp_path / "none" / "x.json"))
    (phone / "coreml" / "Model.mlpackage" / ".DS_Store").write_text("")
    assert "coreml/Model.mlpackage is not what artifacts.json lists" in refused(phone)
    (phone / "golden.jsonl").write_text("{")
    assert "JSONDecodeError" in refused(phone, code=1)
    empty = tmp_path / "empty" / "coreml"
    empty.mkdir(parents=True)
    assert f"no .mlpackage in {empty}" in refused(empty.parent)
    odd = mac_kit.folder(tmp_path / "odd", Model={"inputs": ["input_ids", "perm_mask"]})
    assert "inputs input_ids, perm_mask; known: input_ids" in refused(odd)
    with pytest.raises(SystemExit) as stop:
        mac.main(["--runs", "0"])
    assert stop.value.code == 2


def test_without_coremltools_the_message_is_the_command(mac, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "coremltools", None)
    assert mac.main([]) == 4
    assert "Install it with: python3 -m pip install coremltools" in capsys.readouterr().err


def test_ctrl_c_leaves_nothing_behind(mac, mac_phone, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(mac, "_time_cells", stop)
    before = sorted(mac_phone.parent.rglob("*"))
    with pytest.raises(SystemExit) as end:
        mac.main(["-q", "--units", "all"])
    assert end.value.code == 130
    assert sorted(mac_phone.parent.rglob("*")) == before


def test_the_cold_start_in_this_process(mac, tmp_path, capsys):
    compiled = tmp_path / "0.mlmodelc"
    compiled.mkdir()
    (compiled / "model.json").write_text(json.dumps({"kind": "fixed", "lengths": [4]}))
    rows = {n: ["int32", [[1, 1, 1, 1]]] for n in ("input_ids", "attention_mask")}
    (tmp_path / "p.json").write_text(json.dumps({"compiled": str(compiled), "unit": "all", "feed": rows}))
    assert mac.main(["--cold-start", str(tmp_path / "p.json")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"load_ms", "first_ms", "peak_memory_bytes", "peak_rss_bytes"}
    assert found["peak_rss_bytes"] >= found["peak_memory_bytes"] >= 0


def test_a_cold_start_that_dies_takes_only_its_unit_along(mac, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(mac.sys, "executable", "/bin/false")
    assert mac.main(["-q", "-o", str(tmp_path / "x.json"), "--units", "all"]) == 1
    assert "left out: the process ended with 1" in capsys.readouterr().out


def test_what_the_mac_tells_of_itself(mac, tmp_path, monkeypatch):
    tools = {
        "sysctl": 'case "$2" in hw.model) echo Synthetic1,1;; machdep.cpu.brand_string) echo Synthetic chip;; hw.memsize) echo '
        "17179869184;; kern.osversion) echo 24B83;; hw.optional.arm.FEAT_I8MM) echo 1;; *) exit 1;; esac",
        "pmset": "case \"$2\" in batt) echo \"Now drawing from 'AC Power'\";; *) printf 'Note: No thermal warning\\n level\\n';; esac",
    }
    for name, script in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    told = mac._describe_mac()
    assert (told["model"], told["chip"], told["memory_bytes"]) == ("Synthetic1,1", "Synthetic chip", 17179869184)
    assert (told["build"], told["isa"], told["power"]) == ("24B83", ["i8mm"], "AC Power")
    assert told["thermal"] == "Note: No thermal warning level"
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    silent = mac._describe_mac()
    assert (silent["model"], silent["isa"], silent["memory_bytes"], silent["power"]) == ("", [], 0, "")


def test_the_digest_is_the_toolkits(mac, tmp_path):
    package = tmp_path / "Ü.mlpackage"
    for name in ("Manifest.json", "Data/a/weights/weight.bin", "Data/a-b", "Data/ä"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_bytes(name.encode())
    assert mac._sha256_folder(package) == sha256_path(package)


def test_a_disturbed_warm_up_is_not_called_stable(mac, monkeypatch):
    cell = object.__new__(mac._Cell)
    times = iter([1.0, 2.0] * 200)
    cell.content = {}
    cell.time_inference = lambda: (next(values), 0.0, None)
    values = iter([t for t in times for _ in range(mac.WINDOW)])
    cell.warm_up()
    assert cell.content == {"warmup_runs": 60, "warmup_stable": False}


def test_nothing_but_the_file_is_left_beside_it(mac, tmp_path):
    (tmp_path / ".mac.json.1.partial").write_text("somebody's")
    arguments = ["-q", "--units", "all", "--runs", "1", "--repeats", "1", "-o", str(tmp_path / "mac.json")]
    (tmp_path / "mac.json").write_text("old figures")
    assert mac.main(arguments) == 0
    assert content_of(tmp_path / "mac.json")["kind"] == record.KIND
    assert (tmp_path / ".mac.json.1.partial").read_text() == "somebody's"
    assert sorted(p.name for p in tmp_path.iterdir()) == [".mac.json.1.partial", "mac.json"]
