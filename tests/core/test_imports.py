"""What importing the package loads: nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import pocketbert.core
import pocketbert.runtime

HEAVY = (
    "torch transformers datasets onnx onnxscript accelerate safetensors huggingface_hub litert_torch ai_edge_quantizer "
    "ai_edge_litert tensorflow flatbuffers"
).split()


def modules_of(package: ModuleType) -> list[str]:
    top = Path(str(package.__file__)).parent
    found = (p.relative_to(top).with_suffix("") for p in top.rglob("*.py") if p.stem != "__init__")
    return sorted(".".join(p.parts) for p in found)


def imported(code: str) -> set[str]:
    """Top-level modules in a fresh process after running `code`."""
    code += "\nimport sys, json; print(json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("package", [pocketbert.core, pocketbert.runtime], ids=["core", "runtime"])
def test_core_and_runtime_import_nothing_heavy(package: ModuleType) -> None:
    modules = modules_of(package)
    assert len(modules) >= 4
    assert not imported("import " + ", ".join(f"{package.__name__}.{name}" for name in modules)) & set(HEAVY)


def test_the_package_itself_imports_no_engine_and_load_is_found_lazily() -> None:
    assert not imported("import pocketbert") & {*HEAVY, "numpy", "onnxruntime", "tokenizers", "pydantic"}
    code = "import pocketbert, sys; assert callable(pocketbert.load); assert 'onnxruntime' in sys.modules"
    assert not imported(code) & set(HEAVY)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        pocketbert.lod  # noqa: B018
