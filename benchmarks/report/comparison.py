"""Two stored benchmarks of the same machines on one page: what became faster or slower, and by how much for certain."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import FILE_NAME, BenchmarkResult, Measurement
from pocketbert.benchmarks.records import TEXT, Compilation, Length
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.compiled import compiled_row
from pocketbert.benchmarks.report.figures import measurement_stamp
from pocketbert.benchmarks.report.page import open_template
from pocketbert.benchmarks.report.plots import Figure, plotted
from pocketbert.benchmarks.statistics import CONFIDENCE, REPEATS_LEAST, Interval, Statistics, student_t
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Provenance

# --- regression ---
# Compare a benchmark with an earlier one of the same machine, and say which files became slower.


Key = tuple[str, str, int, Length, float]
"""Name of the file, device with its unit, threads, length."""


@dataclass(frozen=True)
class Slowdown:
    """One figure against the same one of an earlier benchmark.

    Attributes:
        key: What was measured.
        ratio: New / old typical time, or instructions on an emulator: above 1 it became slower.
        interval: Where that ratio lies.
        same_file: Whether both measured the same bytes.
    """

    key: Key
    ratio: float
    interval: Interval
    same_file: bool

    def exceeds(self, most: float) -> bool:
        """Whether the whole interval is beyond the slowdown that is allowed, a fraction."""
        return self.interval.low > 1 + most

    @property
    def words(self) -> str:
        """For a line of the terminal."""
        variant, place, threads, length, gap_ms = self.key
        file = "the same file" if self.same_file else "another file"
        return (
            f"{variant}, {place}, {wording.threads(threads)}, {wording.pace(length, gap_ms)}: {self.ratio:.3f} of the baseline "
            f"[{self.interval.low:.3f}, {self.interval.high:.3f}], {file}"
        )


def check_repeats(earlier: BenchmarkResult, repeats: int, where: str) -> None:
    """Refuse a comparison that can have no interval, before anything is measured.

    Args:
        earlier: The baseline.
        repeats: Repeats that will be measured.
        where: The file of the baseline, for errors.

    Raises:
        InputError: If the baseline, or the new benchmark, has too few repeats.
    """
    problems = []
    if repeats < REPEATS_LEAST:
        problems.append(Problem("--repeats", f"{repeats}; an interval needs {REPEATS_LEAST} with --baseline."))
    problems += _too_few([m for session in earlier.sessions for m in session.measurements], where)
    if problems:
        raise InputError(problems)


@dataclass(frozen=True)
class Pair:
    """One figure in two benchmarks.

    Attributes:
        now: In the later one.
        earlier: In the earlier one.
    """

    now: Measurement
    earlier: Measurement

    @property
    def key(self) -> Key:
        """What was measured."""
        return key_of(self.now)

    @property
    def repeated(self) -> bool:
        """Whether both have the repeats that an interval needs; counts of instructions always have."""
        return all(m.wall is None or len(m.wall_ms) >= REPEATS_LEAST for m in (self.now, self.earlier))

    @property
    def slowdown(self) -> Slowdown:
        """The ratio of the two; only where `repeated`."""
        return Slowdown(self.key, *_ratio(self.now, self.earlier), same_file=self.now.sha256 == self.earlier.sha256)


def compare(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> list[Slowdown]:
    """Compare all figures that both have: same name of the file, device, threads, length and idle time.

    The interval is that of the ratio of two typical times (Welch's t interval over the logarithms of the repeats'
    medians). It holds what varies within the two sessions. What differs between two hours on a machine is not in it,
    so the allowed slowdown should not be much smaller than 0.05.

    Args:
        now: What was measured.
        earlier: The baseline.
        where: Its file, for errors.

    Raises:
        InputError: If they have no figure in common, are of different machines, or one has too few repeats.
    """
    pairs, problems = _matched(now, earlier, where)
    problems += _too_few([m for pair in pairs for m in (pair.now, pair.earlier)], where)
    if problems:
        raise InputError(problems)
    return [pair.slowdown for pair in pairs]


def matched(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> list[Pair]:
    """All figures that two benchmarks of the same machines have in common, few repeats included; see `compare`.

    Args:
        now: The later benchmark.
        earlier: The earlier one.
        where: Its file, for errors.

    Raises:
        InputError: If they have no figure in common, or are of different machines.
    """
    pairs, problems = _matched(now, earlier, where)
    if problems:
        raise InputError(problems)
    return pairs


def _matched(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> tuple[list[Pair], list[Problem]]:
    old = {key_of(m): m for session in earlier.sessions for m in session.measurements}
    pairs = [Pair(m, old[key_of(m)]) for session in now.sessions for m in session.measurements if key_of(m) in old]
    problems = []
    if not pairs:
        names = ", ".join(sorted({m.variant for m in old.values()}))
        problems.append(
            Problem(
                where,
                f"has no figure in common with this benchmark; it has {names}.",
                "Use the same files and options.",
            )
        )
    for pair in {pair.now.place: pair for pair in pairs}.values():
        new, before = (m.machine.model_copy(update={"system": "", "python": ""}) for m in (pair.now, pair.earlier))
        if new != before:
            problems.append(
                Problem(
                    where,
                    f"is of another machine than {pair.now.place}: {before.summary}.",
                    "Measure the baseline here.",
                )
            )
    return [pair for pair in pairs if (pair.now.wall is None) == (pair.earlier.wall is None)], problems


def _too_few(measurements: Sequence[Measurement], where: str) -> list[Problem]:
    """Tell of the first one that has too few repeats for an interval."""
    few = [m for m in measurements if m.wall is not None and len(m.wall_ms) < REPEATS_LEAST]
    return [
        Problem(
            where,
            f"{m.variant} has {len(m.wall_ms)} repeats; an interval needs {REPEATS_LEAST}.",
            f"Measure both with --repeats {REPEATS_LEAST} or more.",
        )
        for m in few[:1]
    ]


def key_of(m: Measurement) -> Key:
    """What a figure is of, in any benchmark."""
    return (m.variant, m.place, m.threads, m.length, m.gap_ms)


def _ratio(new: Measurement, old: Measurement) -> tuple[float, Interval]:
    """Ratio of typical times, or of counts where there are no times, with its interval."""
    if new.wall is not None:
        sides = [_of_times(new.wall_ms), _of_times(old.wall_ms)]
    else:
        assert new.guest_instructions is not None
        assert old.guest_instructions is not None
        sides = [_of_counts(new.guest_instructions), _of_counts(old.guest_instructions)]
    (centre, error, n), (old_centre, old_error, old_n) = sides
    both = error + old_error
    freedom = both**2 / (error**2 / (n - 1) + old_error**2 / (old_n - 1)) if both > 0 else 1.0
    half = student_t(max(1, math.floor(freedom))) * math.sqrt(both)
    middle = centre - old_centre
    interval = Interval(low=math.exp(middle - half), high=math.exp(middle + half), confidence=CONFIDENCE)
    return math.exp(middle), interval


def _of_times(repeats: Sequence[Sequence[float]]) -> tuple[float, float, int]:
    """Mean of the logarithms of the repeats' medians, its squared standard error, and their number."""
    logs = np.log([float(np.median(repeat)) for repeat in repeats])
    return float(logs.mean()), float(logs.var(ddof=1)) / len(logs), len(logs)


def _of_counts(counts: Statistics) -> tuple[float, float, int]:
    """The same for instructions, which differ little: the relative error of their mean."""
    return math.log(counts.mean), (counts.stdev / counts.mean) ** 2 / counts.n, max(2, counts.n)


TEMPLATE = "comparison.html.j2"
UNDECIDED, UNREPEATED = "no clear difference", "too few repeats for an interval"
_RESULT_FIX = "Give the JSON file of: pocketbert benchmark -m FOLDER -o FILE.json, or a folder that records one."


@dataclass(frozen=True)
class Stored:
    """A stored benchmark.

    Attributes:
        name: What the page calls it: the part of its path that tells the two apart.
        path: Where it is.
        result: What it holds.
    """

    name: str
    path: Path
    result: BenchmarkResult


@dataclass(frozen=True)
class ChangeRow:
    """One figure in two benchmarks, in words.

    Attributes:
        pair: The two measurements.
        earlier: Median time, or instructions, of the earlier one.
        later: The same of the later one.
        ratio: Later / earlier with its interval; a dash where there is none.
        change: What that means.
        better: Whether it became better; None where the interval contains 1, or there is none.
        file: What became of the file, where it is not the same one.
    """

    pair: Pair
    earlier: str
    later: str
    ratio: str
    change: str
    better: bool | None
    file: str


@dataclass(frozen=True)
class DeviceChanges:
    """What changed on one device.

    Attributes:
        device: The device, with the unit that computed.
        provenance: How its figures came about.
        timed: Whether they are times.
        stamps: Where the figures come from, the earlier ones first.
        figures: Plots.
        condition: Threads, length and idle time of the figures that are plotted, in words.
        rows: These figures.
        others: Every other figure that both have.
        starts: Load time, first inference and memory of each file and number of threads.
    """

    device: str
    provenance: Provenance
    timed: bool
    stamps: Sequence[str]
    figures: Sequence[Figure]
    condition: str
    rows: Sequence[ChangeRow]
    others: Sequence[ChangeRow]
    starts: Sequence[Pair]


@dataclass(frozen=True)
class CompiledPair:
    """A file that was compiled for the same device and length in both, in words.

    Attributes:
        later: The later compilation.
        cells: Nodes on the NPU, compiled size and estimated time, each of both.
    """

    later: Compilation
    cells: Sequence[str]


def read_pair(later: Path, earlier: Path) -> tuple[Stored, Stored]:
    """Read two stored benchmarks.

    Args:
        later: JSON file of `pocketbert benchmark -o`, or a folder with ``benchmark.json``.
        earlier: Likewise.

    Raises:
        InputError: If one of them is no benchmark, or both are the same file.
    """
    files = [_file(path) for path in (earlier, later)]
    if files[0].resolve() == files[1].resolve():
        raise InputError(Problem("--baseline", f"{earlier} is the same file as -m.", "Give an earlier result."))
    names = wording.short_names([earlier, later])
    before, after = (
        Stored(names[path], file, BenchmarkResult.read(file))
        for path, file in zip((earlier, later), files, strict=True)
    )
    return before, after


def write_comparison(later: Path, earlier: Path, output: Path) -> None:
    """Write the page of two stored benchmarks.

    Args:
        later: As of `read_pair`.
        earlier: As of `read_pair`.
        output: The HTML file.

    Raises:
        InputError: If they have no figure in common, or are of different machines.
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    page = render_comparison(*read_pair(later, earlier))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, page)


def render_comparison(before: Stored, after: Stored) -> str:
    """The page as HTML text; see `write_comparison`."""
    both_ran = bool(before.result.sessions and after.result.sessions)
    pairs = matched(after.result, before.result, str(before.path)) if both_ran else []
    compiled = _compiled(before.result, after.result)
    if not pairs and not compiled:
        what = "has no figure in common with the later result."
        raise InputError(Problem(str(before.path), what, "Use the same files and options."))
    names = [pair.now.variant for pair in pairs] + [one.later.variant for one in compiled]
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    devices = _devices(pairs, numbers)
    return open_template(TEMPLATE).render(
        before=before,
        after=after,
        devices=devices,
        compiled=compiled,
        tiles=_tiles(devices),
        versions=_versions(before.result, after.result),
        unpaired=[(one.name, _unpaired(one.result, pairs, compiled)) for one in (before, after)],
        colors=numbers,
        w=wording,
    )


def _file(path: Path) -> Path:
    found = path / FILE_NAME if path.is_dir() else path
    if not found.is_file():
        what = f"there is no {FILE_NAME} in this folder." if path.is_dir() else "file not found."
        raise InputError(Problem(str(path), what, _RESULT_FIX))
    return found


def _devices(pairs: Sequence[Pair], numbers: dict[str, int]) -> list[DeviceChanges]:
    groups: dict[str, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(pair.now.place, []).append(pair)
    return [_of_device(device, group, numbers) for device, group in groups.items()]


def _of_device(device: str, pairs: Sequence[Pair], numbers: dict[str, int]) -> DeviceChanges:
    shown = _headline(pairs)
    starts = {(p.now.variant, p.now.threads): p for p in reversed(pairs) if p.now.cold and p.earlier.cold}
    return DeviceChanges(
        device=device,
        provenance=pairs[0].now.provenance,
        timed=pairs[0].now.wall is not None,
        stamps=[measurement_stamp(*(p.earlier for p in shown)), measurement_stamp(*(p.now for p in shown))],
        figures=_figures(device, shown, numbers),
        condition=_condition(shown[0].now),
        rows=[_row(pair) for pair in shown],
        others=[_row(pair) for pair in pairs if pair not in shown],
        starts=list(reversed(starts.values())),
    )


def _headline(pairs: Sequence[Pair]) -> list[Pair]:
    """The figures of one condition, which are plotted: fewest threads, real text, one inference after the other."""

    def condition(pair: Pair) -> tuple[int, bool, int, float]:
        m = pair.now
        return m.threads, m.length != TEXT, 0 if m.length == TEXT else int(m.length), m.gap_ms

    first = min(map(condition, pairs))
    return [pair for pair in pairs if condition(pair) == first]


def _figures(device: str, pairs: Sequence[Pair], numbers: dict[str, int]) -> list[Figure]:
    m = pairs[0].now
    told = _condition(m)
    what = "time" if m.wall is not None else f"guest instructions ({m.provenance})"
    repeated = [pair for pair in pairs if pair.repeated]
    out = []
    if repeated:
        found = [(pair, pair.slowdown) for pair in repeated]
        rows = [
            plots.Change(p.now.variant, s.ratio, s.interval.low, s.interval.high, numbers[p.now.variant])
            for p, s in found
        ]
        caption = f"{what.capitalize()} of the later result over that of the earlier one with its 95 % interval ({told}): below 1 is better."
        svg = plots.changes(rows, f"{what}, later / earlier", f"Change of {what} on {device}")
        out.append(plotted(svg, caption, measurement_stamp(*(p.now for p in repeated))))
    if m.wall is not None:
        samples = [
            plots.Spread(numbers[p.now.variant], *([x for r in one.wall_ms for x in r] for one in (p.earlier, p.now)))
            for p in pairs
        ]
        svg = plots.spreads(samples, f"latency in ms, log scale ({told})", f"Distributions on {device}")
        caption = f"Share of inferences that finish within a given time ({told}); dashed and pale: the earlier result."
        legend = [(p.now.variant, numbers[p.now.variant]) for p in pairs]
        out.append(plotted(svg, caption, measurement_stamp(*(p.now for p in pairs)), legend))
    return out


def _condition(m: Measurement) -> str:
    return f"{wording.threads(m.threads)}, {wording.pace(m.length, m.gap_ms)}, batch 1"


def _row(pair: Pair) -> ChangeRow:
    found = pair.slowdown if pair.repeated else None
    words, better = UNREPEATED, None
    if found is not None and found.interval.low <= 1 <= found.interval.high:
        words = UNDECIDED
    elif found is not None:
        better = found.ratio < 1
        words = wording.change(found.ratio, *(("faster", "slower") if pair.now.wall is not None else ("fewer", "more")))
    return ChangeRow(
        pair=pair,
        earlier=_figure(pair.earlier),
        later=_figure(pair.now),
        ratio=f"{found.ratio:.3f} [{found.interval.low:.3f}, {found.interval.high:.3f}]" if found else wording.NONE,
        change=words,
        better=better,
        file="" if pair.now.sha256 == pair.earlier.sha256 else _sizes(pair.earlier.bytes, pair.now.bytes),
    )


def _figure(m: Measurement) -> str:
    if m.wall is not None:
        return wording.milliseconds(m.wall.p50)
    return wording.count(round(m.guest_instructions.p50)) if m.guest_instructions else wording.NONE


def _sizes(earlier: int, later: int) -> str:
    return f"another file, {wording.size(earlier)} → {wording.size(later)}"


def _compiled(before: BenchmarkResult, after: BenchmarkResult) -> list[CompiledPair]:
    old = {(c.variant, c.device, c.length): c for c in before.compilations}
    both = [(old[key], c) for c in after.compilations if (key := (c.variant, c.device, c.length)) in old]
    return [CompiledPair(later, [_arrow(*cells) for cells in _compiled_cells(one, later)]) for one, later in both]


def _compiled_cells(*both: Compilation) -> list[tuple[str, str]]:
    rows = [
        (
            compiled_row(one).on_npu if not one.failed else "not compiled",
            compiled_row(one).size,
            wording.milliseconds(one.estimate.time_ms) if one.estimate else wording.NONE,
        )
        for one in both
    ]
    return list(zip(*rows, strict=True))


def _arrow(earlier: str, later: str) -> str:
    return later if earlier == later else f"{earlier} → {later}"


def _tiles(devices: Sequence[DeviceChanges]) -> list[tuple[str, str]]:
    """How many figures changed, and in which direction."""
    rows = [row for device in devices for row in (*device.rows, *device.others)]
    better, worse = (sum(row.better is value for row in rows) for value in (True, False))
    told = [(better, "faster, or with fewer instructions"), (worse, "slower, or with more instructions")]
    told.append((len(rows) - better - worse, "without a clear difference"))
    return [(str(n), f"of {len(rows)} figures {words}") for n, words in told] if rows else []


def _versions(before: BenchmarkResult, after: BenchmarkResult) -> list[tuple[str, str]]:
    """Libraries whose versions differ, of all sessions."""
    old, new = ({k: v for s in (one, *one.others) for k, v in s.versions.items()} for one in (before, after))
    return [
        (name, _arrow(old.get(name, "none"), new.get(name, "none")))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _unpaired(result: BenchmarkResult, pairs: Sequence[Pair], compiled: Sequence[CompiledPair]) -> list[str]:
    """What one result has and the other one lacks: file, device and how many figures."""
    paired = {pair.key for pair in pairs}
    out: dict[tuple[str, str], int] = {}
    for session in result.sessions:
        for m in session.measurements:
            if key_of(m) not in paired:
                out[m.variant, m.place] = out.get((m.variant, m.place), 0) + 1
    both = {(one.later.variant, one.later.device, one.later.length) for one in compiled}
    for c in result.compilations:
        if (c.variant, c.device, c.length) not in both:
            out[c.variant, c.device] = out.get((c.variant, c.device), 0) + 1
    return [f"{name} on {place}: {n} figure{'s' * (n > 1)}" for (name, place), n in out.items()]
