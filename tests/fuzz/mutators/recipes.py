"""Recipes and overrides: keys of the schema with wrong and with odd values; broken YAML is in `damage`."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import yaml

from fuzz.files import read_plain
from fuzz.mutation import Place, Verdict, mutator
from fuzz.mutators.schema import Leaf, leaves, surprising, wrong
from fuzz.values import TEXTS, changed, odd, put

SCHEMA = "recipe.schema.json"
"""In the working folder: what `recipes schema` of the tested PocketBERT prints."""


@cache
def _known(text: str) -> list[Leaf]:
    return leaves(json.loads(text))


def known(place: Place) -> list[Leaf]:
    """The keys of recipes."""
    return _known(read_plain(place.here / SCHEMA).decode())


def simple(place: Place) -> list[Leaf]:
    """The keys without those of single stages."""
    return [leaf for leaf in known(place) if leaf.keys[0] != "distill" or len(leaf.keys) < 3]


def read(place: Place) -> Any:
    return yaml.safe_load(read_plain(place.recipe).decode())


def write(place: Place, content: Any) -> None:
    """Write a recipe; text that YAML cannot hold is left escaped."""
    text = yaml.safe_dump(content, sort_keys=False)
    place.recipe.write_text(text, encoding="utf-8", errors="surrogatepass")


@mutator("recipe", verdict=Verdict.BAD)
def wrong_value(draw: random.Random, place: Place) -> Verdict | None:
    """A key of the schema with a value that it cannot have."""
    content, leaf = read(place), draw.choice(simple(place))
    value = wrong(draw, leaf)
    put(content, leaf.keys, value)
    write(place, content)
    return Verdict.ANY if value in ([], {}) or (isinstance(value, bool) and "enum" in leaf.types) else None


@mutator("recipe")
def odd_value(draw: random.Random, place: Place) -> None:
    """Keys of the schema with values of their kind."""
    content = read(place)
    for _ in range(draw.choice([1, 1, 2, 5])):
        leaf = draw.choice(known(place))
        try:
            put(content, leaf.keys, surprising(draw, leaf))
        except (TypeError, KeyError, IndexError):
            continue
    write(place, content)


@mutator("recipe")
def changed_tree(draw: random.Random, place: Place) -> None:
    content = read(place)
    for _ in range(draw.choice([1, 1, 3])):
        content = changed(draw, content)
    write(place, content)


@mutator("recipe", verdict=Verdict.FINE)
def other_spelling(draw: random.Random, place: Place) -> None:
    """The same recipe in another form of YAML."""
    content, text = read(place), read_plain(place.recipe).decode()
    dumped = [{"default_flow_style": True}, {"sort_keys": True}, {"width": 20}]
    around = ["# comment\n" + text, "---\n" + text, "\ufeff" + text, text.replace("\n", "\r\n"), text + "\n\n\n"]
    as_json = [json.dumps(content), json.dumps(content, indent=2)]
    spelt = [*as_json, *(yaml.safe_dump(content, **how) for how in dumped), *around]  # type: ignore[call-overload]
    made = draw.choice([*spelt, text + "description: 'é \u4e2d'\n"])
    place.recipe.write_text(made, encoding="utf-8", newline="")


@mutator("recipe", verdict=Verdict.FINE)
def right_values(draw: random.Random, place: Place) -> None:
    """Keys with values that the reference allows."""
    content = read(place)
    for _ in range(draw.randint(1, 3)):
        keys, value = draw.choice(
            [
                ("seed", draw.randrange(1 << 62)),
                ("description", "A sentence: with 'quotes' and é."),
                ("data max_length", draw.randint(4, 64)),
                ("distill 0 steps", draw.randint(1, 10**6)),
                ("distill 0 batch", draw.randint(1, 512)),
                ("distill 0 lr", draw.choice([1e-5, 0.1, 1e-3])),
                ("verify max_drop", draw.choice([0, 0.0, 1, 0.5])),
                ("export lengths", [8, 16]),
                ("export opset", draw.choice([18, 19, 20])),
                ("quantize scheme", "int8"),
                ("name", "a" * 64),
                ("student layers", 2),
            ]
        )
        put(content, tuple(0 if key == "0" else key for key in keys.split()), value)
    write(place, content)


# overrides on the command line


def _override(place: Place, leaf: Leaf, text: str) -> None:
    place.overrides.append(f"{'.'.join(map(str, leaf.keys))}={text}")


def _text(value: Any) -> str:
    """A value as YAML on one line, without what a command line cannot hold."""
    try:
        made = yaml.safe_dump(value, default_flow_style=True, width=10**9, allow_unicode=True).removesuffix("...\n")
        made.encode()
    except (UnicodeError, yaml.YAMLError):
        made = "x"
    return made.replace("\0", "\\0").strip("\n")[:100_000]


@mutator("override", verdict=Verdict.BAD)
def wrong_override(draw: random.Random, place: Place) -> Verdict | None:
    """A key with a value that it cannot have."""
    leaf = draw.choice(simple(place))
    value = wrong(draw, leaf)
    _override(place, leaf, _text(value))
    # `""` and the like are read back as other values; a bare list or mapping may be complete
    return Verdict.ANY if value in ([], {}, "\0", "") or (isinstance(value, bool) and "enum" in leaf.types) else None


@mutator("override")
def odd_override(draw: random.Random, place: Place) -> None:
    """Keys with odd values of their kind, several at once."""
    for _ in range(draw.choice([1, 1, 2, 20])):
        leaf = draw.choice(known(place))
        _override(place, leaf, _text(surprising(draw, leaf) if draw.random() < 0.7 else odd(draw)))


@mutator("override", verdict=Verdict.BAD)
def no_override(draw: random.Random, place: Place) -> None:
    """Arguments that are no key=value, or name nothing."""
    depth = draw.choice([1, 30, 900, 5000])
    arguments = [
        *("=", "x", "a=b", "=5", "..=1", "data..train=1", "data.=1", ".seed=1", "seed", "seed==", "\n=1", "é=1"),
        *("name" + ".a" * depth + "=1", "a" + ".0" * depth + "=1", "distill" + ".0" * depth + "=1"),
        *("distill.7.steps=1", "distill.-1.steps=1", "distill.999999999999999999999.steps=1", "x" * 90_000 + "=1"),
        *("seed=" + "[" * depth, "seed=" + "{a: " * depth, "data.train.path=\x1b[2J\x07", "seed.a=1", "name.a=1"),
        *("Seed=1", "seed =[1", "data=5", "teacher=~", "distill=[5]", "distill=[{method: nothing}]"),
        *("export.formats=[onnx,onnx]", "seed=&a [*a]"),
    ]
    place.overrides.append(draw.choice(arguments))


@mutator("override", verdict=Verdict.BAD)
def truth_for_a_number(draw: random.Random, place: Place) -> None:
    """yes, on, true and the like where a number is meant."""
    numeric = [x for x in known(place) if x.types <= {"integer", "number", "null"} and x.keys[0] != "distill"]
    _override(place, draw.choice(numeric), draw.choice(["yes", "true", "on", "True", "no", "off", "false"]))


@mutator("override", verdict=Verdict.FINE)
def right_override(draw: random.Random, place: Place) -> None:
    """Overrides as the help shows them."""
    good = [
        *("data.max_length=16", "distill.0.steps=3", "distill.0={method: task, steps: 3}", "verify.max_drop=0.5"),
        *("description='a = b'", "export.lengths=[8]", "data.train.path=train.jsonl", "data.train={path: train.jsonl}"),
        *("seed=0x10", "description=" + "x" * 5000, f"seed={draw.randrange(1 << 62)}"),
    ]
    place.overrides.append(draw.choice(good))


@mutator("override")
def odd_text(draw: random.Random, place: Place) -> None:
    _override(place, draw.choice(known(place)), draw.choice(TEXTS).replace("\0", ""))
