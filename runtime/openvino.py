"""Run the ONNX file that was made for OpenVINO. openvino is imported when a file is opened.

`OpenVinoPredictor` opens a file; `choose_float_type` chooses the type of its float operations, and `int8_settings` the
settings of its int8 products, on this CPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Signature, Tensor
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.hardware import default_threads, describe_machine
from pocketbert.core.host.quiet import block_openvino_telemetry
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.predictor import Arrays

_DISTRIBUTION = "openvino"
_INSTALL = "pip install 'pocketbert[openvino]'"
_SETTINGS = {"NUM_STREAMS": 1, "PERFORMANCE_HINT": "LATENCY"}
"""One text at a time."""


def import_engine() -> None:
    """Import OpenVINO, if it is installed."""
    with block_openvino_telemetry(), suppress(ImportError):  # told when a file is opened
        importlib.import_module("openvino.frontend")


class OpenVinoPredictor:
    """Runs one ONNX file with OpenVINO on the CPU.

    Args:
        path: The file.
        threads: Number of threads within an operator; default `default_threads`.

    Raises:
        InputError: If the file is missing or OpenVINO refuses it.
        MissingBackendError: If openvino is not installed.
    """

    engine = "openvino"
    lengths: tuple[int, ...] = ()

    def __init__(self, path: Path, threads: int | None = None) -> None:
        version = version_of(_DISTRIBUTION)
        if version is None:
            raise MissingBackendError(_DISTRIBUTION, _INSTALL)
        if not path.is_file():
            raise InputError(Problem(str(path), "file not found."))
        try:
            with block_openvino_telemetry():
                import openvino
                from openvino.frontend import FrontEndManager
        except ImportError as error:
            raise MissingBackendError(f"{_DISTRIBUTION} ({error})", _INSTALL) from error

        self.engine_version, self.path, self._alone = version, path, Lock()
        # named in any case: on Arm the default is fp16, in which large activations overflow
        settings = {
            "INFERENCE_NUM_THREADS": threads or default_threads(),
            "INFERENCE_PRECISION_HINT": choose_float_type(),
            **_SETTINGS,
            **int8_settings(),
        }
        try:
            # asked for by name: of any other file the readers of eight formats would try, each with its own complaints
            reader = FrontEndManager().load_by_framework("onnx")
            graph = reader.convert(reader.load(str(path)))
            compiled = openvino.Core().compile_model(graph, "CPU", settings)
            self._request = compiled.create_infer_request()
        except Exception as error:  # the library's own exception classes are private
            raise self._problem("refuses the file", error) from error
        if not compiled.inputs:  # an empty or foreign file may be read as a graph of nothing
            raise InputError(Problem(str(path), "is no ONNX model: it has no inputs."))
        self._ports = (compiled.inputs, compiled.outputs)
        self.inputs, self.outputs = (tuple(p.get_any_name() for p in ports) for ports in self._ports)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run one batch of inputs [B, L], and return the outputs by name; calls from several threads wait for each other."""
        missing = [n for n in self.inputs if n not in inputs]
        if missing:
            raise InputError(Problem(str(self.path), f"wants the inputs {', '.join(missing)} too."))
        with self._alone:  # the next run overwrites the request's own memory
            try:
                self._request.infer({n: inputs[n] for n in self.inputs}, share_inputs=True)
            except Exception as error:
                raise self._problem("cannot run the file on this input", error) from error
            return {n: self._request.get_output_tensor(i).data.copy() for i, n in enumerate(self.outputs)}

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of the model's inputs and outputs."""
        inputs, outputs = ([_tensor(p) for p in ports] for ports in self._ports)
        return Signature(inputs=inputs, outputs=outputs)

    def _problem(self, what: str, error: Exception) -> InputError:
        """Build an InputError from the last line of OpenVINO's message, which contains the reason."""
        lines = [line for line in str(error).splitlines() if line.strip()]
        reason = (lines or ["no reason given"])[-1].strip()
        return InputError(Problem(str(self.path), f"OpenVINO {self.engine_version} {what}: {reason}"))


def choose_float_type() -> str:
    """Return the number type for OpenVINO's float operations on this CPU, ``bf16`` or ``f32``.

    On processors with AVX-512 BF16 but without AMX, bf16 takes less time on long texts and adds less error than int8
    does. With AMX, where bf16 is OpenVINO's default too, it adds three to four times the error of int8
    (tests/quantize/onnx/test_static.py).
    """
    isa = describe_machine().isa
    return "bf16" if "avx512_bf16" in isa and "amx_bf16" not in isa else "f32"


def int8_settings() -> dict[str, int]:
    """Return OpenVINO's settings for int8 products on this CPU; empty if they do not saturate.

    Without a group size of 0, OpenVINO may quantize the inputs of int8 products again at run time, as it does on
    processors with VNNI.
    """
    return {"LP_TRANSFORMS_MODE": False, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0} if describe_machine().saturates else {}


def _tensor(port: Any) -> Tensor:
    """Return name, type and shape of an input or output. Free axes are called ``batch`` and ``sequence``."""
    axis_names = dict(enumerate(("batch", "sequence")))
    shape = port.get_partial_shape()
    return Tensor(
        name=port.get_any_name(),
        dtype=port.get_element_type().to_dtype().name,
        shape=[axis_names.get(i, "?") if n.is_dynamic else n.get_length() for i, n in enumerate(shape)],
    )
