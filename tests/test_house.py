"""The layout rules: short files and functions, few parameters, small folders, and a formatter that decides."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("src/pocketbert", "distill", "export", "quantize", "runtime", "benchmarks", "scripts")
MOST_LINES = 60
"""Of a function, without its signature."""
MOST_PARAMETERS = 8
MOST_ENTRIES = 20
MOST_SKIPS = 40
"""Places in the tree, tests included, where the formatter does not decide."""


def sources() -> list[Path]:
    """Hand-written Python of the package and of its scripts."""
    return [p for top in TOPS for p in sorted((ROOT / top).rglob("*.py")) if not p.name.endswith("_pb2.py")]


@cache
def functions() -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function with its place."""
    return [
        (f"{path.relative_to(ROOT).as_posix()}: {node.name}", node)
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def test_functions_are_short() -> None:
    lines = {where: (f.end_lineno or 0) - f.body[0].lineno + 1 for where, f in functions()}
    assert len(lines) > 1000
    assert {where: n for where, n in lines.items() if n > MOST_LINES} == {}


def test_functions_take_few_parameters() -> None:
    long = {}
    for where, function in functions():
        given = function.args
        names = [a.arg for a in (*given.posonlyargs, *given.args, *given.kwonlyargs) if a.arg not in ("self", "cls")]
        if len(names) > MOST_PARAMETERS and not where.startswith("src/pocketbert/cli/"):  # an option each
            long[where] = len(names)
    assert long == {}


def test_folders_are_small() -> None:
    crowded = {}
    for folder in {p.parent for p in sources()}:
        modules = [p for p in folder.glob("*.py") if p.name != "__init__.py"]
        packages = [p for p in folder.iterdir() if p.is_dir() and any(p.glob("*.py"))]
        if len(modules) + len(packages) > MOST_ENTRIES:
            crowded[folder.relative_to(ROOT).as_posix()] = len(modules) + len(packages)
    assert crowded == {}


def test_the_formatter_decides() -> None:
    files = [*sources(), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").glob("*.py")]
    skips = [
        f"{p.name}:{i}"
        for p in files
        for i, line in enumerate(p.read_text("utf-8").splitlines(), 1)
        if line.endswith("# fmt: skip")
    ]
    assert len(skips) < MOST_SKIPS, skips


def test_test_files_that_code_and_docs_name_are_there() -> None:
    texts = [*sources(), *(ROOT / "docs").rglob("*.md"), *(ROOT / "lab").rglob("*.py"), *(ROOT / "tests").rglob("*.py")]
    named = {name for p in texts for name in re.findall(r"(?<![\w/])tests/[\w/]+\.py", p.read_text(encoding="utf-8"))}
    assert len(named) > 5
    assert {name for name in named if not (ROOT / name).is_file()} <= {"tests/a/test_x.py", "tests/none.py"}
