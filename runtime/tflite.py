"""Run TFLite files with ai-edge-litert, else tflite_runtime, else tensorflow.lite.

`TflitePredictor` opens a file with the first of `_ENGINES` that is installed. Each signature of the file takes one
length: `Padding` describes how shorter rows are padded, and a `_SignatureCall` runs padded rows without planning the
signature's memory again. `count_xnnpack_operators` counts the operators that XNNPACK runs.
"""

from __future__ import annotations

import contextlib
import importlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from pocketbert.core.artefacts import Signature, Tensor
from pocketbert.core.errors import InputError, MissingBackendError, Problem, first_line
from pocketbert.core.host.hardware import default_threads
from pocketbert.core.host.quiet import silence_output
from pocketbert.core.host.system import version_of
from pocketbert.core.model_files import IDENTIFIER
from pocketbert.core.predict.predictor import Arrays, input_sort_key, output_sort_key, smallest_fitting_length


class _Engine(NamedTuple):
    """A Python package with TFLite's Interpreter class.

    Attributes:
        name: Name of the engine in results.
        module: The module that contains the class.
        distributions: Names of the distributions that install the module.
    """

    name: str
    module: str
    distributions: tuple[str, ...]


_ENGINES = (
    _Engine("litert", "ai_edge_litert.interpreter", ("ai-edge-litert", "ai-edge-litert-nightly")),
    _Engine("tflite_runtime", "tflite_runtime.interpreter", ("tflite-runtime",)),
    _Engine(
        "tensorflow",
        "tensorflow.lite.python.interpreter",
        ("tensorflow", "tensorflow-cpu", "tensorflow-intel"),
    ),
)
"""In order of preference. All have the same Interpreter class; the older ones compute some files wrongly, which the
golden self-test detects."""
_INSTALL = "pip install 'pocketbert[tflite-runtime]'"

_Rows = Mapping[str, NDArray[np.generic]]
Run = Callable[[_Rows], Arrays]
"""Runs one batch, as `Predictor.run` does."""


@dataclass(frozen=True)
class Padding:
    """The token id and the side with which rows are padded.

    Attributes:
        pad_id: Id of the padding token; all other inputs are padded with 0.
        side: ``right`` or ``left``.
    """

    pad_id: int
    side: str

    def value(self, name: str) -> int:
        """Return the number with which the named input is padded."""
        return self.pad_id if name == "input_ids" else 0

    def place(self, length: int, wide: int) -> slice:
        """Return the slice of a row's `length` tokens in a row padded to `wide` tokens."""
        start = 0 if self.side == "right" else wide - length
        return slice(start, start + length)

    def widened(self, inputs: Mapping[str, NDArray[np.generic]], wide: int) -> dict[str, NDArray[np.generic]]:
        """Return the inputs padded to `wide` tokens, as new arrays.

        Args:
            inputs: [B, L, ...] arrays by name.
            wide: Number of tokens of the padded rows.
        """
        out: dict[str, NDArray[np.generic]] = {}
        for name, value in inputs.items():  # not np.pad, which takes 0.1 ms where a short text takes one
            rows, length, *widths = value.shape
            padded = np.full((rows, wide, *widths), self.value(name), value.dtype)
            padded[:, self.place(length, wide)] = value
            out[name] = padded
        return out


def import_engine() -> None:
    """Import the TFLite engine that files are opened with, if one is installed."""
    installed = _installed_engine()
    if installed is not None:
        with contextlib.suppress(ImportError):  # told when a file is opened
            importlib.import_module(installed[0].module)


class TflitePredictor:
    """Runs one TFLite file on the CPU with the first TFLite engine that is installed.

    A file has one signature per length. `run` takes only rows of these lengths and runs them one after the other;
    `pocketbert.core.predict.predictor.feed` pads rows to the smallest length that fits.

    Args:
        path: The file.
        threads: Number of threads within an operator; default `default_threads`.

    Attributes:
        signature_keys: Names of the file's signatures by length.

    Raises:
        InputError: If the file is missing, the engine refuses it, or no signature has inputs of shape [1, length].
        MissingBackendError: If no engine is installed.
    """

    def __init__(self, path: Path, threads: int | None = None) -> None:
        installed = _installed_engine()
        if installed is None:
            raise MissingBackendError("ai-edge-litert", _INSTALL)
        if not path.is_file():
            raise InputError(Problem(str(path), "file not found."))
        engine, self.engine_version = installed
        self.engine, self.path = engine.name, path
        with path.open("rb") as stream:
            # a broken flatbuffer can end the process inside the engine: at least the kind of file is looked at first
            if stream.read(8)[4:] != IDENTIFIER:
                raise InputError(Problem(str(path), "is no TFLite file."))
        try:
            with _first_time_quiet():
                self._new_interpreter = importlib.import_module(engine.module).Interpreter
                # kept alive: the runners use it
                self._interpreter = self._new_interpreter(
                    model_path=str(path), num_threads=threads or default_threads()
                )
                self._interpreter.allocate_tensors()
                signatures = _signatures(self._interpreter)
        except (ValueError, RuntimeError) as error:
            raise self._problem("refuses the file", error) from error
        except ImportError as error:
            raise MissingBackendError(f"{engine.module} ({error})", _INSTALL) from error
        if not signatures:
            raise InputError(Problem(str(path), "has no signature with inputs of shape [1, length]."))
        self.signature_keys = {length: key for length, (key, _) in signatures.items()}
        self._runners = {length: runner for length, (_, runner) in signatures.items()}
        self.lengths = tuple(sorted(self._runners))
        first_runner = self._runners[self.lengths[0]]
        self.inputs = tuple(sorted(first_runner.get_input_details(), key=input_sort_key))
        self.outputs = tuple(sorted(first_runner.get_output_details(), key=output_sort_key))
        self._calls = {n: _SignatureCall(runner, self.inputs, self.outputs) for n, runner in self._runners.items()}

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Run rows [B, L] one by one, where L is one of `lengths`, and return the outputs by name.

        Raises:
            InputError: If no signature has that length, or the engine fails, for instance on a damaged file or an id
                beyond the embedding table.
        """
        length = inputs[self.inputs[0]].shape[1]
        call = self._calls.get(length)
        if call is None:
            what = f"takes {', '.join(map(str, self.lengths))} tokens, not {length}."
            fix = "Pad to the next one: pocketbert.core.predict.predictor.feed does."
            raise InputError(Problem(str(self.path), what, fix))
        return self._guarded(call, inputs)

    def prepare_run(self, length: int, padding: Padding) -> Run:
        """Return a function that runs rows [B, `length`], with memory and padding prepared in advance.

        Args:
            length: Number of tokens of the rows.
            padding: How the rows are padded to the length of the signature.

        Raises:
            InputError: If no signature is so long.
        """
        call = self._calls[smallest_fitting_length(self.lengths, length)].prepare_run(length, padding)
        return partial(self._guarded, call)

    @property
    def signature(self) -> Signature:
        """Names, dtypes and shapes of the model's inputs and outputs, and the lengths that it takes.

        The size of the sequence axis is a number if the file takes one length only, else the string ``sequence``.
        """
        runners = self._runners[self.lengths[0]], self._runners[self.lengths[-1]]
        inputs, outputs = zip(*((r.get_input_details(), r.get_output_details()) for r in runners), strict=True)
        return Signature(
            inputs=[_tensor(n, *(details[n] for details in inputs)) for n in self.inputs],
            outputs=[_tensor(n, *(details[n] for details in outputs)) for n in self.outputs],
            lengths=list(self.lengths),
        )

    @cached_property
    def coverage(self) -> XnnpackCoverage | None:
        """How many operators of the first signature XNNPACK runs; None if the engine does not list operators."""
        with silence_output():
            return count_xnnpack_operators(self._new_interpreter(model_path=str(self.path), num_threads=1))

    def _guarded(self, call: Run, inputs: _Rows) -> Arrays:
        """Call the engine. Its exceptions become an InputError that names the file."""
        try:
            return call(inputs)
        except (ValueError, RuntimeError) as error:
            raise self._problem("cannot run the file on this input", error) from error

    def _problem(self, what: str, error: Exception) -> InputError:
        message = first_line(error)
        return InputError(Problem(str(self.path), f"{self.engine} {self.engine_version} {what}: {message}"))


def _installed_engine() -> tuple[_Engine, str] | None:
    """Return (engine, version) of the first TFLite engine that is installed, without importing it; None if none is."""
    for engine in _ENGINES:
        for name in engine.distributions:
            version = version_of(name)
            if version is not None:
                return engine, version
    return None


_announced: set[str] = set()


@contextlib.contextmanager
def _first_time_quiet() -> Iterator[None]:
    """Silence stderr while the block opens the first TFLite file of this process.

    At the first file, the engine writes there that it uses XNNPACK. Later output is not silenced, since it may be the
    application's.
    """
    if _announced:
        yield
        return
    with silence_output():
        yield
    _announced.add("XNNPACK")


def _signatures(interpreter: Any) -> dict[int, tuple[str, Any]]:
    """Return the file's signatures as {length: (key, runner)}, without those whose inputs are not [1, length, ...]."""
    out = {}
    for key in interpreter.get_signature_list():
        runner = interpreter.get_signature_runner(key)
        shapes = [tuple(map(int, d["shape"])) for d in runner.get_input_details().values()]
        if shapes and all(len(s) in (2, 3) and s[:2] == shapes[0][:2] and s[0] == 1 for s in shapes):
            out[shapes[0][1]] = (key, runner)
    return out


def _tensor(name: str, shortest: Mapping[str, Any], longest: Mapping[str, Any]) -> Tensor:
    """Return name, type and shape of a tensor, described at the shortest and the longest input of a file.

    An axis whose size differs between them is called ``sequence``.
    """
    sizes = zip(map(int, shortest["shape"]), map(int, longest["shape"]), strict=True)
    return Tensor(
        name=name,
        dtype=np.dtype(longest["dtype"]).name,
        shape=["sequence" if short != long else long for short, long in sizes],
    )


class _InputBuffer(NamedTuple):
    """Prepared memory for the values of one input, padding included.

    Attributes:
        name: Name of the input.
        shape: Shape that the values must have.
        values: The part of `buffer` into which the values are written.
        buffer: The array that is passed to the engine, in the input's shape and type. Outside `values` it contains
            padding, which is written once.
        tensor: The engine's index of the tensor.
    """

    name: str
    shape: tuple[int, ...]
    values: NDArray[Any]
    buffer: NDArray[Any]
    tensor: int


class _SignatureCall:
    """Runs rows through one signature of fixed shapes, one by one, with prepared memory.

    The engine's runner sets the shape of every input and plans the memory of the signature before each run. As the
    shapes never change here, the runner is used for the first run only; later runs set the inputs, invoke the
    interpreter and read the outputs directly. For a text of 16 tokens after an idle time the planning takes 7 % of the
    time. The functions that the runner calls are not part of the engine's documented interface: if one of them is
    missing, every run uses the runner.

    After an idle time the caches contain nothing that a call needs, and an operation of numpy or Python that takes 1 µs
    in a loop takes 10 to 30 µs. So values are padded and converted in one step, into memory that the engine takes
    unchanged, and whatever is the same for each call is prepared. Only one thread at a time may call, as the engine
    demands.

    Args:
        runner: The runner that the interpreter's `get_signature_runner` returned.
        inputs: Names of the inputs, in the order in which they are set.
        outputs: Names of the outputs to read.
    """

    def __init__(self, runner: Any, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        details, output_details = runner.get_input_details(), runner.get_output_details()
        self._runner = runner
        self._inputs = [(name, details[name]) for name in inputs]
        self._outputs = tuple((name, output_details[name]["index"]) for name in outputs)
        self._subgraph = getattr(runner, "_subgraph_index", None)
        wrapper = getattr(runner, "_interpreter_wrapper", None)
        functions: list[Any] = [getattr(wrapper, name, None) for name in ("SetTensor", "Invoke", "GetTensor")]
        self._set, self._invoke, self._get = functions
        self._direct = self._subgraph is not None and all(functions)
        self._planned = False
        self._run_whole = self.prepare_run(int(details[inputs[0]]["shape"][1]), Padding(0, "right"))

    def prepare_run(self, length: int, padding: Padding) -> Run:
        """Allocate memory for rows of one length, and return a function that runs such rows.

        Each length has its own memory, whose padding is written once, so that no row can leave values in the padding of
        another one.

        Args:
            length: Number of tokens of the rows, at most the length of the signature.
            padding: The token id and the side of the padding.
        """
        buffers = tuple(_allocate(name, details, length, padding) for name, details in self._inputs)
        set_tensor, invoke, get_tensor = self._set, self._invoke, self._get
        subgraph, outputs = self._subgraph, self._outputs

        def run(rows: _Rows) -> Arrays:
            """Copy rows of the prepared length into the interpreter's memory, run it, and return the outputs."""
            planned = self._planned
            for name, shape, values, buffer, tensor in buffers:
                value = rows[name]
                if value.shape != shape:  # numpy would repeat a single value
                    return _run_each(rows, buffers, run)
                values[...] = value
                if planned:
                    set_tensor(tensor, buffer, subgraph)
            if not planned:
                results = self._runner(**{b.name: b.buffer for b in buffers})
                self._planned = self._direct
                return {name: results[name] for name, _ in outputs}
            invoke(subgraph)
            out = {}
            for name, index in outputs:
                out[name] = get_tensor(index, subgraph)
            return out

        return run

    def __call__(self, rows: _Rows) -> Arrays:
        """Run rows of the signature's own length one by one.

        Args:
            rows: [B, L] arrays by name, in any integer dtype; names that the signature does not have are ignored.

        Returns:
            Outputs by name, as new arrays.

        Raises:
            ValueError: If an input has another shape, or the engine refuses a value.
            RuntimeError: If the engine fails.
        """
        return self._run_whole(rows)


def _allocate(name: str, details: Mapping[str, Any], length: int, padding: Padding) -> _InputBuffer:
    """Allocate the padded input array for rows of `length` tokens."""
    buffer = np.full(tuple(details["shape"]), padding.value(name), details["dtype"])
    values = buffer[:, padding.place(length, buffer.shape[1])]
    return _InputBuffer(name, values.shape, values, buffer, details["index"])


def _run_each(rows: _Rows, buffers: Sequence[_InputBuffer], run: Run) -> Arrays:
    """Run a batch row by row and join the outputs.

    Raises ValueError for a single row of another length than was prepared.
    """
    count = len(rows[buffers[0].name])
    if count < 2:
        name, shape = next((b.name, b.shape) for b in buffers if rows[b.name].shape != b.shape)
        raise ValueError(f"{name} has the shape {rows[name].shape}, {shape} is wanted")
    results = [run({b.name: rows[b.name][i : i + 1] for b in buffers}) for i in range(count)]
    return {name: np.concatenate([r[name] for r in results]) for name in results[0]}


class XnnpackCoverage(BaseModel):
    """How many operators of a TFLite graph XNNPACK runs, and which operators it does not run.

    Attributes:
        partitions: Number of connected parts of the graph that XNNPACK runs; each part takes time for passing tensors
            to XNNPACK and back.
        inside: Number of operators in these parts, by name.
        outside: Number of operators that TFLite's built-in kernels run, by name.
    """

    partitions: int
    inside: dict[str, int]
    outside: dict[str, int]

    @property
    def summary(self) -> str:
        """One line of text with XNNPACK's partitions and operators, and the operators that it does not run."""
        left = ", ".join(f"{n} {name}" for name, n in self.outside.items()) or "none"
        noun = "partition" if self.partitions == 1 else "partitions"
        return f"{self.partitions} XNNPACK {noun} with {sum(self.inside.values())} operators; outside: {left}"


_DELEGATE = "DELEGATE"


def count_xnnpack_operators(interpreter: Any) -> XnnpackCoverage | None:
    """Count the operators of an interpreter's first subgraph that XNNPACK runs, and those that it does not run.

    The interpreter lists the original operators and, after them, one DELEGATE node per partition with the tensors that
    the partition reads and writes. The operators between those tensors are the ones that XNNPACK runs.

    Args:
        interpreter: A new interpreter of ai-edge-litert, tflite_runtime or tensorflow.lite.

    Returns:
        The coverage; None if this version of the engine does not list operators (the list is not a public interface).
    """
    try:
        interpreter.allocate_tensors()
        nodes = interpreter._get_ops_details()
    except (AttributeError, ValueError, RuntimeError):
        return None
    operators = [n for n in nodes if n["op_name"] != _DELEGATE]
    delegates = [n for n in nodes if n["op_name"] == _DELEGATE]
    producer = {int(t): i for i, n in enumerate(operators) for t in n["outputs"]}
    inside: set[int] = set()
    for node in delegates:
        stop, pending = {int(t) for t in node["inputs"]}, [int(t) for t in node["outputs"]]
        while pending:
            tensor = pending.pop()
            made_by = producer.get(tensor)
            if tensor in stop or made_by is None or made_by in inside:
                continue
            inside.add(made_by)
            pending += [int(t) for t in operators[made_by]["inputs"] if t >= 0]
    names = [n["op_name"] for n in operators]
    return XnnpackCoverage(
        partitions=len(delegates),
        inside=dict(Counter(n for i, n in enumerate(names) if i in inside).most_common()),
        outside=dict(Counter(n for i, n in enumerate(names) if i not in inside).most_common()),
    )
