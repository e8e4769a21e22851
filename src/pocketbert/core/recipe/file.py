"""Recipes as YAML files: reading, overriding by ``key.sub=value``, and checking with the problems reported together.

1. `load_recipe` reads a file (`parse_recipe` its text): YAML within bounds, relative paths made absolute, overrides
   applied, values validated as a `Recipe`; `recipe_from_values` validates a dictionary, `parse_option_values` parses options
   like overrides,
2. `dump_recipe` writes a recipe with its defaults, `recipe_schema` returns its JSON Schema.

Errors name the line of a key and, where there is one, the nearest valid key or value or the fix.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from pocketbert.core.disk.files import find_non_unicode, read_regular
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.plugins import load_plugins
from pocketbert.core.recipe.recipe import ContradictionError, Recipe
from pocketbert.core.recipe.sections import Stage, method_names, stage_sections

_MAX_BYTES = 1 << 18
_MAX_BITS = 64
"""Size of integers: Python's are unbounded; those of every library that takes one are not."""
_MAX_DEPTH = 20
_MAX_NODES = 20_000
"""Far above any recipe; aliases of aliases can make a short file expand without end."""
LOCAL_PATH_KEYS = ("path", "vectors", "entities")
PATH_KEYS = (*LOCAL_PATH_KEYS, "model", "adapters", "dataset")
"""Keys whose values are paths; those of the last three may be names on the Hub instead."""
_ORIGIN_KEYS = ("path", "dataset", "fraction")
"""Keys of one mapping of which an override replaces the others, with everything that belonged to them."""
_LEADING_KEY = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)*): ")

_Keys = tuple[str | int, ...]


@dataclass
class _Document:
    """A parsed YAML document: plain values, with the line of every key for error messages.

    Attributes:
        title: Name of the file or option in errors.
        value: The plain values.
        lines: Line of each key; 0 for keys that an override set.
        problems: Problems found while parsing.
        nodes: Number of values so far, which is limited.
    """

    title: str
    value: Any
    lines: dict[_Keys, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    nodes: int = 0

    def where(self, keys: _Keys) -> str:
        """Return file, line and name of a key for an error message; a key without a line has that of a parent."""
        for end in range(len(keys), -1, -1):
            line = self.lines.get(keys[:end])
            if line is not None:
                place = f"{self.title}:{line}" if line else "override"
                return f"{place} {_dotted(keys)}".rstrip()
        return f"{self.title} {_dotted(keys)}".rstrip()


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read and validate a recipe file.

    Args:
        path: The YAML file. Relative paths in it start from its folder.
        overrides: Texts ``key.sub=value`` that replace values of the file. Relative paths in them start from the
            working folder.

    Returns:
        The recipe.

    Raises:
        InputError: If there is no such file or its text is not valid; see `parse_recipe`.
    """
    if not path.exists():
        raise InputError(Problem(str(path), "recipe not found.", "List the shipped ones: pocketbert recipes ls"))
    try:
        text = read_regular(path, _MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"not UTF-8: {error}.")) from error
    return parse_recipe(text, path, overrides)


def parse_recipe(text: str, path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Parse and validate the YAML text of a recipe.

    Args:
        text: The recipe's YAML text.
        path: Path of the recipe for error messages; relative paths in the text start from its folder.
        overrides: Texts ``key.sub=value`` that replace values of the text; see `load_recipe`.

    Raises:
        InputError: Listing the problems with file and line and, where there is one, the nearest valid key or the fix.
            Contradictions between sections are listed only if each value is valid by itself.
    """
    document = _parse_yaml(text, str(path))
    if document is None:
        raise InputError(Problem(str(path), "the recipe is empty."))
    if not isinstance(document.value, dict):
        raise InputError(Problem(str(path), "a recipe is a mapping of keys to values."))
    unusable = _make_paths_absolute(document.value, path.parent)
    problems = document.problems + [Problem(document.where(keys), what) for keys, what in unusable]
    for override in overrides:
        problems += _apply_override(document, override)
    recipe, invalid = _validate(document)
    problems += invalid
    if problems or recipe is None:
        raise InputError(problems)
    return recipe


def recipe_from_values(content: dict[str, Any], title: str) -> Recipe:
    """Build and validate a recipe from a dictionary instead of a file, e.g. from a command's options.

    Relative paths stay as they are.

    Raises:
        InputError: Listing the problems, as `parse_recipe` does.
    """
    recipe, problems = _validate(_Document(title, content))
    if problems or recipe is None:
        raise InputError(problems)
    return recipe


def parse_option_values(texts: Sequence[str], option: str) -> dict[str, Any]:
    """Parse the ``key=value`` texts of a command-line option, such as ``labels.0=ham``, to a nested dictionary.

    The syntax is that of recipe overrides: dots separate nested keys, and values are YAML.

    Raises:
        InputError: Listing every text that cannot be parsed.
    """
    document = _Document(option, {})
    problems = [
        Problem(option, f"{_quote(text)}: {problem.what}", problem.fix)
        for text in texts
        for problem in _apply_override(document, text)
    ]
    if problems:
        raise InputError(problems)
    return dict(document.value)


def dump_recipe(recipe: Recipe) -> str:
    """Serialize a recipe as YAML, with its defaults written out; values of None are left out."""
    content = recipe.model_dump(mode="json", by_alias=True, exclude_none=True)
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110))


def recipe_schema() -> dict[str, Any]:
    """Build the JSON Schema of the recipe format, for editors."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **Recipe.model_json_schema(by_alias=True),
        "title": "PocketBERT recipe",
    }


# --- YAML ------------------------------------------------------------


def _parse_yaml(text: str, title: str) -> _Document | None:
    """Parse a YAML text to a `_Document`; return None if the text is empty. Raises InputError if it is no usable YAML."""
    document = _Document(title, None)
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            return None
        document.value = _convert_node(node, (), document, 0)
    except RecursionError as error:
        raise InputError(_too_deep(title)) from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{title}:{mark.line + 1}" if mark else title
        what = " ".join(str(getattr(error, "problem", None) or error).split())
        raise InputError(Problem(where, f"not valid YAML: {what}.")) from error
    return document


def _convert_node(node: yaml.Node, keys: _Keys, document: _Document, depth: int) -> Any:
    """Convert a YAML node to plain values; record lines, repeated keys and invalid values in the document.

    `keys` is the path of keys to the node, `depth` how deep it is nested. Too much depth or too many values raise
    InputError.
    """
    document.lines.setdefault(keys, node.start_mark.line + 1)
    if depth > _MAX_DEPTH:
        raise InputError(_too_deep(f"{document.title}:{node.start_mark.line + 1}"))
    document.nodes += 1
    if document.nodes > _MAX_NODES:
        raise InputError(Problem(document.title, f"more than {_MAX_NODES:,} values; no recipe has."))
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in mapping:
                where = f"{document.title}:{line} {_dotted((*keys, key))}"
                document.problems.append(Problem(where, "the key occurs twice."))
            document.lines[(*keys, key)] = line
            mapping[key] = _convert_node(value_node, (*keys, key), document, depth + 1)
        return mapping
    if isinstance(node, yaml.SequenceNode):
        return [_convert_node(n, (*keys, i), document, depth + 1) for i, n in enumerate(node.value)]
    try:
        value = yaml.SafeLoader("").construct_object(node, deep=True)
        if isinstance(value, int) and value.bit_length() > _MAX_BITS:
            raise OverflowError
        return value
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError):
        # `!!int x`, `2024-13-45`, five thousand digits: the library lets Python's own errors through
        what = f"the value is not a usable {node.tag.rpartition(':')[2]!s:.40}."
        document.problems.append(Problem(document.where(keys), what))
        return None


def _too_deep(where: str) -> Problem:
    return Problem(where, f"nested more than {_MAX_DEPTH} deep; no recipe is.")


def _make_paths_absolute(value: Any, base: Path, keys: _Keys = ()) -> list[tuple[_Keys, str]]:
    """Make relative paths of local files absolute, in place and at any depth of a value; Hub names stay as they are.

    Returns:
        For each path that cannot be used, its keys and what is wrong.
    """
    problems: list[tuple[_Keys, str]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        name = str(keys[-1] if keys and isinstance(key, int) else key)  # an entry of a list has the key of the list
        if name in PATH_KEYS and isinstance(item, str):
            try:
                value[key] = _absolute_path(name, item, base)
            except (OSError, ValueError, RuntimeError) as error:  # too long, a null byte, an unknown user
                why = getattr(error, "strerror", None) or error
                problems.append(((*keys, key), f"{item[:60]!r} is not a usable path: {why}."))
        else:
            problems += _make_paths_absolute(item, base, (*keys, key))
    return problems


def _absolute_path(key: str, item: str, base: Path) -> str:
    """Return the absolute form of a local path; a Hub name, or an empty text, is returned unchanged.

    A `model`, a `dataset` or one of the `adapters` is a local path if it starts with ``.`` or ``~`` or names a folder below `base`.
    """
    path = Path(item).expanduser()
    local = key in LOCAL_PATH_KEYS or item.startswith((".", "~")) or (base / path).is_dir()
    if not local or not item:
        return item
    whole = base / path
    real = whole.resolve()  # raises for names that the system does not allow
    # a link to a file keeps its own name: the kind of a file is read from it, and its target may have none
    return str(whole.parent.resolve() / whole.name if whole.is_file() else real)


# --- overrides ------------------------------------------------------------


def _apply_override(document: _Document, override: str) -> list[Problem]:
    """Apply an override, a ``key.sub=value`` text, to a parsed recipe, in place; return the problems.

    An override of one of `_ORIGIN_KEYS` also deletes what the file says of another origin in the same mapping.
    """
    name, equals, text = override.partition("=")
    keys: _Keys = tuple(int(k) if k.isdecimal() and len(k) <= 9 else k for k in name.strip().split("."))
    where = f"override {_quote(override)}"
    if len(keys) > _MAX_DEPTH:
        return [_too_deep(where)]
    if not equals or not all(str(k) for k in keys):
        return [Problem(where, "not of the form key.sub=value.", "For example seed=3, or data.max_length=64.")]
    value, problems = _override_value(keys, text, where)
    if problems:
        return problems
    target = document.value
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
    if not isinstance(target, list | dict):  # a number or a text of an earlier override
        return [Problem(where, f"'{_dotted(keys[:-1])}' is {_quote(target)}, which has no keys.")]
    if isinstance(target, dict) and last in _ORIGIN_KEYS and any(k in target for k in _ORIGIN_KEYS if k != last):
        # another origin: columns and splits of the former one have no meaning for it, those of other overrides do
        for key in [k for k in target if document.lines.get((*keys[:-1], k)) != 0]:
            del target[key]
    target[last] = value
    for known in [k for k in document.lines if k[: len(keys)] == keys]:
        del document.lines[known]
    document.lines[keys] = 0
    return []


def _override_value(keys: _Keys, text: str, where: str) -> tuple[Any, list[Problem]]:
    """Parse the value of an override as YAML and make its paths absolute; return the value and its problems."""
    try:
        document = _parse_yaml(text, where)
        holder = {keys[-1]: document.value if document else None}
        problems = [*(p.what for p in document.problems)] if document else []
        problems += [what for _, what in _make_paths_absolute(holder, Path.cwd(), keys[:-1])]
    except InputError as error:
        return None, [Problem(where, p.what, p.fix) for p in error.problems]
    return holder[keys[-1]], [Problem(where, what) for what in problems]


# --- validation ------------------------------------------------------------


def _validate(document: _Document) -> tuple[Recipe | None, list[Problem]]:
    """Validate a parsed document as a recipe; return (recipe, []), or (None, its problems)."""
    load_plugins()  # a recipe may use the names that they register
    problems = [
        Problem(document.where(keys), "holds half of a surrogate pair, which is not Unicode text.", "Remove it.")
        for keys in find_non_unicode(document.value)
    ]
    if problems:  # pydantic does not name the key
        return None, problems
    try:
        return Recipe.model_validate(document.value), []
    except ValidationError as validation_error:
        for error in validation_error.errors(include_url=False):
            cause = error.get("ctx", {}).get("error")
            if isinstance(cause, ContradictionError):
                problems += [_contradiction_problem(text, document) for text in cause.problems]
            else:
                problems.append(_validation_problem(error, document))
    return None, problems


def _contradiction_problem(text: str, document: _Document) -> Problem:
    """Build the `Problem` for sections that contradict each other, with the line of the key that `text` may begin with."""
    match = _LEADING_KEY.match(text)
    keys = tuple(int(k) if k.isdecimal() else k for k in match[1].split(".")) if match else ()
    return Problem(document.where(keys), f"{text[match.end() :] if match else text}.")


def _validation_problem(error: Any, document: _Document) -> Problem:
    """Convert a pydantic error to a `Problem` with file and line and, for some kinds, what is allowed or the fix."""
    keys, methods = _split_location(tuple(error["loc"]))
    where = document.where(keys)
    kind, value = error["type"], error.get("input")
    if kind == "union_tag_not_found":
        return Problem(where, "required key 'method' is missing.", f"Add 'method: {method_names()[0]}'.")
    if kind == "union_tag_invalid":
        tag = error["ctx"]["tag"]
        return Problem(where, f"method {_quote(tag)} is unknown; {suggest_allowed(str(tag)[:80], method_names())}.")
    if kind == "extra_forbidden":
        allowed = _allowed_keys(keys[:-1], methods)
        return Problem(where, f"unknown key {_quote(str(keys[-1]))}; {suggest_allowed(str(keys[-1])[:80], allowed)}.")
    if kind == "missing":
        return Problem(where, f"required key '{_dotted(keys)}' is missing.", f"Add '{keys[-1]}'.")
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind in ("enum", "literal_error"):
        allowed = [w.strip("'") for w in str(error["ctx"].get("expected", "")).replace(" or ", ", ").split(", ")]
        if isinstance(value, str) and value in allowed:
            return Problem(where, f"{_quote(value)} is text, not a number.", "Write it without quotes.")
        return Problem(where, f"{_quote(str(value))} is not allowed; {suggest_allowed(str(value)[:80], allowed)}.")
    if kind == "value_error":
        return Problem(where, f"{message}.")
    if kind == "too_short" and value == []:
        return Problem(where, f"is empty; give at least {error['ctx']['min_length']}.")
    return Problem(where, f"{_quote(value)}: {message[:1].lower()}{message[1:]}.")


def _split_location(location: _Keys) -> tuple[_Keys, set[str]]:
    """Split a pydantic error's location into the file's keys, and the method names that pydantic adds between them."""
    if location[-1:] == ("[key]",):  # the key itself is wrong, not its value
        location = location[:-1]
    added = {i for i in range(2, len(location)) if location[i - 2] == "distill" and location[i] in stage_sections()}
    return tuple(k for i, k in enumerate(location) if i not in added), {str(location[i]) for i in added}


def _allowed_keys(keys: _Keys, methods: set[str]) -> list[str]:
    """Return the keys that are allowed in the section at `keys`, in a stage those of its method; empty if there is none."""
    model: Any = Recipe
    is_name = False
    for key in keys:
        if isinstance(key, int) or is_name:  # an entry of a list, or of a mapping from names
            is_name = False
            continue
        model_field = next((f for n, f in model.model_fields.items() if (f.alias or n) == key), None)
        inner = _models_in(model_field.annotation) if model_field else []
        if not inner:
            return []
        sections = [s for name, s in stage_sections().items() if name in methods] if Stage in inner else []
        model = (sections or inner)[0]
        kinds = get_args(model_field.annotation) if model_field else ()
        is_name = any(get_origin(kind) is dict for kind in kinds)
    return [f.alias or n for n, f in model.model_fields.items()]


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    """List the pydantic models inside a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _quote(value: Any) -> str:
    """Return the repr of a value, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}..."


def _dotted(keys: _Keys) -> str:
    """Join keys as ``key.sub``, cut to 120 characters."""
    text = ".".join(str(k) for k in keys)
    return text if len(text) <= 120 and text.isprintable() else f"{text[:116]!r}..."
