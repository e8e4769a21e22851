"""The latency protocol: files side by side on one device, and one device after the other.

`benchmark` decides which files each device takes, reaches all devices before anything is measured, measures on one after the
other (`_Session`), and last compiles files for the devices on which nothing is timed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pocketbert.benchmarks import results, wording
from pocketbert.benchmarks.cold_start import ColdRun
from pocketbert.benchmarks.compiling import Target, compile_for
from pocketbert.benchmarks.devices.protocol import (
    Answering,
    Bringing,
    Connection,
    Profiling,
    Restarting,
    Service,
    Thermal,
)
from pocketbert.benchmarks.devices.table import compiler_of, connect, device, service_of
from pocketbert.benchmarks.inputs import ANSWERS_COMPARED, Feed, choose_texts, compare_answers, make_feeds
from pocketbert.benchmarks.load import Cooling, Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Comparison, Measurement, Variant
from pocketbert.benchmarks.records import TEXT, AnswerCheck, Length, Profile, Protocol, Sustained
from pocketbert.benchmarks.repeats import local_repeats, remote_repeats, run_fresh
from pocketbert.benchmarks.text_steps import PostProcessing, time_post_processing, time_tokenizers
from pocketbert.benchmarks.timing import BURST, Block, Cell, Tick, sustain
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.devices import LOCAL, DeviceName, Figure, parse_measuring_device
from pocketbert.core.errors import InputError, MachineError, PocketBertError, Problem
from pocketbert.core.host.progress import Meter, print_note
from pocketbert.core.host.system import can_start_python
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import Format

_PROFILE_RUNS = 10


def benchmark(
    variants: Sequence[Variant],
    texts: Sequence[Text],
    options: BenchmarkOptions | None = None,
    labelled: EvalSet | None = None,
    post_processing: Mapping[Path, PostProcessing] | None = None,
) -> BenchmarkResult:
    """Measure model files side by side at batch size 1, one device after the other.

    On each device, new processes first measure load time, first inference, peak memory and the time per operator, as far
    as the device can. Then, for each thread count, all files are opened and warmed up (with `options.fresh` anew for each
    repeat), and in each repeat all lengths are measured; at each length the files take turns in short bursts. A
    disturbance thus affects all files. A browser's page measures in its own way. Files that a device cannot run are noted.

    Args:
        variants: The model files to measure, with different names.
        texts: Real texts or pairs, of which at most 100 are used.
        options: Devices, threads, lengths, runs and the like.
        labelled: The rows of `BenchmarkOptions.data`, on which emulated files are scored.
        post_processing: By a file's path, how its outputs become answers, for files of which this step is timed.

    Returns:
        The measurements with all single times. The first device's result contains those of the other devices, and the
        files that were compiled for NPUs, on which nothing is timed.

    Raises:
        InputError: If an option is wrong, an engine refuses a file, no device can run any file, or several devices cannot
            be reached.
        PocketBertError: If one device cannot be reached.
        MachineError: If a child process crashes or a device is lost, and no other was measured; else the result names it.
    """
    options = options or BenchmarkOptions()
    options.check([v.name for v in variants])
    chosen = choose_texts(texts)
    chosen = [chosen[i] for i in generator(options.seed, "benchmark texts").permutation(len(chosen))]
    names = [parse_measuring_device(name) for name in dict.fromkeys(options.devices)]
    variants_by_device, left_out = dict[str, list[Variant]](), list[Problem]()
    for name in names:
        refusals = {v.name: device(str(name)).refusal(v.format, v.runtime) for v in variants}
        variants_by_device[str(name)] = [v for v in variants if not refusals[v.name]]
        left_out += [
            Problem(f"{name} {', '.join(n for n, w in refusals.items() if w == why)}", f"left out: {why}.")
            for why in dict.fromkeys(filter(None, refusals.values()))
        ]
    used = [name for name in names if variants_by_device[str(name)]]
    if not used:
        raise InputError(left_out)
    for problem in [*left_out, *_check_sustained(used, variants_by_device, options)]:
        print_note(f"  {problem.where}: {problem.what}")
    sessions, failed = list[BenchmarkResult](), dict[str, MachineError]()
    with _reach_devices(used, variants_by_device) as (connections, services, targets):
        end, count = time.monotonic() + options.budget_s, len(used)
        for number, name in enumerate(name for name in used if str(name) in connections):
            budget_s = max(0.0, end - time.monotonic()) / (count - number)
            session = _Session(name, connections[str(name)], variants_by_device[str(name)], chosen, options, budget_s)
            with _keep_error(str(name), failed):
                sessions.append(session.run(post_processing or {}))
            end += session.uncounted_s
        for where, service in services.items():
            with _keep_error(where, failed):
                sessions += service.measure(variants_by_device[where], chosen, options)
        compilations = compile_for(targets, texts, options, end - time.monotonic(), labelled)  # they disturb timings
    if failed and not sessions and not compilations:
        raise next(iter(failed.values()))
    first = sessions[0] if sessions else results.make_compilation_result(targets, options)
    errors = {where: str(error).removeprefix(f"{where}: ") for where, error in failed.items()}
    return first.model_copy(update={"others": sessions[1:], "compilations": compilations, "failed": errors})


@contextlib.contextmanager
def _keep_error(where: str, failed: dict[str, MachineError]) -> Iterator[None]:
    """Print a MachineError of the block, and keep it in `failed` by the name `where`; other devices are still measured."""
    try:
        yield
    except MachineError as error:
        print_note(f"  {where}: {error}")
        failed[where] = error


@contextlib.contextmanager
def _reach_devices(
    names: Sequence[DeviceName], variants_by_device: Mapping[str, Sequence[Variant]]
) -> Iterator[tuple[dict[str, Connection], dict[str, Service], list[Target]]]:
    """Connect to all devices, services and compilers, and yield these three groups until the block ends.

    All failures are raised as one error.
    """
    with contextlib.ExitStack() as stack:
        connections, services, targets = dict[str, Connection](), dict[str, Service](), list[Target]()
        errors = dict[str, PocketBertError]()
        for name in names:
            variants = variants_by_device[str(name)]
            try:
                if device(str(name)).compiler is not None:
                    targets.append(Target(name, compiler_of(str(name)), variants))
                    continue
                if device(str(name)).service is not None:
                    services[str(name)] = service_of(str(name))
                    continue
                connection = connect(str(name))
                stack.callback(connection.close)
                if isinstance(connection, Bringing):
                    connection.bring([variant.file for variant in variants])
                connections[str(name)] = connection
            except PocketBertError as error:
                errors[str(name)] = error
        if len(errors) == 1:
            raise next(iter(errors.values()))
        if errors:
            problems = list[Problem]()
            for where, failure in errors.items():
                problems += failure.problems if isinstance(failure, InputError) else [Problem(where, str(failure))]
            raise InputError(problems)
        yield connections, services, targets


# --- what a device cannot do for some files, though it does it for others --------------------------------------------------------


def _without_idle(name: DeviceName, variants: Sequence[Variant]) -> list[str]:
    """Return the names of the files of which this device cannot time single inferences after an idle time."""
    if Figure.IDLE_LATENCY not in name.info.figures:
        return [v.name for v in variants]
    return [v.name for v in variants if device(str(name)).idle_refusal(v.format)]


def _sustainable(name: DeviceName, variants: Sequence[Variant]) -> list[Variant]:
    """Return the files that a device can run without a pause for minutes."""
    return [v for v in variants if not device(str(name)).sustained_refusal(v.format)]


def _check_sustained(
    names: Sequence[DeviceName], variants_by_device: Mapping[str, Sequence[Variant]], options: BenchmarkOptions
) -> list[Problem]:
    """Return a problem for each reason why a device cannot run a file without a pause for minutes.

    No problems are returned if `options.sustained_min` is 0, since no such run was asked for.

    Raises:
        InputError: If a device can run none of its files in this way.
    """
    if not options.sustained_min:
        return []
    some, none = list[Problem](), list[Problem]()
    for name in names:
        variants = variants_by_device[str(name)]
        for why, files in _refused(variants, device(str(name)).sustained_refusal).items():
            problem = Problem(f"{name} {', '.join(files)}", f"not run for minutes: {why}.", "Leave --sustained out")
            (some if _sustainable(name, variants) else none).append(problem)
    if none:
        raise InputError(none)
    return some


def _refused(variants: Sequence[Variant], refusal: Callable[[Format], str]) -> dict[str, list[str]]:
    """Group the files whose format `refusal` rejects: the reason as key, the names of the files as value."""
    names = dict[str, list[str]]()
    for variant in variants:
        if why := refusal(variant.format):
            names.setdefault(why, []).append(variant.name)
    return names


# --- one device ------------------------------------------------------------------------------------------------------------------


@dataclass
class _Session:
    """The measurement of some model files on one device.

    Attributes:
        name: Name of the device, with its argument.
        connection: The open connection to the device.
        variants: The model files measured on this device.
        texts: Real texts, in the order in which they are used.
        options: The requested settings of the benchmark.
        budget_s: Seconds that the measurement on this device may take.
        fixed_lengths: By a file's name, the only input lengths that it takes; empty if it takes any.
        lengths: Lengths in tokens, or ``"text"``, in the order in which they are measured.
        inputs: Model inputs by (file's name, length): one for each text, or one for a length in tokens.
        notes: Notes for the result.
        run_counts: Numbers of timed inferences that the repeats of each file and length had.
        cooling: Waits until the device is cool.
        sustained_s: Seconds that files ran without a pause, with the rests between them but without `cooling`.
    """

    name: DeviceName
    connection: Connection
    variants: Sequence[Variant]
    texts: Sequence[Text]
    options: BenchmarkOptions
    budget_s: float
    fixed_lengths: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lengths: list[Length] = field(default_factory=list)
    inputs: dict[tuple[str, Length], list[Feed]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    run_counts: list[int] = field(default_factory=list)
    cooling: Cooling = field(init=False)
    sustained_s: float = 0.0

    def __post_init__(self) -> None:
        heat = self.connection.heat if isinstance(self.connection, Thermal) and self._timed else None
        self.cooling = Cooling(heat, self.budget_s)

    def run(self, post_processing: Mapping[Path, PostProcessing]) -> BenchmarkResult:
        """Measure load, text steps, latency, operators and outputs of all files, as far as the device can; return one result."""
        began, options = time.monotonic(), self.options
        self.fixed_lengths = {v.name: self.connection.lengths(v.file) for v in self.variants}
        self.lengths = self._choose_lengths()
        tokenizers = {v.name: TextTokenizer(v.tokenizer, self._longest(v)) for v in self.variants}
        self.inputs = {
            (v.name, length): make_feeds(tokenizers[v.name], self.texts, length, self.fixed_lengths[v.name])
            for v in self.variants
            for length in self.lengths
        }
        label = options.label and (options.label if len(options.devices) == 1 else f"{options.label} on {self.name}")
        with Meter(label, self._step_count()) as meter:

            def tick(note: str) -> None:
                if label:
                    meter.advance(note=note)

            cold = self._cold_starts(tick)
            texts = self.texts if Figure.TOKENIZER in self.name.info.figures else ()  # timed in this process
            tokenizer = time_tokenizers(self.variants, tokenizers, texts, options.repeats) if texts else []
            heads = post_processing if texts else {}
            post = time_post_processing(self.variants, tokenizers, texts, heads, self.notes)
            measurements, comparisons = self._time_all(cold, began, tick)
            sustained = self._sustain(tick)
            profiles = self._profiles(cold, tick)
        missing = [v.name for v in self.variants if v.name not in {p.variant for p in profiles}]
        if options.profile and Figure.OPERATORS in self.name.info.figures and missing:
            self.notes.append(f"No profile of {', '.join(missing)}: the engine cannot make one.")
        return BenchmarkResult(
            machine=self.connection.machine(),
            versions=self.connection.versions(),
            protocol=self._protocol(measurements, time.monotonic() - began),
            variants=list(self.variants),
            measurements=measurements,
            comparisons=comparisons,
            tokenizers=tokenizer,
            post_processing=post,
            profiles=profiles,
            answers=self._check_answers(),
            sustained=sustained,
        )

    @property
    def uncounted_s(self) -> float:
        """Seconds that do not count for the budget: waits until the device is cool, and runs for minutes."""
        return self.cooling.waited_s + self.sustained_s

    def _choose_lengths(self) -> list[Length]:
        """Return the input lengths to measure, and add notes on options that this device cannot follow.

        Lengths above the longest input of one of the files are reduced to it.
        """
        name, options = self.name, self.options
        if options.gaps_ms:
            for why, files in _refused(self.variants, device(str(name)).idle_refusal).items():
                self.notes.append(f"Not timed after idle times: {', '.join(files)}, since {why}.")
        if options.sustained_min:
            for why, files in _refused(self.variants, device(str(name)).sustained_refusal).items():
                self.notes.append(f"Not run for minutes: {', '.join(files)}, since {why}.")
        left_out = [str(count) for count in dict.fromkeys(options.threads) if count not in self.threads]
        if left_out:
            most = name.info.most_threads
            self.notes.append(f"Threads {', '.join(left_out)} left out: {name} measures with {most} at most.")
        most = min(self._longest(v) for v in self.variants)
        clipped = [str(x) for x in options.lengths if x != TEXT and x > most]
        if clipped:
            self.notes.append(f"Length {', '.join(clipped)} clipped to {most}, the most the variants take.")
        return list(dict.fromkeys(TEXT if x == TEXT else min(x, most) for x in options.lengths))

    def _step_count(self) -> int:
        """Return the number of steps of the progress bar: cold starts, warm-ups, timed repeats, runs for minutes, profiles."""
        files, counts = len(self.variants), len(self.threads)
        warmups = 0 if self.fresh else len(self.lengths)
        timed = len(self.lengths) + len(self.idle)
        sustained = len(_sustainable(self.name, self.variants)) * bool(self.options.sustained_min)
        profiles = files * (self.options.profile and isinstance(self.connection, Profiling))
        return sustained + profiles + counts * (files * (1 + warmups) + self.options.repeats * timed)

    def _cold_starts(self, tick: Tick) -> dict[tuple[str, int], ColdRun | None]:
        """Load every file in a new process for each thread count; return load time and memory by (file, threads).

        The longest input is used, because it needs most memory. The value is None if the device does not measure this.
        `tick` is called after every step.
        """
        starts = {}
        for variant in self.variants:
            ids = [int(i) for i in self._longest_feed(variant)["input_ids"][0]]
            for count in self.threads:
                self.cooling.wait(f"the start of {variant.name}", self._print)
                profile_runs = _PROFILE_RUNS if self.options.profile and count == self.threads[0] else 0
                starts[variant.name, count] = self.connection.cold_start(variant.file, ids, count, profile_runs)
                tick(f"{variant.name}: load and memory")
        return starts

    def _time_all(
        self, cold: Mapping[tuple[str, int], ColdRun | None], began: float, tick: Tick
    ) -> tuple[list[Measurement], list[Comparison]]:
        """Time all files in turns, one thread count after the other; return the measurements and comparisons.

        `cold` has the starts in new processes, and `began` is the time at which the measurement began.
        """
        measurements, comparisons = list[Measurement](), list[Comparison]()
        for number, threads in enumerate(self.threads):
            self.cooling.wait(f"the measurement with {wording.threads(threads)}", self._print)
            now = time.monotonic()
            left_s = began + self.budget_s + self.cooling.waited_s - now
            cells, load = self._time_block(threads, now + left_s / (len(self.threads) - number), tick)
            machine = self.connection.machine()
            measurements += [
                results.make_measurement(c, cold[c.variant.name, threads], self.name, machine, threads, load)
                for c in cells
            ]
            self.run_counts += [len(repeat) for c in cells for repeat in c.repeats if not c.gap_ms]
            comparisons += results.make_comparisons(cells, self.baseline, self.name, threads, self.fresh)
        return measurements, comparisons

    def _time_block(self, threads: int, deadline: float, tick: Tick) -> tuple[list[Cell], Load]:
        """Time all files at one thread count, at all lengths and idle times; return the times and the device's load.

        With the option `fresh`, every repeat runs in a new process. Without the option `least_s`, the number of runs is
        reduced to end by `deadline`.
        """
        options = self.options
        block = Block(
            variants=self.variants,
            threads=threads,
            lengths=self.lengths,
            idle=self.idle,
            sure=len(self._idle_times),
            runs=options.runs,
            repeats=options.repeats,
            least_s=options.least_s / options.repeats if self._timed else 0.0,
            timed=self._timed,
            seed=(options.seed, "benchmark order", self.threads.index(threads)),
            without_idle=_without_idle(self.name, self.variants),
        )
        watch = self.connection.watch()
        if not self.fresh:
            cells = block.run(self.connection, self.inputs, deadline, tick)
        elif isinstance(self.connection, Restarting):
            cells = run_fresh(block, self.inputs, deadline, tick, remote_repeats(self.connection, self.inputs))
        else:
            with local_repeats(self.inputs) as make_repeat:
                cells = run_fresh(block, self.inputs, deadline, tick, make_repeat)
        return cells, watch.stop()

    def _sustain(self, tick: Tick) -> list[Sustained]:
        """Run each file for `sustained_min` minutes without a pause, and return its latencies over time.

        Files that the device cannot run for minutes are left out. The list is empty if `sustained_min` is 0,
        or if the session takes no times. All runs use the first number of threads and the first length.

        A file is opened only when it is its turn, because the threads of another open file would take its
        cores.

        Args:
            tick: Called before each run with a text that names the file and the minutes.
        """
        minutes, count, length = self.options.sustained_min, self.threads[0], self.lengths[0]
        if not minutes or not self._timed:
            return []
        runs = []
        for v in _sustainable(self.name, self.variants):
            tick(f"{v.name}: {minutes:g} min without a pause")
            cell = Cell(v, self.connection.open(v.file, count), length, self.inputs[v.name, length])
            cool = partial(self.cooling.wait, f"{v.name} without a pause", self._print)
            began, waited_s = time.monotonic(), self.cooling.waited_s
            runs.append(sustain(self.connection, cell, minutes, str(self.name), count, cool))
            self.sustained_s += time.monotonic() - began - (self.cooling.waited_s - waited_s)
        return runs

    def _profiles(self, cold: Mapping[tuple[str, int], ColdRun | None], tick: Tick) -> list[Profile]:
        """Return the time per operator of each file, from its start in a fresh process or from a separate run.

        Files are left out if the engine cannot profile them.
        """
        profiles, count = [], self.threads[0]
        for v in self.variants:
            start = cold[v.name, count]
            if start is not None and start.ops is not None:
                profiles.append(start.ops.profile(v.name, count, start.start.length))
        if self.options.profile and isinstance(self.connection, Profiling):
            for v in self.variants:
                tick(f"{v.name}: time per operator")
                feed = self._longest_feed(v)  # as in a cold start
                times = self.connection.profile(v.file, feed, count, _PROFILE_RUNS)
                profiles.append(times.profile(v.name, count, feed["input_ids"].shape[1]))
        return profiles

    def _check_answers(self) -> list[AnswerCheck]:
        """Compare the outputs for the first inputs of each length with this machine's; empty if the device returns none."""
        if Figure.ANSWERS not in self.name.info.figures or not isinstance(self.connection, Answering):
            return []
        provenance = self.name.info.figures[Figure.ANSWERS]
        checks = []
        for v in self.variants:
            inputs = [
                feed for (name, _), all in self.inputs.items() if name == v.name for feed in all[:ANSWERS_COMPARED]
            ]
            checks.append(compare_answers(v, inputs, self.connection.answers(v.file, inputs), provenance))
        return checks

    def _protocol(self, measurements: Sequence[Measurement], took_s: float) -> Protocol:
        """Build the record of how the times were taken: settings, runs, duration, waits, notes."""
        options, counts = self.options, self.run_counts
        budget_s = options.budget_s if len(options.devices) == 1 else round(self.budget_s, 1)
        return Protocol(
            description=results.describe_method(self.connection.method, measurements, options, self.fresh),
            baseline=self.baseline,
            threads=self.threads,
            lengths=self.lengths,
            texts=min(len(self.texts), max(counts)),
            runs_asked=options.runs,
            runs_made=(min(counts), max(counts)),
            repeats=options.repeats,
            fresh=self.fresh,
            burst=BURST,
            budget_s=0.0 if options.least_s else budget_s,
            took_s=round(took_s, 2),
            shortened=min(counts) < options.runs,
            cooling=self.cooling.waits,
            notes=[
                *self.notes,
                *results.timing_notes(measurements, counts, options.runs, budget_s),
                *results.idle_notes(self.idle, measurements, options.repeats, budget_s),
                *filter(None, [self.cooling.note()]),
            ],
        )

    @property
    def threads(self) -> list[int]:
        """The requested thread counts that the device supports; its largest thread count if it supports none."""
        most = self.name.info.most_threads
        asked = list(dict.fromkeys(self.options.threads))
        return [count for count in asked if not most or count <= most] or [most]

    @property
    def baseline(self) -> str:
        """Name of the file that the others are compared with: the requested one, or the first if this device lacks it."""
        names = [v.name for v in self.variants]
        return self.options.baseline if self.options.baseline in names else names[0]

    @property
    def fresh(self) -> bool:
        """Whether every repeat runs in a new process: if it was asked for, the device can, and its times are latencies."""
        local = str(self.name) == LOCAL and can_start_python()
        return self.options.fresh and self._timed and (local or isinstance(self.connection, Restarting))

    @property
    def idle(self) -> list[tuple[Length, float]]:
        """(length, idle time in ms) of all single inferences, all idle times at the first length first."""
        first, *others = self.lengths
        return [(first, gap) for gap in self._idle_times] + [(x, gap) for gap in self._idle_times for x in others]

    @property
    def _idle_times(self) -> Sequence[float]:
        """Idle times in ms before single inferences; empty if the device can time them for no file."""
        can = len(_without_idle(self.name, self.variants)) < len(self.variants)
        return list(dict.fromkeys(self.options.gaps_ms)) if can else ()

    @property
    def _timed(self) -> bool:
        """Whether this device's times count as latencies (those of an emulator do not)."""
        return Figure.LATENCY in self.name.info.figures

    def _longest(self, variant: Variant) -> int:
        """Return the longest input in tokens that a file takes on this device."""
        return min(variant.max_length, max(self.fixed_lengths[variant.name], default=variant.max_length))

    def _longest_feed(self, variant: Variant) -> Feed:
        """Return the input with the most tokens of all that were made for this file."""
        candidates = (feed for length in self.lengths for feed in self.inputs[variant.name, length])
        return max(candidates, key=lambda feed: feed["input_ids"].shape[1])

    def _print(self, words: str) -> None:
        """Print a line about this device, unless `options.label` is empty, which means that no progress is shown."""
        if self.options.label:
            print_note(f"  {self.name}: {words}")
