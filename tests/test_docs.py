"""What the documentation says is there: links, commands, options, recipes, messages, names."""

from __future__ import annotations

import ast
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from pocketbert import api
from pocketbert.cli.main import app
from pocketbert.core.recipe.file import recipe_from_values
from pocketbert.pipeline.recipes import shipped_names as shipped_recipes

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *(p for p in (ROOT / "docs").rglob("*.md") if "figures" not in p.parts)])
of_every_page = pytest.mark.parametrize("page", PAGES, ids=[p.relative_to(ROOT).as_posix() for p in PAGES])


@cache
def fences(page: Path) -> list[tuple[str, str]]:
    """Fenced blocks: language and content."""
    return re.findall(r"^```(\w*)[^\n]*\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """What stands outside of fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


# links


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.strip().lower()).replace(" ", "-") for t in titles}


@of_every_page
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", prose(page)):
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


def test_the_index_names_every_page() -> None:
    index = (ROOT / "docs/README.md").read_text("utf-8")
    pages = [p.relative_to(ROOT / "docs").as_posix() for p in PAGES if p.name != "README.md"]
    assert [name for name in pages if f"]({name}" not in index] == []


# commands


def command_lines(page: Path) -> Iterator[list[str]]:
    """Every `pocketbert ...` line of code, split as a shell does it."""
    blocks = [body.replace("\\\n", " ") for language, body in fences(page) if language in ("", "bash", "sh", "console")]
    lines = [line for body in blocks for line in body.splitlines()]
    lines += re.findall(r"`((?:[\w./=-]+ )*pocketbert [^`\n]+)`", prose(page))
    for line in lines:
        line = re.sub(r"(?<=\s)\S*-m pocketbert\.cli\.main", " pocketbert", line.removeprefix("$ "))
        if re.search(r"(^|[ /])pocketbert +[a-z-]", line) is None or re.search(r"pip install|import |from ", line):
            continue
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue  # no shell line: an apostrophe of prose
        at = next((i for i, w in enumerate(words) if w.rsplit("/", 1)[-1] == "pocketbert"), None)
        if at is not None and "..." not in words and "|" not in words[at : at + 3]:
            yield [w for w in words[at + 1 :] if w not in ("|", ">", "&")]


def options_of(command: Any) -> set[str]:
    return {"--help", *(flag for p in command.params for flag in (*p.opts, *p.secondary_opts) if flag[0] == "-")}


@cache
def commands() -> Any:
    """All commands; building them from their signatures takes longer than looking one up."""
    return typer.main.get_command(app)


def problems_of(words: list[str]) -> list[str]:
    """What a command line names that does not exist."""
    node = commands()
    rest = list(words)
    while rest and hasattr(node, "commands"):
        name = rest.pop(0)
        if name.startswith("-"):
            return [] if name in options_of(node) else [f"pocketbert {name}"]
        if name not in node.commands:
            return [f"no command '{name}' in: {' '.join(words)}"]
        node = node.commands[name]
    flags = [w.split("=", 1)[0] for w in rest if re.match(r"--?[A-Za-z]", w)]
    return [f"{node.name} has no option {f}: {' '.join(words)}" for f in flags if f not in options_of(node)]


@of_every_page
def test_every_command_option_and_recipe_key_exists(page: Path) -> None:
    assert [p for words in command_lines(page) for p in problems_of(words)] == []
    for words in command_lines(page):
        values = {after for before, after in pairwise(words) if before.startswith("--")}
        given = [w for w in words[1:] if re.match(r"[a-z_]+(\.\w+)*=", w) and w not in values]
        shipped = next((w for w in words if w in shipped_recipes()), None)
        if given and shipped and words[0] in ("run", "distill", "finetune", "recipes", "data"):
            api.load_recipe(shipped, given)


def test_commands_are_found_at_all() -> None:
    assert sum(1 for page in PAGES for _ in command_lines(page)) > 40
    lost = problems_of(["export", "-m", "x", "--layuot", "ane"])
    assert lost == ["export has no option --layuot: export -m x --layuot ane"]
    assert problems_of(["dta", "check"]) == ["no command 'dta' in: dta check"]


# recipes

WHOLE = {"schema": 1, "name": "docs", "task": "text-classification", "teacher": {"model": "minilm-l6"}}
ROWS = {"train": {"path": "train.jsonl"}, "eval": {"path": "dev.jsonl"}}
GENERAL = {"distilbert", "tinybert-general", "minilm", "mobilebert"}
"""Methods that learn from a corpus."""


def recipes(page: Path) -> Iterator[dict[str, Any]]:
    """YAML blocks as whole recipes: what a block leaves out is filled up with the least that is needed."""
    for language, body in fences(page):
        if language not in ("yaml", "yml"):
            continue
        whole = {**WHOLE, **yaml.safe_load(body)}
        data = {**whole.get("data", {})}
        if "student" in whole and "distill" not in whole:
            whole["distill"] = [{"method": "task", "steps": 1}]
        methods = {s["method"] for s in whole.get("distill", [])}
        if "corpus" in data and not methods & GENERAL:
            whole["distill"] = [{"method": "distilbert", "steps": 1}, {"method": "task", "steps": 1}]
            methods = {"distilbert", "task"}
        if "distill" in whole:
            whole.setdefault("student", {"layers": 2})
        if methods - GENERAL or "finetune" in whole["teacher"]:
            data = {**ROWS, **data}
        if methods & GENERAL:
            data.setdefault("corpus", {"sources": [{"path": "text.jsonl"}]})
        yield {**whole, "data": data}


def test_every_recipe_validates() -> None:
    found = [(recipe, page.name) for page in PAGES for recipe in recipes(page)]
    assert len(found) > 4
    for recipe, name in found:
        recipe_from_values(recipe, name)


# messages

TOPS = ("src", "benchmarks", "distill", "export", "quantize", "runtime")
VALUE = "\0"
"""Stands for what a message fills in."""


def plain_words(message: str) -> list[str]:
    """The fixed words of a message: no numbers, names, quoted values or placeholders."""
    text = re.sub(r"(?<![\w\0])(['\"]).*?\1(?![\w\0])", VALUE, message)
    words = [word.strip(",;:()?!.[]{}") for word in text.split()]
    return [w for w in words if re.fullmatch(r"[A-Za-z]+('s)?", w) and w not in ("nan", "inf", "NaN")]


def literal(node: ast.AST) -> str:
    """The text of a string expression, with `VALUE` where something is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(v) for v in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return literal(node.left) + literal(node.right)
    return VALUE


@cache
def source_texts() -> tuple[str, str]:
    """Every string of the package that is no docstring: as written, and as plain words; a line for each."""
    texts: set[str] = set()
    for path in (p for top in TOPS for p in (ROOT / top).rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        docstrings = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
        strings = [n for n in nodes if isinstance(n, ast.Constant | ast.JoinedStr | ast.BinOp)]
        texts |= {literal(n) for n in strings if id(n) not in docstrings}
    return "\n".join(texts), "\n".join(f" {' '.join(plain_words(t))} " for t in texts)


def quoted_messages(page: Path) -> list[str]:
    """Code in bold type that is a sentence (in troubleshooting.md: all of it), and other code of four words or more."""
    least = 0 if page.name == "troubleshooting.md" else 3
    bold = [b for b in re.findall(r"\*\*`([^`\n]+)`\*\*", prose(page)) if len(plain_words(b)) >= least]
    code = [c for c in re.findall(r"`([^`\n]+)`", prose(page)) if len(plain_words(c)) >= 4]
    no_message = re.compile(r"^(pocketbert|python|pip|make|git|uv) |^\[|[{}=·]| / ")  # commands, shapes, formulas
    return [m for m in dict.fromkeys([*bold, *code]) if m in bold or not no_message.search(m)]


def parts_not_in_source(message: str) -> list[str]:
    """Parts of a quoted message, split at each `…`, that no string of the package contains."""
    as_written, as_words = source_texts()

    def known(part: str) -> bool:
        words = plain_words(part)
        return f" {' '.join(words)} " in as_words if words else part in as_written

    parts = [part.strip(" ,;:.()[]") for part in message.split("…")]
    return [part for part in parts if part and not known(part)]


def test_every_quoted_message_exists_in_the_code() -> None:
    written = [p for p in PAGES if p.name != "api-reference.md"]  # that one is generated from the code
    quoted = [(page.name, m) for page in written for m in quoted_messages(page)]
    assert len(quoted) > 50
    assert {m: parts for m in quoted if (parts := parts_not_in_source(m[1]))} == {}


def test_made_up_messages_are_seen(tmp_path: Path) -> None:
    assert parts_not_in_source("the student is 64 wide, the teacher 384") == []
    assert parts_not_in_source("the student is 64 tall, the teacher 384") == ["the student is 64 tall, the teacher 384"]
    assert parts_not_in_source("gate 'drop' failed … and nobody noticed it") == ["and nobody noticed it"]
    page = tmp_path / "page.md"
    page.write_text("**`the disk is full of eels`** — sell them, or see `the eels have eaten row 7`.", "utf-8")
    assert quoted_messages(page) == ["the disk is full of eels", "the eels have eaten row 7"]
    assert all(map(parts_not_in_source, quoted_messages(page)))


# names

PUBLIC = runpy.run_path(str(ROOT / "scripts/api_reference.py"))


@pytest.fixture(scope="session")
def package() -> Any:
    """The installed package, parsed."""
    import griffe

    import pocketbert

    places = [str(Path(pocketbert.__file__).parents[1])]
    return griffe.load("pocketbert", search_paths=places, docstring_parser="google")


def test_the_api_reference_is_current(package: Any) -> None:
    page: Callable[..., str] = PUBLIC["page"]
    assert page(package) == (ROOT / "docs/api-reference.md").read_text("utf-8"), "run `make reference`"


def test_every_public_name_has_a_docstring(package: Any) -> None:
    silent = []
    for node in (package[name] for names in PUBLIC["public_names"](package).values() for name in names):
        inside = node.members.values() if node.is_class else ()
        own = [m for m in inside if m.is_function and not m.name.startswith("_")]
        silent += [n.path for n in (node, *own) if n.docstring is None]
    assert silent == []


@of_every_page
def test_functions_that_a_page_names_and_imports_exist(page: Path, package: Any) -> None:
    # without the package in front, `export.lengths` and `distill.0.steps` are keys of a recipe
    wings = "core|distill|export|pipeline|quantize|runtime|api"
    pattern = rf"`(?:pocketbert\.((?:{wings})\.[\w.]+)|(distill\.[a-z_]+\.\w+))[`(]"
    named = {a or b for a, b in re.findall(pattern, page.read_text("utf-8"))}
    for language, body in fences(page) if page.name != "api-reference.md" else ():
        for node in ast.walk(ast.parse(body)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("pocketbert"):
                inside = str(node.module).removeprefix("pocketbert").lstrip(".")
                named |= {f"{inside}.{a.name}".lstrip(".") for a in node.names}
    assert [name for name in sorted(named) if not has(package, name)] == []


def has(package: Any, name: str) -> bool:
    """Whether the package has such a module, class or function."""
    try:
        package[name]
    except KeyError:
        return False
    return True
