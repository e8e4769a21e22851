"""Compare the CPU time of two ONNX files of one model, such as those that two versions of the toolkit write.

Both files, and the first one a second time, are open in one process. They take turns in a new order each round, on rows without
padding, one thread. The process is started anew for each generation, since processes differ by more than rounds do: the
interval of 95 % is that of the generations' medians. The first file against itself tells what the comparison can see.

Run: python lab/runtimes/compare_files.py before.onnx after.onnx [--engines onnxruntime openvino] [--lengths 16 32 128]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "lab" / "peers"))
from engine.worker import ENGINES

FIRST, SECOND, AGAIN = "first", "second", "first again"
Times = dict[str, list[float]]
"""CPU time of an inference in ms by file, one for each round."""


def measure(open_file: Mapping[str, Any], length: int, rounds: int, burst: int, seed: int) -> Times:
    """Let opened files take turns on a row of some length."""
    ids = np.array([[101, *(np.arange(length - 2) * 7 % 997 + 1000), 102]], np.int64)
    row = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    feeds = {name: opened.prepare(row) for name, opened in open_file.items()}
    order, names, times = np.random.default_rng(seed), list(open_file), {name: [] for name in open_file}
    for number in range(rounds + 1):
        for name in order.permutation(names):
            run, feed = open_file[name].run, feeds[name]
            run(feed)  # the caches hold another file's weights
            begin = time.process_time_ns()
            for _ in range(burst):
                run(feed)
            if number:  # the first round warms up
                times[name].append((time.process_time_ns() - begin) / burst / 1e6)
    return times


def part(asked: argparse.Namespace) -> None:
    """Be one process of one engine: print the times by length."""
    engine, options = ENGINES[asked.part], json.loads(asked.options)
    paths = {FIRST: asked.first, SECOND: asked.second, AGAIN: asked.first}
    opened = {name: engine(str(path), 1, **options) for name, path in paths.items()}
    found = {n: measure(opened, n, asked.rounds, asked.burst, asked.seed) for n in asked.lengths}
    print(json.dumps(found))


def ratio_of(generations: Sequence[Times], name: str) -> str:
    """Show the CPU time of a file over that of the first one."""
    from pocketbert.benchmarks.statistics import paired_ratio, repeated_ratio

    found = repeated_ratio([paired_ratio(times[name], times[FIRST]).median for times in generations])
    return f"{found.median:.3f} [{found.low:.3f}, {found.high:.3f}]"


def setups() -> dict[str, tuple[str, dict[str, Any]]]:
    """Engines and their settings, as the toolkit opens files on this processor."""
    from pocketbert.core.host.hardware import describe_machine
    from pocketbert.runtime.openvino import choose_float_type, int8_settings

    return {
        "onnxruntime": ("onnxruntime", {"precise": describe_machine().saturates}),
        "openvino": ("openvino", {"INFERENCE_PRECISION_HINT": choose_float_type(), **int8_settings()}),
    }


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path, help="the file that the second one is compared with")
    parser.add_argument("second", type=Path)
    parser.add_argument("--engines", nargs="+", default=["onnxruntime"], help="onnxruntime, openvino, or both")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 32, 128])
    parser.add_argument("--generations", type=int, default=5, help="processes of each engine, at least 3")
    parser.add_argument("--rounds", type=int, default=40, help="rounds of a process at each length")
    parser.add_argument("--burst", type=int, default=5, help="inferences of a turn")
    for hidden in ("--part", "--options"):
        parser.add_argument(hidden, default="", help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    """Start the processes, and print a table."""
    asked = options()
    if asked.part:
        part(asked)
        return
    from pocketbert.core.host.hardware import describe_machine, load_average

    known, loads = setups(), [load_average()]
    if unknown := set(asked.engines) - set(known):
        raise SystemExit(f"--engines: {', '.join(sorted(unknown))} is not among {', '.join(known)}")
    found: dict[tuple[str, int], list[Times]] = {}
    for seed in range(asked.generations):  # engine by engine in each, so that the processes of one lie apart in time
        for name in asked.engines:
            engine, settings = known[name]
            words = [sys.executable, __file__, *sys.argv[1:], "--part", engine]
            words += ["--options", json.dumps(settings), "--seed", str(seed)]
            done = subprocess.run(words, capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{name} does not run these files:\n{done.stderr[-1000:]}")
            for length, times in json.loads(done.stdout.splitlines()[-1]).items():
                found.setdefault((name, int(length)), []).append(times)
        loads.append(load_average())
    print(
        f"{describe_machine().summary}; load {min(loads):.1f} to {max(loads):.1f}; {asked.generations} processes of each engine\n"
    )
    print("| engine | tokens | first, CPU ms | second, CPU ms | second over first | first again over first |")
    print("|---|---:|---:|---:|---|---|")
    for (name, length), generations in found.items():
        ms = [np.median([t for times in generations for t in times[n]]) for n in (FIRST, SECOND)]
        shown = " | ".join(ratio_of(generations, n) for n in (SECOND, AGAIN))
        print(f"| {name} | {length} | {ms[0]:.3f} | {ms[1]:.3f} | {shown} |")


if __name__ == "__main__":
    main()
