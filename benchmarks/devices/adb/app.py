"""Measure with the Android demo app: start its benchmark by intents over adb, and collect what it writes."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pocketbert.benchmarks.devices.adb.client import Adb
from pocketbert.benchmarks.devices.android.record import PhoneFile, PhoneRecord, Thermal, read_phone_record
from pocketbert.benchmarks.options import BenchmarkOptions
from pocketbert.core.devices import ADB, DEVICES
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, Problem
from pocketbert.core.host.progress import Meter, say

PACKAGE = "org.pocketbert.demo"
RECORD = f"/sdcard/Android/data/{PACKAGE}/files/benchmark.json"
"""Where the app writes what it measured, or an object with the key ``error``."""
KEPT = f"{RECORD}.before-pocketbert"
"""Where a record that was there before is kept meanwhile."""
REPEATS, MOST_RUNS, MOST_SECONDS = 3, 1000, 3600
"""Repeats that the app makes, most runs of each that a record holds, and its longest run without a pause."""
RUN_S, POLL_S = 900.0, 1.0
"""Longest time of one measurement without its run without a pause, and how often its end is looked for."""


@dataclass(frozen=True)
class AppPlan:
    """What the app shall measure; every combination is one start of its benchmark.

    Attributes:
        paths: Model files, by their paths in the artefact folder that the app carries.
        threads: Numbers of threads.
        lengths: Lengths in tokens; 0 for the longest that a file takes.
        runs: Timed inferences of each repeat.
        seconds: Seconds that each file runs without a pause, at the first number of threads and length; 0 for none.
    """

    paths: Sequence[str]
    threads: Sequence[int]
    lengths: Sequence[int]
    runs: int
    seconds: int = 0


def app_problems(options: BenchmarkOptions, texts: bool) -> list[Problem]:
    """What is asked for that the app cannot do.

    Args:
        options: What is asked for.
        texts: Whether texts are given.
    """
    fix = "Leave it out, or measure without --app"
    told = {
        "gaps": "the demo app times no single calls after idle times." if options.gaps_ms else "",
        "repeats": f"{options.repeats}; the demo app makes {REPEATS}." if options.repeats != REPEATS else "",
        "preset": f"the demo app cannot go on until {options.least_s:g} s are timed." if options.least_s else "",
        "runs": f"{options.runs}; a record of the demo app holds {MOST_RUNS} at most."
        if options.runs > MOST_RUNS
        else "",
        "sustained": f"{options.sustained_min:g}; the demo app runs for {MOST_SECONDS // 60} minutes at most."
        if options.sustained_min * 60 > MOST_SECONDS
        else "",
        "file": "the demo app measures its own sentence." if texts else "",
    }
    return [Problem(f"--{name}", f"with --app: {why}", fix) for name, why in told.items() if why]


def measure_by_app(argument: str, plan: AppPlan, destination: Path) -> None:
    """Let the demo app of a phone measure, and write one record, as the app's own are.

    Args:
        argument: Serial number of the phone, or nothing for the only one; cores cannot be chosen for an app.
        plan: What to measure.
        destination: The file to write.

    Raises:
        InputError: If the phone cannot be used, or the app measured nothing; lists why.
        MissingBackendError: If there is no `adb` client, or no demo app on the phone.
        MachineError: If the phone is lost, or the app does not end.
    """
    parts = re.fullmatch(DEVICES[ADB].pattern, argument, re.ASCII)
    if parts is None or parts["cores"]:
        what = "with --app is a phone without @CORES: Android chooses the cores of an app."
        raise InputError(Problem(f"adb:{argument}", what, "For example adb:SERIAL"))
    adb = Adb(parts["serial"] or "", f"am force-stop {PACKAGE}; rm -f {RECORD}; mv {KEPT} {RECORD}")
    try:
        # a record that an earlier run kept aside and could not give back is still the one to keep
        adb.script(f"if [ -e {KEPT} ]; then rm -f {RECORD}; elif [ -e {RECORD} ]; then mv {RECORD} {KEPT}; fi")
        records, problems = _measure_all(adb, plan)
    finally:
        adb.close()
    if not records:
        raise InputError(problems)
    for problem in problems:
        say(f"  {problem.where}: {problem.what}")
    destination.write_text(merged(records).model_dump_json(), encoding="utf-8")


def _measure_all(adb: Adb, plan: AppPlan) -> tuple[list[PhoneRecord], list[Problem]]:
    cases = [(path, threads, length) for path in plan.paths for threads in plan.threads for length in plan.lengths]
    records, problems = list[PhoneRecord](), list[Problem]()
    with Meter(f"{adb.where}: demo app", len(cases)) as meter:
        for path, threads, length in cases:
            first = (threads, length) == (plan.threads[0], plan.lengths[0])
            told = _measure(adb, path, threads, length, replace(plan, seconds=plan.seconds if first else 0))
            where = f"{adb.where} {path}, {threads} threads, {length or 'most'} tokens"
            if isinstance(told, str):
                problems.append(Problem(where, f"the app did not measure: {told}"))
            else:
                records.append(told)
            meter.advance(note=path)
    return records, problems


def _measure(adb: Adb, path: str, threads: int, length: int, plan: AppPlan) -> PhoneRecord | str:
    """One start of the app's benchmark; its record, or why there is none."""
    adb.told("am", "force-stop", PACKAGE)
    adb.told("rm", "-f", RECORD)
    numbers = {"runs": plan.runs, "threads": threads, "length": length, "seconds": plan.seconds}
    extras = [word for name, number in numbers.items() for word in ("--ei", name, str(number))]
    command = ["am", "start", "-n", f"{PACKAGE}/.BenchmarkActivity", "--es", "model", path, *extras]
    said = adb.script(f"{shlex.join(command)} || true")
    if re.search(r"does not exist|Error type 3|Unable to resolve|not found", said):
        raise MissingBackendError(
            f"{adb.where}: the demo app {PACKAGE}", "adb install app.apk (android_demo/README.md tells how it is built)"
        )
    longest_s = RUN_S + plan.seconds
    end = time.monotonic() + longest_s
    while time.monotonic() < end:
        text = adb.told("cat", RECORD)
        try:
            content = json.loads(text)
        except ValueError:  # not there yet, or half written
            time.sleep(POLL_S)
            continue
        if isinstance(content, dict) and "error" in content:
            return str(content["error"])[:300]
        with tempfile.TemporaryDirectory(prefix="pocketbert-app-") as folder:
            file = Path(folder) / "benchmark.json"
            file.write_text(text, encoding="utf-8")
            return read_phone_record(file)
    raise MachineError(f"{adb.where}: the demo app wrote nothing within {longest_s:.0f} s. Look at the phone's screen.")


def merged(records: Sequence[PhoneRecord]) -> PhoneRecord:
    """Records of one phone, one after the other, as one: the lengths of a file, its engine and threads come together."""
    files: dict[tuple[str, int], PhoneFile] = {}
    for file in (file for record in records for file in record.files):
        before = files.get((file.name, file.threads))
        known = [] if before is None else before.cells
        cells = [*known, *(c for c in file.cells if c.length not in {k.length for k in known})]
        files[file.name, file.threads] = (before or file).model_copy(update={"cells": cells})
    protocol = records[0].protocol.model_copy(update={"took_s": sum(r.protocol.took_s for r in records)})
    thermal = Thermal(before=records[0].thermal.before, after=records[-1].thermal.after)
    return records[0].model_copy(update={"files": list(files.values()), "protocol": protocol, "thermal": thermal})
