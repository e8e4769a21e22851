"""Edit and write model files: Core ML packages, .tflite and .onnx files.

`save_package` writes a Core ML package reproducibly. `load_model` reads a .tflite file as an object that can be changed, and
`dump_model` writes it again. `load_onnx` and `write_onnx` read and write an ONNX file without copying its large weights.

`add_classifier` and `remove_classifier` edit a converted program. `coremltools.ClassifierConfig` cannot be used:
coremltools 9.0 stops with an IndexError if a classifier has a further output in fp16, and `coremltools.optimize`
cannot write the operator's list of labels back. The result equals what coremltools itself writes
(tests/export/test_coreml.py).
"""

from __future__ import annotations

import itertools
import json
import shutil
import struct
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.ownership import FolderContents
from pocketbert.core.disk.workspace import build_folder
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.system import version_of

_MODEL = "com.apple.CoreML/model.mlmodel"
_WEIGHTS = "com.apple.CoreML/weights"
_WEIGHT_FILE = f"{_WEIGHTS}/weight.bin"
CONVERSION_DATE = "com.github.apple.coremltools.conversion_date"
"""Metadata that coremltools adds and this project removes, so that the same model gives the same bytes on any day."""
_CONTENTS = FolderContents("Manifest.json", (f"Data/{_MODEL}", f"Data/{_WEIGHT_FILE}"))
"""Files of a package; a folder that holds anything else is not replaced."""
_AUTHOR = "com.apple.CoreML"
_ITEMS = {
    _MODEL: ("model.mlmodel", "CoreML Model Specification"),
    _WEIGHTS: ("weights", "CoreML Model Weights"),
}


def save_package(model: bytes, weights: Path, destination: Path) -> None:
    """Write a Core ML ``.mlpackage`` folder atomically, with reproducible identifiers.

    coremltools gives the items of a package random identifiers. Here they are derived from the paths, so that the same
    model gives the same bytes.

    Args:
        model: The serialized specification; its maps must be in a fixed order.
        weights: File whose content becomes ``weight.bin``.
        destination: The folder to write; an existing package is replaced, a folder that holds other files is refused.
    """
    with build_folder(destination, _CONTENTS) as folder:
        data = folder / "Data"
        (data / _WEIGHTS).mkdir(parents=True)
        (data / _MODEL).write_bytes(model)
        shutil.copyfile(weights, data / _WEIGHT_FILE)
        names = {path: str(uuid.uuid5(uuid.NAMESPACE_URL, path)).upper() for path in _ITEMS}
        entries = {
            names[path]: {"author": _AUTHOR, "description": text, "name": name, "path": path}
            for path, (name, text) in _ITEMS.items()
        }
        # coremltools writes the file again, with sorted keys, whenever it opens a package
        manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": names[_MODEL]}
        (folder / "Manifest.json").write_text(json.dumps(manifest, indent=4, sort_keys=True) + "\n", encoding="utf-8")


PROBABILITIES_OUTPUT = "probabilities"
"""Output of the program that the classifier reads; the package with a classifier does not have it as an output."""
LABEL_OUTPUT = "classLabel"
SCORES_OUTPUT = "classLabel_probs"
_OPERATOR = "classify"


def add_classifier(spec: Any, labels: Sequence[str]) -> None:
    """Append Core ML's classifier operator to a model, in place, so that it returns a label and named probabilities.

    These two outputs replace the program's output ``probabilities``.

    Args:
        spec: A Core ML specification (coremltools' `Model` protobuf) with an ML Program.
        labels: Label names in order of the probabilities.
    """
    from coremltools.proto import MIL_pb2

    block = _block(spec)
    operation = block.operations.add(type=_OPERATOR)
    operation.inputs["probabilities"].arguments.add(name=PROBABILITIES_OUTPUT)
    classes = operation.inputs["classes"].arguments.add().value
    classes.type.listType.type.tensorType.dataType = MIL_pb2.STRING
    classes.type.listType.length.constant.size = len(labels)
    for label in labels:
        value = classes.immediateValue.list.values.add()
        value.type.tensorType.dataType = MIL_pb2.STRING
        value.immediateValue.tensor.strings.values.append(label)
    name = operation.attributes["name"]
    name.type.tensorType.dataType = MIL_pb2.STRING
    name.immediateValue.tensor.strings.values.append(f"{_OPERATOR}_0")
    operation.outputs.add(name=LABEL_OUTPUT).type.tensorType.dataType = MIL_pb2.STRING
    table = operation.outputs.add(name=SCORES_OUTPUT).type.dictionaryType
    table.keyType.tensorType.dataType = MIL_pb2.STRING
    table.valueType.tensorType.dataType = MIL_pb2.FLOAT64
    outputs = [LABEL_OUTPUT, SCORES_OUTPUT, *(o for o in block.outputs if o != PROBABILITIES_OUTPUT)]
    del block.outputs[:]
    block.outputs.extend(outputs)
    description = spec.description
    kept = _copy_outputs_except(description, PROBABILITIES_OUTPUT)
    del description.output[:]
    description.output.add(name=LABEL_OUTPUT).type.stringType.SetInParent()
    description.output.add(name=SCORES_OUTPUT).type.dictionaryType.stringKeyType.SetInParent()
    description.output.extend(kept)
    description.predictedFeatureName, description.predictedProbabilitiesName = LABEL_OUTPUT, SCORES_OUTPUT


def remove_classifier(spec: Any) -> list[str]:
    """Remove the operator that `add_classifier` appended from a Core ML specification, in place; return its labels.

    Returns:
        Label names; empty if there was no classifier and nothing was changed.
    """
    from coremltools.proto import FeatureTypes_pb2

    block = _block(spec)
    if not block.operations or block.operations[-1].type != _OPERATOR:
        return []
    classes = block.operations[-1].inputs["classes"].arguments[0].value.immediateValue.list.values
    labels = [v.immediateValue.tensor.strings.values[0] for v in classes]
    del block.operations[-1]
    outputs = [*(o for o in block.outputs if o not in (LABEL_OUTPUT, SCORES_OUTPUT)), PROBABILITIES_OUTPUT]
    del block.outputs[:]
    block.outputs.extend(outputs)
    description = spec.description
    kept = _copy_outputs_except(description, LABEL_OUTPUT, SCORES_OUTPUT)
    del description.output[:]
    description.output.extend(kept)
    array = description.output.add(name=PROBABILITIES_OUTPUT).type.multiArrayType
    array.dataType = FeatureTypes_pb2.ArrayFeatureType.FLOAT32
    array.shape.extend([1, len(labels)])
    description.predictedFeatureName = description.predictedProbabilitiesName = ""
    return labels


def _block(spec: Any) -> Any:
    """Return the block of operations in the main function of a Core ML program."""
    function = spec.mlProgram.functions["main"]
    return function.block_specializations[function.opset]


def _copy_outputs_except(description: Any, *names: str) -> list[Any]:
    """Copy the output descriptions of a Core ML model, leaving out those with the given names."""
    return [type(o).FromString(o.SerializeToString()) for o in description.output if o.name not in names]


# --- .tflite files ---


IDENTIFIER = b"TFL3"
_ROOM = 64 << 20
"""Bytes for what a TFLite file holds besides its buffers; memory that is not written takes none."""
_ALIGNMENT = 16
"""The schema aligns weights to 16 bytes; flatbuffers' Python builder forgets that for vectors of bytes."""


def load_model(model: bytes | bytearray) -> Any:
    """Parse the bytes of a TFLite file to a `ModelT` object, with all weights in the buffers of that object.

    ai-edge-quantizer writes weights behind the flatbuffer, and only their offset and size into the buffer table. If
    such a model were written again unchanged, these weights would be lost without an error.

    Args:
        model: The bytes of a .tflite file with nothing appended.

    Returns:
        A `ModelT` of the TFLite schema.

    Raises:
        InputError: If the bytes are no TFLite model, a buffer points outside the file, or an operator keeps its options
            behind the flatbuffer.
        MissingBackendError: If the TFLite packages are not installed.
    """
    schema = tflite_schema()
    if model[4:8] != IDENTIFIER:
        raise InputError(Problem("model", f"no TFLite file: identifier {model[4:8]!r} instead of {IDENTIFIER!r}."))
    try:
        loaded = schema.ModelT.InitFromObj(schema.Model.GetRootAs(model, 0))
    except (struct.error, IndexError, TypeError, ValueError, UnicodeDecodeError) as error:
        raise InputError(Problem("model", f"damaged TFLite file: {error}.")) from error
    for number, buffer in enumerate(loaded.buffers or []):
        if buffer.offset > 1:  # 0 and 1 mean "inside"
            if buffer.offset + buffer.size > len(model):
                raise InputError(
                    Problem(
                        "model",
                        f"buffer {number} lies at {buffer.offset}+{buffer.size}, behind the file's {len(model)} bytes.",
                        "The weights were cut off: write the file again.",
                    )
                )
            buffer.data = np.frombuffer(model, np.uint8, buffer.size, buffer.offset)
        buffer.offset = buffer.size = 0
    for graph in loaded.subgraphs or []:
        for operator in graph.operators or []:
            if operator.largeCustomOptionsOffset > 1:
                raise InputError(
                    Problem("model", "an operator keeps its options behind the flatbuffer; not supported.")
                )
    return loaded


def dump_model(model: Any) -> bytearray:
    """Serialize a TFLite `ModelT` to bytes, with all buffers inside and aligned to 16 bytes."""
    import flatbuffers

    class AligningBuilder(flatbuffers.Builder):  # type: ignore[misc]
        def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:  # noqa: N802, N803
            return super().StartVector(elemSize, numElems, _ALIGNMENT if elemSize == 1 else alignment)

        def CreateNumpyVector(self, x: NDArray[np.generic]) -> Any:  # noqa: N802
            """Write a vector, and return its place; weights, which are bytes, are copied once."""
            if x.dtype != np.uint8:
                return super().CreateNumpyVector(x)
            # what flatbuffers does, without its three copies of a table of weights
            self.StartVector(x.itemsize, x.size, x.itemsize)
            self.head -= x.size
            memoryview(self.Bytes)[self.head : self.head + x.size] = np.ascontiguousarray(x).data
            self.vectorNumElems = x.size
            return self.EndVector()

    size = sum(len(b.data) for b in model.buffers if b.data is not None)
    builder = AligningBuilder(size + _ROOM)  # one that is too small doubles itself
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    written: bytearray = builder.Bytes
    del written[: builder.Head()]  # `builder.Output()` would copy a file of hundreds of MB once more
    return written


def tflite_schema() -> Any:
    """Import and return the module with TFLite's flatbuffer schema.

    Raises:
        MissingBackendError: If the TFLite packages are not installed.
    """
    for name in ("flatbuffers", "ai-edge-litert"):
        if version_of(name) is None:
            raise MissingBackendError(name, "pip install 'pocketbert[tflite]'")
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


def unpack_int4(packed: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """Unpack int4 numbers (-8 to 7), two in each byte, the first one in the low half, to an int8 array.

    Args:
        packed: The bytes of a tensor of type INT4.
        count: Size of the tensor; with an odd size the last half byte is unused.
    """
    values = np.empty(packed.size * 2, np.int8)
    values[0::2], values[1::2] = packed & 15, packed >> 4
    return ((values ^ 8) - 8)[:count]


# --- ONNX: weights stay in the mapped file, or in torch's memory ---

LARGE_WEIGHT = 1 << 20
"""Bytes of a weight from which on it is not copied."""
_GRAPH, _INITIALIZER, _DATA_TYPE, _RAW_DATA, _NO_FIELD = 7, 5, 2, 9, 1 << 29
"""Numbers of fields in onnx.proto: of a model, of its graph, and of a tensor; and one beyond all."""
_ONNX_TYPES = {1: "f4", 2: "u1", 3: "i1", 4: "u2", 5: "i2", 6: "i4", 7: "i8", 9: "?", 10: "f2", 11: "f8"}
"""Types of the numbers that are mapped, by their number in onnx.proto."""
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5
"""How protobuf writes a field: the lower three bits of its start."""


def load_onnx(path: Path) -> tuple[Any, dict[str, NDArray[Any]]]:
    """Read an ONNX file without copying its large weights: those of 1 MiB and more in a number type of numpy.

    Returns:
        The model, an `onnx.ModelProto` whose large tensors have sizes and no data; and the numbers of all initializers of its graph by
        name, the large ones mapped from the file, which must stay as it is while they are in use.

    Raises:
        google.protobuf.message.DecodeError: If it is no ONNX file, or sizes and data of a tensor differ.
    """
    from google.protobuf.message import DecodeError
    from onnx import ModelProto, numpy_helper

    model, numbers = ModelProto(), {}
    try:
        mapped = np.memmap(path, np.uint8, "r")
        content, places = _leave_out_large_weights(mapped.data)
        model.ParseFromString(content)
        for tensor, place in zip(model.graph.initializer, places, strict=True):
            if place is None:
                numbers[tensor.name] = numpy_helper.to_array(tensor, str(path.parent))
            else:
                stored = mapped[slice(*place)].view(np.dtype(_ONNX_TYPES[tensor.data_type]).newbyteorder("<"))
                numbers[tensor.name] = stored.reshape(tuple(tensor.dims))
    except (IndexError, ValueError) as error:
        raise DecodeError(f"{path} is no ONNX file: {error}") from error
    return model, numbers


def _leave_out_large_weights(content: memoryview) -> tuple[bytes, list[tuple[int, int] | None]]:
    """Return the bytes of an ONNX model without those of large weights.

    Also return, for each initializer, begin and end of its bytes that were left out; None if none were.
    """
    model, places = bytearray(), list[tuple[int, int] | None]()
    for number, begin, start, end in _read_fields(content, 0, len(content)):
        if number != _GRAPH:
            model += content[begin:end]
            continue
        graph = bytearray()
        for own, first, inside, last in _read_fields(content, start, end):
            if own != _INITIALIZER:
                graph += content[first:last]
                continue
            fields = {n: span for n, *span in _read_fields(content, inside, last)}
            begin_data, start_data, end_data = fields.get(_RAW_DATA, (last, last, last))
            data_type = content[fields[_DATA_TYPE][1]] if _DATA_TYPE in fields else 0
            is_large = end_data - start_data >= LARGE_WEIGHT and data_type in _ONNX_TYPES
            places.append((start_data, end_data) if is_large else None)
            tensor = [content[inside:begin_data], content[end_data:last]] if is_large else [content[inside:last]]
            graph += b"".join([_field_start(_INITIALIZER, _count_bytes(tensor)), *tensor])
        model += _field_start(_GRAPH, len(graph)) + graph
    return bytes(model), places


def _read_fields(content: memoryview, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (number, begin, begin of the content, end) of each field of a protobuf message.

    Raises:
        ValueError: If the bytes are no such message; IndexError if they end within a field's start.
    """
    at = start
    while at < end:
        begin = at
        tag, at = _read_varint(content, at)
        kind, first = tag & 7, at
        if kind == _VARINT:
            _, at = _read_varint(content, at)
        elif kind == _BYTES:
            size, first = _read_varint(content, at)
            at = first + size
        elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
            at += 8 if kind == _EIGHT_BYTES else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at > end:
            raise ValueError("a field reaches beyond its message")
        yield tag >> 3, begin, first, at


def _read_varint(content: memoryview, at: int) -> tuple[int, int]:
    """Return a whole number in 7 bits per byte, and the place behind it; raise ValueError if it has more than 70 bits."""
    value = 0
    for shift in range(0, 70, 7):
        byte = content[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 70 bits")


def write_onnx(model: Any, weights: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write an ONNX file with the bytes that protobuf writes, without copying large weights.

    Args:
        model: An `onnx.ModelProto`. Its tensors with a name in `weights` get the sizes of these arrays and lose their data.
        weights: The numbers that the file gets for these tensors, by name.
        path: The file.
    """
    graph, tensors = model.graph, list[list[bytes | memoryview]]()
    for tensor in graph.initializer:
        own = list[bytes | memoryview]()
        if tensor.name not in weights:
            own = [tensor.SerializeToString()]
        else:
            numbers = np.ascontiguousarray(weights[tensor.name])
            tensor.dims[:] = numbers.shape
            tensor.ClearField("raw_data")
            before, after = (_serialize_fields(tensor, part) for part in _around(_RAW_DATA))
            data = numbers.reshape(-1).data.cast("B")
            own = [before, _field_start(_RAW_DATA, numbers.nbytes), data, after]
        tensors.append([_field_start(_INITIALIZER, _count_bytes(own)), *own])
    before, after = (_serialize_fields(graph, part) for part in _around(_INITIALIZER))
    content = [before, *itertools.chain(*tensors), after]
    start, end = (_serialize_fields(model, part) for part in _around(_GRAPH))
    with path.open("wb") as file:
        file.writelines([start, _field_start(_GRAPH, _count_bytes(content)), *content, end])


def _around(number: int) -> tuple[range, range]:
    """Return two ranges of protobuf field numbers: those below `number` and those above it."""
    return range(number), range(number + 1, _NO_FIELD)


def _serialize_fields(message: Any, numbers: range) -> bytes:
    """Serialize only those fields of a protobuf message whose numbers are in a range."""
    part = type(message)()
    part.CopyFrom(message)
    for field, _ in message.ListFields():
        if field.number not in numbers:
            part.ClearField(field.name)
    return bytes(part.SerializeToString())


def _field_start(number: int, size: int) -> bytes:
    """Return the bytes before a protobuf field of `size` bytes: its number and the size."""
    return encode_varint(number << 3 | _BYTES) + encode_varint(size)


def encode_varint(number: int) -> bytes:
    """Encode a whole number in 7 bits per byte, as protobuf does."""
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    return bytes([*encoded, number])


def _count_bytes(parts: Iterable[bytes | memoryview]) -> int:
    """Return the number of bytes of all parts."""
    return sum(map(len, parts))
