"""Profile the operators of a TFLite file by LiteRT's own profiler, through the C interface of ai-edge-litert.

LiteRT's Python package has no profiler, but the library in it has one: with the runtime option ``enable_profiling``
XNNPACK times each of its operators, and the interpreter those of its built-in kernels. A wrong call of a C interface
ends the process, so that this is a program of its own. It imports the standard library only and runs on Python 3.8.

It reads one JSON object from standard input: ``path``, ``threads``, ``warmup``, ``runs``, and ``inputs``, which holds
rows of integers by name. It prints one JSON object: the times, or an ``error``.

Source: ``litert/c/*.h`` of LiteRT 2.x; sizes of structures are those that its headers assert.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

LIBRARIES = {"linux": "libLiteRt.so", "darwin": "libLiteRt.dylib", "win32": "libLiteRt.dll"}
"""Name of the library in the package, by platform."""
_MAX_EVENTS = 10 * 1024
"""Events that the profiler of a compiled model keeps; it drops further ones."""
_CPU, _HOST_MEMORY, _WRITE = 1, 1, 1
_GENERAL, _BUILT_IN, _DELEGATED = 1, 1 << 1, (1 << 2, 1 << 3)
_KINDS = {1 << bit for bit in range(9)}
_DIMENSIONS = 8
_TYPES: dict[int, Any] = {
    1: ctypes.c_float,
    2: ctypes.c_int32,
    3: ctypes.c_uint8,
    4: ctypes.c_int64,
    6: ctypes.c_bool,
    9: ctypes.c_int8,
    10: ctypes.c_uint16,  # float16: of outputs only the size counts
}


class _RefusalError(Exception):
    """Raised if LiteRT cannot profile the file."""


def main() -> None:
    """Read the request on standard input, profile the file, and print the answer as JSON."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what LiteRT prints must not get between
    try:
        answer = _profile(**json.load(sys.stdin))
    except (_RefusalError, OSError, AttributeError) as error:  # AttributeError: a library without a function
        answer = {"error": str(error)}
    replies.write(json.dumps(answer))
    replies.close()


def _profile(path: str, threads: int, warmup: int, runs: int, inputs: dict[str, list[int]]) -> dict[str, Any]:
    """Time a TFLite file and its operators on one input row; runs with and without the profiler alternate.

    Returns:
        Mean time in µs without the profiler, times per operator with it, and the outputs of the last run.
    """
    model = _Model(path, threads, len(inputs["input_ids"]))
    model.fill(inputs)
    for _ in range(warmup):
        model.run()
    plain, profiled = [], []
    for _ in range(runs):
        plain.append(model.run())
        profiled.append(model.profiled_run())
    return {"runs": runs, "plain_us": sum(plain) / len(plain), **_add_up(profiled), "answers": model.answers()}


class _TensorType(ctypes.Structure):
    """LiteRT's C structure ``LiteRtRankedTensorType``, 72 bytes."""

    _fields_ = [
        ("element", ctypes.c_int),
        ("rank", ctypes.c_uint),
        ("sizes", ctypes.c_int * _DIMENSIONS),
        ("strides", ctypes.c_uint * _DIMENSIONS),
    ]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions; the rank field also holds a flag in its top bit."""
        return tuple(self.sizes[: self.rank & 0x7F])

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def element_type(self) -> Any:
        """The ctypes type of an element."""
        if self.element not in _TYPES:
            raise _RefusalError(f"a tensor has the element type {self.element}")
        return _TYPES[self.element]


class _Event(ctypes.Structure):
    """LiteRT's C structure ``ProfiledEventData``: one operator's run in the profile."""

    _fields_ = [
        ("tag", ctypes.c_char_p),
        ("kind", ctypes.c_int),
        ("start_us", ctypes.c_uint64),
        ("elapsed_us", ctypes.c_uint64),
        ("memory", ctypes.c_size_t * 6),
        ("metadata", ctypes.c_uint64 * 2),
        ("source", ctypes.c_int),
    ]


_KEEP = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: None)
"""Releases the text of an option: does nothing, because Python owns it."""


class _Model:
    """A TFLite file that LiteRT has compiled for the CPU, with a profiler; it is freed when the process ends.

    Args:
        path: The TFLite file.
        threads: Number of threads within an operator.
        length: Input length in tokens, which chooses the signature to run.
    """

    def __init__(self, path: str, threads: int, length: int) -> None:
        self._library = ctypes.CDLL(str(_find_library()))
        self._environment = self._new("LiteRtCreateEnvironment", 0, None)
        self._model = self._new("LiteRtCreateModelFromFile", self._environment, path.encode())
        options = self._new("LiteRtCreateOptions")
        self._call("LiteRtSetOptionsHardwareAccelerators", options, _CPU)
        texts = {"runtime_options_string": "enable_profiling = true\n", "xnnpack": f"num_threads = {threads}\n"}
        self._texts = {name: ctypes.create_string_buffer(text.encode()) for name, text in texts.items()}
        for name, buffer in self._texts.items():
            address = ctypes.cast(buffer, ctypes.c_void_p)
            option = self._new("LiteRtCreateOpaqueOptions", name.encode(), address, _KEEP)
            self._call("LiteRtAddOpaqueOptions", options, option)
        self._compiled = self._new("LiteRtCreateCompiledModel", self._environment, self._model, options)
        self._profiler = self._new("LiteRtCompiledModelGetProfiler", self._compiled)
        self._number, self._signature = self._find_signature(length)
        self._inputs = self._create_buffers("Input")
        self._outputs = self._create_buffers("Output")

    def fill(self, rows: dict[str, list[int]]) -> None:
        """Write rows of numbers into the input buffers by name; inputs without a row get zeros."""
        for name, (buffer, tensor) in self._inputs.items():
            values = rows.get(name, [0] * tensor.count)
            if len(values) != tensor.count:
                raise _RefusalError(f"{name} takes {tensor.count} numbers, not {len(values)}")
            self._memory(buffer, tensor)[:] = [tensor.element_type(v).value for v in values]

    def answers(self) -> dict[str, list[float]]:
        """Return the outputs of the last run as flat lists, by name."""
        return {name: list(self._memory(buffer, tensor)) for name, (buffer, tensor) in self._outputs.items()}

    def run(self) -> float:
        """Run once and return the wall time in µs."""
        inputs = (ctypes.c_void_p * len(self._inputs))(*(b.value for b, _ in self._inputs.values()))
        outputs = (ctypes.c_void_p * len(self._outputs))(*(b.value for b, _ in self._outputs.values()))
        counts = ctypes.c_size_t(len(inputs)), ctypes.c_size_t(len(outputs))
        begin = time.perf_counter_ns()
        self._call("LiteRtRunCompiledModel", self._compiled, self._number, counts[0], inputs, counts[1], outputs)
        return (time.perf_counter_ns() - begin) / 1e3

    def profiled_run(self) -> list[_Event]:
        """Run once with the profiler on and return the profiler's events."""
        self._call("LiteRtStartProfiler", self._profiler)
        self.run()
        self._call("LiteRtStopProfiler", self._profiler)
        count = ctypes.c_int()
        self._call("LiteRtGetNumProfilerEvents", self._profiler, ctypes.byref(count))
        if not 0 < count.value < _MAX_EVENTS:
            raise _RefusalError(f"the profiler tells {count.value} events; it keeps {_MAX_EVENTS} at most")
        events = (_Event * count.value)()
        self._call("LiteRtGetProfilerEvents", self._profiler, count, events)
        return list(events)

    def _find_signature(self, length: int) -> tuple[ctypes.c_size_t, ctypes.c_void_p]:
        """Return (index, handle) of the signature whose inputs have this length."""
        count = ctypes.c_size_t()
        self._call("LiteRtGetNumModelSignatures", self._model, ctypes.byref(count))
        for number in range(count.value):
            signature = self._new("LiteRtGetModelSignature", self._model, ctypes.c_size_t(number))
            tensors = self._tensors(signature, "Input").values()
            if tensors and all(tensor.shape[1:2] == (length,) for tensor in tensors):
                return ctypes.c_size_t(number), signature
        raise _RefusalError(f"the file has no signature of {length} tokens")

    def _tensors(self, signature: ctypes.c_void_p, side: str) -> dict[str, _TensorType]:
        """Return the type and shape of a signature's inputs or outputs by name; `side` is ``Input`` or ``Output``."""
        count = ctypes.c_size_t()
        self._call(f"LiteRtGetNumSignature{side}s", signature, ctypes.byref(count))
        out = {}
        for number in map(ctypes.c_size_t, range(count.value)):
            name, tensor_type = ctypes.c_char_p(), _TensorType()
            self._call(f"LiteRtGetSignature{side}Name", signature, number, ctypes.byref(name))
            tensor = self._new(f"LiteRtGetSignature{side}TensorByIndex", signature, number)
            self._call("LiteRtGetRankedTensorType", tensor, ctypes.byref(tensor_type))
            out[(name.value or b"").decode()] = tensor_type
        return out

    def _create_buffers(self, side: str) -> dict[str, tuple[ctypes.c_void_p, _TensorType]]:
        """Create a buffer in host memory for each input or output; return (buffer, type) by name."""
        out = {}
        for name, tensor in self._tensors(self._signature, side).items():
            size = ctypes.c_size_t(tensor.count * ctypes.sizeof(tensor.element_type))
            arguments = (self._environment, _HOST_MEMORY, ctypes.byref(tensor), size)
            out[name] = self._new("LiteRtCreateManagedTensorBuffer", *arguments), tensor
        return out

    def _memory(self, buffer: ctypes.c_void_p, tensor: _TensorType) -> Any:
        """Return a buffer's memory as a ctypes array of its elements."""
        address = ctypes.c_void_p()
        self._call("LiteRtLockTensorBuffer", buffer, ctypes.byref(address), _WRITE)
        self._call("LiteRtUnlockTensorBuffer", buffer)  # memory of the host stays where it is
        return (tensor.element_type * tensor.count).from_address(address.value or 0)

    def _new(self, function: str, *arguments: Any) -> ctypes.c_void_p:
        """Call a C function that returns a handle through its last argument; return the handle."""
        out = ctypes.c_void_p()
        self._call(function, *arguments, ctypes.byref(out))
        return out

    def _call(self, function: str, *arguments: Any) -> None:
        """Call a C function of LiteRT; raise an error if its status is not 0."""
        status = getattr(self._library, function)(*arguments)
        if status:
            raise _RefusalError(f"{function} ends with status {status}")


def _add_up(runs: list[list[_Event]]) -> dict[str, Any]:
    """Add up the profiler's events of several runs, and return the time per operator.

    Returns:
        ``operators``, each with name, owner, number in one run and µs per run, and ``invoke_us``, the mean time of the
        interpreter. XNNPACK reports each of its operators in whole µs and so loses fractions.

    Raises:
        RefusalError: If the times contradict each other, as they would if LiteRT's event structure had another layout.
    """
    totals: dict[tuple[str, str], list[int]] = {}
    invoked = 0
    for events in runs:
        if any(event.kind not in _KINDS for event in events):
            raise _RefusalError("the profiler tells events of an unknown kind")
        whole = [event.elapsed_us for event in events if event.kind == _GENERAL and event.tag == b"Invoke"]
        own = [event for event in events if event.kind == _BUILT_IN or event.kind in _DELEGATED]
        if len(whole) != 1 or not own or sum(event.elapsed_us for event in own) > 1.02 * whole[0] + 50:
            raise _RefusalError("the times of the operators do not fit into that of the inference")
        invoked += whole[0]
        for event in own:
            owner = "built-in" if event.kind == _BUILT_IN else "XNNPACK"
            total = totals.setdefault((event.tag.decode(errors="replace"), owner), [0, 0])
            total[0] += 1
            total[1] += event.elapsed_us
    operators = [
        {"name": name, "owner": owner, "nodes": count // len(runs), "us": us / len(runs)}
        for (name, owner), (count, us) in totals.items()
    ]
    return {"operators": operators, "invoke_us": invoked / len(runs)}


def _find_library() -> Path:
    """Return the path of LiteRT's shared library in the installed package.

    Raises:
        RefusalError: If the package has no such library.
    """
    spec = importlib.util.find_spec("ai_edge_litert")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder) / LIBRARIES.get(sys.platform, LIBRARIES["linux"])
        if path.is_file():
            return path
    raise _RefusalError("ai-edge-litert with its library is not installed")


if __name__ == "__main__":
    main()
