"""Gives a file for an NPU the one shape that it takes: a row of a fixed number of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.disk.ownership import replace_file, temporary_folder
from pocketbert.quantize.onnx.sizes import from_sizes, read_elsewhere
from pocketbert.runtime.onnx import OnnxPredictor


def fix_shape(path: Path, length: int) -> None:
    """Set batch and length of an ONNX file with free axes, and compute what depends on them alone.

    An NPU takes fixed shapes only, and positions and distances as constants.

    Args:
        path: The file; it is replaced.
        length: Tokens of its inputs.
    """
    import onnx

    model = onnx.load(path)
    sizes: dict[str, int] = {}
    for tensor in model.graph.input:
        for axis, size in zip(tensor.type.tensor_type.shape.dim, (1, length), strict=False):
            sizes[axis.dim_param] = size
            axis.dim_value = size
    for tensor in model.graph.output:
        for axis in tensor.type.tensor_type.shape.dim:
            if sizes.get(axis.dim_param):
                axis.dim_value = sizes[axis.dim_param]
    with temporary_folder(path.parent) as folder:
        _fold(model, length, folder / "sizes.onnx")
        onnx.save(model, folder / path.name)
        replace_file(folder / path.name, path)


def _fold(model: Any, length: int, path: Path) -> None:
    """Replace what depends on sizes alone by constants, which a copy of that part computes."""
    import onnx
    from onnx import numpy_helper

    graph, names = model.graph, from_sizes(model.graph)
    wanted = read_elsewhere(graph, names)
    part = type(model)()
    part.CopyFrom(model)
    _keep(part.graph, [n for n in graph.node if n.op_type == "Constant" or not names.isdisjoint(n.output)])
    del part.graph.output[:]
    part.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted)
    onnx.save(part, path)
    row = {i.name: np.zeros((1, length), np.int64) for i in graph.input}
    found = OnnxPredictor(path, threads=1).run(row) if wanted else {}
    _keep(graph, [n for n in graph.node if names.isdisjoint(n.output)])
    graph.initializer.extend(numpy_helper.from_array(np.asarray(found[name]), name) for name in wanted)


def _keep(graph: Any, nodes: list[Any]) -> None:
    kept = [type(n).FromString(n.SerializeToString()) for n in nodes]
    del graph.node[:]
    graph.node.extend(kept)
