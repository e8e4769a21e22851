"""The Core ML engine: Core ML itself on macOS with coremltools, the reference evaluator on all other machines.

`CoremlPredictor` opens a package with one of them; coremltools is imported when a package is opened on macOS.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.artefacts import Signature, Tensor
from pocketbert.core.errors import InputError, MissingBackendError, Problem, first_line
from pocketbert.core.host.hardware import default_threads
from pocketbert.core.host.system import version_of
from pocketbert.core.predict.predictor import Arrays, input_sort_key, output_sort_key
from pocketbert.runtime.coreml import REFERENCE_ENGINE
from pocketbert.runtime.coreml.evaluator import Evaluator, use_one_blas_thread
from pocketbert.runtime.coreml.package import Feature, FeatureKind, read_description, read_package
from pocketbert.runtime.coreml.types import Shape, TensorType

_DEVICE = "coreml"
"""Core ML's own engine name."""
SWITCH = "POCKETBERT_COREML_REFERENCE"
"""Environment variable that, set to anything but 0, chooses the evaluator on macOS too."""


def import_engine() -> None:
    """Import coremltools, if a file would be opened with Core ML."""
    if not _uses_reference() and version_of("coremltools") is not None:
        with suppress(ImportError):  # told when a file is opened
            importlib.import_module("coremltools.models")


def _uses_reference() -> bool:
    """Return whether packages are opened with the evaluator: where there is no Core ML, or where `SWITCH` asks for it."""
    return os.environ.get(SWITCH, "0") != "0" or sys.platform != "darwin"


class CoremlPredictor:
    """Runs one ``.mlpackage``: with Core ML on macOS, else with the reference evaluator.

    Core ML itself computes only with coremltools installed. The evaluator's time means nothing (see
    `pocketbert.runtime.coreml.EVALUATOR_LIMITS`).

    Args:
        path: The package.
        threads: Number of rows that the evaluator computes at the same time; default one for each core that this
            process may use.
        reference: Whether to use the evaluator on macOS too. The environment variable `SWITCH` has the same effect.

    Raises:
        InputError: If the package is damaged or contradicts itself.
        MissingBackendError: If protobuf is not installed.
    """

    computes_rows_apart = True

    def __init__(self, path: Path, threads: int | None = None, reference: bool = False) -> None:
        self.path = path
        package = read_package(path)
        self._description = read_description(package)
        version = None if reference or _uses_reference() else version_of("coremltools")
        self._model: _Reference | _Device
        if version is None:
            self.engine, self.engine_version = REFERENCE_ENGINE, version_of("pocketbert") or "0"
            self._model = _Reference(path, threads)
        else:
            self.engine, self.engine_version = _DEVICE, version
            self._model = _Device(path)
        self.lengths = self._description.lengths
        names = [f.name for f in self._description.inputs]
        self.inputs = tuple(sorted(names, key=input_sort_key))
        arrays = [f.name for f in self._description.outputs if f.kind is FeatureKind.ARRAY]
        self.outputs = tuple(sorted(arrays, key=output_sort_key))

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run rows [B, L] one by one, and return the outputs by name.

        Rows that are shorter than the package's shortest length are padded, and the padding is cut off the outputs.

        Raises:
            InputError: If an input is missing, if the model does not take that length, or if an operation fails, for
                instance because an id is beyond the embedding table.
        """
        missing = [n for n in self.inputs if n not in inputs]
        if missing:
            raise InputError(Problem(str(self.path), f"wants the inputs {', '.join(missing)} too."))
        rows, length = inputs[self.inputs[0]].shape
        if self.lengths and length not in self.lengths:
            what = f"takes {', '.join(map(str, self.lengths))} tokens, not {length}."
            fix = "Pad to the next one: pocketbert.core.predict.predictor.feed does."
            raise InputError(Problem(str(self.path), what, fix))
        shortest = self._description.length_range[0] if self._description.length_range else 0
        missing_tokens = max(0, shortest - length)  # masked, at the end: only an empty text is so short
        feed = {n: inputs[n] for n in self.inputs}
        if missing_tokens:
            behind = ((0, 0), (0, missing_tokens))
            feed = {n: np.pad(v, (*behind, *((0, 0),) * (v.ndim - 2))) for n, v in feed.items()}
        results = self._model.run_rows([{n: v[i : i + 1] for n, v in feed.items()} for i in range(rows)])
        out: Arrays = {}
        for name in self.outputs:
            parts = [np.asarray(r[name]) for r in results]
            value = parts[0] if rows == 1 else np.concatenate(parts)
            if missing_tokens and self._declared_shape(name)[1:2] == (None,):
                value = value[:, :length]
            out[name] = value.astype(np.float32) if value.dtype == np.float16 else value
        return out

    @property
    def signature(self) -> Signature:
        """The names, dtypes and shapes of the model's inputs and outputs, and the lengths that it takes.

        The size of the sequence axis is a number if the file takes one length only, else the string ``sequence``.
        """
        free_axis = 1 if len(self.lengths) != 1 else None
        inputs = {f.name: f for f in self._description.inputs}
        outputs = {f.name: f for f in self._description.outputs}
        input_shapes = {
            n: tuple(None if i == free_axis else k for i, k in enumerate(f.shape)) for n, f in inputs.items()
        }
        return Signature(
            inputs=[_tensor(inputs[n], input_shapes[n]) for n in self.inputs],
            outputs=[_tensor(outputs[n], self._declared_shape(n)) for n in self.outputs],
            lengths=list(self.lengths),
        )

    def _declared_shape(self, name: str) -> Shape:
        """Return the shape that the program declares for an output, with None for a free axis.

        A program with listed lengths leaves the batch axis free too, though it is always 1; this returns 1 for it.
        """
        kind = self._description.types[name]
        shape = kind.shape if isinstance(kind, TensorType) else ()
        if shape and shape[0] is None and all(f.shape[:1] == (1,) for f in self._description.inputs):
            return (1, *shape[1:])
        return shape


class _Reference:
    """A package opened with the reference evaluator, which computes up to `threads` rows at the same time."""

    def __init__(self, path: Path, threads: int | None) -> None:
        self._evaluator = Evaluator(path)
        self._threads = threads or default_threads()

    def run_rows(self, rows: Sequence[Mapping[str, NDArray[np.generic]]]) -> list[Mapping[str, Any]]:
        """Compute each row's outputs by name, in the order of the rows."""
        with use_one_blas_thread():
            if len(rows) == 1 or self._threads == 1:
                return [self._evaluator.run(row) for row in rows]
            with ThreadPoolExecutor(self._threads) as pool:
                return list(pool.map(self._evaluator.run, rows))


class _Device:
    """A package opened with Core ML itself, by coremltools on macOS."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._model = importlib.import_module("coremltools.models").MLModel(str(path))
        except ImportError as error:
            raise MissingBackendError("coremltools", "pip install coremltools") from error
        except Exception as error:  # Core ML's compile errors come as bare exceptions
            raise self._problem("refuses the file", error) from error

    def run_rows(self, rows: Sequence[Mapping[str, NDArray[np.generic]]]) -> list[Mapping[str, Any]]:
        """Run the package in Core ML on each row. Errors of Core ML are raised as InputError."""
        results: list[Mapping[str, Any]] = []
        try:
            for row in rows:  # packages take int32 or float32
                feed = {n: v.astype(np.float32 if v.dtype.kind == "f" else np.int32) for n, v in row.items()}
                results.append(self._model.predict(feed))
        except Exception as error:  # as above
            raise self._problem("cannot run the file on this input", error) from error
        return results

    def _problem(self, what: str, error: Exception) -> InputError:
        first = first_line(error)
        return InputError(Problem(str(self._path), f"Core ML {what}: {first}"))


def _tensor(feature: Feature, shape: Shape) -> Tensor:
    assert feature.dtype is not None
    sizes: list[int | str] = ["sequence" if n is None else n for n in shape]
    return Tensor(name=feature.name, dtype=feature.dtype.numpy.name, shape=sizes)
