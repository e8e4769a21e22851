"""Odd values, and changes of trees of values as JSON and YAML hold them."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping, Sequence
from typing import Any

Keys = tuple[str | int, ...]
NAN, INFINITE = float("nan"), float("inf")
NUMBERS: list[Any] = [
    *(0, -1, 1, 2, -5, 7, 10**3, 10**6, 10**9, 2**31, 2**32, 2**63, 10**40, -(2**63)),
    *(0.5, -0.0, 1e-300, 1e300, -1e300, 1e38, 3.5, NAN, INFINITE, -INFINITE),
]
TEXTS: list[str] = [
    *("", " ", "\n", "\0", "\t", "x", "0", "-1", "nan", "null", "true", "\x1b[2J\x1b[31m", "a\nalarm\t0.99"),
    *("\u202egnp.txt", "\u200b", "é" * 300, "x" * 5000, "x " * 40_000, "../" * 30 + "etc/passwd", "/dev/zero", "a/b"),
    *("~", "~nobody/x", "%s%n", "{0}", "$(id)", "`id`", "😀" * 50, "\u0301" * 200, "lamp"),
]
SURROGATES = ["\ud800", "a\udfffb", "\udcff"]


def one_pair(draw: random.Random, table: Mapping[str, Sequence[Any]]) -> tuple[str, Any]:
    """A key of a table and one of its values; each value is as likely."""
    return draw.choice([(key, value) for key, values in table.items() for value in values])


def odd(draw: random.Random) -> Any:
    """A value of any kind that is rarely meant."""
    kind = draw.randrange(8)
    if kind == 5:
        return nested(draw, draw.choice([1, 2, 30]))
    if kind > 5:
        return draw.choice(
            [None, True, False, [], {}, [[]], [None], {"": None}, [0] * 1000, ["a"] * 3, {"a": {"b": 1}}]
        )
    return draw.choice(NUMBERS if kind < 2 else TEXTS if kind < 4 else SURROGATES)


def nested(draw: random.Random, depth: int) -> Any:
    """A value within lists and mappings."""
    value: Any = draw.choice(NUMBERS[:8])
    for _ in range(depth):
        value = [value] if draw.random() < 0.5 else {"a": value}
    return value


def places(tree: Any, keys: Keys = ()) -> list[Keys]:
    """Keys of every value below the top."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    return [found for k, v in items for found in ((*keys, k), *places(v, (*keys, k)))]


def at(tree: Any, keys: Keys) -> Any:
    """The value under some keys."""
    for key in keys:
        tree = tree[key]
    return tree


def put(tree: Any, keys: Keys, value: Any) -> None:
    """Replace the value under some keys; mappings that are missing are made."""
    for key in keys[:-1]:
        tree = tree.setdefault(key, {}) if isinstance(tree, dict) else tree[key]
    tree[keys[-1]] = value


def changed(draw: random.Random, tree: Any) -> Any:
    """A copy of a tree with one change: a value replaced, lost, doubled, wrapped, swapped or moved a little."""
    tree = copy.deepcopy(tree)
    known = places(tree)
    if not known or draw.random() < 0.02:
        return odd(draw)
    depth = draw.choice(sorted({len(k) for k in known}))  # the few values near the top as often as the many below
    keys = draw.choice([k for k in known if len(k) == depth])
    holder, last, value = at(tree, keys[:-1]), keys[-1], at(tree, keys)
    way = draw.randrange(10)
    if way < 4:
        holder[last] = odd(draw)
    elif way < 6:
        holder[last] = near(draw, value)
    elif way == 6:
        del holder[last]
    elif way == 7:
        holder[last] = draw.choice([[value], {"a": value}, [value, value], str(value)])
    elif way == 8:
        holder[last] = copy.deepcopy(at(tree, draw.choice(known)))
    elif isinstance(holder, dict):
        holder[draw.choice(["", "x", f"{last}s", str(last).upper(), "0", "__proto__"])] = copy.deepcopy(value)
    else:
        holder.extend([copy.deepcopy(value)] * draw.choice([1, 1000]))
    return tree


def near(draw: random.Random, value: Any) -> Any:
    """A value of the same kind that is a little or much off."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return draw.choice([value + 1, value - 1, -value, value * 2, value * 1000, 10**9, float(value), str(value)])
    if isinstance(value, float):
        return draw.choice([-value, value * 1e6, value + 1e-3, value * 2, 1e308, NAN, int(value), str(value)])
    if isinstance(value, str):
        cut = draw.randrange(len(value) + 1)
        longer = value[:cut] + draw.choice(TEXTS) + value[cut:]
        return draw.choice([value[:cut], value.upper(), value + " ", longer, value * 50])
    if isinstance(value, list):
        return draw.choice([value[::-1], value[:1], value[1:], value * 2, [*value, None], [value]])
    if isinstance(value, dict):
        names = draw.sample(list(value), draw.randrange(len(value) + 1))
        return {k: value[k] for k in names}
    return odd(draw)
