"""What people read is plain technical English: docs, help, recipe keys, docstrings' first lines and messages hold no idioms.

Prints every finding of every scope, checked or not: python tests/test_language.py [SCOPE ...]
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
TOPS = ("src", "distill", "export", "quantize", "runtime", "benchmarks")

IDIOMS = {
    r"\bso (many|long)\b": "say how many, or how long: 'at most N', 'as long as'",
    r"\b(be|been|was|were) had\b": "'available', 'It was not possible to ...'",
    r"\b(is|are|was) said\b": "name who prints it: 'the run prints', 'a note names'",
    r"\b(say|says|said) so\b": "say what it prints or declares",
    r"\bgates? (that |which )?(closes?|closed)\b|\bclosed gates?\b|\bcloses (when|on)\b": "a gate passes or fails",
    r"\b(file|folder|candidate|engine|package|variant)s?,? who(se)?\b|\b(model|row|key|word)s?,? who\b": "'which', 'with'",
    r"\bbesides?\b": "'next to', 'with', 'in addition to', 'compared with'",
    r"(?<!-)\balone\b": "'only', 'by itself', 'separately'",
    r"\bas (its|their|the) [\w' -]{1,40} (has|have) it\b": "'as ... defines', 'as ... prints'",
    r"\bnobody's\b": "say whose it is, or that nothing owns it",
    r"\bof (its|their|his|your|our|my|one's) own\b": "'separate', 'your own model'",
    r"\bfor want of\b": "'because there is no ...'",
    r"(?<!-)\bstands?\b(?!-)": "'is', 'means', 'is listed', 'replaces'",
}
"""Patterns of specs/house.md section 4, and what to write instead."""

FULL_STOP = re.compile(r"[.!?:]['\"`*]*( \(recipe: [^)]*\))?$")
"""The end of a sentence; in help, the recipe key may follow."""


class Text(NamedTuple):
    """One piece of text that people read, and where it is."""

    where: str
    text: str


def findings(texts: Iterator[Text]) -> list[str]:
    """Every idiom in some texts, as `where: the words around it (what to write instead)`."""
    found = []
    for where, text in texts:
        words = " ".join(re.sub(r"`[^`]*`", "`…`", text).split())
        for pattern, instead in IDIOMS.items():
            for match in re.finditer(pattern, words, re.IGNORECASE):
                around = words[max(match.start() - 40, 0) : match.end() + 40]
                found.append(f"{where}: …{around}… ({instead})")
    return found


def without_full_stop(texts: Iterator[Text]) -> list[str]:
    """Texts with a first paragraph that does not end like a sentence."""
    first = ((where, " ".join(text.split("\n\n", 1)[0].split())) for where, text in texts)
    return [f"{where}: {words}" for where, words in first if not FULL_STOP.search(words)]


# scopes


def pages() -> list[Path]:
    """Pages written by hand: README, CHANGELOG, docs/*.md without the two references, which are made from other scopes."""
    generated = {"api-reference.md", "recipe-reference.md"}
    docs = [p for p in sorted((ROOT / "docs").glob("*.md")) if p.name not in generated]
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *docs]


def docs() -> Iterator[Text]:
    """Every paragraph, list entry and table row of the pages, without code and quoted messages."""
    for page in pages():
        fenced = False
        start, lines = 1, list[str]()
        for number, line in enumerate([*page.read_text("utf-8").splitlines(), ""], 1):
            if line.startswith("```"):
                fenced = not fenced
            if fenced or not line.strip() or re.match(r"```|[-|#] ?", line):
                if lines:
                    yield Text(f"{page.relative_to(ROOT)}:{start}", " ".join(lines))
                lines = []
            if not fenced and line.strip() and not line.startswith("```"):
                start = start if lines else number
                lines.append(line)


def examples() -> Iterator[Text]:
    """Docstrings and comments of the examples, and comments of the shipped recipes."""
    for path in sorted([*(ROOT / "examples").glob("*.*"), *(ROOT / "src/pocketbert/recipes").rglob("*.yaml")]):
        text = path.read_text("utf-8")
        comments = {".yaml": r"#\s(.+)", ".mjs": r"//\s(.+)"}.get(path.suffix, r"#\s(.+)")
        for number, line in enumerate(text.splitlines(), 1):
            if match := re.search(comments, line):
                yield Text(f"{path.relative_to(ROOT)}:{number}", match[1])
        if path.suffix == ".py":
            yield from (Text(where, whole) for where, whole in docstrings_of(path))


def commands() -> Iterator[tuple[str, Any]]:
    """Every command of the command line with its path."""
    import typer

    from pocketbert.cli.main import app

    waiting: list[tuple[str, Any]] = [("pocketbert", typer.main.get_command(app))]
    while waiting:
        name, command = waiting.pop()
        yield name, command
        waiting += [(f"{name} {n}", c) for n, c in getattr(command, "commands", {}).items()]


def help_texts() -> Iterator[Text]:
    """What `--help` prints: commands, their options and the closing line."""
    for name, command in commands():
        for text in (command.help, command.epilog, command.short_help):
            if text and not text.startswith("\b"):  # examples are command lines
                yield Text(name, text)
        for parameter in command.params:
            if getattr(parameter, "help", None):
                yield Text(f"{name} {parameter.opts[0]}", parameter.help)


def recipe_keys() -> Iterator[Text]:
    """The description of every section and key of a recipe."""
    from pocketbert.core.recipe.recipe import Recipe

    def walk(node: Any, where: str) -> Iterator[Text]:
        if isinstance(node, dict):
            if isinstance(node.get("description"), str):
                yield Text(where, node["description"])
            for key, inner in node.items():
                yield from walk(inner, where if key in ("$defs", "properties") else f"{where}.{key}")
        elif isinstance(node, list):
            for inner in node:
                yield from walk(inner, where)

    yield from walk(Recipe.model_json_schema(), "recipe")


def sources() -> list[Path]:
    """The package's source files, without the scripts that compare with others."""
    found = [p for top in TOPS for p in sorted((ROOT / top).rglob("*.py"))]
    return [p for p in found if "peers" not in p.parts]


def docstrings_of(path: Path) -> Iterator[Text]:
    """Docstrings of a module and of its public classes and functions."""

    def walk(node: Any, line: int) -> Iterator[Text]:
        if whole := ast.get_docstring(node):
            yield Text(f"{path.relative_to(ROOT)}:{line}", whole)
        for inner in node.body:
            if isinstance(inner, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and inner.name[0] != "_":
                yield from walk(inner, inner.lineno)

    yield from walk(ast.parse(path.read_text("utf-8")), 1)


def first_lines() -> Iterator[Text]:
    """First paragraph of every public docstring."""
    for path in sources():
        for where, whole in docstrings_of(path):
            yield Text(where, whole.split("\n\n", 1)[0])


def message(node: ast.AST) -> str:
    """The fixed text of a string expression; what is filled in becomes `…`."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(message(v) for v in node.values)
    return "…"


def messages() -> Iterator[Text]:
    """Every string of three words or more that is no docstring: errors, notes, model card, help; without the demo corpus."""
    for path in sources():
        if "demo_corpus" in path.parts or path.name == "stop_words.py":
            continue
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        no_text = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
        no_text |= {id(part) for n in nodes if isinstance(n, ast.JoinedStr) for part in n.values}
        for node in nodes:
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in no_text:
                text = message(node)
                if len(text.split()) >= 3:
                    yield Text(f"{path.relative_to(ROOT)}:{node.lineno}", text)


SCOPES: dict[str, Callable[[], Iterator[Text]]] = {
    "docs": docs,
    "examples": examples,
    "help": help_texts,
    "recipe keys": recipe_keys,
    "first lines": first_lines,
    "messages": messages,
}
CHECKED = ("docs", "examples", "help", "recipe keys", "first lines", "messages")
"""Scopes that must be free of idioms."""
SENTENCES = ("help", "recipe keys", "first lines")
"""Scopes in which each text must end with a full stop."""
AT_LEAST = {"docs": 400, "examples": 25, "help": 100, "recipe keys": 100, "first lines": 500, "messages": 1000}
"""A scope with fewer texts than this was not read."""


@pytest.mark.parametrize("scope", CHECKED)
def test_no_idiom_is_in(scope: str) -> None:
    assert findings(SCOPES[scope]()) == []


@pytest.mark.parametrize("scope", SENTENCES)
def test_every_text_ends_with_a_full_stop_in(scope: str) -> None:
    assert without_full_stop(SCOPES[scope]()) == []


@pytest.mark.parametrize("scope", SCOPES)
def test_every_scope_is_read(scope: str) -> None:
    texts = list(SCOPES[scope]())
    assert len(texts) >= AT_LEAST[scope]
    assert all(t.where and t.text for t in texts)


def test_idioms_are_found_and_other_uses_are_not() -> None:
    bad = [
        "at most so many rows", "the file could be had", "that is said", "and says so", "a closed gate", "gates that close",
        "closes when it differs", "candidates whose scores", "the teacher beside it", "MediaPipe alone", "as its task has it",
        "nobody's latency", "a folder of its own", "a model of one's own", "for want of a GPU", "`X` stands for a row",
    ]  # fmt: skip
    assert [text for text in bad if not findings(iter([Text("here", text)]))] == []
    good = [
        "the user who runs it", "understand the standard", "a stand-alone file", "tests that close a file", "its own folder",
        "`beside` is a name", "it has had 3 steps", "nobody reads it", "as long as it runs",
    ]  # fmt: skip
    assert findings(Text(text, text) for text in good) == []


def test_missing_full_stops_are_found() -> None:
    good = ["Export a model.", "Say `x`: then y:", "Longest input in tokens. (recipe: data.max_length)", "One.\n\nTwo"]
    assert without_full_stop(Text(text, text) for text in good) == []
    bad = ["Export a model", "Export a model (recipe: export)"]
    assert without_full_stop(Text("here", text) for text in bad) == [f"here: {text}" for text in bad]


def test_headings_and_code_are_told_apart_from_prose() -> None:
    texts = list(docs())
    assert not [t for t in texts if "```" in t.text]
    assert any(t.where.startswith("README.md:") for t in texts)


if __name__ == "__main__":
    for chosen in sys.argv[1:] or SCOPES:
        print(f"## {chosen}", *findings(SCOPES[chosen]()), sep="\n")
        if chosen in SENTENCES:
            print(f"## {chosen}: no full stop", *without_full_stop(SCOPES[chosen]()), sep="\n")
