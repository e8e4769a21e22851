"""Recipes as YAML files: read, overridden by ``key.sub=value``, checked with all problems at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.recipe import ContradictionError, Recipe

MAX_BYTES = 1 << 20
MAX_NODES = 20_000
"""Far above any recipe; aliases of aliases can make a short file grow without end."""
_PATH_KEYS = ("path", "model", "dataset")

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
    if not path.is_file():
        raise InputError(
            Problem(str(path), "recipe not found.", "List the shipped ones: pocketbert recipes ls")
        )
    if path.stat().st_size > MAX_BYTES:
        raise InputError(Problem(str(path), f"larger than {MAX_BYTES} bytes; no recipe is."))
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"not UTF-8: {error}.")) from error
    tree = _parse(text, str(path))
    _absolute_paths(tree.value, path.parent)
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
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise InputError(Problem(title, "the recipe is empty."))
        tree = _Tree(None)
        tree.value = _build(node, (), tree, title, 0)
    except RecursionError as error:
        raise InputError(Problem(title, "nested more than 20 deep; no recipe is.")) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{title}:{mark.line + 1}" if mark else title
        raise InputError(
            Problem(where, f"not valid YAML: {getattr(error, 'problem', None) or error}.")
        ) from error
    if not isinstance(tree.value, dict):
        raise InputError(Problem(title, "a recipe is a mapping of keys to values."))
    return tree


def _build(node: yaml.Node, keys: Keys, tree: _Tree, title: str, depth: int) -> Any:
    tree.lines.setdefault(keys, node.start_mark.line + 1)
    if depth > 20:
        raise InputError(
            Problem(f"{title}:{node.start_mark.line + 1}", "nested more than 20 deep; no recipe is.")
        )
    tree.nodes += 1
    if tree.nodes > MAX_NODES:
        raise InputError(Problem(title, f"more than {MAX_NODES:,} values; no recipe has."))
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in out:
                tree.problems.append(
                    Problem(f"{title}:{line} {_dotted((*keys, key))}", "the key occurs twice.")
                )
            tree.lines[(*keys, key)] = line
            out[key] = _build(value_node, (*keys, key), tree, title, depth + 1)
        return out
    if isinstance(node, yaml.SequenceNode):
        return [_build(n, (*keys, i), tree, title, depth + 1) for i, n in enumerate(node.value)]
    return yaml.SafeLoader("").construct_object(node, deep=True)


def _absolute_paths(value: Any, base: Path) -> None:
    """Make relative local paths below `value` absolute, in place. Hub names stay as they are."""
    if isinstance(value, list):
        for item in value:
            _absolute_paths(item, base)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key in _PATH_KEYS and isinstance(item, str):
                value[key] = _absolute(key, item, base)
            else:
                _absolute_paths(item, base)


def _absolute(key: str, item: str, base: Path) -> str:
    path = Path(item).expanduser()
    local = key == "path" or item.startswith((".", "~")) or (base / path).is_dir()
    return str((base / path).resolve()) if local and item else item


def _apply(tree: _Tree, override: str) -> list[Problem]:
    name, equals, text = override.partition("=")
    keys: Keys = tuple(int(k) if k.isdecimal() else k for k in name.strip().split("."))
    where = f"override {override!r}"
    if not equals or not all(str(k) for k in keys):
        return [Problem(where, "not of the form key.sub=value.")]
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return [Problem(where, f"the value is not valid YAML: {error}.".replace("\n", " "))]
    if isinstance(value, dict | list):
        _absolute_paths(value, Path.cwd())
    elif isinstance(value, str) and keys[-1] in _PATH_KEYS:
        value = _absolute(str(keys[-1]), value, Path.cwd())
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
    target[last] = value
    for known in [k for k in tree.lines if k[: len(keys)] == keys]:
        del tree.lines[known]
    tree.lines[keys] = 0
    return []


def _validate(tree: _Tree, title: str) -> tuple[Recipe | None, list[Problem]]:
    try:
        return Recipe.model_validate(tree.value), []
    except ValidationError as error:
        return None, [p for e in error.errors(include_url=False) for p in _problems(e, tree, title)]


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
    keys: Keys = tuple(error["loc"])
    where = _where(keys, tree, title)
    kind, value = error["type"], error.get("input")
    if kind == "extra_forbidden":
        allowed = _allowed_keys(keys[:-1])
        return Problem(where, f"unknown key '{keys[-1]}'; {nearest(str(keys[-1]), allowed)}.")
    if kind == "missing":
        return Problem(where, f"required key '{_dotted(keys)}' is missing.", f"Add '{keys[-1]}'.")
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind in ("enum", "literal_error"):
        allowed = [
            w.strip("'") for w in str(error["ctx"].get("expected", "")).replace(" or ", ", ").split(", ")
        ]
        return Problem(where, f"'{value}' is not allowed; {nearest(str(value), allowed)}.")
    if kind == "value_error":
        return Problem(where, f"{message}.")
    return Problem(where, f"{value!r}: {message[:1].lower()}{message[1:]}.")


def _where(keys: Keys, tree: _Tree, title: str) -> str:
    for end in range(len(keys), -1, -1):
        line = tree.lines.get(keys[:end])
        if line is not None:
            place = f"{title}:{line}" if line else "override"
            return f"{place} {_dotted(keys)}".rstrip()
    return f"{title} {_dotted(keys)}".rstrip()


def _allowed_keys(keys: Keys) -> list[str]:
    """Keys that the model at `keys` accepts."""
    model: Any = Recipe
    for key in keys:
        if isinstance(key, int):
            continue
        found = next((f for n, f in model.model_fields.items() if (f.alias or n) == key), None)
        inner = _models(found.annotation) if found else []
        if not inner:
            return []
        model = inner[0]
    return [f.alias or n for n, f in model.model_fields.items()]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for a in get_args(annotation) for m in _models(a)]


def _dotted(keys: Keys) -> str:
    return ".".join(str(k) for k in keys)
