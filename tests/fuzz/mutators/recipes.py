"""Recipes: keys of the schema with wrong and with odd values, and YAML itself."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from fuzz.mutation import Place, Verdict, mutator
from fuzz.mutators.schema import Leaf, leaves, surprising, wrong
from fuzz.plain import read_plain
from fuzz.values import changed, put

SCHEMA = "recipe.schema.json"
"""In the working folder: what `recipes schema` of the tested PocketBERT prints."""


@cache
def _known(text: str) -> list[Leaf]:
    return leaves(json.loads(text))


def known(place: Place) -> list[Leaf]:
    """The keys of recipes."""
    return _known(read_plain(place.here / SCHEMA).decode())


def read(path: Path) -> Any:
    """The recipe as values."""
    return yaml.safe_load(read_plain(path).decode())


def write(path: Path, content: Any) -> None:
    """Write a recipe; text that YAML cannot hold is left escaped."""
    path.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8", errors="surrogatepass")


@mutator("recipe", verdict=Verdict.BAD)
def wrong_value(draw: random.Random, place: Place) -> Verdict | None:
    """A key of the schema with a value that it cannot have."""
    content = read(place.recipe)
    leaf = draw.choice([x for x in known(place) if x.keys[0] != "distill" or len(x.keys) < 3])
    value = wrong(draw, leaf)
    put(content, leaf.keys, value)
    write(place.recipe, content)
    return Verdict.ANY if value in ([], {}) or (isinstance(value, bool) and "enum" in leaf.types) else None


@mutator("recipe")
def odd_value(draw: random.Random, place: Place) -> None:
    """Keys of the schema with values of their kind."""
    content = read(place.recipe)
    for _ in range(draw.choice([1, 1, 2, 5])):
        leaf = draw.choice(known(place))
        try:
            put(content, leaf.keys, surprising(draw, leaf))
        except (TypeError, KeyError, IndexError):
            continue
    write(place.recipe, content)


@mutator("recipe")
def changed_tree(draw: random.Random, place: Place) -> None:
    """Values replaced, lost, doubled, wrapped or swapped."""
    content = read(place.recipe)
    for _ in range(draw.choice([1, 1, 3])):
        content = changed(draw, content)
    write(place.recipe, content)


@mutator("recipe", verdict=Verdict.BAD)
def unknown_keys(draw: random.Random, place: Place) -> None:
    """Keys that no section has: one, or thousands of them."""
    content = read(place.recipe)
    count = draw.choice([1, 50, 3000])
    key = draw.choice(["steps", "x" * 300, "a.b", "\x1b[2J", "é", "Name"])
    for i in range(count):
        content[f"{key}{i}"] = i
    write(place.recipe, content)


@mutator("recipe", verdict=Verdict.BAD)
def broken_yaml(draw: random.Random, place: Place) -> None:
    """Text that is no YAML, or YAML that is no recipe."""
    text = read_plain(place.recipe).decode()
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(f'*{chr(97 + i)}' for _ in range(9))}]\n" for i in range(9)
    )
    place.recipe.write_bytes(
        draw.choice(
            [
                b"",
                b"\0",
                b"[]",
                b"5",
                b"- a\n- b\n",
                b"\xff\xfe" + text.encode("utf-16-le"),
                text.encode() + b"\xff",
                (text + "\n\t- x").encode(),
                (text + "name: again\n").encode(),
                bomb.encode() + text.encode(),
                b"[" * 100_000,
                (text + "x: !!python/object/apply:os.system ['touch owned']\n").encode(),
                (text + "x: " + "{a: " * 60 + "1" + "}" * 60).encode(),
                b"%YAML 9.9\n---\n" + text.encode(),
                text.encode().replace(b":", b"", 3),
                b"---\n" * 500 + text.encode(),
                (text + "description: '" + "x" * 300_000 + "'\n").encode(),
                (text + "? " * 2000 + "\n").encode(),
                b"name: [\n" * 3000,
            ]
        )
    )


@mutator("recipe", verdict=Verdict.BAD, verbs=["check", "dry-run"])
def wrong_paths(draw: random.Random, place: Place) -> None:
    """Data and models that are devices, folders, or nowhere."""
    content = read(place.recipe)
    bad = [
        "/dev/zero",
        "/dev/stdin",
        "/proc/self/mem",
        "/proc/kmsg",
        "/",
        ".",
        "nowhere.jsonl",
        "x" * 5000,
        "a\0b",
        "~nobodyatall/x.jsonl",
        "/dev/full",
        "rows",
        "",
        "\ud800.jsonl",
    ]
    key = draw.choice([("data", "train", "path"), ("data", "eval", "path")])
    put(content, key, draw.choice(bad))
    write(place.recipe, content)


@mutator("recipe", verdict=Verdict.FINE)
def other_spelling(draw: random.Random, place: Place) -> None:
    """The same recipe in another form of YAML."""
    content = read(place.recipe)
    text = read_plain(place.recipe).decode()
    place.recipe.write_text(
        draw.choice(
            [
                json.dumps(content),
                json.dumps(content, indent=2),
                yaml.safe_dump(content, default_flow_style=True),
                "# comment\n" + text,
                "---\n" + text,
                "\ufeff" + text,
                text.replace("\n", "\r\n"),
                yaml.safe_dump(content, sort_keys=True),
                yaml.safe_dump(content, width=20),
                text + "\n\n\n",
                text + "description: 'é \u4e2d'\n",
            ]
        ),
        encoding="utf-8",
        newline="",
    )


@mutator("recipe", verdict=Verdict.FINE)
def right_values(draw: random.Random, place: Place) -> None:
    """Keys with values that the reference allows."""
    content = read(place.recipe)
    for _ in range(draw.randint(1, 3)):
        keys, value = draw.choice(
            [
                (("seed",), draw.randrange(1 << 62)),
                (("description",), "A sentence: with 'quotes' and é."),
                (("data", "max_length"), draw.randint(4, 64)),
                (("distill", 0, "steps"), draw.randint(1, 10**6)),
                (("distill", 0, "batch"), draw.randint(1, 512)),
                (("distill", 0, "lr"), draw.choice([1e-5, 0.1, 1e-3])),
                (("verify", "max_drop"), draw.choice([0, 0.0, 1, 0.5])),
                (("export", "lengths"), [8, 16]),
                (("export", "opset"), draw.choice([18, 19, 20])),
                (("quantize", "scheme"), "int8"),
                (("name",), "a" * 64),
                (("student", "layers"), 2),
            ]
        )
        put(content, keys, value)
    write(place.recipe, content)
