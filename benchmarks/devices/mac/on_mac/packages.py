"""Open the packages on every compute unit, start them in fresh processes, and check their answers."""

from __future__ import annotations

import importlib
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pocketbert.benchmarks.devices.mac.on_mac.common import (
    INPUTS,
    LOG,
    UNITS,
    RefusalError,
    coremltools,
    files_of,
    load_numpy,
    ms,
    open_compiled,
    reason,
    sha256_folder,
)
from pocketbert.benchmarks.devices.mac.on_mac.golden import Golden
from pocketbert.benchmarks.devices.mac.on_mac.iphone import Iphone, PhoneCell
from pocketbert.benchmarks.devices.mac.on_mac.system import compute_plan, local_plan
from pocketbert.benchmarks.devices.mac.on_mac.timing import Cell

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
