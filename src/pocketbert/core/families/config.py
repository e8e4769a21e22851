"""Checking config.json before any library builds a model from it, and reading labels and activation from it.

`read_config` refuses unbounded numbers, incomplete labels and architectures other than encoders, within the
`ConfigBounds` of a family. `label_names`, `read_activation` read a checked configuration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pocketbert.core.disk.files import is_unicode, read_json
from pocketbert.core.errors import InputError, Problem

CONFIG_FILE = "config.json"
MAX_CONFIG_MIB = 8
"""A configuration with the largest allowed number of labels takes about 4 MiB."""
MAX_LAYERS = 512
MAX_WIDTH = 1 << 17
_MAX_LABELS = 1 << 16
_LARGEST = {
    "vocab_size": 1 << 22,
    "hidden_size": 1 << 14,
    "intermediate_size": MAX_WIDTH,
    "num_hidden_layers": MAX_LAYERS,
    "num_attention_heads": MAX_LAYERS,
    "max_position_embeddings": 1 << 20,
    "type_vocab_size": 1 << 10,
    "num_labels": _MAX_LABELS,
}
"""Largest values of the entries that decide memory; each far above any published model. A family adds its own."""
_SMALLEST = {"type_vocab_size": 0, "num_hidden_layers": 0}
"""Smallest values below 1 that any family allows."""
_OPTIONAL = ("num_labels",)
_MAX_EPSILON = 1e-2
_MAX_INITIALIZER_RANGE = 100.0
_UNSUPPORTED = {
    "is_decoder": "reads the text from left to right; an encoder is expected",
    "add_cross_attention": "wants the states of another model; an encoder is expected",
    "is_encoder_decoder": "has a decoder; an encoder is expected",
    "quantization_config": "has quantized weights; take the checkpoint that it was made from, in fp32, fp16 or bf16",
    "per_layer_config": "gives layers different sizes, which no exporter knows",
    "pruned_heads": "has layers with fewer heads than others, which no exporter knows",
}
"""Entries that change the architecture if they are set, and how."""
_LAYER_KINDS = ("full_attention", "sliding_attention")
_ROPE_TYPES = ("default", "linear")
"""Kinds of scaling whose angles depend only on the position: those of others change with the length of the input."""
_ROPE_ENTRIES = ("rope_parameters", "rope_scaling")
_ROPE_NUMBERS = ("rope_theta", "global_rope_theta", "local_rope_theta")
_MAX_ROPE_NUMBER = 1e9

ACTIVATION_KEYS = ("hidden_act", "activation")
"""Keys of config.json that name the activation of the feed-forward parts."""
CLIPPED_ACTIVATION = "relu6"
CLIPPABLE_ACTIVATIONS = ("relu", CLIPPED_ACTIVATION)
RELU6_MAX = 6.0
"""The largest output of relu6."""


@dataclass(frozen=True)
class ConfigBounds:
    """A model family's limits on the entries of config.json, in addition to those of all families.

    Attributes:
        largest: Largest allowed values of entries that only this family has.
        smallest: Smallest allowed values of entries that may be below 1; the entries of all families have limits of
            their own.
        by_layer: Entries that may list one value for each layer.
        fixed: Entries that must have this value if they are present.
        rotary: Whether positions are encoded by rotations, whose parameters in config.json are then checked.
    """

    largest: Mapping[str, int] = field(default_factory=dict)
    smallest: Mapping[str, int] = field(default_factory=lambda: dict(_SMALLEST))
    by_layer: tuple[str, ...] = ()
    fixed: Mapping[str, object] = field(default_factory=dict)
    rotary: bool = False


_ANY_FAMILY = ConfigBounds()


def read_config(path: Path, bounds: ConfigBounds = _ANY_FAMILY) -> dict[str, Any]:
    """Read a config.json and check its entries against the limits of its family. Label names that are numbers become text.

    Args:
        path: The config.json, or another JSON file with such entries.
        bounds: The limits of the model's family.

    Raises:
        InputError: Listing the invalid entries; only the first ones if some hold no finite number or no Unicode text.
    """
    content = read_json(path, MAX_CONFIG_MIB)
    if not isinstance(content, dict):
        raise InputError(Problem(str(path), "is not a configuration: a JSON object is expected."))
    if isinstance(names := content.get("id2label"), dict):  # transformers takes numbers as names, too
        content["id2label"] = {key: str(name) if _is_integer(name) else name for key, name in names.items()}
    problems = [Problem(str(path), what) for what in _config_problems(content, bounds)]
    if problems:
        raise InputError(problems)
    return content


def label_names(content: Mapping[str, Any]) -> list[str] | None:
    """Return the label names of a checked config.json in the order of their ids; None if it has none."""
    names = content.get("id2label")
    return [names[str(i)] for i in range(len(names))] if names else None


def read_activation(config: Mapping[str, Any]) -> str | None:
    """Return the activation function that a config.json names; None if it names none."""
    return next((str(config[key]) for key in ACTIVATION_KEYS if isinstance(config.get(key), str)), None)


def relu6_problem(activation: str | None, where: str) -> Problem:
    """Build the error for a student that uses relu6 in place of an activation that is not relu.

    `activation` is the student's own activation; None if its config.json names none.
    """
    found = f"is {activation}" if activation else "is not named by its config.json"
    what = f"{CLIPPED_ACTIVATION} takes the place of relu, which it equals up to 6; the student's activation {found}."
    fix = "Leave activation out: ranges of other activations are learned."
    return Problem(where, what, f"{fix} MobileBERT students have relu (student: {{size: mini}}).")


# --- checks ------------------------------------------------------------


def _config_problems(content: Mapping[str, Any], bounds: ConfigBounds) -> list[str]:
    """Return what is wrong with a config.json: sentences, empty if nothing is.

    If some values are no finite numbers or no Unicode text, the sentences are about the first five of these only.
    """
    problems = list(_invalid_values(content))[:5]
    if problems:
        return problems  # the other sentences would quote these values
    for key, largest in {**_LARGEST, **bounds.largest}.items():
        if key in content:
            problems += _size_problems(key, content[key], largest, bounds)
    problems += [
        f"{key} is {_quote(content[key])}; only {value!r} is computed."
        for key, value in bounds.fixed.items()
        if content.get(key, value) != value
    ]
    problems += _rotary_problems(content) if bounds.rotary else []
    problems += [p for key, value in content.items() for p in _fraction_problems(key, value)]
    problems += [
        f"{key} is {_quote(content[key])}: the model {why}." for key, why in _UNSUPPORTED.items() if content.get(key)
    ]
    positions = content.get("position_embedding_type")
    if positions not in (None, "absolute"):
        problems.append(f"position_embedding_type is {_quote(positions)}; only 'absolute' is computed.")
    classes = content.get("architectures")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(c, str) for c in classes)):
        problems.append(f"architectures is {_quote(classes)}, which is not a list of names.")
    pad, rows = content.get("pad_token_id"), content.get("vocab_size")
    largest = rows if isinstance(rows, int) else _LARGEST["vocab_size"]
    if pad is not None and (not _is_integer(pad) or not 0 <= pad < largest):
        allowed = f"the number of a token, from 0 to {largest - 1:,}"
        problems.append(f"pad_token_id is {_quote(pad)}; {allowed}, is expected.")
    return [*problems, *_label_problems(content)]


def _invalid_values(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each entry of a config.json, at any depth, with infinity, NaN or text that is not Unicode."""
    pending: list[tuple[str, Any]] = list(content.items())
    while pending:
        name, value = pending.pop()
        if not is_unicode(name) or (isinstance(value, str) and not is_unicode(value)):
            yield f"{_quote(name)} holds text that is not Unicode."
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{name[:40]} is {value}, which is not a finite number."
        elif isinstance(value, dict):
            pending += value.items()
        elif isinstance(value, list):
            pending += [(name, v) for v in value]


def _size_problems(key: str, value: Any, largest: int, bounds: ConfigBounds) -> Iterator[str]:
    """Yield a problem if a size (or one size per layer) is no whole number within its bounds."""
    smallest = bounds.smallest.get(key, 1)
    values = value if key in bounds.by_layer and isinstance(value, list) and value else [value]
    if len(values) > MAX_LAYERS:
        yield f"{key} lists {len(values):,} values; at most {MAX_LAYERS} layers are allowed."
        return
    for size in values:
        if size is None and key in _OPTIONAL:
            continue
        if not _is_integer(size) or not smallest <= size <= largest:
            yield f"{key} is {_quote(size)}; a whole number from {smallest} to {largest:,} is expected."
            return


def _fraction_problems(key: str, value: Any) -> Iterator[str]:
    """Yield a problem if a dropout, epsilon or initializer range, recognized by its name, is out of bounds."""
    if value is None:
        return
    if key.endswith(("dropout", "dropout_prob")):
        low, high, what = 0.0, 1.0, "a number from 0 to 1"
    elif key.endswith("_eps"):
        low, high, what = 1e-30, _MAX_EPSILON, f"a number above 0, at most {_MAX_EPSILON:g}"
    elif key == "initializer_range":
        low, high, what = 0.0, _MAX_INITIALIZER_RANGE, f"a number from 0 to {_MAX_INITIALIZER_RANGE:g}"
    else:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        yield f"{key} is {_quote(value)}; {what} is expected."


def _rotary_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of `layer_types` and the parameters of rotary positions (RoPE), old and new names alike."""
    for key in _ROPE_NUMBERS:
        if key in content:
            yield from _rope_number_problems(key, content[key])
    for key in _ROPE_ENTRIES:
        value = content.get(key)
        if value is not None:
            nested = isinstance(value, dict) and set(value) <= set(_LAYER_KINDS)
            for parameters in value.values() if nested else [value]:
                yield from _rope_parameter_problems(key, parameters)
    kinds, layers = content.get("layer_types"), content.get("num_hidden_layers")
    if kinds is not None and (
        not isinstance(kinds, list) or any(k not in _LAYER_KINDS for k in kinds) or len(kinds) != (layers or len(kinds))
    ):
        expected = f"a list of {' and '.join(_LAYER_KINDS)}, one for each layer"
        yield f"layer_types is {str(kinds)[:60]}; {expected}, is expected."


def _rope_parameter_problems(key: str, parameters: Any) -> Iterator[str]:
    """Yield the problems of one dictionary of RoPE parameters."""
    if not isinstance(parameters, dict):
        yield f"{key} holds {str(parameters)[:40]}; an object with rope_type and rope_theta is expected."
        return
    kind = parameters.get("rope_type", parameters.get("type", _ROPE_TYPES[0]))
    if kind not in _ROPE_TYPES:
        yield f"{key} has the rope_type {str(kind)[:40]}; only {' and '.join(_ROPE_TYPES)} are computed."
    for name in ("rope_theta", "factor"):
        if name in parameters:
            yield from _rope_number_problems(f"{name} of {key}", parameters[name])
    unknown = sorted(str(n)[:40] for n in set(parameters) - {"rope_type", "type", "rope_theta", "factor"})
    if unknown:
        yield f"{key} has {', '.join(unknown[:3])}, which nothing here computes."


def _rope_number_problems(key: str, value: Any) -> Iterator[str]:
    """Yield a problem if a RoPE parameter is no number within its bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value <= _MAX_ROPE_NUMBER:
        yield f"{key} is {str(value)[:40]}; a number from 1 to {_MAX_ROPE_NUMBER:g} is expected."


def _label_problems(content: Mapping[str, Any]) -> Iterator[str]:
    """Yield the problems of id2label, and contradictions of label2id and num_labels to it; none without id2label."""
    names, numbers, count = content.get("id2label"), content.get("label2id"), content.get("num_labels")
    if names is None or names == {}:
        return
    if not isinstance(names, dict):
        yield f"id2label is {_quote(names)}; names by number are expected."
        return
    if len(names) > _MAX_LABELS:
        yield f"id2label has {len(names):,} labels; at most {_MAX_LABELS:,} are allowed."
        return
    if not all(k.isdecimal() for k in names):
        yield f"id2label has keys that are not numbers: {_quote(list(names)[:3])}."
    elif set(names) != {str(i) for i in range(len(names))}:
        yield f"id2label has {len(names)} labels, but not the numbers 0 to {len(names) - 1}: {_quote(list(names)[:5])}."
    if invalid := [n for n in names.values() if not (isinstance(n, str) and n.strip())]:
        yield f"id2label has names that are empty or not text: {_quote(invalid[:3])}."
    elif len(set(names.values())) < len(names):
        yield "id2label has one name for two labels."
    elif numbers is not None and numbers != {} and not _agrees(names, numbers):
        yield (
            "label2id is not the inverse of id2label: it is not certain which output has which name. "
            "Correct one of them; transformers answers by id2label."
        )
    if _is_integer(count) and count != len(names):
        yield f"num_labels is {count}, id2label has {len(names)} labels."


def _agrees(names: Mapping[str, str], numbers: Any) -> bool:
    """Return whether label2id maps names to numbers, and gives no name of id2label another number than that does.

    It may have further names, such as LABEL_i: programs that change id2label only leave them there.
    """
    if not isinstance(numbers, dict) or any(isinstance(v, bool | float | list | dict) for v in numbers.values()):
        return False
    by_name = {name: key for key, name in names.items()}
    return all(by_name.get(str(k), str(v)) == str(v) for k, v in numbers.items())


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _quote(value: Any) -> str:
    """Return the text of a value for a message, cut to 60 characters."""
    text = ascii(value) if not _is_integer(value) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."
