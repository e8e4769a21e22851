"""The wheel of PocketBERT predicts under the Arm system's Python: what `pip install pocketbert` gives there, and no torch."""

import copy

import pytest

from pocketbert import ExportOptions, api
from pocketbert.benchmarks.devices.qemu import PROCESSORS, Guest, GuestFacts
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.errors import MachineError
from pocketbert.core.host.system import version_of
from support.packages import build_packages

TEXTS = ["one two", "a good day", "three bad words and one more"]
FACTS = GuestFacts("3.11.2", "aarch64", "glibc 2.36")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return build_packages(tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist"))["wheel"]


@pytest.mark.slow
def test_the_wheel_predicts_on_arm_as_here(tools, wheel, tiny_model, tmp_path, script, monkeypatch, capsys):
    program = script("predict_on_arm64")
    phone = api.export(str(tiny_model("bert")), tmp_path / "phone", ExportOptions(formats=["onnx"], max_length=32))
    records = {r.path: r for r in read_artefacts(phone).models()}
    told = program.predict("cortex-a76", wheel, phone, list(records), TEXTS)
    assert told["machine"] == "aarch64"
    assert told["module"].startswith(told["site"])  # not this checkout
    assert not told["torch"]
    assert told["versions"]["pocketbert"] == version_of("pocketbert")
    assert set(told["files"]) == set(records) == {"onnx/model.onnx", "onnx/model_int8.onnx"}
    for path, record in records.items():
        compared = program.compare(phone, record, TEXTS, told["files"][path])
        assert compared.passed, compared
        assert compared.same == compared.texts == 3
        wrong = copy.deepcopy(told["files"][path])
        wrong["outputs"][0][0][0] += 1.0
        assert not program.compare(phone, record, TEXTS, wrong).passed

    monkeypatch.setattr(program, "predict", lambda *_: told)
    arguments = ["-m", str(phone), "--wheel", str(wheel), *TEXTS]
    assert program.main(arguments) == 0
    assert "onnx/model_int8.onnx: 3 of 3 answers the same, largest difference" in capsys.readouterr().out
    told["files"]["onnx/model.onnx"]["outputs"][1][0][0] = float("nan")
    assert program.main(arguments) == 3
    assert "outputs that are not numbers" in capsys.readouterr().out


@pytest.mark.slow
def test_what_the_wheel_needs_is_its_core(wheel, script):
    wanted = script("predict_on_arm64").dependencies(wheel, FACTS)
    names = {line.split("==")[0] for line in wanted}
    assert {"numpy", "onnxruntime", "tokenizers", "pydantic", "pydantic-core", "pyyaml", "filelock"} <= names
    assert not names & {"torch", "transformers", "onnx", "ai-edge-litert", "matplotlib", "pytest"}
    assert f"numpy=={version_of('numpy')}" in wanted
    assert len(wanted) == len(names)


def test_python_that_fails_in_the_emulator_is_told(tmp_path, monkeypatch):
    (tmp_path / "root/usr/bin").mkdir(parents=True)
    (tmp_path / "root/usr/bin/python3.11").write_bytes(b"")
    emulator = tmp_path / "qemu-aarch64"
    monkeypatch.setenv("POCKETBERT_ARM64_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    emulator.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 3\n")
    emulator.chmod(0o755)
    guest = Guest.of("qemu-arm64", PROCESSORS["cortex-a76"], tmp_path)
    assert guest.launcher[1:5] == ("-L", str(tmp_path / "system"), "-cpu", "cortex-a76")
    with pytest.raises(MachineError, match="ended with exit status 3: no such option"):
        guest.facts()
    emulator.write_text("#!/bin/sh\necho hello\n")
    with pytest.raises(MachineError, match="prints something else"):
        guest.facts()
    emulator.write_text("#!/bin/sh\nkill -ILL $$\n")  # a kernel for another processor
    with pytest.raises(MachineError, match="ended with signal 4: no output"):
        guest.facts()
