"""Artefact folders: the list, golden rows and the tokenizer with other content, and digests that agree with it."""

from __future__ import annotations

import json
import random
import shutil
from typing import Any

from fuzz.files import LIST, MIB, change_json, read_json, read_plain, sign, write_json
from fuzz.mutation import Place, Verdict, mutator
from fuzz.values import INFINITE, NAN, SURROGATES, changed, odd, one_pair

JSON_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "selftest.json", "parity.json")
LINES = ("golden.jsonl", "golden_tokens.jsonl")
PROCESSING: dict[str, list[Any]] = {
    "stride": [-1, 0, 10**9, "x", NAN],
    "answer_length": [0, -3, 10**12],
    "thresholds": [[NAN] * 3, [], [0.5], [INFINITE] * 3],
    "pooling": ["max", ""],
    "normalize": [5, True],
    "null_answers": ["x", True],
    "max_length": [3, 1 << 20],
    "pair_order": [["text_pair", "text"], []],
    "padding_side": ["left"],
}
"""How outputs become answers, with numbers and names that cannot be."""
CONFIGURATION: dict[str, list[Any]] = {
    "vocab_size": ["x", [1], 10],
    "id2label": [
        *({"0": "a"}, {"a": "b", "c": "d", "e": "f"}, ["a", "b", "c"], "abc"),
        *({"0": "timer", "1": "music", "2": "lamp"}, {"0": "lamp", "1": "music", "2": ""}),
    ],
    "label2id": [{"lamp": 2, "music": 0, "timer": 1}],
    "pad_token_id": ["x", [0], 1e400, 2**63],
    "model_type": ["gpt2"],
    "num_labels": [10**9],
    "max_position_embeddings": ["x"],
    "architectures": [5],
}
JUNK = [
    *(b"junk\n", b"[]\n", b"5\n", b"{}\n", b'{"text": 5}\n', b'{"text": ["a"]}\n', b'{"text": "\\ud800"}\n'),
    *(b"[" * 100_000 + b"\n", b'{"a":' * 50_000 + b"\n", b"\xff\xfe\n", b"null\n", b'"x"\n', b"NaN\n"),
]
REGEXES = [
    *("(a+)+$", "(?:a?){50}a{50}", "(((((.{1,99}){1,99}){1,99}){1,99}){1,99})", "(", "\\p{Nothing}", "[" * 99),
    *("(?<=a+)b", ""),
]


@mutator("artefact")
def list_values(draw: random.Random, place: Place) -> None:
    change_json(draw, place.phone / LIST)


@mutator("artefact")
def processing_values(draw: random.Random, place: Place) -> None:
    content = read_json(place.phone / LIST)
    key, value = one_pair(draw, PROCESSING)
    content["processing"][key] = value
    write_json(place.phone / LIST, content)


@mutator("artefact", verdict=Verdict.BAD)
def other_meaning(draw: random.Random, place: Place) -> Verdict | None:
    """A list that turns the same outputs into other answers."""
    content = read_json(place.phone / LIST)
    labels = content["labels"]
    way = draw.randrange(6)
    if way == 0:
        content["processing"]["score"] = draw.choice(["sigmoid", "none"])
    elif way == 1:
        tasks = ["question-answering", "feature-extraction", "fill-mask", "token-classification", "regression"]
        content["task"] = draw.choice([*tasks, "multi-label"])
    elif way == 2:
        content["labels"] = labels[::-1]
    elif way == 3:
        others = [["x", "y", "z"], [*labels, "more"], labels[:2], ["lamp", "music", "timer "]]
        content["labels"] = draw.choice(others)
    elif way == 4:
        labels[draw.randrange(3)] = draw.choice(["", "\x1b[2J", "a\nalarm\t0.99", *SURROGATES])
    else:
        content["family"] = draw.choice(["distilbert", "xlnet", "nothing", ""])
    write_json(place.phone / LIST, content)
    return Verdict.ANY if way == 5 else None  # nothing that answers depends on the family


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def aliases(draw: random.Random, place: Place) -> None:
    """Model files that are said to equal themselves, each other, or nothing."""
    content = read_json(place.phone / LIST)
    models = [f for f in content["files"] if f["kind"] == "model" and not f.get("alias_of")]
    chosen = draw.choice(models)
    other = next(m for m in models if m is not chosen)
    chosen["alias_of"] = draw.choice([chosen["path"], "nowhere.onnx", other["path"], "", "README.md"])
    write_json(place.phone / LIST, content)


@mutator("artefact")
def json_values(draw: random.Random, place: Place) -> None:
    """Configuration or tokenizer with a value changed; the list agrees, here and below."""
    change_json(draw, place.phone / draw.choice([n for n in JSON_FILES if (place.phone / n).is_file()]))
    sign(place.phone)


@mutator("artefact")
def golden_values(draw: random.Random, place: Place) -> None:
    path = place.phone / draw.choice(LINES)
    rows = [json.loads(line) for line in read_plain(path).decode().splitlines()]
    for _ in range(draw.choice([1, 1, 5])):
        i = draw.randrange(len(rows))
        rows[i] = changed(draw, rows[i])
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    sign(place.phone)


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def golden_junk(draw: random.Random, place: Place) -> None:
    """A golden file with lines that are no rows, with none, or with too many."""
    path = place.phone / draw.choice(LINES)
    lines = read_plain(path).splitlines(keepends=True)
    lines[draw.randrange(len(lines))] = draw.choice(JUNK)
    path.write_bytes(draw.choice([*[b"".join(lines)] * 3, b"", b"\n", b"{", draw.randbytes(500)]))
    if draw.random() < 0.1:
        with path.open("r+b") as stream:
            stream.truncate(draw.choice([65, 700]) * MIB)
    sign(place.phone)


@mutator("artefact", verdict=Verdict.BAD, verbs=["verify"])
def golden_bounds(draw: random.Random, place: Place) -> None:
    """Golden rows that nothing can fail, or that nothing can pass."""
    path = place.phone / "golden.jsonl"
    rows = [json.loads(line) for line in read_plain(path).decode().splitlines()]
    way = draw.randrange(7)
    for row in rows:
        if way == 0:
            row["tolerance"] = dict.fromkeys(row["tolerance"], draw.choice([INFINITE, 1e300, NAN, -1.0]))
        elif way == 1:
            row["outputs"] = {k: [NAN] * len(v) for k, v in row["outputs"].items()}
        elif way == 2:
            row["outputs"] = {}
        elif way == 3:
            right = row["reference"]
            row["reference"] = draw.choice([[], right[:1], right * 7, [0.0] * len(right)])
        elif way == 4:
            row["tolerance"] = {}
        elif way == 5:
            odd_places = [([5], [0]), ([0], [9]), ([-1], [-1]), ([0] * 900, [0]), ([], [10**9])]
            row["places"], row["columns"] = draw.choice(odd_places)
        else:
            row["label"] = draw.choice(["", "nothing", "lamp "])
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    sign(place.phone)


@mutator("artefact")
def tokenizers(draw: random.Random, place: Place) -> Verdict:
    """A tokenizer that gives other tokens, none, or takes for ever."""
    path = place.phone / "tokenizer.json"
    content = read_json(path)
    model, normalizer = content["model"], content["normalizer"]
    deep: dict[str, Any] = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 40}
    split = {"type": "Split", "pattern": {"Regex": draw.choice(REGEXES)}, "behavior": "Isolated", "invert": False}
    padding = {"strategy": {"Fixed": draw.choice([0, 100, 2**40])}, "direction": "Right", "pad_to_multiple_of": None}
    truncation = {"direction": "Right", "strategy": "LongestFirst", "stride": draw.choice([0, 9])}
    added = {"content": draw.choice(["the", "", " ", "lamp"]), "id": draw.choice([0, 5, 10**9]), "normalized": True}
    flags = {**dict.fromkeys(("single_word", "lstrip", "rstrip"), False), "special": draw.random() < 0.5}
    ways: list[tuple[Verdict, dict[str, Any]]] = [
        (Verdict.BAD, {"model": {**model, "vocab": {}}}),
        (Verdict.BAD, {"model": {**model, "vocab": {**model["vocab"], "lamp": 100_000}}}),
        (Verdict.ANY, {"normalizer": {**normalizer, "lowercase": False}}),
        (Verdict.BAD, {"post_processor": None}),
        (Verdict.ANY, {"pre_tokenizer": split}),
        (Verdict.ANY, {"normalizer": {"type": "Sequence", "normalizers": [deep] * draw.choice([3, 6, 40])}}),
        (Verdict.ANY, {"truncation": {**truncation, "max_length": draw.choice([0, 2, 5, 2**60])}}),
        (Verdict.ANY, {"padding": {**padding, "pad_id": 0, "pad_type_id": 0, "pad_token": "[PAD]"}}),
        (Verdict.ANY, {"added_tokens": [{**added, **flags}]}),
    ]
    verdict, update = draw.choice(ways)
    write_json(path, {**content, **update})
    sign(place.phone)
    return verdict


@mutator("artefact")
def configurations(draw: random.Random, place: Place) -> None:
    """A config.json that is none, or has other sizes and labels."""
    path = place.phone / "config.json"
    content = read_json(path)
    key, value = one_pair(draw, CONFIGURATION)
    whole = draw.choice([[], 5, None, "x", [content], {}])
    write_json(path, whole if draw.random() < 0.2 else {**content, key: value})
    sign(place.phone)


@mutator("artefact", verdict=Verdict.FINE)
def right_folder(draw: random.Random, place: Place) -> None:
    """The same folder in another form that is as good: spelling of the list, unknown keys, times, modes."""
    path = place.phone / LIST
    content = read_json(path)
    way = draw.randrange(5)
    if way == 0:
        path.write_text(json.dumps(content))
    elif way == 1:
        path.write_text(json.dumps(dict(reversed(content.items())), indent=7))
    elif way == 2:
        write_json(path, {**content, "more": [1, None, {"a": odd(draw) is None}], "schema_version": "1.7"})
    elif way == 3:
        away = place.here / "away"
        place.phone.rename(away)
        shutil.copytree(away, place.phone, copy_function=shutil.copyfile)
        shutil.rmtree(away)
    else:
        for one in place.phone.rglob("*"):
            one.chmod(0o755 if one.is_dir() else 0o444)
