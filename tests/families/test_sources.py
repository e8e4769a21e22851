"""Nothing but the table and the folders of family code names an architecture."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pocketbert.core.families import all_families

ROOT = Path(__file__).resolve().parents[2]
CODE = ("distill/capture", "distill/students", "export/adapters")
"""Folders for the code of a family."""
TABLE = "src/pocketbert/core/families/rows"
REASONS = {
    "src/pocketbert/core/recipe/stages.py": "the methods distilbert and mobilebert have the names of the papers' students",
    "src/pocketbert/core/types.py": "the published size of the method mobilebert's student",
    "src/pocketbert/pipeline/formats/snippets/javascript.py": "what transformers.js can open, a fact about that client",
    "lab/peers": "compares with other projects, by the names of published models; it is not installed",
}
"""Where else a name may stand, and why: a file, or a folder with all in it."""
_OTHERS = (
    "albert electra deberta deberta-v2 xlnet xlm xlm-roberta longformer modernbert ernie spanbert macbert structbert "
    "bert-wwm tinybert mpnet camembert roformer big_bird luke"
).split()
_CLASSES = re.compile(
    r"(?:Bert|Roberta|DistilBert|MobileBert|IbBert|Albert|Electra|Deberta|XLNet|XLM|XLMRoberta|Longformer|ModernBert"
    r"|Ernie|MPNet|Camembert|SqueezeBert)(?:V2)?(?:Model|Config|Layer|Tokenizer|PreTrained|For[A-Z])\w*"
)


@cache
def known_names() -> frozenset[str]:
    rows = all_families()
    return frozenset({n.lower() for f in rows for n in (f.name, *f.model_types)} | set(_OTHERS))


def list_sources() -> list[Path]:
    tops = ("src/pocketbert", "distill", "export", "quantize", "runtime", "benchmarks")
    return sorted(p for top in tops for p in (ROOT / top).rglob("*.py"))


def named_in(code: str) -> Iterator[str]:
    """Architectures in code: texts that are a name, and classes of transformers; comments and docstrings are for readers."""
    texts = {text.lower() for text in re.findall(r"[\"']([\w-]+)[\"']", code)}
    if not (texts & known_names() or _CLASSES.search(code) or "transformers.models." in code):
        return  # it need not be parsed
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.lower() in known_names():
                yield node.value
        elif isinstance(node, ast.Name | ast.Attribute):
            word = node.id if isinstance(node, ast.Name) else node.attr
            if _CLASSES.fullmatch(word):
                yield word
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            yield from (a.name for a in node.names if module.startswith("transformers") and _CLASSES.fullmatch(a.name))
            if module.startswith("transformers.models."):
                yield module


def is_allowed(path: Path) -> bool:
    place = path.relative_to(ROOT).as_posix()
    return any(place.startswith(f"{folder}/") for folder in (TABLE, *CODE, *REASONS)) or place in REASONS


def test_no_other_file_names_an_architecture() -> None:
    found = {
        path.relative_to(ROOT).as_posix(): sorted(set(named_in(path.read_text("utf-8"))))
        for path in list_sources()
        if not is_allowed(path)
    }
    assert {place: words for place, words in found.items() if words} == {}


def test_core_names_no_module_of_a_wing() -> None:
    wings = re.compile(r"pocketbert\.(distill|export|quantize|benchmarks|pipeline|api|cli)\b")
    for path in sorted((ROOT / "src/pocketbert/core").rglob("*.py")):
        code = path.read_text("utf-8")
        if not re.search(rf"[\"']{wings.pattern}", code):
            continue
        tree = ast.parse(code)
        docs = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)}
        texts = [n for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)]
        assert [t.value for t in texts if id(t) not in docs and wings.match(t.value)] == [], path
