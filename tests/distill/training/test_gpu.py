"""`make gpu-check`: it passes on a CPU and on a pretended GPU, and finds what computes otherwise or elsewhere there."""

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.distill.methods.table import ROWS

ROOT = Path(__file__).resolve().parents[3]
WHOLE = """
import gpu_check
from support.fake_gpu import NAME, install

with install():
    sys.exit(gpu_check.main(["--device", NAME, "--tiny", "-o", sys.argv[1]]))
"""
BROKEN = """
import json, tempfile
from pathlib import Path

import gpu_check
from support.fake_gpu import NAME, install

gpu_check.find_checkout()
from pocketbert.distill.methods import minilm, tinybert

hidden_mse, relation_kl = tinybert.hidden_mse, minilm.relation_kl
tinybert.hidden_mse = lambda own, *more: hidden_mse(own, *more) * (1.01 if own.device.type == NAME else 1)
minilm.relation_kl = lambda own, taught, mask, heads: relation_kl(own, taught, mask.cpu(), heads)
with install(), tempfile.TemporaryDirectory() as work:
    checks = gpu_check.check_methods(NAME, Path(work), ["float32"])
Path(sys.argv[1]).write_text(json.dumps({check.method: [check.passed, check.error] for check in checks}))
"""
TAUGHT = """
import json
from contextlib import nullcontext
from pathlib import Path

from pocketbert import api
from support.fake_gpu import NAME, install
from support.tiny import write_bert
from support.tiny_texts import task_rows, write_lines

work = Path(sys.argv[1]).parent
model = write_bert(work / "model", ("a", "b"))
rows = write_lines(work / "rows.jsonl", task_rows(9, 1))
for name, where in (("cpu", nullcontext()), ("card", install())):
    with where:
        api.teach([str(model)], rows, work / f"{name}.jsonl")
lines = [[json.loads(line)["teacher"] for line in (work / f"{name}.jsonl").read_text().splitlines()] for name in ("cpu", "card")]
Path(sys.argv[1]).write_text(json.dumps(lines))
"""
NEEDED = "import sys\nsys.path[:0] = sys.argv[2:]\n"
EACH = {row.name for row in ROWS}


def run_code(code: str, out: Path) -> tuple[int, Any]:
    """Run code in a process of its own, as the pretended GPU stays registered; return its exit code and what it wrote."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-c", NEEDED + code, str(out), str(ROOT / "tests"), str(ROOT / "lab")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert out.is_file(), done.stderr[-3000:]
    return done.returncode, json.loads(out.read_text())


def test_a_loss_of_its_own_on_the_device_and_a_tensor_elsewhere_are_found(tmp_path):
    _, found = run_code(BROKEN, tmp_path / "check.json")
    failed = {method: error for method, (passed, error) in found.items() if not passed}
    assert failed.keys() == {"tinybert-general", "tinybert-intermediate", "minilm"}
    assert failed["tinybert-general"] == failed["tinybert-intermediate"] == ""
    assert "on card: RuntimeError" in failed["minilm"] and "found cpu and card:0" in failed["minilm"]
    assert {method.split(",")[0] for method in found} == EACH


def test_a_teacher_of_texts_answers_on_the_device(tmp_path):
    _, (on_cpu, on_card) = run_code(TAUGHT, tmp_path / "answers.json")
    assert len(on_card) == 9
    for one, other in zip(on_cpu, on_card, strict=True):
        assert one == pytest.approx(other, abs=1e-4)


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "path", [*sys.path])  # which the program changes
    check = runpy.run_path(str(ROOT / "lab" / "gpu_check.py"))
    assert check["main"](["-o", str(tmp_path / "check.json")]) == 2
    assert "torch finds no GPU here" in capsys.readouterr().out


@pytest.mark.slow
def test_everything_passes_on_a_pretended_gpu(tmp_path):
    code, found = run_code(WHOLE, tmp_path / "check.json")
    assert (code, found["failed"]) == (0, [])
    assert {row["method"].split(",")[0] for row in found["losses"]} == EACH
    assert {row["precision"] for row in found["losses"]} == {"float32", "bfloat16"}
    assert found["distillation"]["passed"]
    assert all(row["tokens_per_s"] > 0 and row["operations"] > 0 for row in found["speed"]) and len(found["speed"]) == 2
