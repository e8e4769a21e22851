"""The latency protocol on this machine's CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.inputs import Feed, choose_texts, feeds
from pocketbert.benchmarks.load import Load, LoadWatch
from pocketbert.benchmarks.measurement import (
    TEXT,
    BenchmarkResult,
    Comparison,
    Length,
    Measurement,
    Profile,
    Protocol,
    TokenizerTime,
    Variant,
)
from pocketbert.benchmarks.probe import Probe, probe
from pocketbert.benchmarks.statistics import Statistics, paired_ratio, repeat_interval
from pocketbert.benchmarks.timing import BURST, STABLE, WARMUP_LEAST, WARMUP_MOST, Cell, interleave
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.hardware import available_cores, machine
from pocketbert.core.host.progress import Meter
from pocketbert.core.host.versions import installed
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import Provenance

PROFILE_RUNS = 10
WARMUP_SHARE = 0.25
"""Most of the time that warm-up may take."""
BUSY = 0.10
"""From this share of foreign CPU time on, the result carries a note."""
_LIBRARIES = ("pocketbert", "onnxruntime", "ai-edge-litert", "numpy", "tokenizers", "psutil")

Probes = dict[tuple[str, int], Probe]


def benchmark(
    variants: Sequence[Variant],
    texts: Sequence[Text],
    threads: Sequence[int] = (1,),
    lengths: Sequence[Length] = (TEXT,),
    runs: int = 50,
    repeats: int = 5,
    label: str = "benchmark",
    *,
    baseline: str | None = None,
    budget_s: float = 60.0,
    seed: int = 0,
    profile: bool = True,
) -> BenchmarkResult:
    """Measure variants side by side: batch 1, unpadded, on the local CPU.

    First one child process after the other finds load time, first inference, peak memory and the time per
    operator. Then, per thread count, all variants are opened and warmed up, and every repeat visits all
    lengths; at each length the variants take turns in short bursts. A disturbance thus hits all of them,
    and comparisons are made within a round.

    Args:
        variants: What to measure; names must differ.
        texts: Real texts (or pairs); 100 of them at most are used.
        threads: Thread counts.
        lengths: Tokens, or ``"text"`` for the real texts at their own length. Lengths beyond the smallest
            `max_length` are clipped to it, and `protocol.notes` says so.
        runs: Timed inferences per variant, thread count, length and repeat.
        repeats: Passes over everything.
        label: What the progress bar says; empty for none.
        baseline: Name of the variant to compare with; default the first.
        budget_s: Seconds that everything may take. When `runs` do not fit, fewer are made (never fewer
            than one burst of 5, so that a tiny budget is overrun), and the result says how many.
        seed: Decides the order of turns and texts.
        profile: Whether to profile per operator (at the first thread count).

    Returns:
        The measurements with their raw samples.

    Raises:
        InputError: If an argument is wrong or a file is refused.
        MachineError: If a child process crashes.
    """
    began = time.monotonic()
    _check(variants, threads, lengths, runs, repeats, budget_s, baseline)
    notes: list[str] = []
    # only such a file is opened to ask it: a large ONNX file is optimized for seconds
    takes = {v.name: v.file.open(1).lengths if FORMATS[v.format].fixed_lengths else () for v in variants}
    fitted = _fit(lengths, min(_longest(v, takes[v.name]) for v in variants), notes)
    chosen = choose_texts(texts)
    chosen = [chosen[i] for i in generator(seed, "benchmark texts").permutation(len(chosen))]
    counts = list(dict.fromkeys(threads))
    tokenizers = {v.name: TextTokenizer(v.tokenizer, _longest(v, takes[v.name])) for v in variants}
    inputs = {(v.name, x): feeds(tokenizers[v.name], chosen, x, takes[v.name]) for v in variants for x in fitted}

    work = len(counts) * (len(variants) + len(variants) * len(fitted) + repeats * len(fitted))
    with Meter(label, work) as meter:

        def tick(note: str) -> None:
            if label:
                meter.advance(note=note)

        probes: Probes = {}
        for variant in variants:
            ids = _probe_ids([inputs[variant.name, x] for x in fitted])
            for count in counts:
                wanted = PROFILE_RUNS if profile and count == counts[0] else 0
                probes[variant.name, count] = probe(variant.file, ids, count, wanted)
                tick(f"{variant.name}: load and memory")
        times = _tokenizer_times(variants, tokenizers, chosen, repeats)
        measurements: list[Measurement] = []
        comparisons: list[Comparison] = []
        for number, count in enumerate(counts):
            now = time.monotonic()
            deadline = now + (began + budget_s - now) / (len(counts) - number)
            order = generator(seed, "benchmark order", number)
            cells, load = _block(variants, inputs, count, fitted, runs, repeats, deadline, order, tick)
            measurements += [_measurement(c, count, load, probes[c.variant.name, count]) for c in cells]
            comparisons += _comparisons(cells, count, baseline or variants[0].name)

    made = [len(repeat) for m in measurements for repeat in m.wall_ms]
    took = time.monotonic() - began
    notes += _notes(measurements, made, runs, budget_s)
    protocol = Protocol(
        description=_describe(),
        baseline=baseline or variants[0].name,
        threads=counts,
        lengths=fitted,
        texts=min(len(chosen), max(made)),
        runs_asked=runs,
        runs_made=(min(made), max(made)),
        repeats=repeats,
        burst=BURST,
        budget_s=budget_s,
        took_s=round(took, 2),
        shortened=min(made) < runs,
        notes=notes,
    )
    return BenchmarkResult(
        machine=machine(),
        versions=installed(_LIBRARIES),
        protocol=protocol,
        variants=list(variants),
        measurements=measurements,
        comparisons=comparisons,
        tokenizers=times,
        profiles=_profiles(variants, probes, counts[0]),
    )


def _check(
    variants: Sequence[Variant],
    threads: Sequence[int],
    lengths: Sequence[Length],
    runs: int,
    repeats: int,
    budget_s: float,
    baseline: str | None,
) -> None:
    names = [v.name for v in variants]
    bad = []
    if not variants:
        bad.append(Problem("variants", "none given.", "Name at least one model file."))
    if len(set(names)) < len(names):
        bad.append(Problem("variants", f"names must differ, got {', '.join(names)}."))
    if not threads or min(threads) < 1:
        bad.append(Problem("threads", f"{list(threads)}; allowed: one or more whole numbers from 1."))
    if not lengths or any(x != TEXT and (not isinstance(x, int) or x < 3) for x in lengths):
        bad.append(Problem("lengths", f"{list(lengths)}; allowed: whole numbers from 3, and 'text'."))
    for key, value in (("runs", runs), ("repeats", repeats), ("budget_s", budget_s)):
        if value <= 0:
            bad.append(Problem(key, f"{value}; allowed: above 0."))
    if baseline is not None and baseline not in names:
        bad.append(Problem("baseline", f"no variant '{baseline}'; {nearest(baseline, names)}."))
    if bad:
        raise InputError(bad)


def _fit(lengths: Sequence[Length], most: int, notes: list[str]) -> list[Length]:
    clipped = [str(x) for x in lengths if x != TEXT and x > most]
    if clipped:
        notes.append(f"Length {', '.join(clipped)} clipped to {most}, the most the variants take.")
    return list(dict.fromkeys(TEXT if x == TEXT else min(x, most) for x in lengths))


def _longest(variant: Variant, takes: Sequence[int]) -> int:
    return min(variant.max_length, max(takes, default=variant.max_length))


def _probe_ids(inputs: list[list[Feed]]) -> list[int]:
    """The longest input of all: peak memory is asked for the worst case."""
    rows = [feed["input_ids"][0] for group in inputs for feed in group]
    return [int(i) for i in max(rows, key=len)]


def _block(
    variants: Sequence[Variant],
    inputs: dict[tuple[str, Length], list[Feed]],
    threads: int,
    lengths: Sequence[Length],
    runs: int,
    repeats: int,
    deadline: float,
    order: np.random.Generator,
    tick: Callable[[str], None],
) -> tuple[list[Cell], Load]:
    """Everything at one thread count; all files are open at once, and only here."""
    opened = {v.name: v.file.open(threads) for v in variants}
    groups = [[Cell(v, opened[v.name], x, inputs[v.name, x]) for v in variants] for x in lengths]
    cells = [cell for group in groups for cell in group]
    allowance = WARMUP_SHARE * (deadline - time.monotonic()) / len(cells)
    for cell in cells:
        cell.warm_up(allowance)
        tick(f"{wording.threads(threads)}: warm-up")
    cost_s = sum(c.cost_ms for c in cells) / 1000 * (1 + 1 / BURST)
    watch = LoadWatch()
    for repeat in range(repeats):
        # Planned again each time and only ever downwards: the machine may have become slower meanwhile.
        left = (deadline - time.monotonic()) / (repeats - repeat)
        runs = min(runs, max(BURST, int(left / max(cost_s, 1e-9)) // BURST * BURST))
        for group in groups:
            interleave(group, runs, order)
            tick(f"{wording.threads(threads)}, {wording.length(group[0].length)}, {runs} runs")
    return cells, watch.stop()


def _measurement(cell: Cell, threads: int, load: Load, cold: Probe) -> Measurement:
    used = cell.feeds[: max(map(len, cell.wall_ms))]
    return Measurement(
        variant=cell.variant.name,
        sha256=cell.variant.sha256,
        bytes=cell.variant.bytes,
        engine=cell.predictor.engine,
        engine_version=cell.predictor.engine_version,
        provenance=Provenance.MEASURED,
        machine=machine(),
        threads=threads,
        length=cell.length,
        tokens_mean=float(np.mean([f["input_ids"].shape[1] for f in used])),
        load=load,
        wall=Statistics.of([x for repeat in cell.wall_ms for x in repeat]),
        wall_interval=repeat_interval([float(np.median(r)) for r in cell.wall_ms]),
        cpu=Statistics.of([x for repeat in cell.cpu_ms for x in repeat]),
        load_ms=cold.load_ms,
        first_ms=cold.first_ms,
        peak_memory_bytes=cold.peak_memory_bytes,
        peak_rss_bytes=cold.peak_rss_bytes,
        probe_length=cold.length,
        warmup_runs=cell.warmup_runs,
        warmup_stable=cell.warmup_stable,
        wall_ms=cell.wall_ms,
        cpu_ms=cell.cpu_ms,
    )


def _comparisons(cells: Sequence[Cell], threads: int, baseline: str) -> list[Comparison]:
    base = {c.length: c for c in cells if c.variant.name == baseline}
    return [
        Comparison(
            variant=c.variant.name,
            baseline=baseline,
            threads=threads,
            length=c.length,
            wall=paired_ratio(c.round_medians(), base[c.length].round_medians()),
            cpu=paired_ratio(c.round_medians(cpu=True), base[c.length].round_medians(cpu=True)),
            provenance=Provenance.MEASURED,
        )
        for c in cells
        if c.variant.name != baseline
    ]


def _tokenizer_times(
    variants: Sequence[Variant], tokenizers: dict[str, TextTokenizer], texts: Sequence[Text], repeats: int
) -> list[TokenizerTime]:
    users: dict[tuple[str, int], list[str]] = {}
    for v in variants:
        file = v.tokenizer / "tokenizer.json" if v.tokenizer.is_dir() else v.tokenizer
        users.setdefault((sha256_file(file), v.max_length), []).append(v.name)
    out = []
    for (digest, _), names in users.items():
        tokenizer = tokenizers[names[0]]
        rows = tokenizer.encode(list(texts))  # warm-up as well: the tokenizer caches words
        samples = []
        for _ in range(repeats):
            for text in texts:
                begin = time.perf_counter_ns()
                tokenizer.encode([text])
                samples.append((time.perf_counter_ns() - begin) / 1e6)
        out.append(
            TokenizerTime(
                variants=names,
                sha256=digest,
                texts=len(texts),
                tokens_mean=float(np.mean([len(r) for r in rows])),
                per_text=Statistics.of(samples),
                provenance=Provenance.MEASURED,
            )
        )
    return out


def _profiles(variants: Sequence[Variant], probes: Probes, threads: int) -> list[Profile]:
    out = []
    for v in variants:
        found = probes[v.name, threads]
        if found.ops is not None:
            out.append(
                Profile(
                    variant=v.name,
                    threads=threads,
                    length=found.length,
                    runs=found.ops.runs,
                    ops=found.ops.ops,
                    placement=found.ops.placement,
                    provenance=Provenance.MEASURED,
                )
            )
    return out


def _notes(measurements: Sequence[Measurement], made: Sequence[int], runs: int, budget_s: float) -> list[str]:
    out = []
    if min(made) < runs:
        out.append(f"{min(made)} to {max(made)} runs per repeat instead of {runs}: the budget was {budget_s:g} s.")
    restless = sum(not m.warmup_stable for m in measurements)
    if restless:
        out.append(
            f"{restless} of {len(measurements)} warm-ups did not settle within {STABLE * 100:.0f} %: other load, or a "
            "changing clock. Compare by the paired ratios rather than by single times."
        )
    busiest = max(m.load.others or 0.0 for m in measurements)
    if busiest > BUSY:
        out.append(
            f"Other processes took up to {busiest * 100:.0f} % of the CPU time meanwhile; times are longer than on a quiet machine."
        )
    many = sorted({m.threads for m in measurements if m.threads > available_cores()})
    if many:
        out.append(
            f"Threads {', '.join(map(str, many))}: more than the {available_cores()} cores this process may use."
        )
    return out


def _describe() -> str:
    return (
        "Batch 1; unpadded where a file takes any length, else padded to the smallest that it takes. Variants take turns in bursts "
        f"of {BURST} timed inferences, in a new order each round, "
        "after one untimed inference each; a repeat visits every length. Warm-up: every input shape once, then until "
        f"the medians of two windows agree within {STABLE * 100:.0f} %, {WARMUP_LEAST} to {WARMUP_MOST} runs. Wall time by the "
        "monotonic clock, CPU time of the whole process, garbage collector off. Percentiles are nearest-rank; intervals "
        "are 95 %: of times, t on logarithms of the repeats' medians; of ratios, order statistics of the rounds' ratios. "
        "Load time, first inference and peak memory come from one fresh process each, on the longest input, "
        "with the file in the page cache."
    )
