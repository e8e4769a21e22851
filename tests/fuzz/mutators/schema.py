"""The keys of recipes with their types and bounds, from the JSON Schema of the PocketBERT that is tested."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from fuzz.values import NUMBERS, SURROGATES, TEXTS, Keys


@dataclass(frozen=True)
class Leaf:
    """A key of a recipe.

    Attributes:
        keys: Where it is.
        kinds: The JSON Schema of each kind of value it may have.
    """

    keys: Keys
    kinds: tuple[dict[str, Any], ...]

    @property
    def types(self) -> set[str]:
        """Names of the kinds, as JSON Schema has them."""
        return {str(k.get("type", "enum" if "enum" in k or "const" in k else "object")) for k in self.kinds}


def leaves(schema: dict[str, Any]) -> list[Leaf]:
    """Every key of a recipe, those of the first distillation stage by each method included."""
    out: list[Leaf] = []
    _walk(schema, schema, (), out, 0)
    return out


def _walk(node: dict[str, Any], schema: dict[str, Any], keys: Keys, out: list[Leaf], depth: int) -> None:
    for name, inner in node.get("properties", {}).items():
        kinds = tuple(_kinds(inner, schema))
        here: Keys = (*keys, name)
        out.append(Leaf(here, kinds))
        for kind in kinds:
            if depth < 6:
                _walk(kind, schema, here, out, depth + 1)
                for item in _kinds(kind.get("items", {}), schema) if kind.get("type") == "array" else ():
                    _walk(item, schema, (*here, 0), out, depth + 1)


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
    choices: list[Any] = [float("nan"), {"zz": 1}, [[{"a": 1}]], [], "\0"]
    if types & {"integer", "number"} and not types & {"string", "array", "object", "boolean", "enum"}:
        choices += [
            "fast",
            "0x",
            "1e",
            True,
            False,
            [1],
            "yes",
            float("inf"),
            -float("inf"),
            10**400,
            *_outside(leaf),
        ]
        if "number" not in types:
            choices += [0.5, 1e-9, 1e300]
    elif types <= {"string", "null"}:
        choices = [["x"], {"a": 1}, 5, 1.5, True, [[]], float("nan")]
    elif types <= {"boolean", "null"}:
        choices = [2, -1, "maybe", [], {}, 0.5, "", [True]]
    elif types <= {"enum", "null"} or any("enum" in k or "const" in k for k in leaf.kinds):
        choices = ["nothing", "", "\0", 5, -1, [[]], {"a": 1}, 1e9, "x" * 500]
    elif types <= {"array", "null"}:
        choices = [5, "x y", {"a": "b"}, [None], [[]], [{"a": {}}], 0.5, True]
    elif types <= {"object", "null"}:
        choices = ["x", [1], 7, [[]], [{"a": 1}], True, {"zz": 1}, {"": 1}]
    return draw.choice(choices)


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
    if types & {"integer", "number"}:
        return draw.choice(NUMBERS)
    if "string" in types:
        return draw.choice([*TEXTS, *SURROGATES])
    if "boolean" in types:
        return draw.choice([True, False])
    named = [v for k in leaf.kinds for v in k.get("enum", [k["const"]] if "const" in k else [])]
    if named:
        return draw.choice(named)
    if "array" in types:
        one = draw.choice([*NUMBERS, *TEXTS])
        return draw.choice([[one], [one, one], [one] * 300, [1, 2, 3], ["a", "b"]])
    return draw.choice([{}, None])
