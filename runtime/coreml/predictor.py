"""Core ML files behind the interface of all engines: the real thing on macOS, the reference evaluator elsewhere."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Signature, Tensor
from pocketbert.core.errors import InputError, MissingBackendError, Problem
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.predictor import Arrays, input_order, output_order
from pocketbert.runtime.coreml import REFERENCE
from pocketbert.runtime.coreml.evaluator import Evaluator
from pocketbert.runtime.coreml.package import Description, Feature, FeatureKind, describe, read_package
from pocketbert.runtime.coreml.types import Shape, TensorType

DEVICE = "coreml"
"""Core ML's own engine name."""
SWITCH = "POCKETBERT_COREML_REFERENCE"
"""Environment variable that, set to anything but 0, chooses the evaluator on macOS too."""


def real_engine() -> str | None:
    """Version of coremltools where it can run models here: on macOS; None elsewhere or without it."""
    return version_of("coremltools") if sys.platform == "darwin" else None


class CoremlPredictor:
    """A predictor that runs one ``.mlpackage``.

    On macOS with coremltools Core ML itself computes; elsewhere the reference evaluator, whose time means nothing (see
    `pocketbert.runtime.coreml.LIMITS`).

    Args:
        path: The package.
        threads: Threads of the evaluator's matrix products, where threadpoolctl is installed; None leaves them alone.
        reference: Use the evaluator on macOS too; so does the environment variable `SWITCH`.

    Raises:
        InputError: If the package is damaged or contradicts itself.
        MissingBackendError: If protobuf is not installed.
    """

    def __init__(self, path: Path, threads: int | None = None, reference: bool = False) -> None:
        self.path = path
        package = read_package(path)
        self._about: Description = describe(package)
        version = None if reference or os.environ.get(SWITCH, "0") != "0" else real_engine()
        self._model: _Reference | _Device
        if version is None:
            self.engine, self.engine_version = REFERENCE, version_of("pocketbert") or "0"
            self._model = _Reference(path, threads)
        else:
            self.engine, self.engine_version = DEVICE, version
            self._model = _Device(path)
        self.lengths = self._about.lengths
        names = [f.name for f in self._about.inputs]
        self.inputs = tuple(sorted(names, key=input_order))
        arrays = [f.name for f in self._about.outputs if f.kind is FeatureKind.ARRAY]
        self.outputs = tuple(sorted(arrays, key=output_order))

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run rows [B, L] one by one; see `pocketbert.core.predict.predictor.Predictor`.

        Raises:
            InputError: If the model does not take that length, or an operation fails: an id beyond the table.
        """
        missing = [n for n in self.inputs if n not in inputs]
        if missing:
            raise InputError(Problem(str(self.path), f"wants the inputs {', '.join(missing)} too."))
        rows, length = inputs[self.inputs[0]].shape
        if self.lengths and length not in self.lengths:
            raise InputError(
                Problem(
                    str(self.path),
                    f"takes {', '.join(map(str, self.lengths))} tokens, not {length}.",
                    "Pad to the next one: pocketbert.core.predict.predictor.feed does.",
                )
            )
        shortest = self._about.length_range[0] if self._about.length_range else 0
        more = max(0, shortest - length)  # masked, at the end: only an empty text is so short
        feed = {n: _longer(inputs[n], more) if more else inputs[n] for n in self.inputs}
        results = [self._model.run({n: v[i : i + 1] for n, v in feed.items()}) for i in range(rows)]
        out: Arrays = {}
        for name in self.outputs:
            parts = [np.asarray(r[name]) for r in results]
            value = parts[0] if rows == 1 else np.concatenate(parts)
            if more and self._declared(name)[1:2] == (None,):
                value = value[:, :length]
            out[name] = value.astype(np.float32) if value.dtype == np.float16 else value
        return out

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of inputs and outputs; the length is a name where the file takes several."""
        several = len(self.lengths) != 1
        features = {f.name: f for f in (*self._about.inputs, *self._about.outputs)}
        return Signature(
            inputs=[_tensor(features[n], _open_shape(features[n], several)) for n in self.inputs],
            outputs=[_tensor(features[n], self._declared(n)) for n in self.outputs],
            lengths=list(self.lengths),
        )

    def _declared(self, name: str) -> Shape:
        """The declared shape; a program of enumerated lengths leaves the batch axis open too, though it is always 1."""
        kind = self._about.types[name]
        shape = kind.shape if isinstance(kind, TensorType) else ()
        if shape and shape[0] is None and all(f.shape[:1] == (1,) for f in self._about.inputs):
            return (1, *shape[1:])
        return shape


class _Reference:
    """The evaluator."""

    def __init__(self, path: Path, threads: int | None) -> None:
        self._evaluator = Evaluator(path)
        self._threads, self._pools = threads, _pools() if threads else None

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Mapping[str, Any]:
        if self._pools is None:
            return self._evaluator.run(inputs)
        with self._pools.limit(limits=self._threads, user_api="blas"):
            return self._evaluator.run(inputs)


class _Device:
    """Core ML."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._model = importlib.import_module("coremltools.models").MLModel(str(path))
        except ImportError as error:
            raise MissingBackendError("coremltools", "pip install coremltools") from error
        except Exception as error:  # Core ML's compile errors come as bare exceptions
            raise self._problem("refuses the file", error) from error

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Mapping[str, Any]:
        try:
            result: Mapping[str, Any] = self._model.predict({n: _narrow(v) for n, v in inputs.items()})
        except Exception as error:  # as above
            raise self._problem("cannot run the file on this input", error) from error
        return result

    def _problem(self, what: str, error: Exception) -> InputError:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        return InputError(Problem(str(self._path), f"Core ML {what}: {first}"))


def _narrow(values: NDArray[np.generic]) -> NDArray[np.generic]:
    """Numbers as packages take them: int32, or float32."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


def _longer(values: NDArray[np.generic], more: int) -> NDArray[np.generic]:
    """An input [B, L, ...] with zeros behind its last tokens."""
    return np.pad(values, ((0, 0), (0, more), *((0, 0),) * (values.ndim - 2)))


def _pools() -> Any:
    """The controller of threadpoolctl, or None: it is no dependency."""
    with contextlib.suppress(ImportError):
        return importlib.import_module("threadpoolctl").ThreadpoolController()
    return None


def _open_shape(feature: Feature, several: bool) -> Shape:
    return tuple(None if several and i == 1 else n for i, n in enumerate(feature.shape))


def _tensor(feature: Feature, shape: Shape) -> Tensor:
    assert feature.dtype is not None
    return Tensor(
        name=feature.name, dtype=feature.dtype.numpy.name, shape=["sequence" if n is None else n for n in shape]
    )
