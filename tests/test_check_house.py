"""The checks of scripts/check_house.py: what they measure, and that they fail where the shape or a docstring is bad."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "check_house.py"
LONG = "def {name}(x: int) -> int:\n{docstring}    y = x + 1\n    y += 1\n    y += 1\n    y += 1\n    return y\n"


@pytest.fixture(scope="module")
def house() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_house", SCRIPT)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_house"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def write(root: Path, **files: str) -> None:
    """Write files of a checkout; a name without a folder is a module of `export`."""
    for name, text in files.items():
        path = root / f"{name}.py" if "/" in name else root / "export" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


@pytest.mark.parametrize(
    ("docstring", "fault"),
    [
        ('    """Add four."""\n', None),
        ('    """Add four to a number.\n\n    As `_four` does.\n    """\n', None),
        ("", "7 lines and no docstring"),
        ('    """Add four"""\n', "the first line of the docstring does not end with a full stop"),
        ('    """Add four as `_four` does."""\n', "the first line of the docstring names a private function"),
    ],
)
def test_docstrings(house: ModuleType, docstring: str, fault: str | None) -> None:
    text = LONG.format(name="_add", docstring=docstring).replace("    return y", "    y += 1\n    return y")
    found = house.find_docstring_faults(house.SourceFile(Path("a.py"), f"def short(x):\n    return x\n\n\n{text}"))
    assert [line.split(": ", 2)[2] for line in found] == ([fault] if fault else [])


def test_each_limit_can_fail(house: ModuleType) -> None:
    reached = {**house.LIMITS, **house.LEAST}
    assert list(house.find_regressions(reached)) == []
    for name, limit in reached.items():
        (line,) = house.find_regressions({**reached, name: limit + (1 if name in house.LIMITS else -1)})
        assert name in line


def test_the_command_fails_on_a_bad_tree(tmp_path: Path) -> None:
    write(tmp_path, bad=LONG.format(name="add", docstring="").replace("    return y", "    y += 1\n    return y"))
    ran = subprocess.run(
        [sys.executable, SCRIPT, "--root", tmp_path], capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 1
    assert "add: 7 lines and no docstring" in ran.stderr
    assert "had been reached" in ran.stderr  # a tree of one short file is behind the measures
