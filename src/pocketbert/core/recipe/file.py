"""Recipes as YAML files: read, overridden by ``key.sub=value``, checked with all problems at once."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from pocketbert.core.disk.files import find_non_unicode, read_regular
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.plugins import load_plugins
from pocketbert.core.recipe.recipe import ContradictionError, Recipe
from pocketbert.core.recipe.sections import Stage, method_names, stage_sections

MAX_BYTES = 1 << 18
MAX_BITS = 64
"""Python's whole numbers have no end; every library that takes one does."""
MAX_DEPTH = 20
MAX_NODES = 20_000
"""Far above any recipe; aliases of aliases can make a short file grow without end."""
_LOCAL_KEYS = ("path", "vectors", "entities")
_PATH_KEYS = (*_LOCAL_KEYS, "model", "dataset")

Keys = tuple[str | int, ...]


@dataclass
class _Tree:
    """A YAML document as plain values, with the line of every key."""

    value: Any
    lines: dict[Keys, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nodes: int = 0


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and check a recipe.

    Args:
        path: The YAML file. Relative paths inside it count from its folder.
        overrides: ``key.sub=value`` texts; relative paths inside them count from the working folder.

    Returns:
        The recipe.

    Raises:
        InputError: Listing every problem with file, line, nearest valid key and the fix.
    """
    if not path.exists():
        raise InputError(Problem(str(path), "recipe not found.", "List the shipped ones: pocketbert recipes ls"))
    try:
        text = read_regular(path, MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"not UTF-8: {error}.")) from error
    return recipe_from(text, path, overrides)


def recipe_from(text: str, path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Check the text of a recipe, which need not be written yet.

    Args:
        text: The YAML.
        path: Its file, for errors; relative paths in the text count from its folder.
        overrides: See `load_recipe`.

    Raises:
        InputError: See `load_recipe`.
    """
    tree = _parse(text, str(path))
    _absolute_paths(tree.value, path.parent, (), partial(_note, tree, str(path)))
    problems = list(tree.problems)
    for override in overrides:
        problems += _apply(tree, override)
    recipe, more = _validate(tree, str(path))
    problems += more
    if problems or recipe is None:
        raise InputError(problems)
    return recipe


def recipe_of(content: dict[str, Any], title: str) -> Recipe:
    """A recipe out of values that no file holds, e.g. options of a command.

    Args:
        content: Keys and values, nested as in the file.
        title: Where they come from, for errors.

    Raises:
        InputError: Listing every problem.
    """
    recipe, problems = _validate(_Tree(content), title)
    if problems or recipe is None:
        raise InputError(problems)
    return recipe


def option_values(texts: Sequence[str], option: str) -> dict[str, Any]:
    """``key=value`` texts of a command's option, read as overrides of a recipe are.

    Args:
        texts: What the user gave.
        option: Name of the option, for errors.

    Raises:
        InputError: Listing every problem.
    """
    tree = _Tree({})
    problems = [Problem(option, f"{_shown(text)}: {p.what}", p.fix) for text in texts for p in _apply(tree, text)]
    if problems:
        raise InputError(problems)
    return dict(tree.value)


def dump_recipe(recipe: Recipe) -> str:
    """The recipe with every default written out, as YAML."""
    content = recipe.model_dump(mode="json", by_alias=True, exclude_none=True)
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110))


def recipe_schema() -> dict[str, Any]:
    """JSON Schema of the recipe format, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Recipe.model_json_schema(by_alias=True),
        "title": "PocketBERT recipe",
    }


def _parse(text: str, title: str) -> _Tree:
    tree = _document(text, title)
    if tree is None:
        raise InputError(Problem(title, "the recipe is empty."))
    if not isinstance(tree.value, dict):
        raise InputError(Problem(title, "a recipe is a mapping of keys to values."))
    return tree


def _override_value(text: str, where: str) -> tuple[Any, list[Problem]]:
    """What an override sets, and what is wrong with it."""
    tree = _document(text, where)
    return (tree.value, [Problem(where, p.what, p.fix) for p in tree.problems]) if tree else (None, [])


def _document(text: str, title: str) -> _Tree | None:
    """A YAML document; None where there is nothing."""
    tree = _Tree(None)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        tree.value = _build(node, (), tree, title, 0)
    except RecursionError as error:
        raise InputError(_too_deep(title)) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{title}:{mark.line + 1}" if mark else title
        what = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(Problem(where, f"not valid YAML: {what}.")) from error
    return tree


def _too_deep(where: str) -> Problem:
    return Problem(where, f"nested more than {MAX_DEPTH} deep; no recipe is.")


def _build(node: yaml.Node, keys: Keys, tree: _Tree, title: str, depth: int) -> Any:
    tree.lines.setdefault(keys, node.start_mark.line + 1)
    if depth > MAX_DEPTH:
        raise InputError(_too_deep(f"{title}:{node.start_mark.line + 1}"))
    tree.nodes += 1
    if tree.nodes > MAX_NODES:
        raise InputError(Problem(title, f"more than {MAX_NODES:,} values; no recipe has."))
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in out:
                tree.problems.append(Problem(f"{title}:{line} {_dotted((*keys, key))}", "the key occurs twice."))
            tree.lines[(*keys, key)] = line
            out[key] = _build(value_node, (*keys, key), tree, title, depth + 1)
        return out
    if isinstance(node, yaml.SequenceNode):
        return [_build(n, (*keys, i), tree, title, depth + 1) for i, n in enumerate(node.value)]
    try:
        value = yaml.SafeLoader("").construct_object(node, deep=True)
        if isinstance(value, int) and value.bit_length() > MAX_BITS:
            raise OverflowError
        return value
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        # `!!int x`, `2024-13-45`, five thousand digits: the library lets Python's own errors through
        tree.problems.append(
            Problem(_where(keys, tree, title), f"the value is not a usable {node.tag.rpartition(':')[2]!s:.40}.")
        )
        return None


def _absolute_paths(value: Any, base: Path, keys: Keys, note: Callable[[Keys, str], None]) -> None:
    """Make relative local paths below `value` absolute, in place. Hub names stay as they are."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        if key in _PATH_KEYS and isinstance(item, str):
            try:
                value[key] = _absolute(key, item, base)
            except (
                OSError,
                ValueError,
                RuntimeError,
            ) as error:  # too long, a null byte, a user that is not there
                note(
                    (*keys, key),
                    f"{item[:60]!r} is not a usable path: {getattr(error, 'strerror', None) or error}.",
                )
        else:
            _absolute_paths(item, base, (*keys, key), note)


def _absolute(key: str, item: str, base: Path) -> str:
    path = Path(item).expanduser()
    local = key in _LOCAL_KEYS or item.startswith((".", "~")) or (base / path).is_dir()
    if not local or not item:
        return item
    whole = base / path
    real = whole.resolve()  # fails where the system takes no such name
    # a link to a file keeps its own name: the kind of a file is read from it, and what it leads to may have none
    return str(whole.parent.resolve() / whole.name if whole.is_file() else real)


def _note(tree: _Tree, title: str, keys: Keys, what: str) -> None:
    tree.problems.append(Problem(_where(keys, tree, title), what))


def _apply(tree: _Tree, override: str) -> list[Problem]:
    name, equals, text = override.partition("=")
    keys: Keys = tuple(int(k) if k.isdecimal() and len(k) <= 9 else k for k in name.strip().split("."))
    where = f"override {_shown(override)}"
    if len(keys) > MAX_DEPTH:
        return [_too_deep(where)]
    if not equals or not all(str(k) for k in keys):
        return [Problem(where, "not of the form key.sub=value.", "For example seed=3, or data.max_length=64.")]
    problems: list[Problem] = []
    try:
        value, problems = _override_value(text, where)
        holder = {keys[-1]: value}
        _absolute_paths(holder, Path.cwd(), keys[:-1], lambda _, what: problems.append(Problem(where, what)))
        value = holder[keys[-1]]
    except InputError as error:
        problems = [Problem(where, p.what, p.fix) for p in error.problems]
    if problems:
        return problems
    target = tree.value
    for key in keys[:-1]:
        if isinstance(target, list) and isinstance(key, int) and key < len(target):
            target = target[key]
        elif isinstance(target, dict) and isinstance(key, str):
            if not isinstance(target.get(key), dict | list):
                target[key] = {}
            target = target[key]
        else:
            return [Problem(where, f"the recipe has no '{_dotted(keys[:-1])}'.")]
    last = keys[-1]
    if isinstance(target, list) and not (isinstance(last, int) and last < len(target)):
        return [Problem(where, f"the recipe has no entry '{_dotted(keys)}'.")]
    if not _has_keys(target):  # a number or a text that an override before put there
        return [Problem(where, f"'{_dotted(keys[:-1])}' is {_shown(target)}, which has no keys.")]
    if isinstance(target, dict) and last in _ORIGINS and any(k in target for k in _ORIGINS if k != last):
        # another origin: columns and splits of the former one mean nothing there, what other overrides said does
        for key in [k for k in target if tree.lines.get((*keys[:-1], k)) != 0]:
            del target[key]
    target[last] = value
    for known in [k for k in tree.lines if k[: len(keys)] == keys]:
        del tree.lines[known]
    tree.lines[keys] = 0
    return []


_ORIGINS = ("path", "dataset", "fraction")
"""Keys of one mapping of which an override replaces the others, with everything that belonged to them."""


def _has_keys(value: Any) -> bool:
    return isinstance(value, list | dict)


def _validate(tree: _Tree, title: str) -> tuple[Recipe | None, list[Problem]]:
    load_plugins()  # a recipe may use the names that they register
    strange = [_not_unicode(keys, tree, title) for keys in find_non_unicode(tree.value)]
    if strange:  # pydantic does not name the key
        return None, strange
    try:
        return Recipe.model_validate(tree.value), []
    except ValidationError as error:
        return None, [p for e in error.errors(include_url=False) for p in _problems(e, tree, title)]


def _not_unicode(keys: Keys, tree: _Tree, title: str) -> Problem:
    return Problem(
        _where(keys, tree, title), "holds half of a surrogate pair, which is not Unicode text.", "Remove it."
    )


def _problems(error: Any, tree: _Tree, title: str) -> list[Problem]:
    cause = error.get("ctx", {}).get("error")
    if not isinstance(cause, ContradictionError):
        return [_problem(error, tree, title)]
    out = []
    for text in cause.problems:  # those that begin with a key belong to its line
        named = _KEY.match(text)
        keys = tuple(int(k) if k.isdecimal() else k for k in named[1].split(".")) if named else ()
        out.append(Problem(_where(keys, tree, title), f"{text[named.end() :] if named else text}."))
    return out


_KEY = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)*): ")


def _problem(error: Any, tree: _Tree, title: str) -> Problem:
    keys, tags = _untagged(tuple(error["loc"]))
    where = _where(keys, tree, title)
    kind, value = error["type"], error.get("input")
    if kind == "union_tag_not_found":
        return Problem(where, "required key 'method' is missing.", f"Add 'method: {method_names()[0]}'.")
    if kind == "union_tag_invalid":
        return Problem(
            where,
            f"method {_shown(error['ctx']['tag'])} is unknown; {nearest(str(error['ctx']['tag'])[:80], method_names())}.",
        )
    if kind == "extra_forbidden":
        allowed = _allowed_keys(keys[:-1], tags)
        return Problem(where, f"unknown key {_shown(str(keys[-1]))}; {nearest(str(keys[-1])[:80], allowed)}.")
    if kind == "missing":
        return Problem(where, f"required key '{_dotted(keys)}' is missing.", f"Add '{keys[-1]}'.")
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind in ("enum", "literal_error"):
        allowed = [w.strip("'") for w in str(error["ctx"].get("expected", "")).replace(" or ", ", ").split(", ")]
        if isinstance(value, str) and value in allowed:
            return Problem(where, f"{_shown(value)} is text, not a number.", "Write it without quotes.")
        return Problem(where, f"{_shown(str(value))} is not allowed; {nearest(str(value)[:80], allowed)}.")
    if kind == "value_error":
        return Problem(where, f"{message}.")
    if kind == "too_short" and value == []:
        return Problem(where, f"is empty; give at least {error['ctx']['min_length']}.")
    return Problem(where, f"{_shown(value)}: {message[:1].lower()}{message[1:]}.")


def _shown(value: Any) -> str:
    """A value on one line, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}..."


def _where(keys: Keys, tree: _Tree, title: str) -> str:
    for end in range(len(keys), -1, -1):
        line = tree.lines.get(keys[:end])
        if line is not None:
            place = f"{title}:{line}" if line else "override"
            return f"{place} {_dotted(keys)}".rstrip()
    return f"{title} {_dotted(keys)}".rstrip()


def _untagged(loc: Keys) -> tuple[Keys, set[str]]:
    """Keys as they stand in the file: pydantic puts the method of a stage behind its number."""
    tags = {i for i in range(2, len(loc)) if loc[i - 2] == "distill" and loc[i] in stage_sections()}
    return tuple(k for i, k in enumerate(loc) if i not in tags), {str(loc[i]) for i in tags}


def _allowed_keys(keys: Keys, tags: set[str]) -> list[str]:
    """Keys that the model at `keys` accepts; of models with a method, the one of these tags."""
    model: Any = Recipe
    for key in keys:
        if isinstance(key, int):
            continue
        found = next((f for n, f in model.model_fields.items() if (f.alias or n) == key), None)
        inner = _models(found.annotation) if found else []
        if not inner:
            return []
        fitting = [s for name, s in stage_sections().items() if name in tags] if Stage in inner else []
        model = (fitting or inner)[0]
    return [f.alias or n for n, f in model.model_fields.items()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]


def _dotted(keys: Keys) -> str:
    text = ".".join(str(k) for k in keys)
    return text if len(text) <= 120 and text.isprintable() else f"{text[:116]!r}..."
