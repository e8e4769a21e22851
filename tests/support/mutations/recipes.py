"""Recipes that are wrong: types, keys, numbers, YAML itself, paths."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import yaml

from support.mutations.maker import Damage, contents, maker, one_of

KIND = "recipe"
WRONG: dict[type, list[Any]] = {
    str: [12, 1.5, [1], {"a": 1}, True, ["x", "y"]],
    int: ["fast", [], {"a": 1}, -1, 1.5, float("nan"), float("inf"), "1_0x", [3], -(10**40)],
    float: ["quick", [], {"a": 1}, -1.0, float("nan"), float("inf"), -(10**400), [0.5]],
    list: [5, "x y", {"a": "b"}, [None], [[]], [{"a": {}}]],
    dict: ["x", [1], 7, [[]], [{"a": 1}], True],
}
HUGE = "9" * 5000


def leaves(value: Any, keys: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """Keys and value of everything in a recipe."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [x for k, v in items for x in (((*keys, k), v), *leaves(v, (*keys, k)))]


def section_of(content: Any, keys: tuple[str | int, ...]) -> Any:
    """What holds the last of some keys."""
    for key in keys[:-1]:
        content = content[key]
    return content


def values(harmless: tuple[str, ...] = ()) -> Callable[[Callable[[random.Random, Any], None]], Damage]:
    """Register a change of the recipe's values."""

    def register(change: Callable[[random.Random, Any], None]) -> Damage:
        @wraps(change)
        def damage(draw: random.Random, path: Path) -> None:
            content = yaml.safe_load(path.read_text())
            change(draw, content)
            path.write_text(yaml.safe_dump(content, sort_keys=False))

        return maker(KIND, harmless)(damage)

    return register


def lines(listed: Callable[[random.Random], Any]) -> Damage:
    """Register lines that stand between two top-level sections."""

    @wraps(listed)
    def damage(draw: random.Random, path: Path) -> None:
        new = one_of(draw, listed(draw))
        text = path.read_text().splitlines()
        text.insert(draw.choice([i for i, line in enumerate(text) if line[:1].isalpha()]), new)
        path.write_text("\n".join(text) + "\n")

    return maker(KIND)(damage)


@values()
def wrong_type(draw: random.Random, content: Any) -> None:
    keys, value = draw.choice(leaves(content))
    section_of(content, keys)[keys[-1]] = draw.choice(WRONG[type(value)])


@values()
def unknown_key(draw: random.Random, content: Any) -> None:
    sections = [content, *(v for _, v in leaves(content) if isinstance(v, dict))]
    keys = ["lerning_rate", "Steps", "", "seed ", "__class__", "$ref", "0", "data.train", "é" * 50, "x" * 9000]
    key = draw.choice(keys)
    draw.choice(sections)[key] = draw.choice([1, "x", None, []])


@values()
def lost_key(draw: random.Random, content: Any) -> None:
    top: list[tuple[str | int, ...]] = [("schema",), ("name",), ("task",), ("teacher",), ("distill",)]
    inner = [("teacher", "model"), ("teacher", "finetune", "steps"), ("student", "layers")]
    keys = draw.choice([*top, *inner, ("distill", 0, "method"), ("data", "train", "path")])
    del section_of(content, keys)[keys[-1]]


@contents(KIND)
def huge_number(draw: random.Random, raw: bytes) -> str:
    key, value = draw.choice(
        [
            *(("seed", HUGE), ("seed", f"-{HUGE}"), ("seed", "0x" + "f" * 9000), ("schema", HUGE)),
            *(("schema", "1e999"), ("seed", "1e400"), ("seed", f"1.{HUGE}e{HUGE}"), ("task", HUGE), ("name", HUGE)),
            ("description", "1.0e-999999999999"),
        ]
    )
    kept = [line for line in raw.decode().splitlines() if not line.startswith(f"{key}:")]
    return "\n".join([f"{key}: {value}", *kept])


@lines
def deep_nesting(draw: random.Random) -> str:
    depth = draw.choice([25, 200, 1500, 20_000, 200_000])
    opening, closing = draw.choice([("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("!!seq [", "]")])
    return f"deep: {opening * depth}1{closing * depth}" if closing else f"deep:\n  {opening * depth}1"


@lines
def aliases(draw: random.Random) -> list[str]:
    bomb = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, draw.randint(9, 30)))
    keys = ", ".join(f"*k{i} : 1" for i in range(3))
    return [
        *("a0: &a0 [x]\n" + bomb, "self: &self [*self]", "self: &self {a: *self, b: *self}", "lost: *nowhere"),
        *("twice: [&a 1, &a 2, *a]\nmore: *b", f"m: &m {{a: 1}}\nn: {{<<: *m, {keys}}}", "? &k {a: 1}\n: *k"),
        "seed2: &s 3\nmerged:\n  <<: [*s, *s]",
    ]


@contents(KIND)
def foreign_bytes(draw: random.Random, raw: bytes) -> list[bytes]:
    at, text = draw.randrange(len(raw)), raw.decode()
    start = [raw[:at] + odd + raw[at:] for odd in (b"\0", b"\xff\xfe", b"\x07")]
    whole = [text.encode("utf-16"), text.encode("utf-32"), raw[:at] + "description: für\n".encode("latin-1")]
    surrogate, escape = (raw[:at] + odd + raw[at:] for odd in (b"\xed\xa0\x80", b"\x1b[2J"))
    return [*start, *whole, raw + b"\x00" * 4096, surrogate, draw.randbytes(2000), escape]


@lines
def bad_yaml(draw: random.Random) -> list[str]:
    return [
        *("\tseed: 1", "a: b: c", "- item", "seed: [1, 2", "x: 'open", 'x: "\\q"', "%YAML 9.9", "a: {b: 1"),
        *("? a\n? b", "key\nkey2", "@at", "x: `tick", "x: >5000\n y", "---\nsecond: document", "...", "x: |99\n  y"),
        *("&a &b x: 1", "!<tag:yaml.org,2002:seq> x", "]", "}", ": : :"),
    ]


@lines
def odd_scalars(draw: random.Random) -> str:
    value = draw.choice(
        [
            *("!!int x", "!!int ''", "0x_", "0b_", "0b", "!!float x", "!!bool perhaps", "!!timestamp 2024-99-99"),
            *("2024-13-45", "2024-01-01T99:99:99Z", "!!binary '*'", "!!python/object/apply:os.system ['touch owned']"),
            *("!!python/name:os.system", "!custom x", "!!set {a, b}", "!!omap [a: 1]", "!!null x", "!!str [1]"),
            *("!!seq x", "!!map x", "99:99:99", "1" + ":59" * 3000, "_", "0o99", '"\\uD800"', '"\\0"'),
            "!!pairs [a: 1]",
            *("._", "-.inf"),
        ]
    )
    return f"{draw.choice(['odd', 'seed', 'holdout'])}: {value}"


@contents(KIND)
def odd_known_values(draw: random.Random, raw: bytes) -> str:
    """Scalars that YAML cannot build, where a key is expected."""
    scalars = ["!!int x", "!!float x", "2024-13-45", "0b_", "!!bool perhaps", HUGE, "!!timestamp x", "0x_"]
    value = draw.choice([*scalars, "!!binary x", "99" + ":59" * 3000])
    text = raw.decode().splitlines()
    text[next(i for i, line in enumerate(text) if line.startswith("seed:"))] = f"seed: {value}"
    return "\n".join(text)


@contents(KIND)
def key_twice(draw: random.Random, raw: bytes) -> str:
    text = raw.decode().splitlines()
    chosen = draw.choice([line for line in text if line[:1].isalpha() and not line.endswith(":")])
    text.insert(draw.randrange(len(text)) if draw.random() < 0.2 else 0, chosen)
    return "\n".join(text)


@contents(KIND)
def cut_short(draw: random.Random, raw: bytes) -> bytes:
    return raw[: draw.randrange(raw.index(b"model:"))]


@contents(KIND)
def no_mapping(draw: random.Random, raw: bytes) -> list[str]:
    empty = ["", "\n\n", "# only a remark\n"]
    return [*empty, "[]", "- 1\n- 2\n", "text", "7", "null", "~", "--- \n", "{}", "!!set {a}", "'" + "x" * 5000 + "'"]


@contents(KIND)
def too_large(draw: random.Random, raw: bytes) -> list[str]:
    keys = "".join(f"k{i}: 1\n" for i in range(30_000))
    more = ["#" * (2 << 20), "labels2: [" + "x, " * 21_000 + "x]\n", keys, "x: '" + "y" * (1 << 20) + "'\n"]
    return [raw.decode() + text for text in more]


@values(harmless=("recipes validate", "run"))
def odd_paths(draw: random.Random, content: Any) -> None:
    """A dry run looks whether data files are there, and does not read them."""
    keys = draw.choice([("data", "train", "path"), ("data", "eval", "path"), ("teacher", "model")])
    section_of(content, keys)[keys[-1]] = draw.choice(
        [
            *("a\0b", "\0", "x" * 5000, "~nobody-of-that-name/x.jsonl", "/", "/dev/null", "/dev/zero"),
            "/proc/self/mem",
            *(".", "..", "x/" * 3000, "http://localhost/x.jsonl", "nowhere.jsonl", "\n", "a\nb.jsonl", " ", "*.jsonl"),
            *("/etc/passwd", "~", "con/\x07.csv", "../" * 400 + "etc/passwd", "./" + "ä" * 200 + ".jsonl"),
        ]
    )


@values()
def contradiction(draw: random.Random, content: Any) -> None:
    keys, value = draw.choice(
        [
            *((("export", "formats"), v) for v in ([], ["onnx", "onnx"], ["onxx"])),
            *((("student",), None), (("distill",), []), (("data", "train"), None), (("data", "labels"), ["one"])),
            *((("data", "max_length"), 3), (("data", "max_length"), 10**9), (("schema",), 2)),
            *((("task",), "fill-mask"), (("task",), "translation")),
            *((("name",), "../up"), (("name",), ""), (("name",), "a\nb")),
            *((("teacher", "finetune", "lr"), 2.0), (("teacher", "finetune", "dropout"), 1.0)),
            *((("distill", 0, "layers"), [1, 2, 3]), (("verify",), {"max_drop": 7})),
            *((("student",), {"layers": 1, "hidden": 0}), (("quantize",), {"scheme": "int4"})),
            (("quantize",), {"files": [{"scheme": "int8", "runtime": "tflite216"}]}),
        ]
    )
    section_of(content, keys)[keys[-1]] = value
