"""The browsers that measure a plan: what is kept of their posts, and the results made of it.

`Phones` keeps the posts of all browsers, which the server hands over (`pocketbert.benchmarks.browser.posts`).
`Phone.result` makes the session of one browser, also of one that was interrupted.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pocketbert.benchmarks.browser.plan import BURST, Plan, PlannedFile
from pocketbert.benchmarks.browser.posts import UNITS, AnswersPost, CasePost, Facts, JoinPost, StatePost
from pocketbert.benchmarks.load import Load
from pocketbert.benchmarks.measurement import BenchmarkResult, Comparison, Measurement, Variant
from pocketbert.benchmarks.records import AnswerCheck, ColdStart, Length, Protocol
from pocketbert.benchmarks.statistics import Statistics, repeat_interval, time_ratio
from pocketbert.core.devices import BROWSER
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import Machine
from pocketbert.core.host.progress import print_note
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.types import Provenance

LOST_S = 180.0
"""Seconds without a sign of life after which a browser counts as gone: a hidden page may wake once a minute."""
_MOST_PHONES = 32
_Walls = dict[tuple[str, int, Length, float], dict[int, list[float]]]
"""Times of each repeat, by the file's name in tables, threads, length and idle time."""


@dataclass
class Phone:
    """A browser that takes part in the benchmark, with everything that its page has posted.

    Attributes:
        name: Name of the device.
        facts: What the browser reports about itself and its device.
        cases: Timings by file, accelerator, threads and repeat.
        checks: Result of the comparison of outputs, by file and accelerator.
        notes: Remarks that the page has posted.
        ended: Whether the browser has measured everything.
        joins: How often the page was loaded.
        began: When the browser joined, by the monotonic clock.
        seen: When the last post of the browser arrived.
    """

    name: str
    facts: Facts
    cases: dict[tuple[int, str, int, int], CasePost] = field(default_factory=dict)
    checks: dict[tuple[int, str], AnswerCheck] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    ended: bool = False
    joins: int = 1
    began: float = field(default_factory=time.monotonic)
    seen: float = field(default_factory=time.monotonic)

    def state(self, identifier: str) -> dict[str, Any]:
        """Return what a reloaded page needs to continue: number and name of the browser, and all results so far."""
        checks = [{"file": f, "unit": u, "passed": c.passed, "words": c.words} for (f, u), c in self.checks.items()]
        done = [case.model_dump(mode="json", exclude={"id"}) for case in self.cases.values()]
        return {"id": identifier, "name": self.name, "cases": done, "checks": checks, "ended": self.ended}

    def result(self, plan: Plan) -> BenchmarkResult:
        """Build the benchmark result of this browser, which must have measured at least one case.

        Args:
            plan: What the browser was asked to measure.
        """
        cases, machine = list(self.cases.values()), self._machine()
        keys = sorted({c.key[:3] for c in cases}, key=lambda key: (key[2], key[0], UNITS.index(key[1])))
        measurements = [m for key in keys for m in self._make_measurements(plan, machine, *key)]
        runs = [len(cell.wall_ms) for case in cases for cell in case.cells if not cell.gap_ms]
        variants = {
            m.variant: _variant(plan, c)
            for c in cases
            for m in measurements
            if m.variant == _name(plan, c.file, c.unit)
        }
        wanted = plan.options.baseline
        baseline = wanted if wanted in variants else measurements[0].variant
        libraries = {plan.files[c.file].library for c in cases}
        return BenchmarkResult(
            machine=machine,
            versions={library.name: library.version for library in libraries},
            protocol=Protocol(
                description=_METHOD,
                baseline=baseline,
                threads=sorted({m.threads for m in measurements}),
                lengths=[x for x in plan.lengths if any(m.length == x for m in measurements)],
                texts=len(plan.texts),
                runs_asked=plan.options.runs,
                runs_made=(min(runs), max(runs)),
                repeats=len({c.repeat for c in cases}),
                fresh=True,
                burst=BURST,
                budget_s=plan.options.budget_s,
                took_s=round(self.seen - self.began, 2),
                shortened=min(runs) < plan.options.runs,
                notes=[*plan.notes, *self._notes(plan)],
            ),
            variants=list(variants.values()),
            measurements=measurements,
            comparisons=list(_compare(measurements, baseline, self._walls_by_repeat(plan))),
            tokenizers=[],
            profiles=[],
            # an accelerator that errs is left out; a file that is wrong on the CPU fails the benchmark
            answers=[c for (_, unit), c in self.checks.items() if c.passed or unit == "wasm"],
        )

    def _walls_by_repeat(self, plan: Plan) -> _Walls:
        """Return the times of each repeat, by the file's name in tables, threads, length and idle time."""
        walls: _Walls = {}
        for case in self.cases.values():
            for cell in case.cells:
                key = (_name(plan, case.file, case.unit), case.threads, cell.length, cell.gap_ms)
                walls.setdefault(key, {})[case.repeat] = cell.wall_ms
        return walls

    def _machine(self) -> Machine:
        """Build the description of the device from what the browser reports."""
        facts = self.facts
        memory = f", {facts.memory_gb:g} GB of memory or more" if facts.memory_gb else ""
        return Machine(
            cpu=f"{self.name}: {facts.platform or 'a system that it does not tell'}{memory}",
            arch="web browser",
            isa=["WebAssembly", *(["threads"] if facts.isolated else []), *(["WebGPU"] if facts.gpu else [])],
            cores=facts.cores,
            system=facts.user_agent,
            python="",
        )

    def _make_measurements(
        self, plan: Plan, machine: Machine, file: int, unit: str, threads: int
    ) -> Iterator[Measurement]:
        """Build the measurement records of one file on one accelerator from the timings that the browser has posted.

        The timings of all repeats of a length and idle time go into one record.

        Args:
            plan: What the browser was asked to measure.
            machine: Description of the device.
            file: Number of the file in `plan.files`.
            unit: The accelerator: ``wasm`` (the CPU), ``webgpu`` or ``webnn``.
            threads: Number of threads.

        Yields:
            One record for each pair of length and idle time for which there are timings.
        """
        cases = sorted((c for c in self.cases.values() if c.key[:3] == (file, unit, threads)), key=lambda c: c.repeat)
        planned, battery = plan.files[file], " → ".join(dict.fromkeys(c.battery for c in cases if c.battery))
        cells = [((cell.length, cell.gap_ms), cell) for case in cases for cell in case.cells]
        first_length = planned.feeds(plan.texts, plan.lengths[-1])[0]["input_ids"].shape[1]  # what the page runs first
        load = Load(before=None, after=None, others=None, thermal=f"battery {battery}" if battery else "")
        for length, gap_ms in dict.fromkeys(key for key, _ in cells):
            same = [cell for key, cell in cells if key == (length, gap_ms)]
            walls = [cell.wall_ms for cell in same]
            shapes = [feed["input_ids"].shape[1] for feed in planned.feeds(plan.texts, length)]
            yield Measurement(
                variant=_name(plan, file, unit),
                sha256=planned.variant.sha256,
                bytes=planned.variant.bytes,
                device=f"{BROWSER}: {self.name}",
                unit=unit,
                engine=planned.library.name,
                engine_version=planned.library.version,
                provenance=Provenance.MEASURED,
                machine=machine,
                threads=threads,
                length=length,
                gap_ms=gap_ms,
                tokens_mean=float(np.mean(shapes[: max(map(len, walls))])),
                load=load,
                wall=Statistics.of([time for wall in walls for time in wall]),
                wall_interval=repeat_interval([float(np.median(wall)) for wall in walls]),
                cpu=None,
                cold=_cold_start(cases, first_length),
                warmup_runs=max(cell.warmup_runs for cell in same),
                warmup_stable=all(cell.warmup_stable for cell in same),
                wall_ms=walls,
                cpu_ms=[],
            )

    def _notes(self, plan: Plan) -> Iterator[str]:
        """Yield notes on how the browser measured, what it could not use, and what was refused or interrupted."""
        facts, cases = self.facts, list(self.cases.values())
        kind = "secure context" if facts.secure else "no secure context (http from another machine)"
        isolated = "cross-origin isolated" if facts.isolated else "not cross-origin isolated"
        details = [f"clock of {facts.timer_us:g} µs", *([f"GPU {facts.gpu}"] if facts.gpu else [])]
        details += [f"battery {facts.battery}"] if facts.battery else []
        yield f"Measured by a page in {facts.user_agent}: {kind}, {isolated}, {', '.join(details)}."
        if facts.missing:
            yield f"Not used: {'; '.join(one.rstrip('.') for one in facts.missing)}."
        yield from dict.fromkeys(self.notes)
        for check in self.checks.values():
            if not check.passed:
                yield f"{check.variant}: refused, since this browser computes it wrongly ({check.words})."
        hidden = sum(case.hidden for case in cases)
        if hidden:
            yield f"The page was hidden during {hidden} of {len(cases)} cases: its times may be longer."
        grouped = [cell.calls for case in cases for cell in case.cells if cell.calls > 1]
        if grouped:
            yield f"Short calls were timed in groups of up to {max(grouped)}, for the resolution of the browser's clock."
        restless = sum(not cell.warmup_stable for case in cases for cell in case.cells if not cell.gap_ms)
        if restless:
            yield f"{restless} warm-ups ended while the times still changed."
        if self.joins > 1:
            yield f"The page was loaded {self.joins} times; what was measured before was kept."
        if not self.ended:
            yield f"Interrupted: {len(cases)} cases of {plan.options.repeats} repeats are there."


def _name(plan: Plan, file: int, unit: str) -> str:
    """Return the name of a file in tables; if it ran on an accelerator, followed by the accelerator's name."""
    name = plan.files[file].variant.name
    return name if unit == "wasm" else f"{name} {unit}"


def _variant(plan: Plan, case: CasePost) -> Variant:
    """Return the record of a case's file, under the name that the file has in tables."""
    return plan.files[case.file].variant.model_copy(update={"name": _name(plan, case.file, case.unit)})


def _cold_start(cases: Sequence[CasePost], length: int) -> ColdStart:
    """Build the record of load time and first inference of a file: the medians over its repeats."""
    return ColdStart(
        load_ms=float(np.median([case.load_ms for case in cases])),
        first_ms=float(np.median([case.first_ms for case in cases])),
        length=length,
        peak_memory_bytes=None,
        peak_rss_bytes=None,
        told_by="the page",
    )


def _compare(measurements: Sequence[Measurement], baseline: str, walls: _Walls) -> Iterator[Comparison]:
    """Yield, for each measurement that the baseline has too, the ratio of its times to the baseline's, repeat by repeat.

    Repeats that only one of the two files has, as after an interruption, are left out.
    """
    for m in measurements:
        own, other = (walls.get((name, m.threads, m.length, m.gap_ms), {}) for name in (m.variant, baseline))
        both = [(own[repeat], other[repeat]) for repeat in sorted(own.keys() & other.keys())]
        if m.variant == baseline or not both:
            continue
        pairs = [(a[:n], b[:n]) for a, b in both for n in [min(len(a), len(b))]]
        a, b = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        yield Comparison(
            variant=m.variant,
            baseline=baseline,
            threads=m.threads,
            length=m.length,
            gap_ms=m.gap_ms,
            wall=time_ratio(a, b, 1 if m.gap_ms else BURST, fresh=True),
            provenance=Provenance.MEASURED,
        )


_METHOD = (
    "By a page in the browser, which a server on this machine served: batch 1; TFLite files by LiteRT.js, ONNX files by onnxruntime-web, "
    "unpadded where a file takes any length, else padded to the smallest length that it takes. Each repeat opens all files anew in a frame "
    "of its own, one after the other in a new order, and warms up every length until two windows agree within 3 %; then the lengths take "
    "turns of 5 single calls: from arrays to the engine's tensors, the run, and the outputs read back. Answers were checked first. "
    "Percentiles are nearest-rank; intervals are 95 %, Student's t on the logarithms of the repeats' medians or ratios."
)


class Phones:
    """The browsers that measure a plan; its methods may be called from several threads.

    Args:
        plan: What all browsers measure.
        wanted: Number of browsers that must have finished before the benchmark ends.
    """

    def __init__(self, plan: Plan, wanted: int = 1) -> None:
        self.plan, self.wanted = plan, wanted
        self._phones, self._lock = dict[str, Phone](), threading.Lock()
        self.began = time.monotonic()

    def join(self, post: JoinPost) -> dict[str, Any]:
        """Add a browser, or continue one that has joined before; return its state for the page."""
        with self._lock:
            known, gone = self._phones.get(post.id), self._phones.get(post.earlier)
            identifier, phone = post.id, known
            if phone is None and gone is not None and not gone.ended and _is_silent(gone):
                identifier, phone = post.earlier, gone
            if phone is None:
                if len(self._phones) >= _MOST_PHONES:
                    raise InputError(Problem("browsers", f"{_MOST_PHONES} have joined, no more are accepted."))
                identifier, phone = secrets.token_hex(8), Phone(self._free_name(post.name), post.facts)
                self._phones[identifier] = phone
                print_note(f"  {phone.name} joined: {post.facts.user_agent}")
            else:
                phone.joins += 1
                phone.facts, phone.seen = post.facts, time.monotonic()
                print_note(f"  {phone.name} is back, with {len(phone.cases)} cases measured")
            return phone.state(identifier)

    def answers(self, post: AnswersPost) -> dict[str, Any]:
        """Check the outputs of a file on a browser, and keep the result; return whether they are right, and the result in words."""
        with self._lock:
            phone, planned = self._heard(post.id), self._planned(post.file)
            name = _name(self.plan, post.file, post.unit)
            outputs: list[Arrays] = [{k: output.array() for k, output in run.items()} for run in post.outputs]
            check = planned.check(name, outputs)
            phone.checks[post.file, post.unit] = check
            if not check.passed:
                print_note(f"  {phone.name}: {name} refused, computed wrongly: {check.words}")
            return {"passed": check.passed, "words": check.words}

    def case(self, post: CasePost) -> dict[str, Any]:
        """Store the timings of a case; raise InputError if the case is not planned or its outputs were not right."""
        with self._lock:
            phone = self._heard(post.id)
            self._planned(post.file)
            check = phone.checks.get((post.file, post.unit))
            gaps = {0.0, *self.plan.options.gaps_ms}
            lengths: set[Length] = set(self.plan.lengths)
            cells = [(cell.length, cell.gap_ms) for cell in post.cells]
            if (post.repeat, post.threads, post.file) not in self.plan.cases or len(set(cells)) < len(cells):
                raise InputError(Problem("case", "is not planned."))
            if not all(length in lengths and gap in gaps for length, gap in cells) or not any(
                gap == 0 for _, gap in cells
            ):
                raise InputError(Problem("cells", "are not those of the plan."))
            if check is None or not check.passed:
                raise InputError(Problem("case", "the answers of this file were not checked, or were wrong."))
            phone.cases[post.key] = post
            shown = ", ".join(
                f"{cell.length} {np.median(cell.wall_ms):.3g} ms" for cell in post.cells if not cell.gap_ms
            )
            where = f"{_name(self.plan, post.file, post.unit)}, threads {post.threads}, repeat {post.repeat + 1}"
            print_note(f"  {phone.name}: {where}: {shown}")
            return {"kept": len(phone.cases)}

    def note(self, post: StatePost) -> dict[str, Any]:
        """Record that a browser is alive, and store the remark that its page posted, or that it has finished."""
        with self._lock:
            phone = self._heard(post.id)
            if post.note and len(phone.notes) < 100:
                phone.notes.append(post.note if post.note.endswith(".") else f"{post.note}.")
            if post.ended and not phone.ended:
                phone.ended = True
                print_note(f"  {phone.name} has measured everything")
            return {}

    def finished(self) -> bool:
        """Return whether all browsers have finished or are silent, and at least as many as wanted have joined."""
        with self._lock:
            phones = self._phones.values()
            over = [phone for phone in phones if phone.ended or _is_silent(phone)]
            return len(over) >= self.wanted and len(over) == len(phones)

    @property
    def joined(self) -> int:
        """Number of browsers that have joined."""
        with self._lock:
            return len(self._phones)

    def results(self) -> list[BenchmarkResult]:
        """Return a benchmark result for each browser that has measured at least one case."""
        with self._lock:
            return [phone.result(self.plan) for phone in self._phones.values() if phone.cases]

    def remarks(self) -> list[str]:
        """Return the remarks of browsers that measured nothing, such as why a file cannot be opened."""
        with self._lock:
            return [
                f"{p.name}: {note}" for p in self._phones.values() if not p.cases for note in dict.fromkeys(p.notes)
            ]

    def refused(self) -> list[AnswerCheck]:
        """Return the failed comparisons of outputs of browsers that measured nothing."""
        with self._lock:
            checks = [check for phone in self._phones.values() if not phone.cases for check in phone.checks.values()]
            return [check for check in checks if not check.passed]

    def _heard(self, identifier: str) -> Phone:
        """Return a browser that has joined, and record that it is alive; raise InputError if none has this number."""
        if identifier not in self._phones:
            raise InputError(Problem("id", "no such browser has joined."))
        phone = self._phones[identifier]
        phone.seen = time.monotonic()
        return phone

    def _planned(self, number: int) -> PlannedFile:
        """Return a file of the plan by its number; raise InputError if there is none."""
        if number >= len(self.plan.files):
            raise InputError(Problem("file", "no such file."))
        return self.plan.files[number]

    def _free_name(self, name: str) -> str:
        """Return the name; if another browser has it, with a number appended."""
        taken = {phone.name for phone in self._phones.values()}
        numbered = (name if n == 1 else f"{name} {n}" for n in range(1, _MOST_PHONES + 2))
        return next(one for one in numbered if one not in taken)


def _is_silent(phone: Phone) -> bool:
    """Return whether a browser has posted nothing for a long time."""
    return time.monotonic() - phone.seen > LOST_S
