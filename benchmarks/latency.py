"""The latency protocol: files side by side on one device, and one device after the other."""

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
from pocketbert.benchmarks.inputs import ANSWERED, Feed, choose_texts, compare_answers, feeds
from pocketbert.benchmarks.load import Cooling, Load
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Comparison, Measurement, Variant
from pocketbert.benchmarks.records import TEXT, AnswerCheck, Length, Profile, Sustained
from pocketbert.benchmarks.repeats import local_repeats, remote_repeats, run_fresh
from pocketbert.benchmarks.text_steps import PostProcessing, post_processing_times, tokenizer_times
from pocketbert.benchmarks.timing import Block, Cell, Tick, sustain
from pocketbert.core.compare.evaluate import EvalSet
from pocketbert.core.devices import LOCAL, DeviceName, Figure, parse_measuring_device
from pocketbert.core.errors import InputError, PocketBertError, Problem
from pocketbert.core.host.progress import Meter, say
from pocketbert.core.host.system import can_start_python
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import Format

# --- limits ---
# What a device cannot do for some files though it does it for others: single calls after idle times, minutes without a pause.


def without_idle(name: DeviceName, variants: Sequence[Variant]) -> list[str]:
    """Names of the files that a device cannot time after idle times."""
    if Figure.IDLE_LATENCY not in name.info.figures:
        return [v.name for v in variants]
    return [v.name for v in variants if device(str(name)).idle_refusal(v.format)]


def lasting(name: DeviceName, variants: Sequence[Variant]) -> list[Variant]:
    """The files that a device can run for minutes without a pause."""
    return [v for v in variants if not device(str(name)).sustained_refusal(v.format)]


def limit_notes(name: DeviceName, variants: Sequence[Variant], options: BenchmarkOptions) -> Iterator[str]:
    """What is left out of what was asked for, with the reason."""
    if options.gaps_ms:
        for why, files in _refused(variants, device(str(name)).idle_refusal).items():
            yield f"Not timed after idle times: {', '.join(files)}, since {why}."
    if options.sustained_min:
        for why, files in _refused(variants, device(str(name)).sustained_refusal).items():
            yield f"Not run for minutes: {', '.join(files)}, since {why}."


def check_sustained(
    names: Sequence[DeviceName], taken: Mapping[str, Sequence[Variant]], options: BenchmarkOptions
) -> list[Problem]:
    """Files that devices cannot run for minutes, where that is asked for.

    Args:
        names: The devices.
        taken: What is measured on each.
        options: What is asked for.

    Raises:
        InputError: If a device can run none of its files so.
    """
    if not options.sustained_min:
        return []
    out, none = list[Problem](), list[Problem]()
    for name in names:
        variants = taken[str(name)]
        for why, files in _refused(variants, device(str(name)).sustained_refusal).items():
            problem = Problem(f"{name} {', '.join(files)}", f"not run for minutes: {why}.", "Leave --sustained out")
            (out if lasting(name, variants) else none).append(problem)
    if none:
        raise InputError(none)
    return out


def _refused(variants: Sequence[Variant], refusal: Callable[[Format], str]) -> dict[str, list[str]]:
    """Names of files that are refused, by reason."""
    out = dict[str, list[str]]()
    for variant in variants:
        if why := refusal(variant.format):
            out.setdefault(why, []).append(variant.name)
    return out


PROFILE_RUNS = 10


def benchmark(
    variants: Sequence[Variant],
    texts: Sequence[Text],
    options: BenchmarkOptions | None = None,
    labelled: EvalSet | None = None,
    post_processing: Mapping[Path, PostProcessing] | None = None,
) -> BenchmarkResult:
    """Measure variants side by side, batch 1, unpadded, on one device after the other.

    On each device, first one fresh process after the other finds load time, first inference, peak memory and the time
    per operator. Then, per thread count, all variants are opened and warmed up, and every repeat visits all
    lengths; at each length the variants take turns in short bursts. A disturbance thus hits all of them,
    and comparisons are made within a round.

    Args:
        variants: What to measure; names must differ.
        texts: Real texts (or pairs); 100 of them at most are used.
        options: Devices, threads, lengths, runs and the like.
        labelled: The rows of `BenchmarkOptions.data`.
        post_processing: How the outputs of a file become answers, by its path; where it is not given, that step is not timed.

    Returns:
        The measurements with their raw samples: the session of the first device, which holds those of the others and
        what was compiled for devices on which nothing is timed.

    Raises:
        InputError: If an option is wrong, a file is refused, or no device takes any file.
        MachineError: If a child process crashes.
    """
    options = options or BenchmarkOptions()
    options.check([v.name for v in variants])
    chosen = choose_texts(texts)
    chosen = [chosen[i] for i in generator(options.seed, "benchmark texts").permutation(len(chosen))]
    names = [parse_measuring_device(name) for name in dict.fromkeys(options.devices)]
    taken, left_out = dict[str, list[Variant]](), list[Problem]()
    for name in names:
        refusals = {v.name: device(str(name)).refusal(v.format, v.runtime) for v in variants}
        taken[str(name)] = [v for v in variants if not refusals[v.name]]
        left_out += [
            Problem(f"{name} {', '.join(n for n, w in refusals.items() if w == why)}", f"left out: {why}.")
            for why in dict.fromkeys(filter(None, refusals.values()))
        ]
    used = [name for name in names if taken[str(name)]]
    if not used:
        raise InputError(left_out)
    for problem in [*left_out, *check_sustained(used, taken, options)]:
        say(f"  {problem.where}: {problem.what}")
    sessions = list[BenchmarkResult]()
    with _reached(used, taken) as (connections, services, targets):
        end, count = time.monotonic() + options.budget_s, len(used)
        for number, name in enumerate(name for name in used if str(name) in connections):
            budget_s = (end - time.monotonic()) / (count - number)
            session = _Session(name, connections[str(name)], taken[str(name)], chosen, options, budget_s)
            sessions.append(session.run(post_processing or {}))
        sessions += [service.measure(taken[name], options) for name, service in services.items()]
        # last, so that compilers disturb no timing
        compilations = compile_for(targets, texts, options, end - time.monotonic(), labelled)
    first = sessions[0] if sessions else results.nothing_timed(targets, options)
    return first.model_copy(update={"others": sessions[1:], "compilations": compilations})


@contextlib.contextmanager
def _reached(
    names: Sequence[DeviceName], taken: Mapping[str, Sequence[Variant]]
) -> Iterator[tuple[dict[str, Connection], dict[str, Service], list[Target]]]:
    """Reach all devices and compilers, and bring them engines, before anything is measured; wrong ones are told together."""
    with contextlib.ExitStack() as held:
        connections, services, targets = dict[str, Connection](), dict[str, Service](), list[Target]()
        errors = dict[str, PocketBertError]()
        for name in names:
            try:
                if device(str(name)).compiler is not None:
                    targets.append(Target(name, compiler_of(str(name)), taken[str(name)]))
                    continue
                if device(str(name)).service is not None:
                    services[str(name)] = service_of(str(name))
                    continue
                connection = connect(str(name))
                held.callback(connection.close)
                if isinstance(connection, Bringing):
                    connection.bring([variant.file for variant in taken[str(name)]])
                connections[str(name)] = connection
            except PocketBertError as error:
                errors[str(name)] = error
        if len(errors) == 1:
            raise next(iter(errors.values()))
        if errors:
            raise InputError([p for name, error in errors.items() for p in _problems_of(name, error)])
        yield connections, services, targets


def _problems_of(name: str, error: PocketBertError) -> Sequence[Problem]:
    """What is wrong with one of several devices, whatever the kind of its error."""
    return error.problems if isinstance(error, InputError) else [Problem(name, str(error))]


@dataclass
class _Session:
    """What is measured on one device.

    Attributes:
        name: The device.
        connection: The device, reached.
        variants: What is measured there.
        texts: Real texts, in the order they are used.
        options: What was asked for.
        budget_s: Seconds for this device.
        takes: The only lengths that each variant takes.
        lengths: Tokens, or ``"text"``, in the order they are measured.
        notes: What the reader should know.
        made: Timed inferences of every repeat.
        cooling: Waits until the device is cool.
    """

    name: DeviceName
    connection: Connection
    variants: Sequence[Variant]
    texts: Sequence[Text]
    options: BenchmarkOptions
    budget_s: float
    takes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    lengths: list[Length] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    made: list[int] = field(default_factory=list)
    cooling: Cooling = field(init=False)

    def __post_init__(self) -> None:
        told = self.connection.heat if isinstance(self.connection, Thermal) and self._timed else None
        self.cooling = Cooling(told, self.budget_s)

    def run(self, post_processing: Mapping[Path, PostProcessing]) -> BenchmarkResult:
        """Measure everything on this device."""
        began, options = time.monotonic(), self.options
        self.takes = {v.name: self.connection.lengths(v.file) for v in self.variants}
        self.lengths = self._fit()
        tokenizers = {v.name: TextTokenizer(v.tokenizer, self._longest(v)) for v in self.variants}
        inputs = {
            (v.name, x): feeds(tokenizers[v.name], self.texts, x, self.takes[v.name])
            for v in self.variants
            for x in self.lengths
        }
        label = options.label and (options.label if len(options.devices) == 1 else f"{options.label} on {self.name}")
        with Meter(label, self._work) as meter:

            def tick(note: str) -> None:
                if label:
                    meter.advance(note=note)

            cold = self._cold_starts(inputs, tick)
            texts = self.texts if Figure.TOKENIZER in self.name.info.figures else ()  # timed in this process
            times = tokenizer_times(self.variants, tokenizers, texts, options.repeats) if texts else []
            known = post_processing if texts else {}
            answers = post_processing_times(self.variants, tokenizers, texts, known, self.notes)
            measurements, comparisons = self._blocks(inputs, cold, began, tick)
            sustained = self._sustained(inputs, self.lengths[0], tick)
            first = self.threads[0]
            profiles = results.profiles(self.variants, {n: c for (n, t), c in cold.items() if t == first}, first)
            profiles += self._late_profiles(inputs, tick)
        if options.profile and Figure.OPERATORS in self.name.info.figures:
            self.notes += results.missing_profiles(self.variants, profiles)
        return BenchmarkResult(
            machine=self.connection.machine(),
            versions=self.connection.versions(),
            protocol=results.protocol(self, self.lengths, measurements, time.monotonic() - began),
            variants=list(self.variants),
            measurements=measurements,
            comparisons=comparisons,
            tokenizers=times,
            post_processing=answers,
            profiles=profiles,
            answers=self._answers(inputs),
            sustained=sustained,
        )

    @property
    def _work(self) -> int:
        """Steps of the progress bar."""
        files, counts = len(self.variants), len(self.threads)
        warmups = 0 if self.fresh else len(self.lengths)
        steps = len(self.lengths) + len(self.idle)
        minutes = len(lasting(self.name, self.variants)) * bool(self.options.sustained_min)
        last = minutes + files * self._profiles_last
        return last + counts * (files * (1 + warmups) + self.options.repeats * steps)

    def _blocks(
        self,
        inputs: dict[tuple[str, Length], list[Feed]],
        cold: Mapping[tuple[str, int], ColdRun | None],
        began: float,
        tick: Tick,
    ) -> tuple[list[Measurement], list[Comparison]]:
        """Everything that is timed in turns, one number of threads after the other."""
        measurements, comparisons = list[Measurement](), list[Comparison]()
        for number, count in enumerate(self.threads):
            self.cooling.wait(f"the measurement with {wording.threads(count)}", self._tell)
            now = time.monotonic()
            left_s = began + self.budget_s + self.cooling.waited_s - now
            cells, load = self._block(inputs, count, now + left_s / (len(self.threads) - number), tick)
            measured = results.Measured(self.name, self.connection.machine(), count, load, self.fresh)
            measurements += [measured.measurement(c, cold[c.variant.name, count]) for c in cells]
            self.made += [len(repeat) for c in cells for repeat in c.repeats if not c.gap_ms]
            comparisons += measured.comparisons(cells, self.baseline)
        return measurements, comparisons

    def _tell(self, words: str) -> None:
        if self.options.label:
            say(f"  {self.name}: {words}")

    @property
    def baseline(self) -> str:
        """The variant that the others are compared with."""
        names = [v.name for v in self.variants]
        return self.options.baseline if self.options.baseline in names else names[0]

    @property
    def threads(self) -> list[int]:
        """The numbers of threads that the device can measure; its largest where it can measure none of those asked for."""
        most = self.name.info.most_threads
        asked = list(dict.fromkeys(self.options.threads))
        return [count for count in asked if not most or count <= most] or [most]

    @property
    def _timed(self) -> bool:
        """Whether the times of this device are latencies."""
        return Figure.LATENCY in self.name.info.figures

    @property
    def _gaps(self) -> Sequence[float]:
        """Idle times before single inferences; none on a device that cannot time those of any file."""
        can = len(without_idle(self.name, self.variants)) < len(self.variants)
        return list(dict.fromkeys(self.options.gaps_ms)) if can else ()

    @property
    def idle(self) -> list[tuple[Length, float]]:
        """Lengths and idle times of single inferences: at the first length all idle times, then length by length."""
        first, *others = self.lengths
        return [(first, gap) for gap in self._gaps] + [(x, gap) for gap in self._gaps for x in others]

    def _fit(self) -> list[Length]:
        self.notes += limit_notes(self.name, self.variants, self.options)
        left_out = [str(count) for count in dict.fromkeys(self.options.threads) if count not in self.threads]
        if left_out:
            most = self.name.info.most_threads
            self.notes.append(f"Threads {', '.join(left_out)} left out: {self.name} measures with {most} at most.")
        most = min(self._longest(v) for v in self.variants)
        clipped = [str(x) for x in self.options.lengths if x != TEXT and x > most]
        if clipped:
            self.notes.append(f"Length {', '.join(clipped)} clipped to {most}, the most the variants take.")
        return list(dict.fromkeys(TEXT if x == TEXT else min(x, most) for x in self.options.lengths))

    def _longest(self, variant: Variant) -> int:
        return min(variant.max_length, max(self.takes[variant.name], default=variant.max_length))

    def _cold_starts(
        self, inputs: dict[tuple[str, Length], list[Feed]], tick: Tick
    ) -> dict[tuple[str, int], ColdRun | None]:
        """Every variant at every thread count, on the longest input: peak memory is asked for the worst case."""
        out = {}
        for variant in self.variants:
            ids = [int(i) for i in _longest_feed(inputs, variant, self.lengths)["input_ids"][0]]
            for count in self.threads:
                self.cooling.wait(f"the start of {variant.name}", self._tell)
                wanted = PROFILE_RUNS if self.options.profile and count == self.threads[0] else 0
                out[variant.name, count] = self.connection.cold_start(variant.file, ids, count, wanted)
                tick(f"{variant.name}: load and memory")
        return out

    def _sustained(self, inputs: dict[tuple[str, Length], list[Feed]], length: Length, tick: Tick) -> list[Sustained]:
        """Every variant for minutes, one after the other and opened only then: another one's threads would take its cores."""
        minutes, count = self.options.sustained_min, self.threads[0]
        if not minutes or not self._timed:
            return []
        out = []
        for v in lasting(self.name, self.variants):
            tick(f"{v.name}: {minutes:g} min without a pause")
            cell = Cell(v, self.connection.open(v.file, count), length, inputs[v.name, length])
            cool = partial(self.cooling.wait, f"{v.name} without a pause", self._tell)
            out.append(sustain(self.connection, cell, minutes, str(self.name), count, cool))
        return out

    @property
    def _profiles_last(self) -> bool:
        """Whether this device profiles after all is timed."""
        return self.options.profile and isinstance(self.connection, Profiling)

    def _late_profiles(self, inputs: dict[tuple[str, Length], list[Feed]], tick: Tick) -> list[Profile]:
        """Profiles from separate runs: of the longest input, as those of a cold start are."""
        if not self._profiles_last or not isinstance(self.connection, Profiling):
            return []
        out, count = [], self.threads[0]
        for v in self.variants:
            tick(f"{v.name}: time per operator")
            feed = _longest_feed(inputs, v, self.lengths)
            found = self.connection.profile(v.file, feed, count, PROFILE_RUNS)
            out.append(found.profile(v.name, count, feed["input_ids"].shape[1]))
        return out

    def _answers(self, inputs: dict[tuple[str, Length], list[Feed]]) -> list[AnswerCheck]:
        """Compare the device's answers with those of this machine, where that is a figure of the device."""
        if Figure.ANSWERS not in self.name.info.figures or not isinstance(self.connection, Answering):
            return []
        provenance = self.name.info.figures[Figure.ANSWERS]
        out = []
        for v in self.variants:
            given = [feed for (name, _), all in inputs.items() if name == v.name for feed in all[:ANSWERED]]
            out.append(compare_answers(v, given, self.connection.answers(v.file, given), provenance))
        return out

    def _block(
        self, inputs: dict[tuple[str, Length], list[Feed]], threads: int, deadline: float, tick: Tick
    ) -> tuple[list[Cell], Load]:
        """Everything at one thread count; all files are open at once, and only here."""
        options = self.options
        block = Block(
            variants=self.variants,
            threads=threads,
            lengths=self.lengths,
            idle=self.idle,
            sure=len(self._gaps),
            runs=options.runs,
            repeats=options.repeats,
            least_s=options.least_s / options.repeats if self._timed else 0.0,
            timed=self._timed,
            seed=(options.seed, "benchmark order", self.threads.index(threads)),
            without_idle=without_idle(self.name, self.variants),
        )
        watch = self.connection.watch()
        if not self.fresh:
            cells = block.run(self.connection, inputs, deadline, tick)
        elif isinstance(self.connection, Restarting):
            cells = run_fresh(block, inputs, deadline, tick, remote_repeats(self.connection, inputs))
        else:
            with local_repeats(inputs) as make:
                cells = run_fresh(block, inputs, deadline, tick, make)
        return cells, watch.stop()

    @property
    def fresh(self) -> bool:
        """Whether every repeat is made in a new process: asked for, and possible on this device."""
        here = str(self.name) == LOCAL and can_start_python()
        return self.options.fresh and self._timed and (here or isinstance(self.connection, Restarting))


def _longest_feed(inputs: Mapping[tuple[str, Length], list[Feed]], variant: Variant, lengths: Sequence[Length]) -> Feed:
    """The longest input of a variant: what is asked of one input is asked of the worst case."""
    return max((feed for x in lengths for feed in inputs[variant.name, x]), key=lambda feed: feed["input_ids"].shape[1])
