"""Constants of a program: immediate ones, and those in the weight file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.runtime.coreml.blob import BlobFile, unpack
from pocketbert.runtime.coreml.limits import Budget
from pocketbert.runtime.coreml.mil_types import Dtype, ListType, TensorType, ValueType, read_type
from pocketbert.runtime.coreml.package import Package

if TYPE_CHECKING:
    from pocketbert.runtime.coreml.proto import mlpackage_pb2 as pb

_FIELDS = {
    Dtype.BOOL: "bools",
    Dtype.FP32: "floats",
    Dtype.FP64: "doubles",
    Dtype.INT32: "ints",
    Dtype.INT16: "ints",
    Dtype.UINT16: "ints",
    Dtype.INT64: "longInts",
    Dtype.UINT64: "longInts",
    Dtype.STRING: "strings",
}
"""Where the message keeps immediate elements; all other types are raw bytes."""

Plain = NDArray[Any] | str | tuple[str, ...]


@dataclass
class Constant:
    """A value that is known before the program runs.

    Attributes:
        type: As declared.
        value: The array in its declared dtype, or a text, or a list of texts.
    """

    type: ValueType
    value: Plain

    def widened(self, budget: Budget) -> Plain:
        """The value as kernels take it: fp16 becomes float32, once, and replaces what was there."""
        if isinstance(self.value, np.ndarray) and self.value.dtype == np.float16:
            budget.take(self.value.size * 4)
            self.value = self.value.astype(np.float32)
            self.value.flags.writeable = False
        return self.value


class ConstantReader:
    """Reads the constants of one package.

    Args:
        package: Where weight files are looked for.
        budget: Pays for what is allocated.
    """

    def __init__(self, package: Package, budget: Budget) -> None:
        self._package, self._budget = package, budget
        self._files: dict[str, BlobFile] = {}

    def read(self, message: pb.Value) -> Constant:
        """The constant in a message.

        Raises:
            InputError: If the weight file does not hold it.
            ValueError: If the message contradicts itself.
        """
        declared = read_type(message.type)
        kind = message.WhichOneof("value")
        if kind == "immediateValue" and isinstance(declared, ListType):
            items = [self.read(v).value for v in message.immediateValue.list.values]
            return Constant(declared, tuple(v if isinstance(v, str) else str(np.asarray(v).item()) for v in items))
        if not isinstance(declared, TensorType) or declared.sizes is None:
            raise ValueError(f"a constant of type {declared}")
        if kind == "blobFileValue":
            blob = self._file(message.blobFileValue.fileName)
            return Constant(
                declared,
                blob.read(message.blobFileValue.offset, declared.dtype, declared.sizes, self._budget),
            )
        if kind != "immediateValue" or message.immediateValue.WhichOneof("value") != "tensor":
            raise ValueError(f"a constant of type {declared} without elements")
        return Constant(declared, _immediate(message.immediateValue.tensor, declared.dtype, declared.sizes))

    def _file(self, name: str) -> BlobFile:
        if name not in self._files:
            self._files[name] = BlobFile(self._package.weights(name))
        return self._files[name]


def _immediate(message: pb.TensorValue, dtype: Dtype, shape: tuple[int, ...]) -> Plain:
    field = _FIELDS.get(dtype, "bytes")
    if message.WhichOneof("value") != field:
        raise ValueError(f"{dtype} elements in the field {message.WhichOneof('value')}")
    values = getattr(message, field).values
    count = 1
    for n in shape:
        count *= n
    if field == "bytes":
        if len(values) != (count * dtype.bits + 7) // 8:
            raise ValueError(f"{len(values)} bytes for {dtype}{list(shape)}")
        raw = np.frombuffer(values, np.uint8)
        if dtype.bits < 8:
            return unpack(raw, dtype, count).reshape(shape)
        return raw.view(dtype.numpy.newbyteorder("<")).reshape(shape)
    if len(values) != count:
        raise ValueError(f"{len(values)} elements for {dtype}{list(shape)}")
    if dtype is Dtype.STRING:
        return str(values[0]) if not shape else tuple(str(v) for v in values)
    return np.array(values, dtype.numpy).reshape(shape)
