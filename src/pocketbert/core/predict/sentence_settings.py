"""Settings of a sentence-transformers folder in addition to the model: prompts, the similarity, and the pooling.

- `read_prompts` and `read_similarity` read config_sentence_transformers.json.
- `read_pooling` reads from modules.json how token states become one vector per text; `write_modules` writes these files.
- For an artefact folder, `read_listed_processing` reads the same settings from its artifacts.json.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import read_json, safe_join, sha256_file, write_json
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.predict.inputs import Text, columns_of, with_columns

SETTINGS_FILE = "config_sentence_transformers.json"
"""File in which sentence-transformers keeps prompts, the similarity, and which of its classes a folder is for."""


def read_settings(folder: Path) -> dict[str, Any]:
    """Read a folder's config_sentence_transformers.json as a dictionary; empty if there is no such file.

    Raises:
        InputError: If it is no JSON object.
    """
    path = folder / SETTINGS_FILE
    settings = read_json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is not a table of settings."))
    return settings


def is_cross_encoder(folder: Path) -> bool:
    """Return whether a folder holds a sentence-transformers CrossEncoder, which classifies pairs of texts.

    Raises:
        InputError: If its settings cannot be read.
    """
    return read_settings(folder).get("model_type") == "CrossEncoder"


def read_listed_processing(folder: Path) -> dict[str, Any] | None:
    """Read tokenizer and prompt settings from a folder's artifacts.json; None without that file, empty if it has none."""
    artifacts = folder / "artifacts.json"
    if not artifacts.is_file():
        return None
    content = read_json(artifacts)
    processing = content.get("processing") if isinstance(content, dict) else None
    return processing if isinstance(processing, dict) else {}


# --- prompts ---

_MOST_PROMPTS = 1 << 10
_LONGEST_PROMPT = 1 << 14
"""Characters of a prompt: the text itself has to have room behind it."""


@dataclass(frozen=True)
class Prompts:
    """The prompts of an embedding model: texts such as ``query: `` that are put in front of an input.

    Attributes:
        named: The texts by name.
        default: Name of the prompt that is used if none is named; None for no prompt.
    """

    named: Mapping[str, str] = field(default_factory=dict)
    default: str | None = None

    def text_of(self, name: str | None) -> str:
        """Return the text of the named prompt, or of the default one for None; empty if there is no default.

        Raises:
            InputError: If no prompt has the name.
        """
        name = self.default if name is None else name
        if name is None:
            return ""
        if name not in self.named:
            known = (
                f"the model's prompts: {suggest_allowed(name, list(self.named))}"
                if self.named
                else "the model has none"
            )
            fix = "Name one of these, or write the prompt into the texts." if self.named else "Leave it out."
            raise InputError(Problem("prompt", f"'{name}' is no prompt; {known}.", fix))
        return self.named[name]

    def put_before(self, texts: Sequence[Text], name: str | None = None) -> Sequence[Text]:
        """Put a prompt in front of texts, as sentence-transformers does; in a pair, in front of the first text.

        Args:
            texts: N texts or pairs; entries that are neither are returned unchanged.
            name: Name of the prompt; None for the default prompt.

        Raises:
            InputError: If no prompt has the name.
        """
        prompt = self.text_of(name)
        return [_prepend(prompt, text) for text in texts] if prompt else texts


def _prepend(prompt: str, text: Text) -> Text:
    """Put a prompt in front of one text or pair, which keeps its data columns."""
    if isinstance(text, str):
        return with_columns(prompt + text, columns_of(text))
    parts: object = text
    if not isinstance(parts, tuple | list) or len(parts) != 2 or not isinstance(parts[0], str):
        return text  # the tokenizer reports what is wrong with it
    return with_columns((prompt + parts[0], parts[1]), columns_of(text))


def read_prompts(folder: Path) -> Prompts:
    """Read a folder's prompts (texts that are put in front of inputs), by name.

    They are read from artifacts.json if the folder has one, else from config_sentence_transformers.json. Prompts whose
    text is null are left out.

    Raises:
        InputError: If the file does not map names to texts, has too many or too long ones, or lacks the default prompt.
    """
    if (processing := read_listed_processing(folder)) is not None:
        where = folder / "artifacts.json"
        prompts, default = processing.get("prompts"), processing.get("default_prompt")
    else:
        where, settings = folder / SETTINGS_FILE, read_settings(folder)
        prompts, default = settings.get("prompts"), settings.get("default_prompt_name")
    prompts = {} if prompts is None else prompts
    texts = {k: v for k, v in prompts.items() if v is not None} if isinstance(prompts, dict) else None
    if (
        texts is None
        or len(texts) > _MOST_PROMPTS
        or not all(isinstance(v, str) and len(v) <= _LONGEST_PROMPT for v in texts.values())
    ):
        what = (
            f"prompts is no table of at most {_MOST_PROMPTS:,} texts by name, "
            f"each of at most {_LONGEST_PROMPT:,} characters."
        )
        raise InputError(Problem(str(where), what, 'Write them as {"query": "query: "}.'))
    if default is not None and (not isinstance(default, str) or default not in texts):
        known = ", ".join(texts) or "none"
        raise InputError(Problem(str(where), f"the default prompt {default!r:.60} is not among the prompts: {known}."))
    return Prompts(texts, default)


# --- similarity ---


class Similarity(StrEnum):
    """Measure of how alike two vectors are; the larger, the more alike."""

    COSINE = "cosine"
    """The cosine of the angle between them."""
    DOT = "dot"
    """Their dot product."""
    EUCLIDEAN = "euclidean"
    """The negative Euclidean distance."""
    MANHATTAN = "manhattan"
    """The negative sum of the absolute differences."""


def read_similarity(folder: Path) -> Similarity:
    """Read with which function a sentence-transformers model's vectors are compared; cosine by default.

    Raises:
        InputError: If sentence-transformers has no such function.
    """
    name = read_settings(folder).get("similarity_fn_name")
    if name in (None, *Similarity):
        return Similarity(name or Similarity.COSINE)
    known = suggest_allowed(str(name), [s.value for s in Similarity])
    raise InputError(Problem(str(folder / SETTINGS_FILE), f"similarity_fn_name {name!r:.40} is unknown; {known}."))


_DIMENSIONS_KEY = "matryoshka_dimensions"


def read_dimensions(folder: Path) -> list[int] | None:
    """Read the lengths to which a folder's vectors may be cut, as `write_dimensions` wrote them; None if it lists none.

    Lengths above the folder's ``truncate_dim`` are left out. Raises InputError for no list of 1 to 16 whole numbers above 0.
    """
    listed, cut = read_settings(folder).get(_DIMENSIONS_KEY), _read_cut(folder)
    if listed is None or (
        isinstance(listed, list) and 0 < len(listed) <= 16 and all(type(n) is int and n > 0 for n in listed)
    ):
        return sorted({n for n in listed or () if not cut or n <= cut.width}) or None
    what = f"{_DIMENSIONS_KEY} is {listed!r:.40}, no list of 1 to 16 lengths."
    raise InputError(Problem(str(folder / SETTINGS_FILE), what, "Correct it, such as [64, 128], or leave it out."))


def write_dimensions(folder: Path, dimensions: Sequence[int]) -> None:
    """Add the lengths to which vectors may be cut to a folder's config_sentence_transformers.json."""
    write_json(folder / SETTINGS_FILE, {**read_settings(folder), _DIMENSIONS_KEY: list(dimensions)})


# --- pooling ---

MODULES_FILE = "modules.json"
POOLING_FILE = "1_Pooling/config.json"
_MODULE_WEIGHTS = "model.safetensors"


class PoolingKind(StrEnum):
    """Which token states are pooled, by the names of sentence-transformers."""

    MEAN = "mean"
    """The mean over all tokens but padding, special tokens included."""
    CLS = "cls"
    """The state of the first token."""
    MAX = "max"
    """The largest number over all tokens, for each number of a state."""
    MEAN_SQRT_LEN = "mean_sqrt_len_tokens"
    """The sum over all tokens, divided by the square root of their number."""
    WEIGHTED_MEAN = "weightedmean"
    """The mean with the weights 1, 2, 3, ... from the first token to the last."""
    LAST_TOKEN = "lasttoken"  # noqa: S105 - no password
    """The state of the last token."""


_FLAGS = {
    "pooling_mode_cls_token": PoolingKind.CLS,
    "pooling_mode_max_tokens": PoolingKind.MAX,
    "pooling_mode_mean_tokens": PoolingKind.MEAN,
    "pooling_mode_mean_sqrt_len_tokens": PoolingKind.MEAN_SQRT_LEN,
    "pooling_mode_weightedmean_tokens": PoolingKind.WEIGHTED_MEAN,
    "pooling_mode_lasttoken": PoolingKind.LAST_TOKEN,
}
"""Settings of the Pooling module in the order in which it concatenates; others with the same prefix are refused."""
POOLING_TITLES = {
    PoolingKind.MEAN: "mean of the token states",
    PoolingKind.CLS: "state of the first token",
    PoolingKind.MAX: "maximum over the token states",
    PoolingKind.MEAN_SQRT_LEN: "sum of the token states by the square root of their number",
    PoolingKind.WEIGHTED_MEAN: "mean of the token states with weights that grow from first to last",
    PoolingKind.LAST_TOKEN: "state of the last token",
}
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU", "Sigmoid", "SiLU")
"""Classes of torch.nn that a Dense module may have as activation."""
DENSE, LAYER_NORM, NORMALIZE, CUT = "Dense", "LayerNorm", "Normalize", "Cut"
CUT_KEY = "truncate_dim"
"""Setting of how many first numbers of a vector sentence-transformers returns; it does not normalize them again."""
NORM_EPSILON = 1e-5
"""What torch's LayerNorm adds to the variance by default; the module of sentence-transformers has no setting for it."""
_LAYER_WEIGHTS = {DENSE: ("linear.weight", "linear.bias", "residual.weight"), LAYER_NORM: ("norm.weight", "norm.bias")}
_MAX_LAYERS, _MAX_WIDTH = 16, 1 << 16
LAYER_FOLDERS = tuple(f"{number}_{kind}" for number in range(2, _MAX_LAYERS) for kind in (DENSE, LAYER_NORM))
"""Folders in which `write_modules` may write layers behind the pooling."""


@dataclass(frozen=True)
class VectorLayer:
    """A layer after the pooling of a sentence-transformers model.

    Attributes:
        kind: ``Dense``, ``LayerNorm``, ``Normalize`` (to length 1) or ``Cut`` (to its first numbers).
        width: Length of the vector that the layer returns, for Cut the longest; 0 if it is the length of its input.
        activation: Activation of a Dense layer, as the name of a class in torch.nn.
        residual: Whether a Dense layer's input is added to its output.
        weights: The layer's weights, float32 arrays by the names that sentence-transformers gives them.
        digest: sha256 of the layer's weight file; empty if it has none.
    """

    kind: str
    width: int = 0
    activation: str = "Identity"
    residual: bool = False
    weights: Mapping[str, NDArray[np.float32]] = field(default_factory=dict, compare=False, hash=False, repr=False)
    digest: str = ""

    @property
    def title(self) -> str:
        """Description for users, such as ``Dense to 256 numbers, Tanh``."""
        if self.kind != DENSE:
            return f"its first {self.width} numbers" if self.kind == CUT else self.kind
        plus = " plus its input" if self.residual else ""
        return f"{DENSE} to {self.width} numbers{f', {self.activation}' if self.activation != 'Identity' else ''}{plus}"


@dataclass(frozen=True)
class Pooling:
    """How the token states [B, L, H] of a model are pooled to sentence embeddings [B, H].

    Attributes:
        kind: How token states are pooled, e.g. by their mean.
        normalize: Whether the vector is divided by its Euclidean length, as the last step.
        further: Further kinds of pooling, whose vectors are appended to that of the first.
        layers: Layers that the vector goes through, in order, before it is normalized.
        dimensions: Lengths to which the vector may be cut (its first numbers), ascending; empty if it is used whole only.
    """

    kind: PoolingKind = PoolingKind.MEAN
    normalize: bool = True
    further: tuple[PoolingKind, ...] = ()
    layers: tuple[VectorLayer, ...] = ()
    dimensions: tuple[int, ...] = ()

    @property
    def kinds(self) -> tuple[PoolingKind, ...]:
        """All kinds of pooling, in the order in which their vectors are concatenated."""
        return (self.kind, *self.further)

    @property
    def name(self) -> str:
        """The names of the kinds of pooling, such as ``mean`` or ``mean+max``."""
        return "+".join(self.kinds)

    @property
    def title(self) -> str:
        """Description for users, such as ``mean of the token states, of length 1``."""
        pooled = " and ".join(POOLING_TITLES[kind] for kind in self.kinds)
        layers = "".join(f", then {layer.title}" for layer in self.layers)
        return pooled + layers + (", of length 1" if self.normalize else "")


DEFAULT_POOLING = Pooling()
"""Pooling of models that do not state theirs: that of most sentence-transformers models."""


def read_pooling(folder: Path) -> Pooling | None:
    """Read from modules.json how a sentence-transformers model pools token states, and the layers after the pooling.

    Source: sentence-transformers 6. modules.json lists the modules in order, each with a class and the folder of its
    settings. Only the last part of a class's name is compared, because its package was moved between versions.

    Args:
        folder: A Hugging Face model folder.

    Returns:
        The pooling, or None if the folder has no modules.json or holds a CrossEncoder, which pools nothing.

    Raises:
        InputError: If a module or a setting that would change the vector is not supported. Dropout is ignored.
    """
    path = folder / MODULES_FILE
    if not path.is_file():
        return None
    modules = read_json(path)
    if not isinstance(modules, list) or not all(isinstance(m, dict) for m in modules):
        raise InputError(Problem(str(path), "is not a list of modules."))
    kinds = [str(m.get("type", "")).rpartition(".")[2] for m in modules]
    if kinds == ["Transformer"] and is_cross_encoder(folder):
        return None
    served = (DENSE, LAYER_NORM, NORMALIZE, "Dropout")
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(served) or len(kinds) > _MAX_LAYERS:
        what = (
            f"the modules {', '.join(k or '?' for k in kinds[:8]) or 'are none'}; "
            f"served: Transformer, Pooling and, behind them, {', '.join(served)}."
        )
        fix = "Choose a model without other layers behind the encoder, or leave modules.json out and take the mean."
        fix = fix if kinds[:1] == ["Transformer"] else "Choose a model that begins with an encoder and its pooling."
        raise InputError(Problem(str(path), what, fix))
    places = [safe_join(folder, str(m.get("path", "")), str(path)) for m in modules]
    pooled = _read_pooling_kinds(places[1] / "config.json")
    pairs = zip(kinds[2:], places[2:], strict=True)
    layers = [_read_layer(kind, place) for kind, place in pairs if kind != "Dropout"]
    _check_widths(layers, path)
    if (cut := _read_cut(folder)) is not None:
        layers.append(cut)
    unit = bool(layers) and layers[-1].kind == NORMALIZE
    return Pooling(pooled[0], unit, pooled[1:], tuple(layers[:-1] if unit else layers))


def _read_cut(folder: Path) -> VectorLayer | None:
    """Read to how many numbers sentence-transformers cuts a folder's vectors, as the last layer; None if it cuts none."""
    width = read_settings(folder).get(CUT_KEY)
    if width is None:
        return None
    if type(width) is not int or width < 1:
        what = f"{CUT_KEY} is {width!r:.20}, no whole number above 0."
        raise InputError(Problem(str(folder / SETTINGS_FILE), what, f"Correct {CUT_KEY}, or leave it out."))
    return VectorLayer(CUT, min(width, _MAX_WIDTH))


def _read_pooling_kinds(path: Path) -> tuple[PoolingKind, ...]:
    """Read the Pooling module's config.json; raise InputError if it asks for pooling that is not supported."""
    settings = read_json(path)
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is not a table of settings."))
    modes = _pooling_modes(settings)
    problems = []
    if not modes or len(modes) > len(PoolingKind) or not set(modes) <= set(PoolingKind):
        shown = " and ".join(f"{mode:.60}" for mode in modes[:8]) or "nothing"
        problems.append(Problem(str(path), f"pools by {shown}; served: {', '.join(PoolingKind)}."))
    if settings.get("include_prompt", True) is not True:
        what = "leaves the prompt's tokens out (include_prompt: false); a file cannot know them."
        problems.append(Problem(str(path), what, "Set include_prompt: true if the texts have no prompt."))
    if problems:
        raise InputError(problems)
    return tuple(PoolingKind(mode) for mode in modes)


def _pooling_modes(settings: dict[str, Any]) -> list[str]:
    """List the pooling modes that are switched on, from the older format (a flag for each) or the newer one (names)."""
    flags = [*_FLAGS, *(name for name in settings if name.startswith("pooling_mode_") and name not in _FLAGS)]
    modes = [_FLAGS[flag].value if flag in _FLAGS else flag for flag in flags if settings.get(flag)]
    named = settings.get("pooling_mode")
    return [str(mode) for mode in ([named] if isinstance(named, str) else named or ())] or modes


def _read_layer(kind: str, folder: Path) -> VectorLayer:
    """Read settings and weights of one layer after the pooling; raise InputError if they are invalid or not supported."""
    from pocketbert.core.disk.weight_files import find_weight_files, read_weights

    path = folder / "config.json"
    settings = read_json(path) if path.is_file() else {}
    if not isinstance(settings, dict):
        raise InputError(Problem(str(path), "is not a table of settings."))
    for key in ("module_input_name", "module_output_name"):
        if settings.get(key) not in (None, "sentence_embedding"):
            what = f"{key} is {settings[key]!r:.40}; served: sentence_embedding, the vector of the whole text."
            raise InputError(Problem(str(path), what))
    if kind == NORMALIZE:
        return VectorLayer(NORMALIZE)
    stated = settings.get("activation_function", "Tanh") if kind == DENSE else "Identity"  # defaults of the library
    activation = str(stated).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        what = f"the activation {stated!r:.80} is not served; served: {', '.join(ACTIVATIONS)}."
        raise InputError(Problem(str(path), what))
    file = find_weight_files(folder)[0]
    if file.stat().st_size > 4 * _MAX_WIDTH * _MAX_WIDTH // 16:
        raise InputError(Problem(str(file), "larger than any layer behind a pooling, refused."))
    tensors = {name: value.float().numpy() for name, value in read_weights([file]).items() if value.is_floating_point()}
    names = _LAYER_WEIGHTS[kind]
    first = tensors.get(names[0], np.zeros(0, np.float32))
    width = first.shape[0] if first.ndim else 0
    residual = settings.get("use_residual") is True
    shapes = {names[0]: (width, *first.shape[1:]), names[1]: (width,), "residual.weight": first.shape}
    wrong = [n for n, v in tensors.items() if n not in names or v.shape != shapes[n] or not np.isfinite(v).all()]
    if first.ndim != (2 if kind == DENSE else 1) or not 0 < max(first.shape) <= _MAX_WIDTH or wrong:
        what = f"is no {kind} of finite numbers: {', '.join(n[:60] for n in wrong[:8]) or names[0]}."
        raise InputError(Problem(str(file), what))
    biased = kind == LAYER_NORM or bool(settings.get("bias", True))
    if biased != (names[1] in tensors):
        what = f"has {'no ' if biased else ''}{names[1]}, and the layer has {'one' if biased else 'no bias (bias: false)'}."
        raise InputError(Problem(str(file), what, "Copy the folder again as it was published."))
    if kind == DENSE and residual and "residual.weight" not in tensors and first.shape[0] != first.shape[1]:
        raise InputError(Problem(str(file), "has no residual.weight, which use_residual asks for."))
    return VectorLayer(kind, width if kind == DENSE else 0, activation, residual, tensors, sha256_file(file))


def _check_widths(layers: Sequence[VectorLayer], path: Path) -> None:
    """Raise InputError if a layer after the pooling expects vectors of another length than the layer before returns."""
    width = 0
    for number, layer in enumerate(layers, 2):
        taken = next((v.shape[-1] for n, v in layer.weights.items() if n in ("linear.weight", "norm.weight")), 0)
        if width and taken and taken != width:
            what = f"module {number} ({layer.kind}) takes {taken} numbers, the one before it gives {width}."
            raise InputError(Problem(str(path), what))
        width = layer.width or taken or width


def check_width(pooling: Pooling, hidden: int, where: str) -> None:
    """Raise InputError if the first layer with weights after the pooling expects vectors of another length than it gets.

    Args:
        pooling: The pooling and the layers after it.
        hidden: Width of a token state.
        where: Name of the model folder, for the error message.
    """
    for number, layer in enumerate(pooling.layers):
        given = vector_width(replace(pooling, layers=pooling.layers[:number]), hidden)
        taken = next((v.shape[-1] for n, v in layer.weights.items() if n in ("linear.weight", "norm.weight")), given)
        if taken != given:
            what = f"its {layer.kind} layer takes {taken} numbers, {len(pooling.kinds)} pooled states have {given}."
            raise InputError(Problem(where, what))
        if layer.weights:
            return


def vector_width(pooling: Pooling, hidden: int) -> int:
    """Return how many numbers the text vector of a model has after the pooling and the layers behind it.

    Args:
        pooling: How token states become a vector.
        hidden: Width of the token states.
    """
    width = hidden * len(pooling.kinds)
    for layer in pooling.layers:
        width = min(layer.width, width) if layer.kind == CUT else layer.width or width
    return width


def add_dense(pooling: Pooling, weights: Mapping[str, NDArray[np.float32]], *, first: bool = False) -> Pooling:
    """Return a pooling with one more Dense layer, behind its layers or in front of them (`first`).

    Its weights are ``linear.weight`` [W', W] and, if it has a bias, ``linear.bias`` [W'].
    """
    layer = VectorLayer(DENSE, len(weights["linear.weight"]), weights=weights)
    return replace(pooling, layers=(layer, *pooling.layers) if first else (*pooling.layers, layer))


def apply_layers(vectors: NDArray[np.float64], layers: Sequence[VectorLayer]) -> NDArray[np.float64]:
    """Apply the layers after the pooling (`VectorLayer.kind`) to vectors [N, W] in float64; return [N, W']."""
    for layer in layers:
        weights = {name: value.astype(np.float64) for name, value in layer.weights.items()}
        if layer.kind == CUT:
            vectors = vectors[..., : layer.width]
        elif layer.kind == NORMALIZE:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-12)
        elif layer.kind == LAYER_NORM:
            centred = vectors - vectors.mean(-1, keepdims=True)
            scaled = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + NORM_EPSILON)
            vectors = scaled * weights["norm.weight"] + weights.get("norm.bias", 0.0)
        else:
            out = _activate(vectors @ weights["linear.weight"].T + weights.get("linear.bias", 0.0), layer.activation)
            if layer.residual:
                out = out + (vectors @ weights["residual.weight"].T if "residual.weight" in weights else vectors)
            vectors = out
    return vectors


def _activate(values: NDArray[np.float64], name: str) -> NDArray[np.float64]:
    """Apply an activation of `ACTIVATIONS`, named as in torch.nn, to an array; other names return it unchanged."""
    match name:
        case "Tanh":
            return np.asarray(np.tanh(values))
        case "ReLU":
            return np.maximum(values, 0.0)
        case "GELU":
            return np.asarray(values * (1 + np.vectorize(math.erf, otypes=[float])(values / math.sqrt(2))) / 2)
        case "Sigmoid" | "SiLU":
            half = (1 + np.tanh(values / 2)) / 2  # which does not overflow
            return np.asarray(half if name == "Sigmoid" else values * half)
    return values


def write_modules(folder: Path, pooling: Pooling, width: int, length: int) -> None:
    """Write modules.json with the settings and weights of its modules, so that sentence-transformers pools in the same way.

    Args:
        folder: The model folder, which has config.json and the tokenizer already.
        pooling: Pooling of token states to a vector, and the layers that follow it.
        width: Width H of a token state.
        length: Longest input in tokens, which sentence_bert_config.json gets.
    """
    check_width(pooling, width, str(folder))
    layers = [*pooling.layers, *([VectorLayer(NORMALIZE)] if pooling.normalize else [])]
    settings = read_settings(folder)
    cut = layers.pop().width if layers and layers[-1].kind == CUT else None
    if settings.get(CUT_KEY) != cut:
        write_json(folder / SETTINGS_FILE, {**settings, CUT_KEY: cut})
    # sentence-transformers cuts last; in front of other layers, a Dense layer that repeats the first numbers does it
    widths = [vector_width(replace(pooling, layers=tuple(layers[:i])), width) for i in range(len(layers))]
    layers = [
        _cut_as_dense(layer.width, n) if layer.kind == CUT else layer for layer, n in zip(layers, widths, strict=True)
    ]
    names = ["Transformer", "Pooling", *(layer.kind for layer in layers)]
    paths = ["", *(f"{i}_{name}" for i, name in enumerate(names[1:], 1))]
    entries = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    write_json(folder / MODULES_FILE, entries)
    (folder / POOLING_FILE).parent.mkdir(exist_ok=True)
    modes = {flag: kind in pooling.kinds for flag, kind in _FLAGS.items()}
    in_order = tuple(kind for kind in _FLAGS.values() if kind in pooling.kinds) == pooling.kinds
    settings = modes if in_order else {"pooling_mode": [kind.value for kind in pooling.kinds]}
    write_json(folder / POOLING_FILE, {"word_embedding_dimension": width, **settings})
    for layer, path in zip(layers, paths[2:], strict=True):
        if layer.weights:
            _write_layer(layer, folder / path)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": length, "do_lower_case": False})


def _cut_as_dense(width: int, given: int) -> VectorLayer:
    """Return a Dense layer whose output is the first `width` of `given` numbers."""
    return VectorLayer(
        DENSE, min(width, given), weights={"linear.weight": np.eye(min(width, given), given, dtype=np.float32)}
    )


def _write_layer(layer: VectorLayer, folder: Path) -> None:
    """Write the settings and weights of a layer after the pooling as sentence-transformers reads them."""
    from safetensors.numpy import save_file

    folder.mkdir(exist_ok=True)
    first = next(v for n, v in layer.weights.items() if n in ("linear.weight", "norm.weight"))
    settings: dict[str, Any] = {"dimension": first.shape[0]}
    if layer.kind == DENSE:
        kind = "torch.nn.modules.linear" if layer.activation == "Identity" else "torch.nn.modules.activation"
        settings = {
            "in_features": first.shape[1],
            "out_features": first.shape[0],
            "bias": "linear.bias" in layer.weights,
            "activation_function": f"{kind}.{layer.activation}",
            **({"use_residual": True} if layer.residual else {}),
        }
    write_json(folder / "config.json", settings)
    save_file({k: np.ascontiguousarray(v) for k, v in layer.weights.items()}, folder / _MODULE_WEIGHTS)
