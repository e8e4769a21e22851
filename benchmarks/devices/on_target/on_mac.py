"""Measure the Core ML packages of an artefact folder on this Mac, and check their answers.

Needs Python 3.9 or newer and coremltools (python3 -m pip install coremltools). It lies beside the packages:

    python3 phone/coreml/benchmark_on_mac.py                      # writes phone-mac.json beside the folder
    pocketbert benchmark -m phone --import phone-mac.json         # anywhere: into the common report
    python3 phone/coreml/benchmark_on_mac.py --iphone --team TEAM # on the connected iPhone: phone-iphone.json

Per package and compute unit: load time and first inference in a fresh process; then per length, after a warm-up,
short bursts of timed inferences in turns, so that a disturbance hits all. The compute plan is an estimate.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import hashlib
import importlib
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

UNITS = {"all": "ALL", "cpu-only": "CPU_ONLY", "cpu-and-gpu": "CPU_AND_GPU", "cpu-and-ne": "CPU_AND_NE"}
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
ANSWERS = (("logits",), ("start_logits", "end_logits"), ("sentence_embedding",))  # outputs that golden rows record
INT32 = 131104  # ArrayFeatureType.INT32 of Core ML's protobuf
BURST, WINDOW = 5, 5
_IPHONE_RUNS, _IPHONE_REPEATS = 10, 3  # on an iPhone: each inference sends a file and gets one back
DEVICES = {"NeuralEngine": "Neural Engine", "GPU": "GPU", "CPU": "CPU"}
ISA = {
    "hw.optional.arm.FEAT_DotProd": "asimddp", "hw.optional.arm.FEAT_I8MM": "i8mm", "hw.optional.arm.FEAT_BF16": "bf16",
    "hw.optional.arm.FEAT_SME": "sme", "hw.optional.avx2_0": "avx2", "hw.optional.avx512f": "avx512f",
}  # fmt: skip
LOG = logging.getLogger("benchmark_on_mac")


class _RefusalError(Exception):
    """An error that the user can correct: the message in one line, then the exit code if it is not 2."""


def main(arguments: list[str] | None = None) -> int:
    """Measure packages; exit code 1: nothing measured or an error, 2: wrong usage, 3: wrong answers, 4: no coremltools."""
    options = _parse_options(arguments)
    try:
        if platform.system() != "Darwin":
            raise _RefusalError(f"Core ML runs on Apple systems, not on {platform.system()}: copy the folder to a Mac.")
        if options.cold_start:
            job = json.loads(Path(options.cold_start).read_text(encoding="utf-8"))
            try:
                print(json.dumps(_time_cold_start(job)))
            except Exception as error:  # any error of Core ML is reported to the parent process
                print(json.dumps({"failed": _one_line(error)}))
            return 0
        return _measure_folder(options)
    except _RefusalError as error:
        print(f"Error: {error.args[0]}", file=sys.stderr)
        return 2 if len(error.args) == 1 else int(error.args[1])
    except (OSError, ValueError, KeyError) as error:  # e.g. a full disk, or a golden row of another form
        print(f"Error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        sys.exit(130)


def _parse_options(arguments: list[str] | None) -> argparse.Namespace:
    """Parse the command line; add the signing options and the defaults of `runs` and `repeats`, which differ for an iPhone."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add = parser.add_argument
    runs_help = f"timed inferences per package, unit, length and repeat; default 50, on an iPhone {_IPHONE_RUNS}"
    add("--runs", type=int, help=runs_help)
    add("--repeats", type=int, help=f"passes over everything; default 5, on an iPhone {_IPHONE_REPEATS}")
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
    on_iphone, signed = options.iphone is not None, bool(options.team or options.profile)
    if on_iphone != signed or (options.profile and not options.bundle):
        signing = "--team, or with --profile and --bundle: Xcode signs the app that it starts there"
        parser.error(f"--iphone goes with {signing}")
    credentials = {"development_team": options.team, "provisioning_profile_uuid": options.profile}
    options.signing = {k: v for k, v in {**credentials, "bundle_identifier": options.bundle}.items() if v}
    runs, repeats = (_IPHONE_RUNS, _IPHONE_REPEATS) if on_iphone else (50, 5)
    options.runs = runs if options.runs is None else options.runs
    options.repeats = repeats if options.repeats is None else options.repeats
    if not 1 <= min(options.runs, options.repeats) <= max(options.runs, options.repeats) <= 1000:
        parser.error("--runs and --repeats take 1 to 1000")
    options.units = list(dict.fromkeys(options.units))
    return options


def _measure_folder(options: argparse.Namespace) -> int:
    """Measure every package on every compute unit, write the JSON file, print the table, and return the exit code."""
    began, (tools, numpy) = time.monotonic(), _import_libraries()
    script_folder = Path(__file__).resolve().parent
    folder = script_folder.parent if script_folder.name == "coreml" else script_folder
    paths = [Path(p).resolve() for p in options.packages or sorted(script_folder.glob("*.mlpackage"))]
    missing = [str(p) for p in paths if not (p.is_dir() and p.suffix == ".mlpackage")]
    if missing or not paths:
        raise _RefusalError(f"no .mlpackage {'at ' + ', '.join(missing) if missing else f'in {script_folder}'}.")
    on = "mac" if options.iphone is None else "iphone"
    output = Path(options.output) if options.output else folder.parent / f"{folder.name}-{on}.json"
    if not output.resolve().parent.is_dir():
        raise _RefusalError(f"-o: no folder {output.resolve().parent}.")
    golden, load_before = _GoldenRows(folder), round(os.getloadavg()[0], 2)
    logging.basicConfig(format="%(message)s", level=logging.WARNING if options.quiet else logging.INFO)
    iphone = None if options.iphone is None else _Iphone(options.iphone, options.signing)
    with tempfile.TemporaryDirectory() as work:
        packages = [_Package((tools, numpy), p, folder, golden, Path(work)) for p in paths]
        cells = [cell for package in packages for cell in package.open_on_units(options.units, iphone)]
        _time_cells(cells, options.runs, options.repeats)
        content = {
            "kind": "pocketbert-mac-benchmark", "schema_version": "1.1",
            "made": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": iphone.describe() if iphone else _describe_mac(),
            "versions": {"coremltools": str(tools.__version__), "numpy": numpy.__version__},
            "protocol": {"runs": options.runs, "repeats": options.repeats, "burst": BURST, "inputs": golden.inputs,
                         "took_s": round(time.monotonic() - began, 2), "iphone": iphone is not None},
            "load": {"before": load_before, "after": round(os.getloadavg()[0], 2)},
            "packages": [package.content for package in packages],
        }  # fmt: skip
    with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as unfinished:
        partial = Path(unfinished) / output.name
        partial.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")
        partial.replace(output)
    return _print_results(packages, output)


def _print_results(packages: list[_Package], output: Path) -> int:
    """Print a table of times, and whether each compute unit's outputs are right; return the exit code."""
    rows, wrong, verdicts = [], False, []
    for package in packages:
        for entry in package.content["units"]:
            name = f"{package.name} {entry['unit']}"
            if "failed" in entry:
                verdicts.append(f"{name}: left out: {entry['failed']}")
                continue
            for cell in entry["cells"]:
                samples = sorted(x for repeat in cell["wall_ms"] for x in repeat)
                p50, p90 = samples[(len(samples) - 1) // 2], samples[-(-9 * len(samples) // 10) - 1]
                rows.append((name, cell["length"], f"{p50:.3f}", f"{p90:.3f}"))
            answers = entry["answers"]
            if answers is None:
                verdicts.append(f"{name}: answers not checked: golden.jsonl has none of this package")
                continue
            right = answers["finite"] and answers["largest"] <= answers["tolerance"]
            largest = f"{answers['largest']:.3g}" if answers["finite"] else "not finite"
            verdict = f"allowed {answers['tolerance']:.3g}{'' if right else ': WRONG'}"
            verdicts.append(f"{name}: {answers['rows']} answers, largest difference {largest}, {verdict}")
            wrong = wrong or not right
    for row in (("package and compute unit", "tokens", "p50 ms", "p90 ms"), *rows):
        print("\t".join(map(str, row)))
    print(*verdicts, f"written: {output}", sep="\n")
    print(f"next: pocketbert benchmark -m FOLDER --import {output.name}")
    return 3 if wrong else 0 if rows else 1


class _GoldenRows:
    """Token ids to measure with, and the outputs that the packages should give, from an artefact folder.

    `rows` pairs each row of golden_tokens.jsonl with the one of golden.jsonl that has the same text. `extra_inputs`
    names inputs beside `INPUTS`, made from other columns. `listed` has the SHA-256 by path out of artifacts.json.
    """

    def __init__(self, folder: Path) -> None:
        names = ("artifacts.json", "config.json", "tokenizer.json", "golden.jsonl", "golden_tokens.jsonl")
        texts = [p.read_text(encoding="utf-8").strip() if (p := folder / n).is_file() else "" for n in names]
        artefacts, config, tokenizer = (json.loads(text or "{}") for text in texts[:3])
        # not splitlines(): texts may hold the line separators that JSON does not escape
        golden, tokenized = ([json.loads(line) for line in text.split("\n") if text] for text in texts[3:])
        processing = artefacts.get("processing", {})
        prompt = (processing.get("prompts") or {}).get(processing.get("default_prompt"), "")
        tokens_by_text = {json.dumps(row["text"]): row for row in tokenized}
        self.rows: list[tuple[dict[str, Any], dict[str, Any]]] = []
        for row in golden:
            text = row["text"]
            # golden_tokens.jsonl has the tokenizer's input: the default prompt is in front of the (first) text
            prompted = prompt + text if isinstance(text, str) else [prompt + text[0], *text[1:]]
            if (tokens := tokens_by_text.get(json.dumps(prompted))) is not None:
                self.rows.append((tokens, row))
        self.extra_inputs = sorted({name for r in tokens_by_text.values() for name in r.get("inputs", {})})
        self.listed = {r["path"]: r["sha256"] for r in artefacts.get("files", [])}
        self.pad_left, self.pad_id = processing.get("padding_side") == "left", config.get("pad_token_id") or 0
        self.has_heads = bool(artefacts.get("heads"))
        added = (tokenizer.get("added_tokens") or []) if artefacts.get("task") == "fill-mask" else []
        # of a fill-mask model only, whose rows record masked tokens alone
        self.mask_ids = {token["id"] for token in added if token["content"] in ("[MASK]", "<mask>")}
        single = [r["ids"] for r in tokens_by_text.values() if isinstance(r["text"], str) and len(r["ids"]) > 2]
        self._inner_ids = [i for ids in single for i in ids[1:-1]] or list(range(1, 91))
        self._ends: tuple[int, int] = (single[0][0], single[0][-1]) if single else (1, 1)
        self.inputs = "tokens of the golden rows" if single else "ids 1 to 90: no golden_tokens.jsonl here"

    def ids_of_length(self, length: int) -> list[int]:
        """Return exactly `length` token ids: the golden texts joined, between the first one's special tokens."""
        inner = (self._inner_ids * (length // len(self._inner_ids) + 1))[: max(0, length - 2)]
        return [self._ends[0], *inner, self._ends[1]][:length]


class _Package:
    """One .mlpackage, compiled for this Mac. `content` is its part of the JSON file.

    `range` is the smallest and largest length of a package that takes a range; `lengths` are the ones to measure.
    `widths` has the last size of inputs that are vectors per token; `dtypes` has the NumPy type of each input.
    """

    def __init__(self, libraries: tuple[Any, Any], path: Path, folder: Path, golden: _GoldenRows, work: Path) -> None:
        (self.tools, self.numpy), self.golden, self._work, self._path = libraries, golden, work, path
        self.name = path.relative_to(folder).as_posix() if folder in path.parents else path.name
        digest = _sha256_folder(path)
        if self.name in golden.listed and golden.listed[self.name] != digest:
            # Finder leaves .DS_Store in folders that somebody looked into
            raise _RefusalError(f"{self.name} is not what artifacts.json lists: remove .DS_Store, or copy anew.")
        self._read_description(self.tools.models.utils.load_spec(str(path)).description)
        self.failed = ""
        self.content: dict[str, Any] = {
            "path": self.name, "sha256": digest, "bytes": sum(p.stat().st_size for p in path.rglob("*") if p.is_file()),
            "compile_ms": None, "lengths": self.lengths, "default_length": self.default_length, "units": [],
        }  # fmt: skip
        begin = time.perf_counter_ns()
        self.compiled = str(work / f"{len(list(work.iterdir()))}.mlmodelc")
        try:
            self.tools.models.utils.compile_model(str(path), self.compiled)
            self.content["compile_ms"] = compile_ms = _to_ms(time.perf_counter_ns() - begin)
            LOG.info(f"{self.name}: compiled in {compile_ms:.0f} ms, lengths {self.lengths}")
        except Exception as error:  # a package for a newer system than this one, for example
            self.failed = _one_line(error)

    def _read_description(self, description: Any) -> None:
        """Set input types, outputs and lengths from the package's protobuf description."""
        arrays = {f.name: f.type.multiArrayType for f in description.input}
        known = (*INPUTS, *self.golden.extra_inputs)
        if set(arrays) - set(known) or INPUTS[0] not in arrays:
            raise _RefusalError(f"{self.name}: inputs {', '.join(arrays)}; known: {', '.join(known)}.")
        self.dtypes = {n: "int32" if a.dataType == INT32 else "float32" for n, a in arrays.items()}
        self.widths = {n: int(a.shape[2]) for n, a in arrays.items() if len(a.shape) > 2}
        names = tuple(f.name for f in description.output)
        self.outputs = next((k for k in ANSWERS if set(k) <= set(names)), names)
        if self.golden.has_heads or (len(self.outputs) > 1 and self.outputs not in ANSWERS):
            raise _RefusalError(f"{self.name} has several heads ({', '.join(names)}), and one is measured.")
        ids = arrays[INPUTS[0]]
        self.default_length = int(ids.shape[-1])
        shapes, ranges = list(ids.enumeratedShapes.shapes), list(ids.shapeRange.sizeRanges)
        self.range: tuple[int, float] | None = None
        self.lengths = sorted({int(s.shape[-1]) for s in shapes}) or [self.default_length]
        if ranges and not shapes:
            low, high = int(ranges[-1].lowerBound), int(ranges[-1].upperBound)
            self.range = low, math.inf if high < 0 else high
            self.lengths = [x for x in (32, 64, 128) if low <= x <= self.range[1]] or [self.default_length]
        self.longest = self.range[1] if self.range else self.lengths[-1]

    def open_on_units(self, units: list[str], iphone: _Iphone | None = None) -> list[_Cell]:
        """Open the package on each compute unit; return the cells to time, and record why a unit fails."""
        cells = []
        for unit in units:
            entry: dict[str, Any] = {"unit": unit}
            self.content["units"].append(entry)
            try:
                if self.failed:
                    raise RuntimeError(self.failed)
                opened = self._open_on_iphone(iphone, entry) if iphone else self._open_here(entry)
            except Exception as error:  # any error of Core ML: the other units are still worth measuring
                entry["failed"] = _one_line(error)
                LOG.info(f"{self.name} {unit}: left out: {entry['failed']}")
                continue
            entry["cells"] = [cell.content for cell in opened]
            cells += opened
            LOG.info(f"{self.name} {unit}: load {entry['load_ms']} ms, first run {entry['first_ms']} ms")
        return cells

    def _open_here(self, entry: dict[str, Any]) -> list[_Cell]:
        """Open the package on a compute unit of this Mac; record load times, answers and compute plan in `entry`."""
        first, again = (self._run_cold_start(entry["unit"]) for _ in range(2))
        compute_unit = getattr(self.tools.ComputeUnit, UNITS[entry["unit"]])
        model = self.tools.models.CompiledMLModel(self.compiled, compute_units=compute_unit)
        answers = self._compare_answers(model.predict)
        # Core ML's own clock around the inference; coremltools 9 has it, on a private object
        clock = getattr(getattr(model, "_proxy", None), "get_last_predict_duration_in_nano_seconds", None)
        name = f"{self.name} {entry['unit']}"
        cells = [_Cell(name, n, model.predict, self._feed(n), clock) for n in self.lengths]
        for cell in cells:
            cell.time_inference()  # fails if this unit cannot run the length

        def load_plan() -> Any:
            plans = importlib.import_module("coremltools.models.compute_plan")
            return plans.MLComputePlan.load_from_path(path=self.compiled, compute_units=compute_unit)

        entry.update(again, specialize_ms=first["load_ms"], answers=answers, plan=_summarize_plan(load_plan))
        return cells

    def _open_on_iphone(self, iphone: _Iphone, entry: dict[str, Any]) -> list[_Cell]:
        """Open the package on a compute unit of an iPhone; record load times, answers and compute plan in `entry`."""
        compute_unit, name = getattr(self.tools.ComputeUnit, UNITS[entry["unit"]]), f"{self.name} {entry['unit']}"
        model, load_times = iphone.open_package(self._path, compute_unit)

        def predict(feed: dict[str, Any]) -> Any:
            return iphone.wait_for(model.predict(feed))

        cells: list[_Cell] = [_IphoneCell(name, n, predict, self._feed(n), model) for n in self.lengths]
        times = [cell.time_inference()[0] for cell in reversed(cells)]  # the first after loading is of the longest
        entry.update(load_times, first_ms=times[0], answers=self._compare_answers(predict))
        entry["plan"] = _summarize_plan(lambda: iphone.wait_for(model.retrieve_compute_plan()))
        return cells

    def _run_cold_start(self, unit: str) -> dict[str, Any]:
        """Run this script with --cold-start to load and run the package in a fresh process; return the times."""
        rows = {n: [self.dtypes[n], a.tolist()] for n, a in self._feed(self.lengths[-1]).items()}
        path = self._work / "cold_start.json"
        path.write_text(json.dumps({"compiled": self.compiled, "unit": unit, "feed": rows}), encoding="utf-8")
        command = [sys.executable, __file__, "--cold-start", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        if done.returncode:
            raise RuntimeError(done.stderr.strip()[-300:] or f"the process ended with {done.returncode}")
        times: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
        if "failed" in times:
            raise RuntimeError(times["failed"])
        return times

    def _feed(self, length: int, ids: Any = None, types: Any = None, extra: Any = None) -> dict[str, Any]:
        """Return inputs [1, length] or [1, length, width] for the token ids `ids` (default: golden ones), padded."""
        ids = ids or self.golden.ids_of_length(length)

        def padded(values: list[Any], filling: Any = 0) -> list[Any]:
            fill = [filling] * (length - len(values))
            return [*fill, *values] if self.golden.pad_left else [*values, *fill]

        ones, types = padded([1] * len(ids)), padded(types or [0] * len(ids))
        rows = {"input_ids": padded(ids, self.golden.pad_id), "attention_mask": ones, "token_type_ids": types}
        for name in self.golden.extra_inputs:
            zero: Any = [0.0] * self.widths[name] if name in self.widths else 0
            rows[name] = padded((extra or {}).get(name, []), zero)
        return {name: self.numpy.array([rows[name]], dtype) for name, dtype in self.dtypes.items()}

    def _compare_answers(self, predict: Callable[[dict[str, Any]], Any]) -> dict[str, Any] | None:
        """Return how far `predict`'s outputs are from golden.jsonl at most; None if it has none of this package that fit."""
        differences, skipped, tolerance = [], 0, math.inf
        for tokens, row in self.golden.rows:
            expected, count = row["outputs"].get(self.name), len(tokens["ids"])
            if expected is None:
                continue
            sizes = self.lengths if self.range is None else [max(count, self.range[0])]
            length = next((n for n in sizes if count <= n <= self.longest), None)
            types, pair = tokens.get("type_ids"), not isinstance(row["text"], str)
            # a pair without its segment ids, which golden_tokens.jsonl may lack, is another input
            if length is None or (pair and types is None and INPUTS[2] in self.dtypes):
                skipped += 1
                continue
            out = predict(self._feed(length, tokens["ids"], types, tokens.get("inputs")))
            differences.append(float(self.numpy.abs(self._recorded_values(row, tokens["ids"], out) - expected).max()))
            tolerance = min(tolerance, row["tolerance"][self.name])
        if not differences:
            return None
        finite = [d for d in differences if math.isfinite(d)]
        judged = {"largest": max(finite, default=0.0), "finite": len(finite) == len(differences)}
        return {"rows": len(differences), "skipped": skipped, "tolerance": tolerance, **judged}

    def _recorded_values(self, row: dict[str, Any], ids: list[int], out: dict[str, Any]) -> Any:
        """Return the values of the outputs that a golden row records: some tokens and columns, flattened."""
        parts = [self.numpy.asarray(out[name], "float64") for name in self.outputs]
        rows = parts[0].reshape(1, -1)
        if row.get("places"):
            tokens = self.numpy.stack([p[0] for p in parts], -1) if parts[0].ndim == 2 else parts[0][0]
            tokens = tokens[-len(ids) :] if self.golden.pad_left else tokens[: len(ids)]
            masked = [i for i, token in enumerate(ids) if token in self.golden.mask_ids]
            rows = (tokens[masked] if masked else tokens)[row["places"]]
        return (rows[:, row["columns"]] if row.get("columns") else rows).ravel()


def _time_cold_start(job: dict[str, Any]) -> dict[str, float]:
    """Load a package and run it once; return ms and bytes. `job` has the compiled package, unit and inputs."""
    resource, (tools, numpy) = importlib.import_module("resource"), _import_libraries()  # Windows has no resource
    feed = {name: numpy.array(rows, dtype) for name, (dtype, rows) in job["feed"].items()}
    unit = getattr(tools.ComputeUnit, UNITS[job["unit"]])
    rss_before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # macOS counts bytes
    begin = time.perf_counter_ns()
    model = tools.models.CompiledMLModel(job["compiled"], compute_units=unit)
    opened = time.perf_counter_ns()
    model.predict(feed)
    done = time.perf_counter_ns()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    memory = {"peak_memory_bytes": peak - rss_before, "peak_rss_bytes": peak}
    return {"load_ms": _to_ms(opened - begin), "first_ms": _to_ms(done - opened), **memory}


class _Cell:
    """One package on one compute unit at one length. `content` is its part of the JSON file."""

    WARMUP_LEAST, WARMUP_MOST, STABLE = 10, 60, 0.03

    def __init__(self, name: str, length: int, predict: Callable[[Any], Any], feed: Any, clock: Any) -> None:
        self.name, self.length, self._predict, self._feed, self._clock = name, length, predict, feed, clock
        self.samples: list[list[tuple[float, float | None, float | None]]] = []
        self.content: dict[str, Any] = {"length": length, "wall_ms": None, "cpu_ms": None, "engine_ms": None}

    def time_inference(self) -> tuple[float, float | None, float | None]:
        """Return wall time, CPU time of this process, and Core ML's own time of one inference, in ms."""
        cpu = time.process_time_ns()
        wall = time.perf_counter_ns()
        self._predict(self._feed)
        wall = time.perf_counter_ns() - wall
        cpu = time.process_time_ns() - cpu
        engine = self._clock() if self._clock else None
        return _to_ms(wall), _to_ms(cpu), _to_ms(engine) if engine else None

    def warm_up(self) -> None:
        """Run `WARMUP_LEAST` to `WARMUP_MOST` inferences until their time is stable; record that in `content`.

        It is stable if the medians of two successive windows of 5 inferences differ by less than `STABLE`.
        """
        runs, stable, before = 0, False, None
        while runs < self.WARMUP_LEAST or not (stable or runs >= self.WARMUP_MOST):
            median = statistics.median(self.time_inference()[0] for _ in range(WINDOW))
            runs += WINDOW
            stable, before = before is not None and abs(median / before - 1) < self.STABLE, median
        self.content.update(warmup_runs=runs, warmup_stable=stable)


class _IphoneCell(_Cell):
    """One package at one length on an iPhone, which times the inference without the transfer of inputs and outputs."""

    WARMUP_LEAST, WARMUP_MOST, STABLE = 10, 10, 0.1  # after idle times more calls warm nothing, and times vary more

    def time_inference(self) -> tuple[float, float | None, float | None]:
        """Return the time of one inference in ms; CPU time and engine time are None."""
        self._predict(self._feed)
        return _iphone_ms(self._clock.last_predict_duration_in_nano_seconds), None, None


def _time_cells(cells: list[_Cell], runs: int, repeats: int) -> None:
    """Warm up all packages, then time them in turns: each repeat visits every length, where each package runs a short burst."""
    for number, cell in enumerate(cells, 1):
        LOG.info(f"[{number}/{len(cells)}] warm-up {cell.name}, {cell.length} tokens")
        cell.warm_up()
    order = random.Random(0)  # noqa: S311 - an order of turns, nothing secret
    gc.disable()
    for repeat in range(repeats):
        for length in sorted({c.length for c in cells}):
            group = [c for c in cells if c.length == length]
            for cell in group:
                cell.samples.append([])
            for first in range(0, runs, BURST):
                order.shuffle(group)
                for cell in group:
                    cell.time_inference()  # not counted, because the caches hold another model
                    cell.samples[-1] += [cell.time_inference() for _ in range(min(BURST, runs - first))]
            LOG.info(f"repeat {repeat + 1} of {repeats}, {length} tokens")
    gc.enable()
    for cell in cells:
        for column, key in enumerate(("wall_ms", "cpu_ms", "engine_ms")):
            times = [[sample[column] for sample in samples] for samples in cell.samples]
            cell.content[key] = None if any(None in samples for samples in times) else times


class _Iphone:
    """An iPhone connected to this Mac, with Apple's runner app, which coremltools lets Xcode build, sign and start.

    `name` is its name, identifier or UDID, or empty for the only one that is connected. `signing` has
    `development_team`, or `provisioning_profile_uuid` with `bundle_identifier`.
    """

    def __init__(self, name: str, signing: dict[str, str]) -> None:
        remote = importlib.import_module("coremltools.models.ml_program.experimental.remote_device")
        self._wrappers = importlib.import_module("coremltools.models.ml_program.experimental.async_wrapper")
        connected = remote.Device.get_connected_devices(remote.DeviceType.IPHONE)
        named = [d for d in connected if name in ("", d.name, d.identifier, d.udid)]
        if len(named) != 1:
            count = f"{len(connected)} iPhones are connected" + (f", {len(named)} of them named {name}" if name else "")
            raise _RefusalError(
                f"--iphone: {count}. Connect one, unlock it, switch its Developer Mode on, or name one."
            )
        self.wait_for = asyncio.new_event_loop().run_until_complete
        LOG.info("building, signing and starting the runner app on the iPhone")
        self.device = self.wait_for(named[0].prepare_for_model_debugging(remote.AppSigningCredentials(**signing)))

    def describe(self) -> dict[str, Any]:
        """Return the `machine` part of the JSON file, without the iPhone's name, which is often its owner's."""
        hardware: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "devices.json"
            _command_output("xcrun", "devicectl", "list", "devices", "--json-output", str(path))
            with contextlib.suppress(OSError, ValueError, LookupError, TypeError, StopIteration):
                devices = json.loads(path.read_text(encoding="utf-8"))["result"]["devices"]
                known = (d["hardwareProperties"] for d in devices)
                hardware = next(h for h in known if h.get("udid") == self.device.udid)
        return {
            "model": str(hardware.get("productType", "")), "chip": str(hardware.get("marketingName", "")) or "an iPhone",
            "arch": "arm64", "isa": [], "cores": 0, "memory_bytes": 0, "macos": "",
            "system": f"iOS {self.device.os_version}".strip(), "build": self.device.os_build_number,
            "python": "", "power": "", "thermal": "",
        }  # fmt: skip

    def open_package(self, package: Path, compute_unit: Any) -> tuple[Any, dict[str, Any]]:
        """Open a package twice, since Core ML prepares it for the unit the first time; return it and both load times."""
        target, wrappers = {"weights_dir": "", "compute_units": compute_unit, "device": self.device}, []
        for _ in range(2):
            wrapper = self._wrappers.MLModelAsyncWrapper.from_spec_or_path(spec_or_path=str(package), **target)
            self.wait_for(wrapper.load())
            wrappers.append(wrapper)
        self.wait_for(wrappers[0].unload())
        first_ms, again_ms = (_iphone_ms(wrapper.load_duration_in_nano_seconds) for wrapper in wrappers)
        return wrappers[1], {"specialize_ms": first_ms, "load_ms": again_ms}


def _iphone_ms(nanoseconds: int | None) -> float:
    """Convert nanoseconds that the iPhone reported to ms; RuntimeError if it reported none."""
    if not nanoseconds:
        raise RuntimeError("the iPhone told no time of it")
    return _to_ms(nanoseconds)


def _describe_mac() -> dict[str, Any]:
    """Return the `machine` part of the JSON file; facts that this Mac does not report are empty or 0."""
    power, memory = _command_output("pmset", "-g", "batt"), _command_output("sysctl", "-n", "hw.memsize")
    return {
        "model": _command_output("sysctl", "-n", "hw.model"),
        "chip": _command_output("sysctl", "-n", "machdep.cpu.brand_string"), "arch": platform.machine(),
        "isa": [name for key, name in ISA.items() if _command_output("sysctl", "-n", key) == "1"],
        "cores": os.cpu_count() or 1, "memory_bytes": int(memory) if memory.isdecimal() else 0,
        "macos": platform.mac_ver()[0], "build": _command_output("sysctl", "-n", "kern.osversion"),
        "python": platform.python_version(), "power": power.partition("'")[2].partition("'")[0],
        "thermal": " ".join(_command_output("pmset", "-g", "therm").split())[:200],
    }  # fmt: skip


def _summarize_plan(load_plan: Callable[[], Any]) -> dict[str, Any]:
    """Count the operators and sum the estimated costs per device in Core ML's plan, or return why there is none."""
    try:
        plan, constants = load_plan(), 0
        devices: dict[str, dict[str, Any]] = {}
        blocks = [f.block for f in plan.model_structure.program.functions.values()]
        while blocks:
            for operation in blocks.pop().operations:
                blocks += operation.blocks
                usage = plan.get_compute_device_usage_for_mlprogram_operation(operation)
                cost = plan.get_estimated_cost_for_mlprogram_operation(operation)
                op_type = operation.operator_name.rpartition(".")[2]  # ios18.linear
                if usage is None and (op_type == "const" or op_type.startswith("constexpr_")):
                    constants += 1
                    continue
                class_name = type(usage.preferred_compute_device).__name__ if usage is not None else ""
                name = next((n for k, n in DEVICES.items() if k in class_name), "undecided")
                device = devices.setdefault(name, {"device": name, "cost": 0.0, "op_types": {}})
                device["cost"] += cost.weight if cost is not None else 0.0
                device["op_types"][op_type] = device["op_types"].get(op_type, 0) + 1
    except Exception as error:  # older coremltools or macOS
        return {"absent": _one_line(error)}
    return {"devices": sorted(devices.values(), key=lambda d: str(d["device"])), "constants": constants}


def _import_libraries() -> tuple[Any, Any]:
    """Import coremltools, and the NumPy that comes with it; raise RefusalError with the command that installs them."""
    try:
        return importlib.import_module("coremltools"), importlib.import_module("numpy")
    except ImportError as error:
        raise _RefusalError(f"{error}. Install it with: python3 -m pip install coremltools", 4) from error


def _sha256_folder(path: Path) -> str:
    """Return the digest of a package: SHA-256 of the sorted JSON list of [path inside, SHA-256 of the file]."""
    files = sorted((p.relative_to(path).as_posix(), p) for p in path.rglob("*") if p.is_file())
    pairs = [[name, hashlib.sha256(p.read_bytes()).hexdigest()] for name, p in files]
    return hashlib.sha256(json.dumps(pairs, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def _command_output(*words: str) -> str:
    """Return the output of a system command; empty if it is missing or fails."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(words, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return ""


def _to_ms(nanoseconds: float) -> float:
    """Convert nanoseconds to milliseconds, rounded to 0.1 µs."""
    return round(nanoseconds / 1e6, 4)


def _one_line(error: Exception) -> str:
    """Return an error's message in one line of at most 300 characters; if it is empty, the name of its class."""
    return (" ".join(str(error).split()) or type(error).__name__)[:300]


if __name__ == "__main__":
    sys.exit(main())
