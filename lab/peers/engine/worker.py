"""One engine in a process of its own. Runs in any environment: needs numpy and the engine, no more.

Reads one JSON object per line on stdin and answers with one on stdout:

{"do": "open", "engine": NAME, "path": PATH, "threads": N, "options": {...}}   -> {"version": ..., "choices": ...}
{"do": "feed", "key": KEY, "rows": [[id, ...], ...], "pad": ID}                -> {"outputs": first row's logits, ...}
{"do": "run", "key": KEY, "first": I, "count": N, "untimed": M}                -> {"wall": [ms, ...], "cpu": ms per run}
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

# ONNX Runtime and OpenVINO report to their vendors otherwise; the second one does without this package
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
sys.modules.setdefault("openvino_telemetry", None)

Feed = dict[str, np.ndarray]


class OnnxRuntime:
    """A raw session.

    Options: spin (threads wait busily for work), stop (they stop when a run ends), precise (int8 products do not saturate).
    """

    def __init__(self, path: str, threads: int, spin: bool = False, stop: bool = False, precise: bool = False) -> None:
        import onnxruntime

        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = threads
        settings.inter_op_num_threads = 1
        settings.log_severity_level = 3
        settings.add_session_config_entry("session.intra_op.allow_spinning", "1" if spin else "0")
        settings.add_session_config_entry("session.force_spinning_stop", "1" if stop else "0")
        settings.add_session_config_entry("session.x64quantprecision", "1" if precise else "0")
        self.version = onnxruntime.__version__
        self._session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        self._inputs = [i.name for i in self._session.get_inputs()]

    def prepare(self, feed: Feed) -> Feed:
        return {name: feed[name] for name in self._inputs}

    def run(self, feed: Feed) -> np.ndarray:
        return self._session.run(None, feed)[0]


class LiteRt:
    """A raw interpreter; inputs are padded to the smallest signature that fits, which is inside the clock: whoever runs it must."""

    def __init__(self, path: str, threads: int) -> None:
        from ai_edge_litert.interpreter import Interpreter

        self.version = version("ai-edge-litert")
        self._interpreter = Interpreter(path, num_threads=threads)
        keys = self._interpreter.get_signature_list()
        lengths = sorted(int(k.removeprefix("seq_")) for k in keys)
        self._runners = {n: self._interpreter.get_signature_runner(f"seq_{n}") for n in lengths}

    def prepare(self, feed: Feed) -> tuple[Any, int, Feed]:
        tokens = feed["input_ids"].shape[1]
        length = next(n for n in self._runners if n >= tokens)
        runner = self._runners[length]
        names = list(runner.get_input_details())
        return runner, length, {n: feed[n].astype(np.int32) for n in names}

    def run(self, feed: tuple[Any, int, Feed]) -> np.ndarray:
        runner, length, values = feed
        if values["input_ids"].shape[1] < length:
            values = {n: _padded(v, length) for n, v in values.items()}
        return next(iter(runner(**values).values()))


def _padded(row: np.ndarray, length: int) -> np.ndarray:
    wide = np.zeros((1, length), row.dtype)  # not np.pad, which takes 30 times as long
    wide[:, : row.shape[1]] = row
    return wide


class Torch:
    """The Hugging Face model as it comes. Options: int8 (torch's own dynamic quantization of Linear)."""

    def __init__(self, path: str, threads: int, int8: bool = False) -> None:
        import torch
        import transformers

        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        self.version = torch.__version__
        self._torch = torch
        model = transformers.AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32)
        if int8:
            import warnings

            warnings.simplefilter("ignore")
            model = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
        self._model = model.eval()
        segments = model.config.model_type != "distilbert"
        self._inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if segments else [])]

    def prepare(self, feed: Feed) -> dict[str, Any]:
        return {name: self._torch.from_numpy(feed[name]) for name in self._inputs}

    def run(self, feed: dict[str, Any]) -> np.ndarray:
        with self._torch.inference_mode():
            return self._model(**feed).logits.numpy()


class OpenVino:
    """A compiled model and one inference request. Options: properties of the CPU device."""

    def __init__(self, path: str, threads: int, **properties: Any) -> None:
        import openvino

        self.version = version("openvino")
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            **properties,
        }
        compiled = openvino.Core().compile_model(path, "CPU", settings)
        self._inputs = [i.get_any_name() for i in compiled.inputs]
        self._request = compiled.create_infer_request()

    def prepare(self, feed: Feed) -> Feed:
        return {name: feed[name] for name in self._inputs}

    def run(self, feed: Feed) -> np.ndarray:
        self._request.infer(feed, share_inputs=True)
        return self._request.get_output_tensor(0).data


class Fastest:
    """The toolkit's own choice among its int8 files; padding to a signature is inside the clock. Options: cadence."""

    def __init__(self, path: str, threads: int, cadence: str = "batch") -> None:
        from pocketbert.core.types import Format, Runtime
        from pocketbert.runtime.engines import EngineFile
        from pocketbert.runtime.fastest import open_fastest

        files = [
            EngineFile(Path(path) / "model_int8.tflite", Format.TFLITE),
            EngineFile(Path(path) / "model_int8.onnx", Format.ONNX),
            EngineFile(Path(path) / "model_a8w8_openvino.onnx", Format.ONNX, Runtime.OPENVINO),
        ]
        self._predictor = open_fastest(files, threads, 384, 0, "right", **_called(cadence))
        self.version = self._predictor.engine_version
        plan = self._predictor.plan
        self.choices = {str(n): _say(plan.timings[plan.best([n])]) for n in (16, 32, 64, 128, 384)}
        self.mixed = {"16 to 48": _say(plan.timings[plan.best([16, 24, 32, 48], steady=False)])}
        self.note = "raced on a busy machine" if plan.disturbed else ""

    def prepare(self, feed: Feed) -> Feed:
        return feed

    def run(self, feed: Feed) -> np.ndarray:
        return next(iter(self._predictor.run(feed).values()))


def _called(cadence: str) -> dict[str, Any]:
    if cadence == "batch":  # the default
        return {}
    from pocketbert.runtime.race import Cadence

    return {"cadence": Cadence(cadence)}


_SPIN = {"no": "", "run": ", spin + stop", "on": ", spinning"}


def _say(timing: Any) -> str:
    engine = "openvino" if "openvino" in timing.file else timing.file.split(".")[-1]
    return f"{engine} on {timing.threads}{_SPIN[timing.spin]}"


ENGINES: dict[str, Callable[..., Any]] = {
    "onnxruntime": OnnxRuntime,
    "litert": LiteRt,
    "torch": Torch,
    "openvino": OpenVino,
    "fastest": Fastest,
}


class Worker:
    """Answers requests."""

    def __init__(self) -> None:
        self._engine: Any = None
        self._feeds: dict[str, list[Any]] = {}

    def open(self, engine: str, path: str, threads: int, options: dict[str, Any]) -> dict[str, Any]:
        self._engine = ENGINES[engine](path, threads, **options)
        told = {what: getattr(self._engine, what, {}) for what in ("choices", "mixed")}
        return {"version": self._engine.version, "note": getattr(self._engine, "note", ""), **told}

    def feed(self, key: str, rows: list[list[int]]) -> dict[str, Any]:
        """Prepare inputs and run each once, so that every shape is known; tells what came out."""
        self._feeds[key] = []
        for ids in rows:
            row = np.array([ids], np.int64)
            values = {
                "input_ids": row,
                "attention_mask": np.ones_like(row),
                "token_type_ids": np.zeros_like(row),
            }
            self._feeds[key].append(self._engine.prepare(values))
        return {"logits": [self._engine.run(f).ravel().tolist() for f in self._feeds[key]]}

    def run(self, key: str, first: int, count: int, untimed: int) -> dict[str, Any]:
        feeds, run, clock = self._feeds[key], self._engine.run, time.perf_counter_ns
        for i in range(untimed):
            run(feeds[(first + i) % len(feeds)])
        wall = []
        gc.disable()
        cpu = time.process_time_ns()
        for i in range(first, first + count):
            feed = feeds[i % len(feeds)]
            began = clock()
            run(feed)
            wall.append(clock() - began)
        cpu = time.process_time_ns() - cpu
        gc.enable()
        return {"wall": [round(w / 1e6, 4) for w in wall], "cpu": round(cpu / 1e6 / count, 4)}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    worker = Worker()
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("do")
        try:
            answer = getattr(worker, what)(**request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
