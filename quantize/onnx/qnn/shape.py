"""Gives a file for an NPU the one shape that it takes: a row of a fixed number of tokens."""

from __future__ import annotations

from pathlib import Path

from pocketbert.core.disk.ownership import replace_file, temporary_folder


def fix_shape(path: Path, length: int) -> None:
    """Set batch and length of an ONNX file with free axes.

    An NPU takes fixed shapes only.

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
        onnx.save(model, folder / path.name)
        replace_file(folder / path.name, path)
