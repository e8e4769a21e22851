"""Measure the Core ML packages of an artefact folder on this Mac, and check their answers.

Needs Python 3.9 or newer and coremltools, nothing else; packed as coreml/benchmark_on_mac.py, it lies beside the packages:

    python3 -m pip install coremltools
    python3 phone/coreml/benchmark_on_mac.py                      # writes phone-mac.json beside the folder
    pocketbert benchmark -m phone --import phone-mac.json         # anywhere: into the common report
    python3 phone/coreml/benchmark_on_mac.py --iphone --team TEAM # on the connected iPhone: phone-iphone.json

Per package, compute unit and length: load time and first inference in a fresh process, warm-up until stable, then timed
inferences in short bursts that take turns, so that a disturbance hits all of them. Raw samples are kept. The compute plan
is what Core ML itself expects to run where; it is an estimate, not a measurement.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import importlib
import itertools
import json
import logging
import math
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# --- common ---
# Names and helpers that all parts of the Mac script use.


SCHEMA_VERSION = "1.1"
KIND = "pocketbert-mac-benchmark"
UNITS = {"all": "ALL", "cpu-only": "CPU_ONLY", "cpu-and-gpu": "CPU_AND_GPU", "cpu-and-ne": "CPU_AND_NE"}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
LOG = logging.getLogger("benchmark_on_mac")


class RefusalError(Exception):
    """Something is wrong that the user can mend: one line, and the exit code where it is not 2."""


def coremltools() -> Any:
    """The library, or how to get it."""
    try:
        return importlib.import_module("coremltools")
    except ImportError as error:
        raise RefusalError(f"{error}. Install it with: python3 -m pip install coremltools", 4) from error


def load_numpy() -> Any:
    """Import NumPy, which comes with coremltools."""
    return importlib.import_module("numpy")  # which other systems, where this file refuses, may lack


def open_compiled(tools: Any, compiled: str, unit: str) -> Any:
    """Open a compiled package on a compute unit."""
    return tools.models.CompiledMLModel(compiled, compute_units=getattr(tools.ComputeUnit, UNITS[unit]))


def sha256_folder(path: Path) -> str:
    """Digest of a package, which is a folder: of the sorted JSON list of [path inside, sha256 of the file]."""
    files = sorted((p.relative_to(path).as_posix(), p) for p in files_of(path))
    pairs = [[name, hashlib.sha256(p.read_bytes()).hexdigest()] for name, p in files]
    text = json.dumps(pairs, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def files_of(path: Path) -> list[Path]:
    """All files inside a package."""
    return [p for p in path.rglob("*") if p.is_file()]


def write_atomic(path: Path, text: str) -> None:
    """Write so that readers see the whole file or none; whatever has the name of the unfinished file is left as it is."""
    for number in itertools.count():
        partial = path.with_name(f".{path.name}.{number}.partial")
        with contextlib.suppress(FileExistsError):
            stream = partial.open("x", encoding="utf-8")
            break
    try:
        with stream:
            stream.write(text)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def command_output(*words: str) -> str:
    """What a system command prints; empty where it is not there or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return ""


def ms(nanoseconds: float) -> float:
    """Milliseconds to 0.1 µs."""
    return round(nanoseconds / 1e6, 4)


def reason(error: Exception) -> str:
    """An error in one line of at most 300 characters."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


# --- golden ---
# Read the golden rows of an artefact folder.


class Golden:
    """Golden rows of the folder: real token ids to measure with, and the answers that the packages should give."""

    def __init__(self, folder: Path) -> None:
        def lines(name: str) -> list[str]:
            path = folder / name
            # not splitlines(): texts may hold the line separators that JSON does not escape
            return path.read_text(encoding="utf-8").strip().split("\n") if path.is_file() else []

        listed = json.loads("".join(lines("artifacts.json")) or "{}")
        processing = listed.get("processing", {})
        prompt = (processing.get("prompts") or {}).get(processing.get("default_prompt"), "")

        def as_tokenized(text: str | list[str]) -> str:
            # golden_tokens.jsonl has what the tokenizer gets: the default prompt is in front of the (first) text
            return json.dumps(prompt + text if isinstance(text, str) else [prompt + text[0], *text[1:]])

        self.tokens = {json.dumps(r["text"]): r for r in map(json.loads, lines("golden_tokens.jsonl"))}
        keyed = [(self.tokens.get(as_tokenized(r["text"])), r) for r in map(json.loads, lines("golden.jsonl"))]
        self.extra = sorted({n for r in self.tokens.values() for n in r.get("inputs", {})})  # made of other columns
        self.rows = [(tokens, r) for tokens, r in keyed if tokens is not None]
        self.listed = {r["path"]: r["sha256"] for r in listed.get("files", [])}
        self.left = processing.get("padding_side") == "left"
        self.pad_id = json.loads("".join(lines("config.json")) or "{}").get("pad_token_id") or 0
        added = json.loads("".join(lines("tokenizer.json")) or "{}").get("added_tokens") or []
        added = added if listed.get("task") == "fill-mask" else []  # whose rows record masked tokens alone
        self.masks = {token["id"] for token in added if token["content"] in ("[MASK]", "<mask>")}
        single = [r["ids"] for r in self.tokens.values() if isinstance(r["text"], str) and len(r["ids"]) > 2]
        self._inner = [i for ids in single for i in ids[1:-1]] or list(range(1, 91))
        self._ends = (single[0][0], single[0][-1]) if single else (1, 1)
        self.inputs = "tokens of the golden rows" if single else "ids 1 to 90: no golden_tokens.jsonl here"

    def of_length(self, length: int) -> list[int]:
        """Exactly this number of ids: the golden texts joined between the first one's special tokens."""
        inner = (self._inner * (length // len(self._inner) + 1))[: max(0, length - 2)]
        return [self._ends[0], *inner, self._ends[1]][:length]


# --- system ---
# Tell what this Mac is, and where Core ML expects to run each operator.


DEVICES = {"NeuralEngine": "Neural Engine", "GPU": "GPU", "CPU": "CPU"}
ISA = {
    "hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.arm.FEAT_I8MM": "i8mm", "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme", "hw.optional.avx2_0": "avx2", "hw.optional.avx512f": "avx512f",
}  # fmt: skip


def machine() -> dict[str, Any]:
    """What this Mac is; what it does not tell is an empty text."""
    power, memory = command_output("pmset", "-g", "batt"), command_output("sysctl", "-n", "hw.memsize")
    return {
        "model": command_output("sysctl", "-n", "hw.model"), "chip": command_output("sysctl", "-n", "machdep.cpu.brand_string"),
        "arch": platform.machine(), "isa": [name for key, name in ISA.items() if command_output("sysctl", "-n", key) == "1"],
        "cores": os.cpu_count() or 1, "memory_bytes": int(memory) if memory.isdecimal() else 0,
        "macos": platform.mac_ver()[0], "build": command_output("sysctl", "-n", "kern.osversion"),
        "python": platform.python_version(), "power": power.partition("'")[2].partition("'")[0],
        "thermal": " ".join(command_output("pmset", "-g", "therm").split())[:200],
    }  # fmt: skip


def local_plan(compiled: str, unit: Any) -> Any:
    """Core ML's compute plan of this Mac."""
    plans = importlib.import_module("coremltools.models.compute_plan")
    return plans.MLComputePlan.load_from_path(path=compiled, compute_units=unit)


def compute_plan(load: Callable[[], Any]) -> dict[str, Any]:
    """Which device Core ML expects to run each operator, with its own estimate of the cost, or why that is not known."""
    try:
        plan = load()
        devices: dict[str, dict[str, Any]] = {}
        constants = 0
        todo = [f.block for f in plan.model_structure.program.functions.values()]
        while todo:
            for operation in todo.pop().operations:
                todo += operation.blocks
                usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
                cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
                kind = operation.operator_name.rpartition(".")[2]  # ios18.linear
                if usage is None and (kind == "const" or kind.startswith("constexpr_")):
                    constants += 1
                    continue
                device = type(usage.preferred_compute_device).__name__ if usage is not None else ""
                name = next((n for k, n in DEVICES.items() if k in device), "undecided")
                found = devices.setdefault(name, {"device": name, "cost": 0.0, "op_types": {}})
                found["cost"] += cost.weight if cost is not None else 0.0
                found["op_types"][kind] = found["op_types"].get(kind, 0) + 1
    except Exception as error:  # older coremltools or macOS
        return {"absent": reason(error)}
    return {"devices": sorted(devices.values(), key=lambda d: str(d["device"])), "constants": constants}


# --- timing ---
# Time one package on one compute unit: warm-up until stable, then bursts that take turns.


BURST, WINDOW, STABLE, WARMUP_LEAST, WARMUP_MOST = 5, 5, 0.03, 10, 60


class Cell:
    """One package on one compute unit at one length, and its timings so far."""

    def __init__(self, name: str, unit: str, model: Any, length: int, feed: dict[str, Any]) -> None:
        self.name, self.unit, self.length, self._model, self._feed = name, unit, length, model, feed
        # Core ML's own clock around the inference; coremltools 9 has it, on a private object
        proxy = getattr(model, "_proxy", None)
        self._clock = getattr(proxy, "get_last_predict_duration_in_nano_seconds", None)
        self.content: dict[str, Any] = {"length": length, "wall_ms": [], "cpu_ms": [], "engine_ms": []}

    def once(self) -> tuple[float, float | None, float | None]:
        """Wall time, CPU time of this process, and Core ML's own time of one inference, in ms."""
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        self._model.predict(self._feed)
        wall = time.perf_counter_ns() - wall
        cpu = time.process_time_ns() - cpu
        own = self._clock() if self._clock else None
        return ms(wall), ms(cpu), ms(own) if own else None

    def warm_up(self) -> None:
        """Until the medians of two windows of 5 runs agree within 3 %; 10 to 60 runs."""
        runs, stable, before = 0, False, None
        while runs < WARMUP_LEAST or not (stable or runs >= WARMUP_MOST):
            median = statistics.median(self.once()[0] for _ in range(WINDOW))
            runs += WINDOW
            stable = before is not None and abs(median / before - 1) < STABLE
            before = median
        self.content.update(warmup_runs=runs, warmup_stable=stable)

    def burst(self, count: int) -> None:
        """Time `count` inferences after an untimed one: the caches hold another model."""
        self.once()
        for _ in range(count):
            wall, cpu, own = self.once()
            self.content["wall_ms"][-1].append(wall)
            if cpu is not None:
                self.content["cpu_ms"][-1].append(cpu)
            if own is None:
                self.content["engine_ms"] = None
            elif self.content["engine_ms"] is not None:
                self.content["engine_ms"][-1].append(own)


def measure_all(cells: list[Cell], runs: int, repeats: int) -> None:
    """Warm up, then repeats that visit every length, in rounds where all cells of the length take turns."""
    for number, cell in enumerate(cells, 1):
        LOG.info(f"[{number}/{len(cells)}] warm-up {cell.name} {cell.unit}, {cell.length} tokens")
        cell.warm_up()
    order = random.Random(0)  # noqa: S311 - an order of turns, nothing secret
    gc.disable()
    for repeat in range(repeats):
        for length in sorted({c.length for c in cells}):
            group = [c for c in cells if c.length == length]
            for cell in group:
                for samples in (cell.content["wall_ms"], cell.content["cpu_ms"], cell.content["engine_ms"]):
                    if samples is not None:
                        samples.append([])
            for first in range(0, runs, BURST):
                order.shuffle(group)
                for cell in group:
                    cell.burst(min(BURST, runs - first))
            LOG.info(f"repeat {repeat + 1} of {repeats}, {length} tokens")
    gc.enable()


# --- iphone ---
# Measure on an iPhone that is connected to this Mac, through the runner app that coremltools builds and starts there.


RUNS, REPEATS = 10, 3
"""Default of --runs and --repeats: each inference of an iPhone is a file that is sent and a file that comes back."""
STABLE_ON_PHONE = 0.1
"""Single calls after idle time vary by more than 3 %."""


class Iphone:
    """An iPhone with Apple's runner app, which Xcode builds, signs and starts.

    Args:
        wish: Name, identifier or UDID; empty for the only one that is connected.
        signing: `development_team`, or `provisioning_profile_uuid` with `bundle_identifier`.
    """

    def __init__(self, wish: str, signing: dict[str, str]) -> None:
        remote = importlib.import_module("coremltools.models.ml_program.experimental.remote_device")
        self._wrappers = importlib.import_module("coremltools.models.ml_program.experimental.async_wrapper")
        connected = remote.Device.get_connected_devices(remote.DeviceType.IPHONE)
        found = [d for d in connected if wish in ("", d.name, d.identifier, d.udid)]
        if len(found) != 1:
            there = f"{len(connected)} iPhones are connected" + (f", {len(found)} of them named {wish}" if wish else "")
            raise RefusalError(f"--iphone: {there}. Connect one, unlock it, switch its Developer Mode on, or name one.")
        self._loop = asyncio.new_event_loop()
        LOG.info("building, signing and starting the runner app on the iPhone")
        prepared = found[0].prepare_for_model_debugging(remote.AppSigningCredentials(**signing))
        self.device = self._loop.run_until_complete(prepared)

    def machine(self) -> dict[str, Any]:
        """What the iPhone is; what nobody tells is empty or 0. Its name, which is often its owner's, is left out."""
        hardware = _hardware(self.device.udid)
        return {
            "model": str(hardware.get("productType", "")),
            "chip": str(hardware.get("marketingName", "")) or "an iPhone",
            "arch": "arm64",
            "isa": [],
            "cores": 0,
            "memory_bytes": 0,
            "macos": "",
            "system": f"iOS {self.device.os_version}".strip(),
            "build": self.device.os_build_number,
            "python": "",
            "power": "",
            "thermal": "",
        }

    def start(self, tools: Any, package: Path, unit: str) -> tuple[PhoneModel, dict[str, Any]]:
        """Open a package on a compute unit twice, the first time of which Core ML prepares it for the unit."""
        first, again = (self._load(tools, package, unit) for _ in range(2))
        first.unload()
        return again, {"specialize_ms": first.load_ms, "load_ms": again.load_ms}

    def _load(self, tools: Any, package: Path, unit: str) -> PhoneModel:
        wrapper = self._wrappers.MLModelAsyncWrapper.from_spec_or_path(
            spec_or_path=str(package),
            weights_dir="",
            compute_units=getattr(tools.ComputeUnit, UNITS[unit]),
            device=self.device,
        )
        model = PhoneModel(wrapper, self._loop)
        model.load()
        return model


class PhoneModel:
    """A package that is open on an iPhone."""

    def __init__(self, wrapper: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._wrapper, self._loop = wrapper, loop

    def load(self) -> None:
        """Send the package and open it there."""
        self._loop.run_until_complete(self._wrapper.load())

    def unload(self) -> None:
        """Close it there."""
        self._loop.run_until_complete(self._wrapper.unload())

    def predict(self, feed: dict[str, Any]) -> Any:
        """Run one inference there."""
        return self._loop.run_until_complete(self._wrapper.predict(feed))

    def plan(self) -> Any:
        """Core ML's compute plan of the iPhone."""
        return self._loop.run_until_complete(self._wrapper.retrieve_compute_plan())

    @property
    def load_ms(self) -> float:
        """What opening took, by the iPhone's clock."""
        return _told(self._wrapper.load_duration_in_nano_seconds)

    @property
    def last_ms(self) -> float:
        """What the last inference took, by the iPhone's clock."""
        return _told(self._wrapper.last_predict_duration_in_nano_seconds)


class PhoneCell(Cell):
    """A cell whose time is that of the iPhone's clock around the inference, without the way there and back."""

    def __init__(self, name: str, unit: str, model: PhoneModel, length: int, feed: dict[str, Any]) -> None:
        super().__init__(name, unit, model, length, feed)
        self._phone = model
        self.content.update(cpu_ms=None, engine_ms=None)

    def once(self) -> tuple[float, float | None, float | None]:
        """Time of one inference in ms; the iPhone tells no CPU time."""
        self._phone.predict(self._feed)
        return self._phone.last_ms, None, None

    def warm_up(self) -> None:
        """Ten inferences: with a second of idle time before each, more of them warm nothing."""
        windows = [statistics.median(self.once()[0] for _ in range(WINDOW)) for _ in range(WARMUP_LEAST // WINDOW)]
        self.content.update(warmup_runs=WARMUP_LEAST, warmup_stable=abs(windows[-1] / windows[0] - 1) < STABLE_ON_PHONE)


def _told(nanoseconds: int | None) -> float:
    if not nanoseconds:
        raise RuntimeError("the iPhone told no time of it")
    return ms(nanoseconds)


def _hardware(udid: str) -> dict[str, Any]:
    """What Xcode knows of the device with this UDID; empty where it tells nothing."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "devices.json"
        command_output("xcrun", "devicectl", "list", "devices", "--json-output", str(path))
        try:
            devices = json.loads(path.read_text(encoding="utf-8"))["result"]["devices"]
            return next(d["hardwareProperties"] for d in devices if d["hardwareProperties"].get("udid") == udid)
        except (OSError, ValueError, LookupError, TypeError, StopIteration):
            return {}


LENGTHS = (32, 64, 128)  # where a package takes a range of lengths
ANSWERS = (("logits",), ("start_logits", "end_logits"), ("sentence_embedding",))  # what golden rows record
INT32 = 131104  # ArrayFeatureType.INT32 of Core ML's protobuf
COLD_START_LIMIT_S = 900


def cold_start(wish: dict[str, Any]) -> dict[str, float]:
    """Load and first inference in this fresh process. `wish` holds compiled, unit, and feed (name: [dtype, rows])."""
    resource, tools = importlib.import_module("resource"), coremltools()  # Windows has no resource
    feed = {name: load_numpy().array(rows, dtype) for name, (dtype, rows) in wish["feed"].items()}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes
    begin = time.perf_counter_ns()
    model = open_compiled(tools, wish["compiled"], wish["unit"])
    opened = time.perf_counter_ns()
    model.predict(feed)
    done = time.perf_counter_ns()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = {"load_ms": ms(opened - begin), "first_ms": ms(done - opened)}
    return {**times, "peak_memory_bytes": peak - before, "peak_rss_bytes": peak}


class Package:
    """One .mlpackage: what it takes, and what was found about it so far (`content`)."""

    def __init__(self, tools: Any, path: Path, folder: Path, golden: Golden, work: Path) -> None:
        self.tools, self.golden, self._work, self._path = tools, golden, work, path
        self.name = path.relative_to(folder).as_posix() if folder in path.parents else path.name
        digest = sha256_folder(path)
        if self.name in golden.listed and golden.listed[self.name] != digest:
            # Finder leaves .DS_Store in folders that somebody looked into
            raise RefusalError(f"{self.name} is not what artifacts.json lists: remove .DS_Store, or copy anew.")
        self._read(tools.models.utils.load_spec(str(path)).description)
        self.failed = ""
        self.content: dict[str, Any] = {
            "path": self.name, "sha256": digest, "bytes": sum(p.stat().st_size for p in files_of(path)),
            "compile_ms": None, "lengths": self.lengths, "default_length": self.default_length, "units": [],
        }  # fmt: skip
        begin = time.perf_counter_ns()
        self.compiled = str(work / f"{len(list(work.iterdir()))}.mlmodelc")
        try:
            tools.models.utils.compile_model(str(path), self.compiled)
        except Exception as error:  # a package for a newer system than this one, for example
            self.failed = reason(error)
            return
        self.content["compile_ms"] = taken = ms(time.perf_counter_ns() - begin)
        LOG.info(f"{self.name}: compiled in {taken:.0f} ms, lengths {self.lengths}")

    def _read(self, description: Any) -> None:
        """Names, types and lengths out of the model's own description."""
        arrays = {f.name: f.type.multiArrayType for f in description.input}
        known = (*INPUTS, *self.golden.extra)
        if set(arrays) - set(known) or INPUTS[0] not in arrays:
            raise RefusalError(f"{self.name}: inputs {', '.join(arrays)}; known: {', '.join(known)}.")
        self.dtypes = {n: "int32" if a.dataType == INT32 else "float32" for n, a in arrays.items()}
        self.widths = {n: int(a.shape[2]) for n, a in arrays.items() if len(a.shape) > 2}
        names = [f.name for f in description.output]
        self.outputs = next((k for k in ANSWERS if set(k) <= set(names)), tuple(names[:1]))
        ids = arrays[INPUTS[0]]
        self.default_length = int(ids.shape[-1])
        shapes, ranges = list(ids.enumeratedShapes.shapes), list(ids.shapeRange.sizeRanges)
        self.range: tuple[int, float] | None = None
        self.lengths = [self.default_length]
        if shapes:
            self.lengths = sorted({int(s.shape[-1]) for s in shapes})
        elif ranges:
            low, high = int(ranges[-1].lowerBound), int(ranges[-1].upperBound)
            self.range = low, math.inf if high < 0 else high
            self.lengths = [x for x in LENGTHS if low <= x <= self.range[1]] or [self.default_length]

    def fitting(self, length: int) -> int | None:
        """The smallest length of the package that holds this number of tokens; None where it takes none."""
        if self.range is not None:
            least = max(length, self.range[0])
            return least if least <= self.range[1] else None
        return next((x for x in self.lengths if x >= length), None)

    def feed(
        self, ids: list[int], length: int, types: list[int] | None = None, extra: dict[str, list[Any]] | None = None
    ) -> dict[str, Any]:
        """Arrays [1, length] by input name, [1, length, width] of vectors; `extra` inputs are 0 by default."""

        def padded(values: list[Any], filling: Any = 0) -> list[Any]:
            fill = [filling] * (length - len(values))
            return [*fill, *values] if self.golden.left else [*values, *fill]

        ones, types = padded([1] * len(ids)), padded(types or [0] * len(ids))
        rows = {"input_ids": padded(ids, self.golden.pad_id), "attention_mask": ones, "token_type_ids": types}
        for name in self.golden.extra:
            nothing: Any = [0.0] * self.widths[name] if name in self.widths else 0
            rows[name] = padded((extra or {}).get(name, []), nothing)
        return {name: load_numpy().array([rows[name]], dtype) for name, dtype in self.dtypes.items()}

    def cells(self, units: list[str], phone: Iphone | None = None) -> list[Cell]:
        """Open the package on every unit, here or on a phone; a unit that refuses it is recorded with the reason."""
        out = []
        for unit in units:
            entry: dict[str, Any] = {"unit": unit}
            self.content["units"].append(entry)
            try:
                if self.failed:
                    raise RuntimeError(self.failed)
                ready = self._on_phone(phone, unit, entry) if phone else self._here(unit, entry)
            except Exception as error:  # whatever Core ML says: the other units are still worth measuring
                entry["failed"] = reason(error)
                LOG.info(f"{self.name} {unit}: left out: {entry['failed']}")
                continue
            entry["cells"] = [cell.content for cell in ready]
            out += ready
            LOG.info(f"{self.name} {unit}: load {entry['load_ms']} ms, first run {entry['first_ms']} ms")
        return out

    def _here(self, unit: str, entry: dict[str, Any]) -> list[Cell]:
        first, again = self._cold_start(unit), self._cold_start(unit)
        model = open_compiled(self.tools, self.compiled, unit)
        answers = self._answers(model)
        ready = [Cell(self.name, unit, model, n, self._full(n)) for n in self.lengths]
        for cell in ready:
            cell.once()  # a length that this unit cannot run shows here
        computes = getattr(self.tools.ComputeUnit, UNITS[unit])
        entry.update(again, specialize_ms=first["load_ms"], answers=answers)
        entry["plan"] = compute_plan(lambda: local_plan(self.compiled, computes))
        return ready

    def _on_phone(self, phone: Iphone, unit: str, entry: dict[str, Any]) -> list[Cell]:
        model, times = phone.start(self.tools, self._path, unit)
        ready: list[Cell] = [PhoneCell(self.name, unit, model, n, self._full(n)) for n in self.lengths]
        taken = [cell.once()[0] for cell in reversed(ready)]  # the longest is the first inference after loading
        entry.update(times, first_ms=taken[0], answers=self._answers(model), plan=compute_plan(model.plan))
        return ready

    def _full(self, length: int) -> dict[str, Any]:
        return self.feed(self.golden.of_length(length), length)

    def _cold_start(self, unit: str) -> dict[str, Any]:
        feed = self._full(self.lengths[-1])
        rows = {n: [self.dtypes[n], a.tolist()] for n, a in feed.items()}
        path = self._work / "cold_start.json"
        path.write_text(json.dumps({"compiled": self.compiled, "unit": unit, "feed": rows}), encoding="utf-8")
        command = [sys.executable, __file__, "--cold-start", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COLD_START_LIMIT_S, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:] or f"the process ended with {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        if "failed" in found:
            raise RuntimeError(found["failed"])
        return found

    def _answers(self, model: Any) -> dict[str, Any] | None:
        """Largest difference to the answers recorded in golden.jsonl; None where it has none of this package."""
        numpy, found, skipped, tolerance = load_numpy(), [], 0, math.inf
        for tokens, row in self.golden.rows:
            expected, length = row["outputs"].get(self.name), self.fitting(len(tokens["ids"]))
            if expected is None:
                continue
            types, pair = tokens.get("type_ids"), not isinstance(row["text"], str)
            # a pair without its segment ids, which golden_tokens.jsonl may lack, is another input
            if length is None or (pair and types is None and INPUTS[2] in self.dtypes):
                skipped += 1
                continue
            out = model.predict(self.feed(tokens["ids"], length, types, tokens.get("inputs")))
            found.append(float(numpy.abs(self._recorded(row, tokens["ids"], out) - expected).max()))
            tolerance = min(tolerance, row["tolerance"][self.name])
        if not found:
            return None
        right = [d for d in found if math.isfinite(d)]
        judged = {"largest": max(right, default=0.0), "finite": len(right) == len(found)}
        return {"rows": len(found), "skipped": skipped, "tolerance": tolerance, **judged}

    def _recorded(self, row: dict[str, Any], ids: list[int], out: dict[str, Any]) -> Any:
        """The part of an answer that a golden row records: its places of the real tokens, its columns."""
        parts = [load_numpy().asarray(out[name], "float64") for name in self.outputs]
        rows = parts[0].reshape(1, -1)
        if row.get("places"):
            tokens = load_numpy().stack([p[0] for p in parts], -1) if parts[0].ndim == 2 else parts[0][0]
            tokens = tokens[-len(ids) :] if self.golden.left else tokens[: len(ids)]
            masked = [i for i, token in enumerate(ids) if token in self.golden.masks]
            rows = (tokens[masked] if masked else tokens)[row["places"]]
        return (rows[:, row["columns"]] if row.get("columns") else rows).ravel()


# --- command ---


def main(arguments: list[str] | None = None) -> int:
    """Run; exit codes 0 done, 1 nothing could be measured, 2 wrong usage or system, 3 wrong answers, 4 no coremltools."""
    options = _options(arguments)
    try:
        if platform.system() != "Darwin":
            raise RefusalError(f"Core ML runs on Apple systems, not on {platform.system()}: copy the folder to a Mac.")
        if options.cold_start:
            wish = json.loads(Path(options.cold_start).read_text(encoding="utf-8"))
            try:
                print(json.dumps(cold_start(wish)))
            except Exception as error:  # whatever Core ML says, for the process that asked
                print(json.dumps({"failed": reason(error)}))
            return 0
        return run(options)
    except RefusalError as error:
        print(f"Error: {error.args[0]}", file=sys.stderr)
        return 2 if len(error.args) == 1 else int(error.args[1])
    except (OSError, ValueError, KeyError) as error:  # a full disk, or a golden row that is none
        print(f"Error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.exit(130)


def run(options: argparse.Namespace) -> int:
    """Measure everything, write the file, print the table."""
    began, tools = time.monotonic(), coremltools()
    here = Path(__file__).resolve().parent
    folder = here.parent if here.name == "coreml" else here
    paths = [Path(p).resolve() for p in options.packages or sorted(here.glob("*.mlpackage"))]
    missing = [str(p) for p in paths if not (p.is_dir() and p.suffix == ".mlpackage")]
    if missing or not paths:
        raise RefusalError(f"no .mlpackage {'at ' + ', '.join(missing) if missing else f'in {here}'}.")
    on = "mac" if options.iphone is None else "iphone"
    output = Path(options.output) if options.output else folder.parent / f"{folder.name}-{on}.json"
    if not output.resolve().parent.is_dir():
        raise RefusalError(f"-o: no folder {output.resolve().parent}.")
    golden, before = Golden(folder), round(os.getloadavg()[0], 2)
    logging.basicConfig(format="%(message)s", level=logging.WARNING if options.quiet else logging.INFO)
    phone = None if options.iphone is None else Iphone(options.iphone, options.signing)
    with tempfile.TemporaryDirectory() as work:
        packages = [Package(tools, p, folder, golden, Path(work)) for p in paths]
        cells = [cell for package in packages for cell in package.cells(options.units, phone)]
        measure_all(cells, options.runs, options.repeats)
        content = {
            "kind": KIND, "schema_version": SCHEMA_VERSION, "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": phone.machine() if phone else machine(), "versions": {"coremltools": str(tools.__version__), "numpy": load_numpy().__version__},
            "protocol": {"runs": options.runs, "repeats": options.repeats, "burst": BURST, "inputs": golden.inputs,
                         "took_s": round(time.monotonic() - began, 2), "iphone": phone is not None},
            "load": {"before": before, "after": round(os.getloadavg()[0], 2)},
            "packages": [package.content for package in packages],
        }  # fmt: skip
    write_atomic(output, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return _report(packages, output)


def _report(packages: list[Package], output: Path) -> int:
    """Print the table and the verdicts; the exit code."""
    rows, wrong, reasons = [], [], []
    for package in packages:
        for entry in package.content["units"]:
            name = f"{package.name} {entry['unit']}"
            if "failed" in entry:
                reasons.append(f"{name}: left out: {entry['failed']}")
                continue
            for cell in entry["cells"]:
                samples = sorted(x for repeat in cell["wall_ms"] for x in repeat)
                p50, p90 = samples[(len(samples) - 1) // 2], samples[-(-9 * len(samples) // 10) - 1]
                rows.append((name, cell["length"], f"{p50:.3f}", f"{p90:.3f}"))
            answers = entry["answers"]
            if answers is None:
                reasons.append(f"{name}: answers not checked: golden.jsonl has none of this package")
                continue
            good = answers["finite"] and answers["largest"] <= answers["tolerance"]
            largest = f"{answers['largest']:.3g}" if answers["finite"] else "not finite"
            words = f"largest difference {largest}, allowed {answers['tolerance']:.3g}"
            reasons.append(f"{name}: {answers['rows']} answers, {words}{'' if good else ': WRONG'}")
            wrong += [] if good else [name]
    for row in (("package and compute unit", "tokens", "p50 ms", "p90 ms"), *rows):
        print("\t".join(map(str, row)))
    print(*reasons, f"written: {output}", sep="\n")
    print(f"next: pocketbert benchmark -m FOLDER --import {output.name}")
    return 3 if wrong else 0 if rows else 1


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    add(
        "--runs",
        type=int,
        help=f"timed inferences per package, unit, length and repeat; default 50, on an iPhone {RUNS}",
    )
    add("--repeats", type=int, help=f"passes over everything; default 5, on an iPhone {REPEATS}")
    add("--units", nargs="+", choices=UNITS, default=list(UNITS), help="compute units; default all four")
    add("--packages", nargs="+", metavar="PATH", help="packages; default those next to this script")
    add("-o", "--output", metavar="FILE", help="JSON to write; default FOLDER-mac.json next to the folder")
    add("--iphone", nargs="?", const="", metavar="NAME", help="measure on an iPhone that is connected to this Mac")
    add("--team", help="with --iphone: the development team that signs the runner app")
    add("--profile", metavar="UUID", help="with --iphone: the provisioning profile, instead of --team; with --bundle")
    add("--bundle", metavar="ID", help="with --iphone: the bundle identifier of the profile")
    add("-q", "--quiet", action="store_true", help="no progress")
    add("--cold-start", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    given = {"development_team": options.team, "provisioning_profile_uuid": options.profile}
    options.signing = {k: v for k, v in {**given, "bundle_identifier": options.bundle}.items() if v}
    if (options.iphone is not None) != bool(options.team or options.profile) or (
        options.profile and not options.bundle
    ):
        parser.error(
            "--iphone goes with --team, or with --profile and --bundle: Xcode signs the app that it starts there"
        )
    runs, repeats = (50, 5) if options.iphone is None else (RUNS, REPEATS)
    options.runs = runs if options.runs is None else options.runs
    options.repeats = repeats if options.repeats is None else options.repeats
    if not 1 <= min(options.runs, options.repeats) <= max(options.runs, options.repeats) <= 1000:
        parser.error("--runs and --repeats take 1 to 1000")
    options.units = list(dict.fromkeys(options.units))
    return options


if __name__ == "__main__":
    sys.exit(main())
