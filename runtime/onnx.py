"""Run ONNX files with ONNX Runtime.

`OnnxPredictor` opens a file on the CPU with the settings of `session_settings`. x86 processors without VNNI cannot open
some files unchanged: for these, `convert_shared_weights_to_uint8` turns int8 weights that several products share into
uint8, in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from pocketbert.core.errors import InputError, Problem, first_line
from pocketbert.core.host.hardware import default_threads, describe_machine
from pocketbert.core.predict.predictor import Arrays

if TYPE_CHECKING:
    from pocketbert.core.artefacts import Signature, Tensor

PRECISE_INT8_SETTING = "session.x64quantprecision"
"""x86 processors without VNNI add two int8 products in 16 bits, which saturate; ARM and all others add in 32 bits.
With this setting they use kernels that add in 32 bits too, and compute the same results as other processors. Those do
not need it, and processors with AMX take twice the time with it."""

_DTYPES = {
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
}


class Spin(StrEnum):
    """How threads wait for the next operator: asleep or busily.

    Busy waiting is faster on an idle machine and several times slower on a busy one.
    """

    NO = "no"
    """Asleep: busy waiting drains a phone's battery and disturbs other measurements on this machine."""
    RUN = "run"
    """Busily until the run ends."""
    ON = "on"
    """Busily also after a run, for some 50 ms: ONNX Runtime's own default."""


class OnnxPredictor:
    """Runs one ONNX file with ONNX Runtime on the CPU.

    Args:
        path: The file.
        threads: Number of threads within an operator; default `default_threads`.
        profile: Start of the path of a per-operator profile to write; None for none.
        spin: How threads wait for the next operator.

    Raises:
        InputError: If the file is missing or ONNX Runtime refuses it.
    """

    engine = "onnxruntime"
    engine_version = onnxruntime.__version__
    thread_safe = True

    def __init__(
        self, path: Path, threads: int | None = None, profile: Path | None = None, spin: Spin = Spin.NO
    ) -> None:
        if not path.is_file():
            raise InputError(Problem(str(path), "file not found."))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads or default_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # errors come as exceptions, with the same text
        for key, value in session_settings(describe_machine().saturates, spin).items():
            options.add_session_config_entry(key, value)
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        try:
            self._session = _open_session(path, options)
        except Exception as error:  # the library's own exception classes are private
            message = first_line(error)
            what = f"ONNX Runtime {self.engine_version} refuses the file: {message}"
            raise InputError(Problem(str(path), what)) from error
        self.path = path
        self.inputs = tuple(i.name for i in self._session.get_inputs())
        self.outputs = tuple(o.name for o in self._session.get_outputs())
        shapes = [i.shape for i in self._session.get_inputs()]
        self.lengths: tuple[int, ...] = tuple({s[1] for s in shapes if len(s) > 1 and isinstance(s[1], int)})
        self._one_row = any(s and s[0] == 1 for s in shapes)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch of inputs [B, L], and return the outputs by name; a file for one row is run row by row."""
        try:
            feed = {name: inputs[name] for name in self.inputs}
        except KeyError:
            missing = ", ".join(n for n in self.inputs if n not in inputs)
            raise InputError(Problem(str(self.path), f"wants the inputs {missing} too.")) from None
        rows = len(next(iter(feed.values()))) if self._one_row else 1
        if rows > 1:  # a file for an accelerator takes one at a time
            parts = [self._run_session({n: v[i : i + 1] for n, v in feed.items()}) for i in range(rows)]
            return {n: np.concatenate([p[n] for p in parts]) for n in self.outputs}
        return self._run_session(feed)

    def _run_session(self, feed: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run the ONNX Runtime session. Its exceptions become an InputError that names the file."""
        try:
            results = self._session.run(self.outputs, feed)
        except Exception as error:  # an id beyond the table; the library's own exception classes are private
            message = first_line(error)
            what = f"ONNX Runtime {self.engine_version} cannot run the file on this input: {message}"
            raise InputError(Problem(str(self.path), what)) from error
        return dict(zip(self.outputs, results, strict=True))

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of the model's inputs and outputs, and the lengths that it takes."""
        from pocketbert.core.artefacts import Signature  # a model that answers needs no records

        return Signature(
            inputs=[_tensor(i) for i in self._session.get_inputs()],
            outputs=[_tensor(o) for o in self._session.get_outputs()],
            lengths=list(self.lengths),
        )

    def end_profile(self) -> Path:
        """Finish profiling and return the written JSON file."""
        return Path(self._session.end_profiling())


def _tensor(node: onnxruntime.NodeArg) -> Tensor:
    """Return name, type and shape of an input or output of a session."""
    from pocketbert.core.artefacts import Tensor

    return Tensor(name=node.name, dtype=_DTYPES.get(node.type, node.type), shape=list(node.shape))


def session_settings(saturates: bool, spin: Spin = Spin.NO) -> dict[str, str]:
    """Return settings of an ONNX Runtime session, by the names that ONNX Runtime gives them.

    Args:
        saturates: Whether int8 products of the processor saturate (`Machine.saturates`).
        spin: How threads wait for the next operator.
    """
    return {
        PRECISE_INT8_SETTING: "1" if saturates else "0",
        "session.intra_op.allow_spinning": "0" if spin is Spin.NO else "1",
        "session.force_spinning_stop": "0" if spin is Spin.ON else "1",
    }


def _open_session(path: Path, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
    """Open an ONNX file as a session; int8 weights that several products share become uint8 if this processor needs it.

    With `PRECISE_INT8_SETTING`, which processors without VNNI need, ONNX Runtime 1.31 cannot open files with such
    weights, for instance of ALBERT. If the products read their weights through DequantizeLinear, as in files for `qnn`,
    they are computed in fp32 and do not need the setting.
    """
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:
        if not describe_machine().saturates:
            raise
        content = convert_shared_weights_to_uint8(path)
        if content is None:
            options.add_session_config_entry("session.disable_quant_qdq", "1")
        return onnxruntime.InferenceSession(content or str(path), options, providers=["CPUExecutionProvider"])


# --- int8 weights that several products share, as uint8 -----------------------------------------------------------------

_UINT8, _INT8, _MIDDLE = 2, 3, 128
_OPTIONAL, _REPEATED = 1, 3
_INTEGER, _STRING, _MESSAGE, _BYTES = 5, 9, 11, 12
_FIELDS: dict[str, dict[str, tuple[int, int, int, str | None]]] = {
    "Model": {"graph": (7, _OPTIONAL, _MESSAGE, "Graph")},
    "Graph": {"node": (1, _REPEATED, _MESSAGE, "Node"), "initializer": (5, _REPEATED, _MESSAGE, "Tensor")},
    "Node": {"input": (1, _REPEATED, _STRING, None), "op_type": (4, _OPTIONAL, _STRING, None)},
    "Tensor": {
        "data_type": (2, _OPTIONAL, _INTEGER, None),
        "int32_data": (5, _REPEATED, _INTEGER, None),
        "name": (8, _OPTIONAL, _STRING, None),
        "raw_data": (9, _OPTIONAL, _BYTES, None),
    },
}
"""The fields of onnx.proto that are read: number, label, type and message. Protobuf keeps all others as they are."""


def convert_shared_weights_to_uint8(path: Path) -> bytes | None:
    """Convert int8 weights that several MatMulInteger nodes of an ONNX file, and no others, read to uint8 with zero point 128.

    On x86 processors without VNNI, sums in int8 matrix products saturate, unless ONNX Runtime converts the weights to
    uint8 (`PRECISE_INT8_SETTING`). ONNX Runtime 1.31 cannot convert a weight that several nodes read, as in ALBERT,
    whose layers share weights. The converted weights represent the same numbers.

    Exported files are not written like this, since two uint8 operands take several times as long on processors with
    VNNI, and half as long again on Arm processors without dot products.

    Args:
        path: The ONNX file, which is not changed.

    Returns:
        The content of the converted file; None if there are no such weights, or the file is no ONNX file.
    """
    from google.protobuf.message import DecodeError

    model = _onnx_model_class()()
    try:
        model.ParseFromString(path.read_bytes())
    except (DecodeError, RuntimeError):
        return None
    stored = {t.name: t for t in model.graph.initializer if t.data_type == _INT8}
    uses = Counter(name for node in model.graph.node for name in node.input if name in stored)
    products = [n for n in model.graph.node if n.op_type == "MatMulInteger" and len(n.input) == 4]
    reads = Counter((n.input[1], n.input[3]) for n in products)  # weight and its zero point
    shared = {pair for pair, count in reads.items() if uses[pair[0]] == uses[pair[1]] == count > 1}
    for name in {name for pair in shared for name in pair}:
        tensor = stored[name]
        values = np.array(tensor.int32_data, np.int8) if tensor.int32_data else np.frombuffer(tensor.raw_data, np.int8)
        tensor.raw_data = (values.astype(np.int16) + _MIDDLE).astype(np.uint8).tobytes()
        tensor.data_type = _UINT8
        tensor.ClearField("int32_data")
    return bytes(model.SerializeToString()) if shared else None


@cache
def _onnx_model_class() -> Any:
    """Build the protobuf class of an ONNX model from `_FIELDS`, so that the onnx package need not be installed."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    package = "pocketbert.onnx"
    file = descriptor_pb2.FileDescriptorProto(name="pocketbert/onnx.proto", package=package)
    for message, fields in _FIELDS.items():
        descriptor = file.message_type.add(name=message)
        for field, (number, label, kind, of) in fields.items():
            type_name = f".{package}.{of}" if of else None
            descriptor.field.add(name=field, number=number, label=label, type=kind, type_name=type_name)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.Model"))
