"""Check that the code keeps its shape: deep modules (the grain ratchet) and docstrings that say what is done.

    python scripts/check_house.py          # exit 1 with one line per finding
    python scripts/check_house.py --grain  # print the measures only

The measures are counted over the installed Python of the product, generated files apart. `LIMITS` holds what has been reached:
a change may not fall behind it, and whoever improves a measure lowers its limit. What the measures mean stands in docs/development.md.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("src/pocketbert", "distill", "export", "quantize", "runtime", "benchmarks")
LIMITS = {
    "files": 437,
    "longest file": 600,
    "lines in a file, 90th percentile": 508,
    "lines of code": 59027,
    "public names per 1,000 lines of code": 38,
    "import lines in 100": 7,
    "public names with a single using module in 100": 40,
}
"""The most that a measure may be; why one rose stands in the commit that raised it."""
LEAST = {"lines in a file, median": 240, "lines in a function body, median": 5}
"""The least that a measure may be."""
SHORT = 5
"""A function of more lines than this has a docstring."""
_NAME = re.compile(r"[A-Za-z_]\w*")
_PRIVATE = re.compile(r"`_[a-z][a-z0-9_]*`")


@dataclass
class SourceFile:
    """One Python file with its syntax tree.

    Attributes:
        path: Path of the file.
        text: Content of the file.
        tree: Syntax tree of the file.
        words: Every identifier-like word in the file, strings and comments included.
    """

    path: Path
    text: str
    tree: ast.Module = field(init=False)
    words: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.tree = ast.parse(self.text)
        self.words = set(_NAME.findall(self.text))


def read_sources(root: Path) -> list[SourceFile]:
    """Read the product's Python files below the checkout `root`. Demo data and generated files are left out."""
    paths = (p for folder in FOLDERS for p in sorted((root / folder).rglob("*.py")))
    kept = (p for p in paths if "demo_corpus" not in p.parts and not p.name.endswith("_pb2.py"))
    return [SourceFile(p, p.read_text(encoding="utf-8")) for p in kept]


def measure_grain(sources: list[SourceFile]) -> dict[str, float]:
    """Measure how finely the code is cut, and return the measures by name.

    They are sizes of files and functions, the share of imports, public names, and how many of these have one using
    module only.
    """
    lengths = sorted(s.text.count("\n") for s in sources)
    blank = sum(not line.strip() or line.strip().startswith("#") for s in sources for line in s.text.splitlines())
    imports = docstrings = 0
    bodies: list[int] = []
    for source in sources:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports += _lines(node)
            docstrings += sum(_lines(s) for s in _statements(node) if _is_string(s))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = [s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
                if body:
                    bodies.append((body[-1].end_lineno or 0) - body[0].lineno + 1)
    code = sum(lengths) - blank - docstrings - imports
    public = [(s, n.name) for s in sources for n in s.tree.body if _is_public(n)]
    users = [sum(name in o.words for o in sources if o is not s and o.path.name != "__init__.py") for s, name in public]
    return {
        "files": len(sources),
        "longest file": lengths[-1],
        "lines in a file, 90th percentile": lengths[int(len(lengths) * 0.9)],
        "lines in a file, median": median(lengths),
        "lines of code": code,
        "lines in a function body, median": median(bodies),
        "public names per 1,000 lines of code": round(1000 * len(public) / code),
        "import lines in 100": round(100 * imports / sum(lengths)),
        "public names with a single using module in 100": round(100 * users.count(1) / len(public)),
    }


def find_regressions(measures: dict[str, float]) -> Iterator[str]:
    """Compare measures with `LIMITS` and `LEAST`, and yield a line for each that has become worse."""
    for name, limit in LIMITS.items():
        if measures[name] > limit:
            yield f"grain: {name}: {measures[name]:,}, and {limit:,} had been reached"
    for name, limit in LEAST.items():
        if measures[name] < limit:
            yield f"grain: {name}: {measures[name]:,}, and {limit:,} had been reached"


def find_docstring_faults(source: SourceFile) -> Iterator[str]:
    """Yield a line for each long function without a docstring, and for each first line that is no sentence.

    A function is long if it has more than `SHORT` lines. A first line ends with a full stop and names no private
    function: a reader who sees only signatures and docstrings cannot look that one up. That it starts with a verb in
    the imperative is ruff's rule D401.
    """
    for node in ast.walk(source.tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        text = ast.get_docstring(node)
        where = f"{source.path.as_posix()}:{node.lineno}: {node.name}"
        if text is None:
            if (
                not isinstance(node, ast.ClassDef)
                and not _is_empty(node)
                and _lines(node) > SHORT
                and not node.name.startswith("__")
            ):
                yield f"{where}: {_lines(node)} lines and no docstring"
            continue
        if "cli" in source.path.parts:  # docstrings of commands are their help texts
            continue
        first = text.split("\n\n")[0]
        if not first.rstrip().endswith((".", ":", "`", "!", "?")):
            yield f"{where}: the first line of the docstring does not end with a full stop"
        if _PRIVATE.search(first):
            yield f"{where}: the first line of the docstring names a private function"


def _is_empty(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return len(node.body) == 1 and isinstance(node.body[0], ast.Pass)


def _lines(node: ast.stmt) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


def _statements(node: ast.AST) -> list[ast.stmt]:
    body = getattr(node, "body", None)
    return body if isinstance(body, list) else []


def _is_string(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _is_public(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) and not node.name.startswith("_")


def main() -> int:
    """Print the measures and every finding; return the exit code, 1 if there is a finding."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--grain", action="store_true", help="print the measures and check nothing")
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    options = parser.parse_args()
    sources = read_sources(options.root)
    measures = measure_grain(sources)
    print("\n".join(f"{value:>8,.0f}  {name}" for name, value in measures.items()))
    if options.grain:
        return 0
    findings = [*find_regressions(measures), *(line for source in sources for line in find_docstring_faults(source))]
    print("\n".join(findings), file=sys.stderr)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
