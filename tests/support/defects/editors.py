"""Files whose stored tensors can be changed, one class for each format.

A tensor is found by the name that it has in the prepared module, whatever the exporter calls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from pocketbert.core.types import Format
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.formats.constants import Constant, ConstantRole
from pocketbert.pipeline.gates.reference_constants import ReferenceConstants
from support.defects import defects_of, format_of

Array = Any


class Editor(ABC):
    """A file whose stored tensors can be changed; matrices are [out, in] here, tables [rows, width].

    Args:
        path: The file; changed in place by `write`.
        reference: The module that it was made of, still right.
    """

    def __init__(self, path: Path, reference: ReferenceConstants) -> None:
        self.path = path
        graphs = format_place(format_of(path)).constants(path)
        assert graphs is not None
        self._found: dict[tuple[str, ConstantRole], Constant] = {}
        for constant in (c for graph in graphs for c in graph):
            for i in reference.matches(constant):
                wanted = reference.constants[i]
                key = (wanted.tensor.name, wanted.role)
                before = self._found.get(key)
                # of several signatures the one that holds most
                if before is None or constant.tensor.value.size > before.tensor.value.size:
                    self._found[key] = constant

    def change(self, end: str, role: ConstantRole, change: Callable[[Array], Array]) -> None:
        """Change the stored numbers of the tensor whose name ends so; integers stay integers."""
        constant = self._constant(end, role)
        before = self.read(constant)
        after = change(before.copy()).astype(before.dtype)
        assert not np.array_equal(before, after), f"{end} did not change"
        self.replace(constant, after)

    def swap(self, one: str, other: str, role: ConstantRole) -> None:
        """Let two tensors change places, with their scales."""
        first, second = self._constant(one, role), self._constant(other, role)
        values = self.read(first).copy(), self.read(second).copy()
        self.replace(first, values[1])
        self.replace(second, values[0])
        if first.tensor.step is not None:
            scales = self.scales(first).copy(), self.scales(second).copy()
            self.replace_scales(first, scales[1])
            self.replace_scales(second, scales[0])

    def scale(self, end: str, change: Callable[[Array], Array]) -> None:
        """Change the scales of a compressed matrix, or the numbers of one that is none."""
        constant = self._constant(end, ConstantRole.MATRIX)
        if constant.tensor.step is None:
            self.change(end, ConstantRole.MATRIX, lambda v: change(v.T).T)
        else:
            self.replace_scales(constant, change(self.scales(constant).copy()))

    def _constant(self, end: str, role: ConstantRole) -> Constant:
        [found] = [c for (name, kind), c in self._found.items() if name.endswith(end) and kind is role]
        return found

    def has(self, end: str, role: ConstantRole) -> bool:
        """Whether the file holds such a tensor."""
        return any(name.endswith(end) and kind is role for name, kind in self._found)

    def stored(self, end: str, role: ConstantRole) -> Array:
        """The stored numbers of the tensor whose name ends so, as they are."""
        return self.read(self._constant(end, role)).copy()

    def read(self, constant: Constant) -> Array:
        """The numbers as they are stored, in the form of their role."""
        raw, like = self._raw(constant.tensor.name), constant.tensor.value
        flat = raw.reshape([n for n in raw.shape if n > 1] or [1])
        return flat.T if self._turned(flat, like) else flat.reshape(like.shape)

    def replace(self, constant: Constant, value: Array) -> None:
        """Store other numbers of the same type and shape."""
        raw, like = self._raw(constant.tensor.name), constant.tensor.value
        turned = self._turned(raw.reshape([n for n in raw.shape if n > 1] or [1]), like)
        self._store(constant.tensor.name, np.ascontiguousarray(value.T if turned else value).reshape(raw.shape))

    def _turned(self, raw: Array, like: Array) -> bool:
        if like.ndim != 2 or raw.ndim != 2:
            return False
        if like.shape != raw.shape or like.shape[0] != like.shape[1]:
            return like.shape != raw.shape
        as_is, turned = (abs(np.corrcoef(v.astype(np.float64).ravel(), like.ravel())[0, 1]) for v in (raw, raw.T))
        return bool(turned > as_is)

    @abstractmethod
    def scales(self, constant: Constant) -> Array:
        """The scales of a compressed matrix, one for each output channel."""

    @abstractmethod
    def replace_scales(self, constant: Constant, scales: Array) -> None: ...

    @abstractmethod
    def _raw(self, name: str) -> Array: ...

    @abstractmethod
    def _store(self, name: str, value: Array) -> None: ...

    @abstractmethod
    def write(self) -> None:
        """Bring it to disk."""


@dataclass(frozen=True)
class _Packing:
    """How an ONNX file stores codes of few bits."""

    bits: int  # of a code, which is stored with half of its range added
    width: int | None  # numbers of a row; None where all that is stored counts
    halves: bool  # whether a byte holds column j and column j + half, not two neighbours

    def read(self, raw: Array) -> Array:
        """Signed codes [rows, width]."""
        rows = raw.reshape(len(raw), -1)
        if self.bits == 4 and self.halves:
            rows = np.concatenate([rows & 15, rows >> 4], axis=1)
        elif self.bits == 4:
            rows = np.stack([rows & 15, rows >> 4], axis=-1).reshape(len(rows), -1)
        return rows.astype(np.int16)[:, : self.width] - 2 ** (self.bits - 1)

    def write(self, value: Array, like: Array) -> Array:
        """Codes as they were stored, in the shape of `like`."""
        zero = 2 ** (self.bits - 1)
        rows = np.full((len(like), like[0].size * 8 // self.bits), zero, np.uint8)
        rows[:, : value.shape[1]] = (value + zero).astype(np.uint8)
        if self.bits == 4:
            half = rows.shape[1] // 2
            low, high = (rows[:, :half], rows[:, half:]) if self.halves else (rows[:, 0::2], rows[:, 1::2])
            rows = low | high << 4
        return np.ascontiguousarray(rows.reshape(like.shape))


class OnnxEditor(Editor):
    """An ONNX file."""

    def __init__(self, path: Path, reference: ReferenceConstants) -> None:
        super().__init__(path, reference)
        self.model = onnx.load(path)
        self.tensors = {t.name: t for t in self.model.graph.initializer}

    def _raw(self, name: str) -> Array:
        found = numpy_helper.to_array(self.tensors[name])
        packing = self._packing(name)
        return found if packing is None else packing.read(found)

    def _store(self, name: str, value: Array) -> None:
        packing = self._packing(name)
        if packing is not None:
            value = packing.write(value, numpy_helper.to_array(self.tensors[name]))
        self.tensors[name].CopyFrom(numpy_helper.from_array(value, name))

    def _packing(self, name: str) -> _Packing | None:
        """How the codes of blocks are stored under a name; None where a number is a number."""
        end = "_int4" if name.endswith("_int4") else "_int8"
        if name.removesuffix(end) + "_scales" not in self.tensors:
            return None
        width = next(
            (a.i for n in self.model.graph.node if name in n.input for a in n.attribute if a.name == "K"), None
        )
        return _Packing(int(end[-1]), width, name.removesuffix(end) + "_columns" in self.tensors)

    def _scale_name(self, name: str) -> str:
        if self._packing(name) is not None:
            return f"{name[: -len('_int8')]}_scales"
        if f"{name}_scale" in self.tensors:
            return f"{name}_scale"
        return name.replace("_quantized", "_scale") if "_quantized" in name else name.replace("_int8", "_scale")

    def scales(self, constant: Constant) -> Array:
        """Scales [out]; of blocks [blocks, out]."""
        found = numpy_helper.to_array(self.tensors[self._scale_name(constant.tensor.name)])
        return found.T if self._packing(constant.tensor.name) else found

    def replace_scales(self, constant: Constant, scales: Array) -> None:
        name = self._scale_name(constant.tensor.name)
        value = np.ascontiguousarray(scales.T if self._packing(constant.tensor.name) else scales)
        self.tensors[name].CopyFrom(numpy_helper.from_array(value, name))

    def write(self) -> None:
        onnx.save(self.model, self.path)


TYPES = {0: "float32", 1: "float16", 2: "int32", 4: "int64", 7: "int16", 9: "int8", 17: "int4"}
"""Types of stored numbers by their number in the schema of TFLite."""


class TfliteEditor(Editor):
    """A TFLite file; a buffer that signatures share is changed for all of them."""

    def __init__(self, path: Path, reference: ReferenceConstants) -> None:
        from pocketbert.export.tflite_metadata import load_model

        super().__init__(path, reference)
        self.module = defects_of(Format.TFLITE)
        self.model = load_model(path.read_bytes())

    def _tensor(self, name: str) -> Any:
        return next(t for g in self.model.subgraphs for t in g.tensors if t.name.decode() == name)

    def _raw(self, name: str) -> Array:
        tensor = self._tensor(name)
        return self.module.stored(self.model, tensor, TYPES[tensor.type])

    def _store(self, name: str, value: Array) -> None:
        self.module.store(self.model, self._tensor(name), value)

    def scales(self, constant: Constant) -> Array:
        blocks = self._blocks(constant)
        if blocks is not None:
            return self.module.stored(self.model, blocks, "float16").T  # [blocks, out]
        return np.asarray(self._tensor(constant.tensor.name).quantization.scale, np.float32)

    def _blocks(self, constant: Constant) -> Any:
        """The tensor that holds the scales of blocks; None where a channel has one scale."""
        for graph in self.model.subgraphs:
            for tensor in graph.tensors:
                if tensor.name.decode() == constant.tensor.name and tensor.quantization.details is not None:
                    return graph.tensors[tensor.quantization.details.scales]
        return None

    def replace_scales(self, constant: Constant, scales: Array) -> None:
        blocks = self._blocks(constant)
        if blocks is not None:
            self.module.store(self.model, blocks, scales.T.astype(np.float16))
            return
        buffer = self._tensor(constant.tensor.name).buffer
        for tensor in (t for g in self.model.subgraphs for t in g.tensors if t.buffer == buffer):
            tensor.quantization.scale = scales

    def write(self) -> None:
        from pocketbert.core.model_files import dump_model
        from pocketbert.export.tflite_metadata import pack_files, read_files

        packed = read_files(self.path.read_bytes())
        written = dump_model(self.model)
        self.path.write_bytes(pack_files(written, packed) if packed else written)


class CoremlEditor(Editor):
    """A Core ML package."""

    def __init__(self, path: Path, reference: ReferenceConstants) -> None:
        super().__init__(path, reference)
        self.package = defects_of(Format.COREML).Package(path)

    def _place(self, name: str) -> tuple[Any, str]:
        maker = self.package.maker(name)
        places = [p for p in ("data", "indices") if p in maker.inputs]
        return maker, "val" if maker.type == "const" else (*places, "quantized_data")[0]

    def _raw(self, name: str) -> Array:
        return self.package.array(*self._place(name))

    def _store(self, name: str, value: Array) -> None:
        maker, parameter = self._place(name)
        self.package.store(maker, value, parameter)

    def scales(self, constant: Constant) -> Array:
        """Scales, [blocks, out] where there are several for a channel; of a palette its numbers."""
        maker, place = self._place(constant.tensor.name)
        found = self.package.array(maker, "lut" if place == "indices" else "scale")
        return found.T if found.ndim == 2 and found.shape[1] > 1 else found

    def replace_scales(self, constant: Constant, scales: Array) -> None:
        maker, place = self._place(constant.tensor.name)
        several = scales.ndim == 2 and scales.shape[1] > 1
        self.package.store(maker, scales.T if several else scales, "lut" if place == "indices" else "scale")

    def write(self) -> None:
        self.package.write()


EDITORS: dict[Format, type[Editor]] = {
    Format.ONNX: OnnxEditor,
    Format.TFLITE: TfliteEditor,
    Format.COREML: CoremlEditor,
}
