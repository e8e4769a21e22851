"""Artefact folders: the list, golden rows and the tokenizer with other content, and digests that agree with it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from fuzz.mutation import Place, Verdict, mutator
from fuzz.plain import read_plain
from fuzz.signing import LIST, read, sign, write
from fuzz.values import SURROGATES, changed, odd

MIB = 1 << 20
JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "selftest.json", "parity.json")
LINES = ("golden.jsonl", "golden_tokens.jsonl")


def _lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in read_plain(path).decode().splitlines()]


def _put_lines(path: Path, rows: list[Any]) -> None:
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))


@mutator("artefact")
def list_values(draw: random.Random, place: Place) -> None:
    """Values of the list replaced, lost, doubled or swapped."""
    content = read(place.phone / LIST)
    for _ in range(draw.choice([1, 1, 3])):
        content = changed(draw, content)
    write(place.phone / LIST, content)


@mutator("artefact")
def processing_values(draw: random.Random, place: Place) -> None:
    """How outputs become answers, with numbers and names that cannot be."""
    content = read(place.phone / LIST)
    key, value = draw.choice(
        [
            ("stride", -1),
            ("stride", 0),
            ("stride", 10**9),
            ("stride", "x"),
            ("answer_length", 0),
            ("answer_length", -3),
            ("answer_length", 10**12),
            ("thresholds", [float("nan")] * 3),
            ("thresholds", []),
            ("thresholds", [0.5]),
            ("thresholds", [float("inf")] * 3),
            ("pooling", "max"),
            ("pooling", ""),
            ("normalize", 5),
            ("normalize", True),
            ("null_answers", "x"),
            ("null_answers", True),
            ("max_length", 3),
            ("max_length", 1 << 20),
            ("pair_order", ["text_pair", "text"]),
            ("pair_order", []),
            ("padding_side", "left"),
            ("stride", float("nan")),
        ]
    )
    content["processing"][key] = value
    write(place.phone / LIST, content)


@mutator("artefact", verdict=Verdict.BAD)
def other_meaning(draw: random.Random, place: Place) -> Verdict | None:
    """A list that turns the same outputs into other answers."""
    content = read(place.phone / LIST)
    way = draw.randrange(6)
    if way == 0:
        content["processing"]["score"] = draw.choice(["sigmoid", "none"])
    elif way == 1:
        content["task"] = draw.choice(
            [
                "question-answering",
                "feature-extraction",
                "fill-mask",
                "token-classification",
                "regression",
                "multi-label",
            ]
        )
    elif way == 2:
        content["labels"] = content["labels"][::-1]
    elif way == 3:
        content["labels"] = draw.choice(
            [["x", "y", "z"], [*content["labels"], "more"], content["labels"][:2], ["lamp", "music", "timer "]]
        )
    elif way == 4:
        content["labels"][draw.randrange(3)] = draw.choice(["", "\x1b[2J", "a\nalarm\t0.99", *SURROGATES])
    else:
        content["family"] = draw.choice(["distilbert", "xlnet", "nothing", ""])
    write(place.phone / LIST, content)
    return Verdict.ANY if way == 5 else None  # nothing that answers depends on the family


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def aliases(draw: random.Random, place: Place) -> None:
    """Model files that are said to equal themselves, each other, or nothing."""
    content = read(place.phone / LIST)
    models = [f for f in content["files"] if f["kind"] == "model" and not f.get("alias_of")]
    chosen = draw.choice(models)
    chosen["alias_of"] = draw.choice(
        [chosen["path"], "nowhere.onnx", next(m for m in models if m is not chosen)["path"], "", "README.md"]
    )
    write(place.phone / LIST, content)


@mutator("artefact")
def json_values(draw: random.Random, place: Place) -> None:
    """Configuration or tokenizer with a value changed; the list agrees."""
    path = place.phone / draw.choice([n for n in JSON_FILES if (place.phone / n).is_file()])
    content = read(path)
    for _ in range(draw.choice([1, 1, 3])):
        content = changed(draw, content)
    write(path, content)
    sign(place.phone)


@mutator("artefact")
def golden_values(draw: random.Random, place: Place) -> None:
    """A golden row with a value changed; the list agrees."""
    path = place.phone / draw.choice(LINES)
    rows = _lines(path)
    for _ in range(draw.choice([1, 1, 5])):
        i = draw.randrange(len(rows))
        rows[i] = changed(draw, rows[i])
    _put_lines(path, rows)
    sign(place.phone)


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def golden_junk(draw: random.Random, place: Place) -> None:
    """A golden file with lines that are no rows, with none, or with too many; the list agrees."""
    path = place.phone / draw.choice(LINES)
    raw = read_plain(path)
    lines = raw.splitlines(keepends=True)
    lines[draw.randrange(len(lines))] = draw.choice(
        [
            b"junk\n",
            b"[]\n",
            b"5\n",
            b"{}\n",
            b'{"text": 5}\n',
            b'{"text": ["a"]}\n',
            b'{"text": "\\ud800"}\n',
            b"[" * 100_000 + b"\n",
            b'{"a":' * 50_000 + b"\n",
            b"\xff\xfe\n",
            b"null\n",
            b'"x"\n',
            b"NaN\n",
        ]
    )
    path.write_bytes(
        draw.choice([b"".join(lines), b"".join(lines), b"".join(lines), b"", b"\n", b"{", draw.randbytes(500)])
    )
    if draw.random() < 0.1:
        with path.open("r+b") as stream:
            stream.truncate(draw.choice([65, 700]) * MIB)
    sign(place.phone)


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def golden_bounds(draw: random.Random, place: Place) -> None:
    """Golden rows that nothing can fail, or that nothing can pass; the list agrees."""
    path = place.phone / "golden.jsonl"
    rows = _lines(path)
    way = draw.randrange(7)
    for row in rows:
        if way == 0:
            row["tolerance"] = dict.fromkeys(row["tolerance"], draw.choice([float("inf"), 1e300, float("nan"), -1.0]))
        elif way == 1:
            row["outputs"] = {k: [float("nan")] * len(v) for k, v in row["outputs"].items()}
        elif way == 2:
            row["outputs"] = {}
        elif way == 3:
            row["reference"] = draw.choice(
                [[], row["reference"][:1], row["reference"] * 7, [0.0] * len(row["reference"])]
            )
        elif way == 4:
            row["tolerance"] = {}
        elif way == 5:
            row["places"], row["columns"] = draw.choice(
                [([5], [0]), ([0], [9]), ([-1], [-1]), ([0] * 900, [0]), ([], [10**9])]
            )
        else:
            row["label"] = draw.choice(["", "nothing", "lamp "])
    _put_lines(path, rows)
    sign(place.phone)


@mutator("artefact")
def tokenizers(draw: random.Random, place: Place) -> Verdict:
    """A tokenizer that gives other tokens, none, or takes for ever; the list agrees."""
    path = place.phone / "tokenizer.json"
    content = read(path)
    deep: dict[str, Any] = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 40}
    ways: dict[str, tuple[Verdict, dict[str, Any]]] = {
        "empty": (Verdict.BAD, {"model": {**content["model"], "vocab": {}}}),
        "beyond": (
            Verdict.BAD,
            {"model": {**content["model"], "vocab": {**content["model"]["vocab"], "lamp": 100_000}}},
        ),
        "case": (Verdict.ANY, {"normalizer": {**content["normalizer"], "lowercase": False}}),
        "bare": (Verdict.BAD, {"post_processor": None}),
        "regex": (
            Verdict.ANY,
            {
                "pre_tokenizer": {
                    "type": "Split",
                    "pattern": {
                        "Regex": draw.choice(
                            [
                                "(a+)+$",
                                "(?:a?){50}a{50}",
                                "(((((.{1,99}){1,99}){1,99}){1,99}){1,99})",
                                "(",
                                "\\p{Nothing}",
                                "[" * 99,
                                "(?<=a+)b",
                                "",
                            ]
                        )
                    },
                    "behavior": "Isolated",
                    "invert": False,
                }
            },
        ),
        "replace": (Verdict.ANY, {"normalizer": {"type": "Sequence", "normalizers": [deep] * draw.choice([3, 6, 40])}}),
        "truncation": (
            Verdict.ANY,
            {
                "truncation": {
                    "direction": "Right",
                    "max_length": draw.choice([0, 2, 5, 2**60]),
                    "strategy": "LongestFirst",
                    "stride": draw.choice([0, 9]),
                }
            },
        ),
        "padding": (
            Verdict.ANY,
            {
                "padding": {
                    "strategy": {"Fixed": draw.choice([0, 100, 2**40])},
                    "direction": "Right",
                    "pad_to_multiple_of": None,
                    "pad_id": 0,
                    "pad_type_id": 0,
                    "pad_token": "[PAD]",
                }
            },
        ),
        "added": (
            Verdict.ANY,
            {
                "added_tokens": [
                    {
                        "id": draw.choice([0, 5, 10**9]),
                        "content": draw.choice(["the", "", " ", "lamp"]),
                        "single_word": False,
                        "lstrip": False,
                        "rstrip": False,
                        "normalized": True,
                        "special": draw.random() < 0.5,
                    }
                ]
            },
        ),
    }
    verdict, update = ways[draw.choice(list(ways))]
    write(path, {**content, **update})
    sign(place.phone)
    return Verdict.ANY if verdict is Verdict.ANY else verdict


@mutator("artefact")
def configurations(draw: random.Random, place: Place) -> None:
    """A config.json that is none, or has other sizes and labels; the list agrees."""
    path = place.phone / "config.json"
    content = read(path)
    key, value = draw.choice(
        [
            ("vocab_size", "x"),
            ("vocab_size", [1]),
            ("vocab_size", 10),
            ("id2label", {"0": "a"}),
            ("id2label", {"a": "b", "c": "d", "e": "f"}),
            ("id2label", ["a", "b", "c"]),
            ("id2label", "abc"),
            ("pad_token_id", "x"),
            ("pad_token_id", [0]),
            ("pad_token_id", 1e400),
            ("pad_token_id", 2**63),
            ("model_type", "gpt2"),
            ("num_labels", 10**9),
            ("max_position_embeddings", "x"),
            ("id2label", {"0": "timer", "1": "music", "2": "lamp"}),
            ("label2id", {"lamp": 2, "music": 0, "timer": 1}),
            ("id2label", {"0": "lamp", "1": "music", "2": ""}),
            ("architectures", 5),
        ]
    )
    whole = draw.choice([[], 5, None, "x", [content], {}])
    write(path, whole if draw.random() < 0.2 else {**content, key: value})
    sign(place.phone)


@mutator("artefact", verdict=Verdict.FINE)
def right_folder(draw: random.Random, place: Place) -> None:
    """The same folder in another form that is as good: spelling of the list, unknown keys, times, modes."""
    path = place.phone / LIST
    content = read(path)
    way = draw.randrange(5)
    if way == 0:
        path.write_text(json.dumps(content))
    elif way == 1:
        path.write_text(json.dumps(dict(reversed(content.items())), indent=7))
    elif way == 2:
        content.update({"more": [1, None, {"a": odd(random.Random(draw.random())) is None}], "schema_version": "1.7"})
        write(path, content)
    elif way == 3:
        away = place.here / "away"
        place.phone.rename(away)
        shutil.copytree(away, place.phone, copy_function=shutil.copyfile)
        shutil.rmtree(away)
    else:
        for one in place.phone.rglob("*"):
            one.chmod(0o755 if one.is_dir() else 0o444)
