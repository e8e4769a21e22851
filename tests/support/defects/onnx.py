"""ONNX files broken on purpose, each as a mistake of a converter or a hand would break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from pocketbert.core.disk.files import sha256_path

Model = onnx.ModelProto
CLASSES = 3


def edit(path: Path, change: Callable[[Model], None]) -> None:
    """Change a graph in place; the result must still be a valid model, or the runtime would do the gate's work."""
    before, model = sha256_path(path), onnx.load(path)
    change(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    assert sha256_path(path) != before


def change_array(tensor: TensorProto, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Replace the value of an initializer by one of the same type."""
    value = numpy_helper.to_array(tensor)
    tensor.CopyFrom(numpy_helper.from_array(change(value.copy()).astype(value.dtype), tensor.name))


def rewrite(model: Model) -> None:
    model.doc_string = "written again"


def ignore_mask(model: Model) -> None:
    for node in model.graph.node:
        for i, name in enumerate(node.input):
            if name == "attention_mask":
                node.input[i] = "all_ones"
    one = helper.make_tensor("one", TensorProto.INT64, [1], [1])
    model.graph.node.insert(0, helper.make_node("ConstantOfShape", ["mask_shape"], ["all_ones"], value=one))
    model.graph.node.insert(0, helper.make_node("Shape", ["attention_mask"], ["mask_shape"]))


def classifier(model: Model) -> Iterator[TensorProto]:
    """Yield what is stored of the last layer: weight, bias and, in a quantized file, scales."""
    yield from (t for t in model.graph.initializer if "classifier" in t.name)


def swap_labels(model: Model) -> None:
    changed = 0
    for tensor in classifier(model):
        if tensor.dims and tensor.dims[-1] == CLASSES:
            change_array(tensor, lambda v: v[..., [1, 0, 2]])
        elif tensor.dims and tensor.dims[0] == CLASSES:
            change_array(tensor, lambda v: v[[1, 0, 2]])
        else:
            continue
        changed += 1
    assert changed >= 2  # weight and bias


def always_the_same(model: Model) -> None:
    weights = [t for t in classifier(model) if len(t.dims) == 2]
    assert weights
    for tensor in weights:
        change_array(tensor, np.zeros_like)


def a_little_more(model: Model) -> None:
    scales = [t for t in classifier(model) if t.name.endswith("_scale")]
    assert scales
    for tensor in scales:
        change_array(tensor, lambda v: v * np.float32(1.25))


def one_nan(model: Model) -> None:
    floats = (t for t in model.graph.initializer if len(t.dims) == 2 and t.data_type == TensorProto.FLOAT)
    tensor = max((t for t in floats if "embeddings" not in t.name), key=lambda t: t.dims[0] * t.dims[1])
    change_array(tensor, lambda v: spoilt(v, (3, 5)))


def words(model: Model) -> TensorProto:
    """Find the table of words: fp32, or integers."""
    return next(t for t in model.graph.initializer if "word_embeddings" in t.name and len(t.dims) == 2)


def one_hidden_nan(model: Model) -> None:
    change_array(words(model), lambda v: spoilt(v, (4, 0)))


def one_nan_scale(model: Model) -> None:
    tensor = next(t for t in model.graph.initializer if "word_embeddings" in t.name and t.name.endswith("_row_scales"))
    change_array(tensor, lambda v: spoilt(v, (4, 0)))


def spoilt(value: np.ndarray, at: tuple[int, int]) -> np.ndarray:
    """Put one NaN into an array."""
    value[at] = np.nan
    return value


def lose_a_word(model: Model, vocabulary: Sequence[str]) -> None:
    """One keyword of each label gets the int8 embedding of another label's keyword."""
    found = [i for i, token in enumerate(vocabulary) if token in ("bulb", "melody", "wake")]

    def exchange(value: np.ndarray) -> np.ndarray:
        assert value.dtype.kind in "iu"
        value[found] = value[np.roll(found, 1)]
        return value

    change_array(words(model), exchange)
