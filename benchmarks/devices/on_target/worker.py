"""Open model files on a target and time inferences with its clock.

The program needs Python 3.8, NumPy and the engine of the file. It reads requests from standard input, one JSON object
per line, and answers each with one line.
"""

from __future__ import annotations

import base64
import contextlib
import gc
import importlib
import json
import os
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import Any

import numpy

_COUNTER = "POCKETBERT_COUNTER"
"""Environment variable: the file in which an emulator counts instructions."""
WARMUP = 3
"""Inferences of a profile that the reader leaves out."""
_PROFILER, _PROFILER_S = "litert_profiler.py", 300.0
"""The program that profiles TFLite files, and how long it may take."""
_NUMPY_TYPES = {"tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(float16)": "float16"}


def main() -> None:
    """Answer requests, one JSON object per line, until standard input ends."""
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an engine prints must not get between the answers
    worker = _Worker()
    for line in sys.stdin.buffer:
        replies.write(json.dumps(_answer(worker, json.loads(line))).encode() + b"\n")
        replies.flush()


def _answer(worker: _Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request and return its answer; an engine's error is returned as ``error`` and ``text``."""
    try:
        verb: Any = getattr(worker, "do_" + request.pop("do"))
        answered: dict[str, Any] = verb(**request)
        return answered
    except Exception as error:  # the engines' own exception classes are private
        first = (str(error).splitlines() or [""])[0]
        return {"error": "refused", "text": f"{type(error).__name__}: {first}"}


class _Worker:
    """Keeps open files and prepared inputs. The method ``do_burst`` carries out the request ``burst``, and so on."""

    def __init__(self) -> None:
        self._files: list[Any] = []
        self._series: list[tuple[Any, list[dict[str, Any]]]] = []

    def do_open(self, path: str, format: str, threads: int, entries: dict[str, str]) -> dict[str, Any]:
        """Open a model file; return its number, the engine, the versions and the fixed input lengths."""
        file = _open(path, format, threads, entries)
        self._files.append(file)
        facts = {"engine": file.engine, "version": file.version, "lengths": list(file.lengths)}
        return {"file": len(self._files) - 1, "numpy": numpy.__version__, **facts}

    def do_prepare(self, file: int, feeds: list[dict[str, Any]]) -> dict[str, Any]:
        """Convert inputs to arrays and keep them as a series; return the number of the series for later requests."""
        opened = self._files[file]
        self._series.append((opened, [opened.bind(_arrays(feed)) for feed in feeds]))
        return {"series": len(self._series) - 1}

    def do_burst(self, series: int, numbers: list[int]) -> dict[str, Any]:
        """Run one inference for each number in `numbers`; return wall and CPU times in ns.

        An emulator returns instruction counts instead. `series` is the number of the prepared inputs, of which each of
        `numbers` chooses one.
        """
        file, feeds = self._series[series]
        if _COUNTER in os.environ:
            return {"instructions": _count_instructions(file.run, [feeds[number % len(feeds)] for number in numbers])}
        run, clock, cpu_clock, times = file.run, time.perf_counter_ns, time.process_time_ns, []
        gc.disable()
        for number in numbers:
            feed = feeds[number % len(feeds)]
            cpu = cpu_clock()
            wall = clock()
            run(feed)
            wall = clock() - wall
            cpu = cpu_clock() - cpu
            times.append((wall, cpu))
        gc.enable()
        return {"wall_ns": [wall for wall, _ in times], "cpu_ns": [cpu for _, cpu in times]}

    def do_answers(self, series: int) -> dict[str, Any]:
        """Run every input of a series once; return the outputs by name, with values in base64."""
        file, feeds = self._series[series]
        return {
            "answers": [
                {
                    name: {
                        "dtype": value.dtype.name,
                        "shape": list(value.shape),
                        "data": base64.b64encode(value.tobytes()).decode(),
                    }
                    for name, value in file.run(feed).items()
                }
                for feed in feeds
            ]
        }

    def do_start(
        self,
        path: str,
        format: str,
        threads: int,
        entries: dict[str, str],
        feed: dict[str, Any],
        profile_runs: int,
        litert: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Load a file in this new process and run one input; return times, memory and, if asked for, a profile."""
        arrays = _arrays(feed)
        importlib.import_module(_ENGINES[format])  # takes time and memory that are not the file's
        before = _memory("VmRSS:")
        with contextlib.suppress(OSError):  # importing NumPy has a peak too, which Linux can forget
            Path("/proc/self/clear_refs").write_text("5")
        begin = time.perf_counter_ns()
        file = _open(path, format, threads, entries)
        loaded = time.perf_counter_ns()
        bound = file.bind(arrays)
        ready = time.perf_counter_ns()
        file.run(bound)
        first = time.perf_counter_ns()
        file.run(bound)  # the second run may allocate what the memory planner has learnt
        answer: dict[str, Any] = {"load_ns": loaded - begin, "first_ns": first - ready}
        answer.update(before=before, peak=_memory("VmHWM:"))
        if profile_runs and isinstance(file, _TfliteFile):
            answer["operators"] = file.operators()
            answer["times"] = _litert_times(litert) if litert else {"error": "the profiler was not asked"}
        elif profile_runs:
            profiled = _OnnxFile(path, threads, entries, "ops")
            for _ in range(WARMUP + profile_runs):
                profiled.run(bound)
            events = Path(profiled.profile()).read_bytes()
            answer["profile"] = base64.b64encode(zlib.compress(events)).decode()
        return answer


_ENGINES = {"onnx": "onnxruntime", "tflite": "ai_edge_litert.interpreter"}
"""The module that opens files of a format."""


def _open(path: str, format: str, threads: int, entries: dict[str, str]) -> Any:
    """Open a file with the engine of its format."""
    return _TfliteFile(path, threads) if format == "tflite" else _OnnxFile(path, threads, entries)


class _OnnxFile:
    """A file opened by ONNX Runtime."""

    engine = "onnxruntime"

    def __init__(self, path: str, threads: int, entries: dict[str, str], profile: str = "") -> None:
        library = importlib.import_module(_ENGINES["onnx"])
        options = library.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads, options.log_severity_level = threads, 1, 4
        for key, value in entries.items():
            options.add_session_config_entry(key, value)
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        try:
            self._session = library.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception:
            if entries.get("session.x64quantprecision") != "1":
                raise
            # several products share a dequantized int8 weight: computed in fp32, they need no setting against saturation
            options.add_session_config_entry("session.disable_quant_qdq", "1")
            self._session = library.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        self.version = str(library.__version__)
        self.inputs = {i.name: (i.type, list(i.shape)) for i in self._session.get_inputs()}
        fixed = {shape[1] for _, shape in self.inputs.values() if len(shape) > 1 and isinstance(shape[1], int)}
        self.lengths = tuple(sorted(fixed))  # empty if the axis is free
        self._outputs = [o.name for o in self._session.get_outputs()]

    def bind(self, feed: dict[str, Any]) -> dict[str, Any]:
        """Return arrays for all inputs of the file; inputs that `feed` lacks are zeros."""
        rows, length = feed["input_ids"].shape
        out = {}
        for name, (kind, shape) in self.inputs.items():
            dtype = _NUMPY_TYPES.get(kind, "float32")
            out[name] = feed[name] if name in feed else numpy.zeros((rows, length, *shape[2:]), dtype)
        return out

    def run(self, feed: dict[str, Any]) -> dict[str, Any]:
        """Run one batch and return the outputs by name."""
        return dict(zip(self._outputs, self._session.run(None, feed)))  # noqa: B905  # Python 3.9 has no `strict`

    def profile(self) -> str:
        """Stop profiling and return the name of the trace file."""
        return str(self._session.end_profiling())


class _TfliteFile:
    """A file opened by LiteRT; it has one signature per length."""

    engine = "litert"

    def __init__(self, path: str, threads: int) -> None:
        from importlib import metadata

        self._new = importlib.import_module(_ENGINES["tflite"]).Interpreter
        self._interpreter = self._new(model_path=path, num_threads=threads)
        self._interpreter.allocate_tensors()
        self._path, self._runners = path, {}
        for key in self._interpreter.get_signature_list():
            runner = self._interpreter.get_signature_runner(key)
            shapes = [tuple(map(int, d["shape"])) for d in runner.get_input_details().values()]
            if shapes and all(len(s) in (2, 3) and s[:2] == shapes[0][:2] and s[0] == 1 for s in shapes):
                self._runners[shapes[0][1]] = runner
        if not self._runners:
            raise ValueError("no signature with inputs of shape [1, length]")
        self.lengths = tuple(sorted(self._runners))
        self._details = self._runners[self.lengths[0]].get_input_details()
        self.version = metadata.version("ai-edge-litert")

    def bind(self, feed: dict[str, Any]) -> dict[str, Any]:
        """Return arrays for all inputs of the file; inputs that `feed` lacks are zeros."""
        length = feed["input_ids"].shape[1]
        if length not in self._runners:
            raise ValueError(f"takes {', '.join(map(str, self.lengths))} tokens, not {length}")
        out = {}
        for name, details in self._details.items():
            zeros = numpy.zeros((1, length, *map(int, details["shape"][2:])))
            out[name] = feed.get(name, zeros).astype(details["dtype"])
        return out

    def run(self, feed: dict[str, Any]) -> dict[str, Any]:
        """Run one row and return the outputs by name."""
        return dict(self._runners[feed["input_ids"].shape[1]](**feed))

    def operators(self) -> list[dict[str, Any]]:
        """Return the graph's operators with tensors, delegates included; empty if this LiteRT cannot list them."""
        try:
            interpreter = self._new(model_path=self._path, num_threads=1)
            interpreter.allocate_tensors()
            nodes = interpreter._get_ops_details()
        except (AttributeError, ValueError, RuntimeError):
            return []
        tensors = ("inputs", "outputs")
        return [{"op_name": n["op_name"], **{key: [int(i) for i in n[key]] for key in tensors}} for n in nodes]


def _count_instructions(run: Any, feeds: list[dict[str, Any]]) -> list[int]:
    """Run inferences in an emulator; return the instruction count of each, read from the plugin's counter file."""
    counter, counts = os.open(os.environ[_COUNTER], os.O_RDONLY), []
    gc.disable()
    for feed in feeds:
        before = os.pread(counter, 8, 0)
        run(feed)
        after = os.pread(counter, 8, 0)
        counts.append(int.from_bytes(after, "little") - int.from_bytes(before, "little"))
    gc.enable()
    os.close(counter)
    return counts


def _litert_times(request: dict[str, Any]) -> Any:
    """Run LiteRT's profiler in a process of its own, since it may crash; return its times, or an error."""
    try:
        done = subprocess.run(
            [sys.executable, _PROFILER], input=json.dumps(request).encode(), capture_output=True, timeout=_PROFILER_S
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"the profiler took more than {_PROFILER_S:.0f} s"}
    except ValueError:
        return {"error": f"the process of the profiler ended with exit status {done.returncode}"}


def _arrays(feed: dict[str, Any]) -> dict[str, Any]:
    """Convert lists of ids to int64 arrays, by input name."""
    return {name: numpy.array(rows, numpy.int64) for name, rows in feed.items()}


def _memory(key: str) -> int:
    """Return an entry of this process's memory statistics in /proc, such as ``VmHWM:``, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
