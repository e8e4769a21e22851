"""Numbers of a file changed by hand, tensor by tensor, in every format: `DAMAGES` lists what is broken, `damage` breaks it.

A tensor is found by the name that it has in the prepared module, whatever the exporter calls it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import FILE_NAME, read_golden, write_golden
from pocketbert.core.compare.simulated import read_simulated
from pocketbert.core.types import Format
from pocketbert.pipeline.formats.gate import Subject
from pocketbert.pipeline.formats.place import place_of
from pocketbert.pipeline.formats.stored.tracker import Constant, Role
from pocketbert.pipeline.gates.stored.compare import Reference
from pocketbert.pipeline.gates.verify import checked_config, open_subject
from support.defects import defects_of, format_of, relist

Array = Any


class Editor(ABC):
    """A file whose stored tensors can be changed; matrices are [out, in] here, tables [rows, width].

    Args:
        path: The file; changed in place by `write`.
        reference: The module that it was made of, still right.
    """

    def __init__(self, path: Path, reference: Reference) -> None:
        self.path = path
        graphs = place_of(format_of(path)).constants(path)
        assert graphs is not None
        self._found: dict[tuple[str, Role], Constant] = {}
        for constant in (c for graph in graphs for c in graph):
            for i in reference.places(constant):
                wanted = reference.constants[i]
                key = (wanted.numbers.name, wanted.role)
                before = self._found.get(key)
                # of several signatures the one that holds most
                if before is None or constant.numbers.value.size > before.numbers.value.size:
                    self._found[key] = constant

    def change(self, end: str, role: Role, change: Callable[[Array], Array]) -> None:
        """Change the stored numbers of the tensor whose name ends so; integers stay integers."""
        constant = self._constant(end, role)
        before = self.read(constant)
        after = change(before.copy()).astype(before.dtype)
        assert not np.array_equal(before, after), f"{end} did not change"
        self.replace(constant, after)

    def swap(self, one: str, other: str, role: Role) -> None:
        """Let two tensors change places, with their scales."""
        first, second = self._constant(one, role), self._constant(other, role)
        values = self.read(first).copy(), self.read(second).copy()
        self.replace(first, values[1])
        self.replace(second, values[0])
        if first.numbers.step is not None:
            scales = self.scales(first).copy(), self.scales(second).copy()
            self.replace_scales(first, scales[1])
            self.replace_scales(second, scales[0])

    def scale(self, end: str, change: Callable[[Array], Array]) -> None:
        """Change the scales of a compressed matrix, or the numbers of one that is none."""
        constant = self._constant(end, Role.MATRIX)
        if constant.numbers.step is None:
            self.change(end, Role.MATRIX, lambda v: change(v.T).T)
        else:
            self.replace_scales(constant, change(self.scales(constant).copy()))

    def _constant(self, end: str, role: Role) -> Constant:
        [found] = [c for (name, kind), c in self._found.items() if name.endswith(end) and kind is role]
        return found

    def has(self, end: str, role: Role) -> bool:
        """Whether the file holds such a tensor."""
        return any(name.endswith(end) and kind is role for name, kind in self._found)

    def read(self, constant: Constant) -> Array:
        """The numbers as they are stored, in the form of their role."""
        raw, like = self._raw(constant.numbers.name), constant.numbers.value
        flat = raw.reshape([n for n in raw.shape if n > 1] or [1])
        return flat.T if self._turned(flat, like) else flat.reshape(like.shape)

    def replace(self, constant: Constant, value: Array) -> None:
        """Store other numbers of the same type and shape."""
        raw, like = self._raw(constant.numbers.name), constant.numbers.value
        turned = self._turned(raw.reshape([n for n in raw.shape if n > 1] or [1]), like)
        self._store(constant.numbers.name, np.ascontiguousarray(value.T if turned else value).reshape(raw.shape))

    def _turned(self, raw: Array, like: Array) -> bool:
        if like.ndim != 2 or raw.ndim != 2:
            return False
        if like.shape != raw.shape or like.shape[0] != like.shape[1]:
            return like.shape != raw.shape
        numbers = raw.astype(np.float64)
        return abs(np.corrcoef(numbers.T.ravel(), like.ravel())[0, 1]) > abs(
            np.corrcoef(numbers.ravel(), like.ravel())[0, 1]
        )

    @abstractmethod
    def scales(self, constant: Constant) -> Array:
        """The scales of a compressed matrix, one for each output channel."""

    @abstractmethod
    def replace_scales(self, constant: Constant, scales: Array) -> None:
        """Store other scales."""

    @abstractmethod
    def _raw(self, name: str) -> Array: ...

    @abstractmethod
    def _store(self, name: str, value: Array) -> None: ...

    @abstractmethod
    def write(self) -> None:
        """Bring it to disk."""


class OnnxEditor(Editor):
    """An ONNX file."""

    def __init__(self, path: Path, reference: Reference) -> None:
        import onnx

        super().__init__(path, reference)
        self.model = onnx.load(path)
        self.tensors = {t.name: t for t in self.model.graph.initializer}

    def _raw(self, name: str) -> Array:
        from onnx import numpy_helper

        return numpy_helper.to_array(self.tensors[name])

    def _store(self, name: str, value: Array) -> None:
        from onnx import numpy_helper

        self.tensors[name].CopyFrom(numpy_helper.from_array(value, name))

    def _scale_name(self, constant: Constant) -> str:
        name = constant.numbers.name
        return name.replace("_quantized", "_scale") if "_quantized" in name else name.replace("_int8", "_scale")

    def scales(self, constant: Constant) -> Array:
        return self._raw(self._scale_name(constant))

    def replace_scales(self, constant: Constant, scales: Array) -> None:
        self._store(self._scale_name(constant), scales)

    def write(self) -> None:
        import onnx

        onnx.save(self.model, self.path)


class TfliteEditor(Editor):
    """A TFLite file; a buffer that signatures share is changed for all of them."""

    def __init__(self, path: Path, reference: Reference) -> None:
        from pocketbert.export.tflite_buffers import load_model

        super().__init__(path, reference)
        self.module = defects_of(Format.TFLITE)
        self.model = load_model(path.read_bytes())

    def _tensor(self, name: str) -> Any:
        return next(t for g in self.model.subgraphs for t in g.tensors if t.name.decode() == name)

    def _raw(self, name: str) -> Array:
        tensor = self._tensor(name)
        return self.module.stored(
            self.model, tensor, {0: "float32", 1: "float16", 2: "int32", 9: "int8", 17: "int4"}[tensor.type]
        )

    def _store(self, name: str, value: Array) -> None:
        self.module.store(self.model, self._tensor(name), value)

    def scales(self, constant: Constant) -> Array:
        blocks = self._blocks(constant)
        if blocks is not None:
            return self.module.stored(self.model, blocks, "float16").T  # [blocks, out]
        return np.asarray(self._tensor(constant.numbers.name).quantization.scale, np.float32)

    def _blocks(self, constant: Constant) -> Any:
        """The tensor that holds the scales of blocks; None where a channel has one scale."""
        for graph in self.model.subgraphs:
            for tensor in graph.tensors:
                if tensor.name.decode() == constant.numbers.name and tensor.quantization.details is not None:
                    return graph.tensors[tensor.quantization.details.scales]
        return None

    def replace_scales(self, constant: Constant, scales: Array) -> None:
        blocks = self._blocks(constant)
        if blocks is not None:
            self.module.store(self.model, blocks, scales.T.astype(np.float16))
            return
        buffer = self._tensor(constant.numbers.name).buffer
        for tensor in (t for g in self.model.subgraphs for t in g.tensors if t.buffer == buffer):
            tensor.quantization.scale = scales

    def write(self) -> None:
        from pocketbert.export.tflite_buffers import dump_model
        from pocketbert.export.tflite_files import pack_files, read_files

        packed = read_files(self.path.read_bytes())
        written = dump_model(self.model)
        self.path.write_bytes(pack_files(written, packed) if packed else written)


class CoremlEditor(Editor):
    """A Core ML package."""

    def __init__(self, path: Path, reference: Reference) -> None:
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
        maker, place = self._place(constant.numbers.name)
        found = self.package.array(maker, "lut" if place == "indices" else "scale")
        return found.T if found.ndim == 2 and found.shape[1] > 1 else found

    def replace_scales(self, constant: Constant, scales: Array) -> None:
        maker, place = self._place(constant.numbers.name)
        several = scales.ndim == 2 and scales.shape[1] > 1
        self.package.store(maker, scales.T if several else scales, "lut" if place == "indices" else "scale")

    def write(self) -> None:
        self.package.write()


EDITORS: dict[Format, type[Editor]] = {
    Format.ONNX: OnnxEditor,
    Format.TFLITE: TfliteEditor,
    Format.COREML: CoremlEditor,
}


@dataclass(frozen=True)
class Damage:
    """One way to break a file.

    Attributes:
        name: What it is called in tables.
        title: What it breaks.
        apply: Changes an opened file.
        compressed: Whether it needs scales.
    """

    name: str
    title: str
    apply: Callable[[Editor], None]
    compressed: bool = False


WORDS, POSITIONS, SEGMENTS = "word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"


def rows_lost(end: str, rows: slice | Sequence[int]) -> Callable[[Editor], None]:
    """Zero rows of a table, looked up or added."""

    def lost(value: Array) -> Array:
        value[rows] = 0
        return value

    def apply(editor: Editor) -> None:
        role = next(r for r in (Role.TABLE, Role.ARRAY) if editor.has(end, r))
        editor.change(end, role, lost)

    return apply


def _segment_lost(editor: Editor) -> None:
    if editor.has(SEGMENTS, Role.TABLE):
        rows_lost(SEGMENTS, [1])(editor)
    else:  # a line through both segments
        editor.change("token_type_embeddings.difference", Role.FACTOR, np.zeros_like)


def _times(channel: int, factor: float) -> Callable[[Array], Array]:
    def change(value: Array) -> Array:
        value = value.copy()
        if value.ndim == 2 and value.shape[1] == 1:  # scales [out, 1]
            value[channel] *= factor
        else:
            value[..., min(channel, value.shape[-1] - 1)] *= factor  # one scale per matrix: all of them
        return value

    return change


def _heads(value: Array) -> Array:
    half = len(value) // 2
    return np.concatenate([value[half:], value[:half]])


def _heads_swapped(editor: Editor) -> None:
    end = "layer.0.attention.value.weight"
    editor.change(end, Role.MATRIX, _heads)


def _norm(value: Array) -> Array:
    value[3] *= 1.5
    return value


DAMAGES = [
    Damage("word-rows", "the last 50 words are zeroed", rows_lost(WORDS, slice(-50, None))),
    Damage("word-row", "one word is zeroed", rows_lost(WORDS, [7])),
    Damage("position-row", "one position is zeroed", rows_lost(POSITIONS, [9])),
    Damage("position-tail", "positions from 16 are zeroed", rows_lost(POSITIONS, slice(16, None))),
    Damage("segment", "segment 1 is lost", _segment_lost),
    Damage(
        "feed-forward",
        "the feed-forward part of layer 0 is lost",
        lambda e: e.change("layer.0.down.weight", Role.MATRIX, np.zeros_like),
    ),
    Damage(
        "layers-swapped",
        "a matrix of layer 0 and one of layer 1 change places",
        lambda e: e.swap("layer.0.up.weight", "layer.1.up.weight", Role.MATRIX),
    ),
    Damage(
        "biases-swapped",
        "the biases of queries and keys change places",
        lambda e: e.swap("layer.0.attention.query.bias", "layer.0.attention.key.bias", Role.OFFSET),
    ),
    Damage("class-x4", "a class has 4 times its scale", lambda e: e.scale("classifier.weight", _times(1, 4))),
    Damage("channel-x8", "a channel is 8 times as large", lambda e: e.scale("layer.0.up.weight", _times(5, 8))),
    Damage(
        "scale",
        "one scale is a tenth too large",
        lambda e: e.scale("layer.0.attention.key.weight", _times(2, 1.1)),
        compressed=True,
    ),
    Damage(
        "turned",
        "a square matrix is transposed",
        lambda e: e.change("layer.0.attention.query.weight", Role.MATRIX, lambda v: v.T),
    ),
    Damage("heads", "the two halves of the heads change places", _heads_swapped),
    Damage(
        "norm",
        "a factor of a normalization is half as large again",
        lambda e: e.change("layer.0.attention_norm.weight", Role.FACTOR, _norm),
    ),
    Damage("bias", "a bias is zeroed", lambda e: e.change("layer.0.up.bias", Role.OFFSET, np.zeros_like)),
    Damage("class-bias", "the bias of a class is zeroed", lambda e: e.change("classifier.bias", Role.OFFSET, _first)),
]
"""Files broken on purpose that the gate `stored` must find, in every format and scheme."""


def _first(value: Array) -> Array:
    value[0] = 0
    return value


def damage(path: Path, reference: Reference, how: Damage) -> None:
    """Break a file in place."""
    editor = EDITORS[format_of(path)](path, reference)
    how.apply(editor)
    editor.write()


def opened(folder: Path, file: str) -> Subject:
    """Open a file of an artefact folder as verification does."""
    artefacts = read_artefacts(folder)
    [record] = [r for r in artefacts.models() if r.path == file]
    return open_subject(folder, artefacts, record, checked_config(folder, artefacts), read_simulated(folder))


def record_again(folder: Path, file: str) -> None:
    """Record what a broken file of an artefact folder answers as its golden rows, and list both as they are now."""
    subject, rows = opened(folder, file), read_golden(folder / FILE_NAME)
    own = [r for r in rows if file in r.outputs]
    answers = iter(subject.answers(own))
    write_golden(
        folder / FILE_NAME,
        [
            r.model_copy(update={"outputs": {**r.outputs, file: [float(v) for v in next(answers).ravel()]}})
            if file in r.outputs
            else r
            for r in rows
        ],
    )
    for name in (file, FILE_NAME):
        relist(folder, name)
