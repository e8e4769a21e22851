"""Checks config.json of a model before any library builds something from it: bounded numbers, whole labels, no decoder."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import is_unicode, read_json
from pocketbert.core.errors import InputError, Problem

# --- rotary ---
# Checks what config.json says of rotary positions, whatever the version of transformers that wrote it.


KINDS = ("full_attention", "sliding_attention")
TYPES = ("default", "linear")
"""Kinds of scaling whose angles depend on nothing but the position: others change with the length of the input."""
_LARGEST = 1e9
ENTRIES = ("rope_parameters", "rope_scaling")
_NUMBERS = ("rope_theta", "global_rope_theta", "local_rope_theta")


def rotary_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """List what no rotary positions can be, one sentence each.

    Args:
        content: The content of config.json.
    """
    for key in _NUMBERS:
        if key in content:
            yield from _number(key, content[key])
    for key in ENTRIES:
        value = content.get(key)
        if value is None:
            continue
        nested = isinstance(value, dict) and set(value) <= set(KINDS)
        for part in value.values() if nested else [value]:
            yield from _parameters(key, part)
    kinds, layers = content.get("layer_types"), content.get("num_hidden_layers")
    if kinds is not None and (
        not isinstance(kinds, list) or any(k not in KINDS for k in kinds) or len(kinds) != (layers or len(kinds))
    ):
        yield f"layer_types is {str(kinds)[:60]}; a list of {' and '.join(KINDS)}, one for each layer, is expected."


def _parameters(key: str, part: Any) -> Iterator[str]:
    if not isinstance(part, dict):
        yield f"{key} holds {str(part)[:40]}; an object with rope_type and rope_theta is expected."
        return
    kind = part.get("rope_type", part.get("type", TYPES[0]))
    if kind not in TYPES:
        yield f"{key} has the rope_type {str(kind)[:40]}; only {' and '.join(TYPES)} are computed."
    for name in ("rope_theta", "factor"):
        if name in part:
            yield from _number(f"{name} of {key}", part[name])
    odd = sorted(str(n)[:40] for n in set(part) - {"rope_type", "type", "rope_theta", "factor"})
    if odd:
        yield f"{key} has {', '.join(odd[:3])}, which nothing here computes."


def _number(key: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _LARGEST:
        yield f"{key} is {str(value)[:40]}; a number from 1 to {_LARGEST:g} is expected."


FILE_NAME = "config.json"
MAX_MIB = 8
"""A configuration with the most labels that are allowed takes about 4 MiB."""
MAX_LABELS = 1 << 16
MAX_LAYERS = 512
MAX_WIDTH = 1 << 17
_CONFIG_LARGEST = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 14,
    "intermediate_size": MAX_WIDTH,
    "num_hidden_layers": MAX_LAYERS,
    "num_attention_heads": MAX_LAYERS,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 10,
    "num_labels": MAX_LABELS,
}
"""Largest values of the entries that decide memory; each far above any published model. A family adds its own."""
_SMALLEST = {"type_vocab_size": 0}
"""Smallest values that some family allows, where these are below 1."""
_OPTIONAL = ("num_labels",)
_LARGEST_EPSILON = 1e-2
_WIDEST_START = 100.0
_NEVER = {
    "is_decoder": "reads the text from left to right; an encoder is expected",
    "add_cross_attention": "wants the states of another model; an encoder is expected",
    "is_encoder_decoder": "has a decoder; an encoder is expected",
    "quantization_config": "has quantized weights; weights in fp32, fp16 or bf16 are expected",
    "per_layer_config": "gives layers different sizes, which no exporter knows",
    "pruned_heads": "has layers with fewer heads than others, which no exporter knows",
}
"""Entries that make another architecture of the model, where they are set."""


@dataclass(frozen=True)
class Bounds:
    """What a family allows in config.json, in addition to what all families do.

    Attributes:
        largest: Largest values of entries that only the family has.
        smallest: Smallest values of entries that may be below 1; by default those of any family.
        by_layer: Entries that may list one value for each layer.
        fixed: Entries that must have this value where they are there.
        rotary: Whether positions are rotations, which config.json describes.
    """

    largest: Mapping[str, int] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=lambda: dict(_SMALLEST))
    by_layer: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    rotary: bool = False


_ANY = Bounds()


def read_config(path: Path, bounds: Bounds = _ANY) -> dict[str, Any]:
    """Read a config.json and check it.

    Args:
        path: The file.
        bounds: What the family allows.

    Raises:
        InputError: With every entry that no model can have.
    """
    content = read_json(path, MAX_MIB)
    if not isinstance(content, dict):
        raise InputError(Problem(str(path), "is not a configuration: a JSON object is expected."))
    problems = [Problem(str(path), what) for what in config_problems(content, bounds)]
    if problems:
        raise InputError(problems)
    return content


def config_problems(content: Mapping[str, Any], bounds: Bounds = _ANY) -> list[str]:
    """List what no model's configuration can say, one sentence each.

    Args:
        content: The content of config.json.
        bounds: What the family allows.
    """
    odd = list(_odd_values(content))[:5]
    if odd:
        return odd  # the other sentences would quote them
    out = [
        p
        for key, most in {**_CONFIG_LARGEST, **bounds.largest}.items()
        if key in content
        for p in (_sizes if key in bounds.by_layer else _size)(key, content[key], most, bounds.smallest.get(key, 1))
    ]
    out += [
        f"{key} is {_shown(content[key])}; only {value!r} is computed."
        for key, value in bounds.fixed.items()
        if content.get(key, value) != value
    ]
    out += rotary_problems(content) if bounds.rotary else []
    out += [p for key, value in content.items() for p in _fraction(key, value)]
    out += [f"{key} is {_shown(content[key])}: the model {why}." for key, why in _NEVER.items() if content.get(key)]
    if content.get("position_embedding_type") not in (None, "absolute"):
        out.append(
            f"position_embedding_type is {_shown(content['position_embedding_type'])}; only 'absolute' is computed."
        )
    named = content.get("architectures")
    if named is not None and not (isinstance(named, list) and all(isinstance(n, str) for n in named)):
        out.append(f"architectures is {_shown(named)}, which is not a list of names.")
    return [*out, *_padding(content), *_labels(content)]


def label_names(content: Mapping[str, Any]) -> list[str] | None:
    """Label names of a checked configuration in the order of their ids; None where it has none."""
    raw = content.get("id2label")
    return [raw[str(i)] for i in range(len(raw))] if raw else None


def _odd_values(content: Mapping[str, Any]) -> Iterator[str]:
    """Numbers that are not finite and text that is not Unicode, at any depth; without recursion, which a file could exhaust."""
    waiting: list[tuple[str, Any]] = list(content.items())
    while waiting:
        name, value = waiting.pop()
        if not is_unicode(name) or (isinstance(value, str) and not is_unicode(value)):
            yield f"{_shown(name)} holds text that is not Unicode."
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{name[:40]} is {value}, which is not a finite number."
        elif isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(name, v) for v in value]


def _size(key: str, value: Any, most: int, least: int) -> Iterator[str]:
    if value is None and key in _OPTIONAL:
        return
    if not _is_whole(value) or not least <= value <= most:
        yield f"{key} is {_shown(value)}; a whole number from {least} to {most:,} is expected."


def _sizes(key: str, value: Any, most: int, least: int) -> Iterator[str]:
    """One size, or one for each layer."""
    values = value if isinstance(value, list) and value else [value]
    if len(values) > MAX_LAYERS:
        yield f"{key} lists {len(values):,} values; at most {MAX_LAYERS} layers are allowed."
    else:
        yield from next(([p] for v in values for p in _size(key, v, most, least)), [])


def _fraction(key: str, value: Any) -> Iterator[str]:
    """Bounds of numbers that are recognised by the end of their names, whatever the family calls them."""
    if value is None:
        return
    if key.endswith(("dropout", "dropout_prob")):
        low, high, what = 0.0, 1.0, "a number from 0 to 1"
    elif key.endswith("_eps"):
        low, high, what = 1e-30, _LARGEST_EPSILON, f"a number above 0, at most {_LARGEST_EPSILON:g}"
    elif key == "initializer_range":
        low, high, what = 0.0, _WIDEST_START, f"a number from 0 to {_WIDEST_START:g}"
    else:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        yield f"{key} is {_shown(value)}; {what} is expected."


def _padding(content: Mapping[str, Any]) -> Iterator[str]:
    pad, rows = content.get("pad_token_id"), content.get("vocab_size")
    if pad is None:
        return
    most = rows if isinstance(rows, int) else _CONFIG_LARGEST["vocab_size"]
    if not _is_whole(pad) or not 0 <= pad < most:
        yield f"pad_token_id is {_shown(pad)}; the number of a token, from 0 to {most - 1:,}, is expected."


def _labels(content: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with id2label, label2id and num_labels, each by itself and against the others."""
    names, numbers, count = content.get("id2label"), content.get("label2id"), content.get("num_labels")
    if names is None or names == {}:
        return
    if not isinstance(names, dict):
        yield f"id2label is {_shown(names)}; names by number are expected."
        return
    if len(names) > MAX_LABELS:
        yield f"id2label has {len(names):,} labels; at most {MAX_LABELS:,} are allowed."
        return
    if not all(k.isdecimal() for k in names):
        yield f"id2label has keys that are not numbers: {_shown(list(names)[:3])}."
    elif set(names) != {str(i) for i in range(len(names))}:
        yield f"id2label has {len(names)} labels, but not the numbers 0 to {len(names) - 1}: {_shown(list(names)[:5])}."
    if not all(isinstance(n, str) and n.strip() for n in names.values()):
        yield f"id2label has names that are empty or not text: {_shown([n for n in names.values() if not (isinstance(n, str) and n.strip())][:3])}."
    elif len(set(names.values())) < len(names):
        yield "id2label has one name for two labels."
    elif numbers is not None and numbers != {} and not _inverse(names, numbers):
        yield "label2id is not the inverse of id2label: it is not certain which output has which name."
    if _is_whole(count) and count != len(names):
        yield f"num_labels is {count}, id2label has {len(names)} labels."


def _inverse(names: Mapping[str, str], numbers: Any) -> bool:
    """Whether label2id gives each name its number; numbers may be written as text."""
    if not isinstance(numbers, dict) or any(isinstance(v, bool | float | list | dict) for v in numbers.values()):
        return False
    return {str(k): str(v) for k, v in numbers.items()} == {name: key for key, name in names.items()}


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    """A value as a message quotes it: a number of ten thousand digits is cut off, and so is a list."""
    text = ascii(value) if not _is_whole(value) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


# --- activation ---
# The activation of a model's feed-forward parts, and whether relu6 can take its place.


ACTIVATION_KEYS = ("hidden_act", "activation")
"""Keys of config.json that name it."""
CLIPPED = "relu6"
CLIPPABLE = ("relu", CLIPPED)
HIGHEST = 6.0
"""The largest number that relu6 makes."""


def activation_of(config: Mapping[str, Any]) -> str | None:
    """Return the activation that a configuration names; None where it names none.

    Args:
        config: Content of config.json.
    """
    return next((str(config[key]) for key in ACTIVATION_KEYS if isinstance(config.get(key), str)), None)


def not_clippable(activation: str | None, where: str) -> Problem:
    """Tell why relu6 cannot take the place of an activation.

    Args:
        activation: Its name; None where config.json names none.
        where: Recipe key that asks for relu6.
    """
    found = f"is {activation}" if activation else "is not named by its config.json"
    return Problem(
        where,
        f"{CLIPPED} takes the place of relu, which it equals up to 6; the student's activation {found}.",
        "Leave activation out: ranges of other activations are learned. MobileBERT students have relu (student: {size: mini}).",
    )
