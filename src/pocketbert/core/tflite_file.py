"""Reading a .tflite file as an object that can be changed (`load_model`), and writing it again (`dump_model`)."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.system import version_of

IDENTIFIER = b"TFL3"
_ALIGNMENT = 16
"""The schema aligns weights to 16 bytes; flatbuffers' Python builder forgets that for vectors of bytes."""


def load_model(model: bytes) -> Any:
    """Parse a TFLite model with all weights in its buffers.

    ai-edge-quantizer writes weights behind the flatbuffer and leaves offset and size in the buffer table.
    Packing such a model again as it is would lose them without an error.

    Args:
        model: The bytes of a .tflite file, nothing appended to it.

    Returns:
        A `ModelT` of the TFLite schema.

    Raises:
        InputError: If this is no TFLite model, or a buffer points outside the file.
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


def dump_model(model: Any) -> bytes:
    """Serialize a `ModelT`, as `load_model` returns it, with all buffers inside, aligned to 16 bytes."""
    import flatbuffers

    class AligningBuilder(flatbuffers.Builder):  # type: ignore[misc]
        def StartVector(self, elemSize: int, numElems: int, alignment: int) -> Any:  # noqa: N802, N803
            return super().StartVector(elemSize, numElems, _ALIGNMENT if elemSize == 1 else alignment)

    size = sum(len(b.data) for b in model.buffers if b.data is not None)
    builder = AligningBuilder(size + (1 << 20))
    builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
    return bytes(builder.Output())


def tflite_schema() -> Any:
    """Import the module that reads and writes the flatbuffers of TFLite.

    Raises:
        MissingBackendError: If the TFLite packages are not installed.
    """
    for name in ("flatbuffers", "ai-edge-litert"):
        if version_of(name) is None:
            raise MissingBackendError(name, "pip install 'pocketbert[tflite]'")
    from ai_edge_litert import schema_py_generated

    return schema_py_generated


def unpacked_int4(packed: NDArray[np.uint8], count: int) -> NDArray[np.int8]:
    """Unpack numbers from -8 to 7, two in a byte, the first one in its low half.

    Args:
        packed: The bytes of a tensor of type INT4.
        count: Size of the tensor; with an odd size the last half byte is unused.
    """
    values = np.empty(packed.size * 2, np.int8)
    values[0::2], values[1::2] = packed & 15, packed >> 4
    return ((values ^ 8) - 8)[:count]
