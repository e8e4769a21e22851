"""The keys of recipes with their types and bounds, from the JSON Schema of the PocketBERT that is tested."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from fuzz.values import INFINITE, NAN, NUMBERS, SURROGATES, TEXTS, Keys

WRONG: dict[str, list[Any]] = {
    "string": [["x"], {"a": 1}, 5, 1.5, True, [[]], NAN],
    "boolean": [2, -1, "maybe", [], {}, 0.5, "", [True]],
    "enum": ["nothing", "", "\0", 5, -1, [[]], {"a": 1}, 1e9, "x" * 500],
    "array": [5, "x y", {"a": "b"}, [None], [[]], [{"a": {}}], 0.5, True],
    "object": ["x", [1], 7, [[]], [{"a": 1}], True, {"zz": 1}, {"": 1}],
}
"""Values that a key of one kind cannot have."""
NO_KEY: list[Any] = [NAN, {"zz": 1}, [[{"a": 1}]], [], "\0"]
NO_NUMBER: list[Any] = ["fast", "0x", "1e", True, False, [1], "yes", INFINITE, -INFINITE, 10**400]


@dataclass(frozen=True)
class Leaf:
    """A key of a recipe: where it is, and the JSON Schema of each kind of value it may have."""

    keys: Keys
    kinds: tuple[dict[str, Any], ...]

    @property
    def types(self) -> set[str]:
        """Names of the kinds, as JSON Schema has them."""
        return {str(k.get("type", "enum" if "enum" in k or "const" in k else "object")) for k in self.kinds}


def leaves(schema: dict[str, Any]) -> list[Leaf]:
    """Every key of a recipe, those of the first distillation stage by each method included."""
    out: list[Leaf] = []

    def walk(node: dict[str, Any], keys: Keys, depth: int) -> None:
        for name, inner in node.get("properties", {}).items():
            here: Keys = (*keys, name)
            kinds = tuple(_kinds(inner, schema))
            out.append(Leaf(here, kinds))
            for kind in kinds if depth < 6 else ():
                walk(kind, here, depth + 1)
                for item in _kinds(kind.get("items", {}), schema) if kind.get("type") == "array" else ():
                    walk(item, (*here, 0), depth + 1)

    walk(schema, (), 0)
    return out


def _kinds(node: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    if "$ref" in node:
        target: Any = schema
        for part in str(node["$ref"]).removeprefix("#/").split("/"):
            target = target[part]
        return _kinds(target, schema)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in node:
            return [k for inner in node[several] for k in _kinds(inner, schema)]
    return [node]


def wrong(draw: random.Random, leaf: Leaf) -> Any:
    """A value that the key cannot have."""
    types = leaf.types
    if types & {"integer", "number"} and not types & {"string", "array", "object", "boolean", "enum"}:
        fractions = [] if "number" in types else [0.5, 1e-9, 1e300]
        return draw.choice([*NO_KEY, *NO_NUMBER, *_outside(leaf), *fractions])
    named = any("enum" in k or "const" in k for k in leaf.kinds)
    for kind, values in WRONG.items():
        if types <= {kind, "null"} or (kind == "enum" and named):
            return draw.choice(values)
    return draw.choice(NO_KEY)


def _outside(leaf: Leaf) -> list[Any]:
    """Numbers beyond the bounds of a key."""
    out: list[Any] = []
    for kind in leaf.kinds:
        low, above = kind.get("minimum"), kind.get("exclusiveMinimum")
        high, below = kind.get("maximum"), kind.get("exclusiveMaximum")
        out += [low - 1, low - 10**6] if low is not None else []
        out += [above, above - 1] if above is not None else []
        out += [high + 1, high * 2 + 10**6] if high is not None else []
        out += [below, below + 1] if below is not None else []
    return out


def surprising(draw: random.Random, leaf: Leaf) -> Any:
    """A value of the right kind that may be wrong for another reason."""
    types = leaf.types
    named = [v for k in leaf.kinds for v in k.get("enum", [k["const"]] if "const" in k else [])]
    one = draw.choice([*NUMBERS, *TEXTS])
    for fits, values in (
        (types & {"integer", "number"}, NUMBERS),
        ("string" in types, [*TEXTS, *SURROGATES]),
        ("boolean" in types, [True, False]),
        (named, named),
        ("array" in types, [[one], [one, one], [one] * 300, [1, 2, 3], ["a", "b"]]),
    ):
        if fits:
            return draw.choice(values)
    return draw.choice([{}, None])
