"""Recipes that are wrong: types, keys, numbers, YAML itself, paths."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import yaml

from support.mutations.maker import maker

KIND = "recipe"
_WRONG: dict[type, list[Any]] = {
    str: [12, 1.5, [1], {"a": 1}, True, ["x", "y"]],
    int: ["fast", [], {"a": 1}, -1, 1.5, float("nan"), float("inf"), "1_0x", [3], -(10**40)],
    float: ["quick", [], {"a": 1}, -1.0, float("nan"), float("inf"), -(10**400), [0.5]],
    list: [5, "x y", {"a": "b"}, [None], [[]], [{"a": {}}]],
    dict: ["x", [1], 7, [[]], [{"a": 1}], True],
}
_HUGE = "9" * 5000


def _leaves(value: Any, keys: tuple[str | int, ...] = ()) -> list[tuple[tuple[str | int, ...], Any]]:
    """Keys and value of everything in a recipe."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [x for k, v in items for x in (((*keys, k), v), *_leaves(v, (*keys, k)))]


def _put(content: Any, keys: tuple[str | int, ...], value: Any) -> None:
    for key in keys[:-1]:
        content = content[key]
    content[keys[-1]] = value


def _rewrite(path: Path, content: Any) -> None:
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def _read(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def _line(draw: random.Random, path: Path, new: str) -> None:
    """Put lines between two top-level sections."""
    lines = path.read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if line[:1].isalpha()]
    lines.insert(draw.choice(starts), new)
    path.write_text("\n".join(lines) + "\n")


@maker(KIND)
def wrong_type(draw: random.Random, path: Path) -> None:
    content = _read(path)
    keys, value = draw.choice(_leaves(content))
    _put(content, keys, draw.choice(_WRONG[type(value)]))
    _rewrite(path, content)


@maker(KIND)
def unknown_key(draw: random.Random, path: Path) -> None:
    content = _read(path)
    sections = [content, *(v for _, v in _leaves(content) if isinstance(v, dict))]
    key = draw.choice(
        ["lerning_rate", "Steps", "", "seed ", "__class__", "$ref", "0", "data.train", "é" * 50, "x" * 9000]
    )
    draw.choice(sections)[key] = draw.choice([1, "x", None, []])
    _rewrite(path, content)


@maker(KIND)
def lost_key(draw: random.Random, path: Path) -> None:
    content = _read(path)
    where, key = draw.choice(
        [
            ((), "schema"),
            ((), "name"),
            ((), "task"),
            ((), "teacher"),
            ((), "distill"),
            (("teacher",), "model"),
            (("teacher", "finetune"), "steps"),
            (("student",), "layers"),
            (("distill", 0), "method"),
            (("data", "train"), "path"),
        ]
    )
    section = content
    for k in where:
        section = section[k]
    del section[key]
    _rewrite(path, content)


@maker(KIND)
def huge_number(draw: random.Random, path: Path) -> None:
    key, value = draw.choice(
        [
            ("seed", _HUGE),
            ("seed", f"-{_HUGE}"),
            ("seed", "0x" + "f" * 9000),
            ("schema", _HUGE),
            ("schema", "1e999"),
            ("seed", "1e400"),
            ("seed", f"1.{_HUGE}e{_HUGE}"),
            ("task", _HUGE),
            ("name", _HUGE),
            ("description", "1.0e-999999999999"),
        ]
    )
    lines = [line for line in path.read_text().splitlines() if not line.startswith(f"{key}:")]
    path.write_text("\n".join([f"{key}: {value}", *lines]))


@maker(KIND)
def deep_nesting(draw: random.Random, path: Path) -> None:
    depth = draw.choice([25, 200, 1500, 20_000, 200_000])
    opening, closing = draw.choice([("[", "]"), ("{a: ", "}"), ("- ", ""), ("? ", ""), ("!!seq [", "]")])
    _line(
        draw,
        path,
        f"deep: {opening * depth}1{closing * depth}" if closing else f"deep:\n  {opening * depth}1",
    )


@maker(KIND)
def aliases(draw: random.Random, path: Path) -> None:
    bomb = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, draw.randint(9, 30)))
    keys = ", ".join(f"*k{i} : 1" for i in range(3))
    _line(
        draw,
        path,
        draw.choice(
            [
                "a0: &a0 [x]\n" + bomb,
                "self: &self [*self]",
                "self: &self {a: *self, b: *self}",
                "lost: *nowhere",
                "twice: [&a 1, &a 2, *a]\nmore: *b",
                f"m: &m {{a: 1}}\nn: {{<<: *m, {keys}}}",
                "? &k {a: 1}\n: *k",
                "seed2: &s 3\nmerged:\n  <<: [*s, *s]",
            ]
        ),
    )


@maker(KIND)
def foreign_bytes(draw: random.Random, path: Path) -> None:
    text = path.read_text()
    raw = text.encode()
    at = draw.randrange(len(raw))
    path.write_bytes(
        draw.choice(
            [
                raw[:at] + b"\0" + raw[at:],
                raw[:at] + b"\xff\xfe" + raw[at:],
                raw[:at] + b"\x07" + raw[at:],
                text.encode("utf-16"),
                text.encode("utf-32"),
                raw[:at] + "description: für\n".encode("latin-1"),
                raw + b"\x00" * 4096,
                raw[:at] + b"\xed\xa0\x80" + raw[at:],
                draw.randbytes(2000),
                raw[:at] + b"\x1b[2J" + raw[at:],
            ]
        )
    )


@maker(KIND)
def bad_yaml(draw: random.Random, path: Path) -> None:
    _line(draw, path, draw.choice([
        "\tseed: 1", "a: b: c", "- item", "seed: [1, 2", "x: 'open", 'x: "\\q"', "%YAML 9.9", "a: {b: 1", "? a\n? b", "key\nkey2", "@at",
        "x: `tick", "x: >5000\n y", "---\nsecond: document", "...", "x: |99\n  y", "&a &b x: 1", "!<tag:yaml.org,2002:seq> x", "]", "}", ": : :",
    ]))  # fmt: skip


@maker(KIND)
def odd_scalars(draw: random.Random, path: Path) -> None:
    value = draw.choice([
        "!!int x", "!!int ''", "0x_", "0b_", "0b", "!!float x", "!!bool perhaps", "!!timestamp 2024-99-99", "2024-13-45", "2024-01-01T99:99:99Z",
        "!!binary '*'", "!!python/object/apply:os.system ['touch owned']", "!!python/name:os.system", "!custom x", "!!set {a, b}", "!!omap [a: 1]",
        "!!null x", "!!str [1]", "!!seq x", "!!map x", "99:99:99", "1" + ":59" * 3000, "_", "0o99", '"\\uD800"', '"\\0"', "!!pairs [a: 1]", "._", "-.inf",
    ])  # fmt: skip
    _line(draw, path, f"{draw.choice(['odd', 'seed', 'holdout'])}: {value}")


@maker(KIND)
def odd_known_values(draw: random.Random, path: Path) -> None:
    """Scalars that YAML cannot build, where a key is expected."""
    value = draw.choice(
        [
            "!!int x",
            "!!float x",
            "2024-13-45",
            "0b_",
            "!!bool perhaps",
            _HUGE,
            "!!timestamp x",
            "0x_",
            "!!binary x",
            "99" + ":59" * 3000,
        ]
    )
    lines = path.read_text().splitlines()
    lines[next(i for i, line in enumerate(lines) if line.startswith("seed:"))] = f"seed: {value}"
    path.write_text("\n".join(lines))


@maker(KIND)
def key_twice(draw: random.Random, path: Path) -> None:
    lines = path.read_text().splitlines()
    chosen = draw.choice([line for line in lines if line[:1].isalpha() and not line.endswith(":")])
    lines.insert(draw.randrange(len(lines)) if draw.random() < 0.2 else 0, chosen)
    path.write_text("\n".join(lines))


@maker(KIND)
def cut_short(draw: random.Random, path: Path) -> None:
    text = path.read_text()
    path.write_text(text[: draw.randrange(text.index("model:"))])


@maker(KIND)
def no_mapping(draw: random.Random, path: Path) -> None:
    path.write_text(
        draw.choice(
            [
                "",
                "\n\n",
                "# only a remark\n",
                "[]",
                "- 1\n- 2\n",
                "text",
                "7",
                "null",
                "~",
                "--- \n",
                "{}",
                "!!set {a}",
                "'" + "x" * 5000 + "'",
            ]
        )
    )


@maker(KIND)
def too_large(draw: random.Random, path: Path) -> None:
    text = path.read_text()
    path.write_text(
        draw.choice(
            [
                text + "#" * (2 << 20),
                text + "labels2: [" + "x, " * 21_000 + "x]\n",
                text + "".join(f"k{i}: 1\n" for i in range(30_000)),
                text + "x: '" + "y" * (1 << 20) + "'\n",
            ]
        )
    )


@maker(KIND, harmless=["recipes validate", "run"])
def odd_paths(draw: random.Random, path: Path) -> None:
    """A dry run looks whether data files are there, and does not read them."""
    content = _read(path)
    place = draw.choice([("data", "train", "path"), ("data", "eval", "path"), ("teacher", "model")])
    odd = draw.choice([
        "a\0b", "\0", "x" * 5000, "~nobody-of-that-name/x.jsonl", "/", "/dev/null", "/dev/zero", "/proc/self/mem", ".", "..", "x/" * 3000,
        "http://localhost/x.jsonl", "nowhere.jsonl", "\n", "a\nb.jsonl", " ", "*.jsonl", "/etc/passwd", "~", "con/\x07.csv", "../" * 400 + "etc/passwd",
        "./" + "ä" * 200 + ".jsonl",
    ])  # fmt: skip
    _put(content, place, odd)
    _rewrite(path, content)


@maker(KIND)
def contradiction(draw: random.Random, path: Path) -> None:
    content = _read(path)
    keys, value = draw.choice([
        (("export", "formats"), []), (("export", "formats"), ["onnx", "onnx"]), (("export", "formats"), ["onxx"]), (("student",), None),
        (("distill",), []), (("data", "train"), None), (("data", "labels"), ["one"]), (("data", "max_length"), 3), (("data", "max_length"), 10**9),
        (("schema",), 2), (("task",), "fill-mask"), (("task",), "translation"), (("name",), "../up"), (("name",), ""), (("name",), "a\nb"),
        (("teacher", "finetune", "lr"), 2.0), (("teacher", "finetune", "dropout"), 1.0), (("distill", 0, "layers"), [1, 2, 3]), (("verify",), {"max_drop": 7}),
        (("student",), {"layers": 1, "hidden": 8}), (("quantize",), {"scheme": "int4"}), (("quantize",), {"files": [{"scheme": "int8", "runtime": "tflite216"}]}),
    ])  # fmt: skip
    _put(content, keys, value)
    _rewrite(path, content)
