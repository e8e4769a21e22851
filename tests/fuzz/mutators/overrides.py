"""Overrides of a recipe on the command line."""

from __future__ import annotations

import random
from typing import Any

import yaml

from fuzz.mutation import Place, Verdict, mutator
from fuzz.mutators.recipes import known
from fuzz.mutators.schema import surprising, wrong
from fuzz.values import TEXTS, odd


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
    leaf = draw.choice([x for x in known(place) if x.keys[0] != "distill" or len(x.keys) < 3])
    value = wrong(draw, leaf)
    place.overrides.append(f"{'.'.join(map(str, leaf.keys))}={_text(value)}")
    # `""` and the like are read back as other values; a bare list or mapping may be complete
    return Verdict.ANY if value in ([], {}, "\0", "") or (isinstance(value, bool) and "enum" in leaf.types) else None


@mutator("override")
def odd_override(draw: random.Random, place: Place) -> None:
    """Keys with odd values of their kind, several at once."""
    for _ in range(draw.choice([1, 1, 2, 20])):
        leaf = draw.choice(known(place))
        value = surprising(draw, leaf) if draw.random() < 0.7 else odd(draw)
        place.overrides.append(f"{'.'.join(map(str, leaf.keys))}={_text(value)}")


@mutator("override", verdict=Verdict.BAD)
def no_override(draw: random.Random, place: Place) -> None:
    """Arguments that are no key=value, or name nothing."""
    depth = draw.choice([1, 30, 900, 5000])
    place.overrides.append(
        draw.choice(
            [
                "=",
                "x",
                "a=b",
                "=5",
                "..=1",
                "data..train=1",
                "data.=1",
                ".seed=1",
                "seed",
                "seed==",
                "name" + ".a" * depth + "=1",
                "a" + ".0" * depth + "=1",
                "distill" + ".0" * depth + "=1",
                "distill.7.steps=1",
                "distill.-1.steps=1",
                "distill.999999999999999999999.steps=1",
                "seed=" + "[" * depth,
                "seed=" + "{a: " * depth,
                "x" * 90_000 + "=1",
                "data.train.path=\x1b[2J\x07",
                "seed.a=1",
                "name.a=1",
                "Seed=1",
                "seed =[1",
                "data=5",
                "teacher=~",
                "distill=[5]",
                "distill=[{method: nothing}]",
                "\n=1",
                "é=1",
                "export.formats=[onnx,onnx]",
                "seed=&a [*a]",
            ]
        )
    )


@mutator("override", verdict=Verdict.BAD)
def truth_for_a_number(draw: random.Random, place: Place) -> None:
    """yes, on, true and the like where a number is meant."""
    numeric = [x for x in known(place) if x.types <= {"integer", "number", "null"} and x.keys[0] != "distill"]
    leaf = draw.choice(numeric)
    value = draw.choice(["yes", "true", "on", "True", "no", "off", "false"])
    place.overrides.append(f"{'.'.join(map(str, leaf.keys))}={value}")


@mutator("override", verdict=Verdict.FINE)
def right_override(draw: random.Random, place: Place) -> None:
    """Overrides as the help shows them."""
    place.overrides.append(
        draw.choice(
            [
                f"seed={draw.randrange(1 << 62)}",
                "data.max_length=16",
                "distill.0.steps=3",
                "distill.0={method: task, steps: 3}",
                "verify.max_drop=0.5",
                "description='a = b'",
                "export.lengths=[8]",
                "data.train.path=train.jsonl",
                "data.train={path: train.jsonl}",
                "seed=0x10",
                "description=" + "x" * 5000,
            ]
        )
    )


@mutator("override")
def odd_text(draw: random.Random, place: Place) -> None:
    """A key with any text."""
    leaf = draw.choice(known(place))
    text = draw.choice(TEXTS).replace("\0", "")
    place.overrides.append(f"{'.'.join(map(str, leaf.keys))}={text}")
