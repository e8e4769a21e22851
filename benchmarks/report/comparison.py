"""Compare two stored benchmarks of the same machines: what became faster or slower, and by how much for certain.

`compare_benchmarks` returns the ratio of each figure that both have, with its interval, for `--baseline` on the terminal; `check_repeats`
refuses a comparison without intervals before anything is measured. `write_comparison` writes the page: `_read_pair` reads both
files, `_match_figures` pairs their figures, and `_render_comparison` shows them device by device.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import FILE_NAME, BenchmarkResult, Measurement
from pocketbert.benchmarks.records import TEXT, Compilation, Length
from pocketbert.benchmarks.report import plots
from pocketbert.benchmarks.report.compiled import describe_compilation
from pocketbert.benchmarks.report.page import open_template
from pocketbert.benchmarks.report.plots import Figure, make_figure
from pocketbert.benchmarks.report.sources import Citation, Sources, cite_compilations, cite_measurements
from pocketbert.benchmarks.statistics import CONFIDENCE, REPEATS_LEAST, Interval, student_t
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.errors import InputError, Problem

_FigureKey = tuple[str, str, int, Length, float]
"""Name of the file, device with its unit, threads, length, idle time in ms."""


@dataclass(frozen=True)
class _Slowdown:
    """How much slower one measured figure became since an earlier benchmark.

    Attributes:
        key: What was measured: name of the file, device with its unit, threads, length, idle time in ms.
        ratio: New / old typical time, or instructions on an emulator: above 1 it became slower.
        interval: Where that ratio lies.
        same_file: Whether both measured the same bytes.
    """

    key: _FigureKey
    ratio: float
    interval: Interval
    same_file: bool

    def exceeds(self, most: float) -> bool:
        """Return whether the whole interval lies above the allowed slowdown `most` (0.05 for 5 %)."""
        return self.interval.low > 1 + most

    @property
    def words(self) -> str:
        """One line of text on the slowdown, for the terminal."""
        variant, place, threads, length, gap_ms = self.key
        file = "the same file" if self.same_file else "another file"
        return (
            f"{variant}, {place}, {wording.threads(threads)}, {wording.pace(length, gap_ms)}: {self.ratio:.3f} of the baseline "
            f"[{self.interval.low:.3f}, {self.interval.high:.3f}], {file}"
        )


@dataclass(frozen=True)
class _Pair:
    """The same figure (file, device, threads, length, idle time) in a later and an earlier benchmark.

    Attributes:
        now: In the later one.
        earlier: In the earlier one.
    """

    now: Measurement
    earlier: Measurement

    @property
    def repeated(self) -> bool:
        """Whether both have enough repeats for an interval; instruction counts always do."""
        return all(m.wall is None or len(m.wall_ms) >= REPEATS_LEAST for m in (self.now, self.earlier))

    @property
    def slowdown(self) -> _Slowdown:
        """The later figure over the earlier one, with its interval; only valid if `repeated`."""
        ratio, interval = _ratio_with_interval(self.now, self.earlier)
        return _Slowdown(_key_of(self.now), ratio, interval, same_file=self.now.sha256 == self.earlier.sha256)


def check_repeats(earlier: BenchmarkResult, repeats: int, where: str) -> None:
    """Raise InputError if a comparison would have too few repeats for an interval; called before anything is measured.

    Args:
        earlier: The earlier benchmark, with which the new one will be compared.
        repeats: Repeats that will be measured.
        where: File of the earlier benchmark, for errors.

    Raises:
        InputError: If the baseline, or the new benchmark, has too few repeats.
    """
    problems = []
    if repeats < REPEATS_LEAST:
        problems.append(Problem("--repeats", f"{repeats}; an interval needs {REPEATS_LEAST} with --baseline."))
    problems += _report_few_repeats([m for session in earlier.sessions for m in session.measurements], where)
    if problems:
        raise InputError(problems)


def compare_benchmarks(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> list[_Slowdown]:
    """Return the ratio of new to old, with its interval, for each figure that two benchmarks share.

    A figure is the time, or the instruction count, of one file on one device at one thread count, length and idle time.
    The interval is that of the ratio of two typical times (Welch's t interval over the logarithms of the repeats'
    medians). It holds what varies within the two sessions. What differs between two hours on a machine is not in it,
    so the allowed slowdown should not be much smaller than 0.05.

    Args:
        now: The new benchmark.
        earlier: The baseline.
        where: The file of the earlier benchmark, for error messages.

    Raises:
        InputError: If they have no figure in common, are of different machines, or one has too few repeats.
    """
    pairs, problems = _pair_figures(now, earlier, where)
    problems += _report_few_repeats([m for pair in pairs for m in (pair.now, pair.earlier)], where)
    if problems:
        raise InputError(problems)
    return [pair.slowdown for pair in pairs]


def _match_figures(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> list[_Pair]:
    """Return the figures that two benchmarks of the same machines share, including those with few repeats.

    Args:
        now: The later benchmark.
        earlier: The earlier one.
        where: The file of the earlier benchmark, for error messages.

    Raises:
        InputError: If they have no figure in common, or are of different machines.
    """
    pairs, problems = _pair_figures(now, earlier, where)
    if problems:
        raise InputError(problems)
    return pairs


def _pair_figures(now: BenchmarkResult, earlier: BenchmarkResult, where: str) -> tuple[list[_Pair], list[Problem]]:
    """Match the figures of two benchmarks; return the pairs, and problems if nothing matches or the machines differ."""
    old = {_key_of(m): m for session in earlier.sessions for m in session.measurements}
    new = [m for session in now.sessions for m in session.measurements]
    pairs = [_Pair(m, old[_key_of(m)]) for m in new if _key_of(m) in old]
    problems = []
    if not pairs:
        names = ", ".join(sorted({m.variant for m in old.values()}))
        what = f"has no figure in common with this benchmark; it has {names}."
        problems.append(Problem(where, what, "Use the same files and options."))
    for pair in {pair.now.place: pair for pair in pairs}.values():
        here, before = (replace(m.machine, system="", python="") for m in (pair.now, pair.earlier))
        if here != before:
            what = f"is of another machine than {pair.now.place}: {before.summary}."
            problems.append(Problem(where, what, "Measure the baseline here."))
    return [pair for pair in pairs if (pair.now.wall is None) == (pair.earlier.wall is None)], problems


def _report_few_repeats(measurements: Sequence[Measurement], where: str) -> list[Problem]:
    """Return a problem for the first measurement with too few repeats for an interval; else []."""
    for m in measurements:
        if m.wall is not None and len(m.wall_ms) < REPEATS_LEAST:
            what = f"{m.variant} has {len(m.wall_ms)} repeats; an interval needs {REPEATS_LEAST}."
            return [Problem(where, what, f"Measure both with --repeats {REPEATS_LEAST} or more.")]
    return []


def _key_of(m: Measurement) -> _FigureKey:
    """Return the key that pairs a figure across benchmarks: file, device, threads, length, idle time."""
    return (m.variant, m.place, m.threads, m.length, m.gap_ms)


def _ratio_with_interval(new: Measurement, old: Measurement) -> tuple[float, Interval]:
    """Return the ratio of new to old median times (or instruction counts), with Welch's t interval."""
    (centre, error, n), (old_centre, old_error, old_n) = _log_mean(new), _log_mean(old)
    both = error + old_error
    freedom = both**2 / (error**2 / (n - 1) + old_error**2 / (old_n - 1)) if both > 0 else 1.0
    half = student_t(max(1, math.floor(freedom))) * math.sqrt(both)
    middle = centre - old_centre
    interval = Interval(low=math.exp(middle - half), high=math.exp(middle + half), confidence=CONFIDENCE)
    return math.exp(middle), interval


def _log_mean(m: Measurement) -> tuple[float, float, int]:
    """Return the mean logarithm of a measurement, its squared standard error, and the number of values.

    For times, the values are the logarithms of the repeats' medians. For instruction counts, which differ little,
    return the logarithm of their mean, the squared relative standard error of the mean, and their number, but at least
    2.
    """
    if m.wall is not None:
        logs = np.log([float(np.median(repeat)) for repeat in m.wall_ms])
        return float(logs.mean()), float(logs.var(ddof=1)) / len(logs), len(logs)
    counts = m.guest_instructions
    assert counts is not None
    return math.log(counts.mean), (counts.stdev / counts.mean) ** 2 / counts.n, max(2, counts.n)


# --- the page --------------------------------------------------------------------------------------------------------------------

_TEMPLATE = "comparison.html.j2"
_RESULT_FIX = "Give the JSON file of: pocketbert benchmark -m FOLDER -o FILE.json, or a folder that records one."


@dataclass(frozen=True)
class _StoredBenchmark:
    """A benchmark read from a file, and its short name on the page.

    Attributes:
        name: Its name on the page: the part of its path in which the two differ.
        path: Where it is.
        result: The benchmark.
    """

    name: str
    path: Path
    result: BenchmarkResult


@dataclass(frozen=True)
class _ChangeRow:
    """A row of the page's table of changes: one figure in both benchmarks, as text.

    Attributes:
        pair: The two measurements.
        earlier: Median time, or instructions, of the earlier one.
        later: Median time, or instructions, of the later one.
        ratio: Later / earlier with its interval; a dash where there is none.
        change: The change as text, e.g. ``1.21× faster``.
        better: Whether it became better; None where the interval contains 1, or there is none.
        file: How the file differs, where it is not the same one.
    """

    pair: _Pair
    earlier: str
    later: str
    ratio: str
    change: str
    better: bool | None
    file: str


def write_comparison(later: Path, earlier: Path, output: Path) -> None:
    """Write the HTML page that compares two stored benchmarks.

    Args:
        later: JSON file of `pocketbert benchmark -o`, or a folder with ``benchmark.json``.
        earlier: The earlier benchmark, likewise a JSON file or a folder.
        output: The HTML file.

    Raises:
        InputError: If one of them is no benchmark, both are the same file, they have no figure in common, or are of
            different machines.
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    page = _render_comparison(*_read_pair(later, earlier))
    output.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(output, page)


def _read_pair(later: Path, earlier: Path) -> tuple[_StoredBenchmark, _StoredBenchmark]:
    """Read two stored benchmarks; return (earlier, later).

    Args:
        later: JSON file of `pocketbert benchmark -o`, or a folder with ``benchmark.json``.
        earlier: The earlier benchmark, likewise a JSON file or a folder.

    Returns:
        The earlier one and the later one.

    Raises:
        InputError: If one of the paths is no benchmark, or both are the same file.
    """
    files = []
    for path in (earlier, later):
        file = path / FILE_NAME if path.is_dir() else path
        if not file.is_file():
            what = f"there is no {FILE_NAME} in this folder." if path.is_dir() else "file not found."
            raise InputError(Problem(str(path), what, _RESULT_FIX))
        files.append(file)
    if files[0].resolve() == files[1].resolve():
        raise InputError(Problem("--baseline", f"{earlier} is the same file as -m.", "Give an earlier result."))
    names = wording.short_names([earlier, later])
    before, after = (
        _StoredBenchmark(names[path], file, BenchmarkResult.read(file))
        for path, file in zip((earlier, later), files, strict=True)
    )
    return before, after


def _render_comparison(before: _StoredBenchmark, after: _StoredBenchmark) -> str:
    """Return the page that compares two benchmarks as HTML text."""
    both_ran = bool(before.result.sessions and after.result.sessions)
    pairs = _match_figures(after.result, before.result, str(before.path)) if both_ran else []
    old = {_compilation_key(one): one for one in before.result.compilations}
    compiled = [(old[key], one) for one in after.result.compilations if (key := _compilation_key(one)) in old]
    if not pairs and not compiled:
        what = "has no figure in common with the later result."
        raise InputError(Problem(str(before.path), what, "Use the same files and options."))
    names = [pair.now.variant for pair in pairs] + [later.variant for _, later in compiled]
    colors = {name: number for number, name in enumerate(dict.fromkeys(names))}
    pairs_by_device: dict[str, list[_Pair]] = {}
    for pair in pairs:
        pairs_by_device.setdefault(pair.now.place, []).append(pair)
    sources = Sources()
    devices = [
        _device_part(
            device,
            of_device,
            colors,
            [
                cite_measurements(sources, [pair.earlier for pair in of_device], before.name),
                cite_measurements(sources, [pair.now for pair in of_device], after.name),
            ],
        )
        for device, of_device in pairs_by_device.items()
    ]
    rows = [row for device in devices for row in (*device["rows"], *device["others"])]
    both = {_key_of(pair.now) for pair in pairs}, {_compilation_key(later) for _, later in compiled}
    return open_template(_TEMPLATE).render(
        before=before,
        after=after,
        devices=devices,
        compiled=[(later, _compilation_cells(earlier, later)) for earlier, later in compiled],
        npu_sources=cite_compilations(sources, [later for _, later in compiled]),
        sources=sources,
        headline=_describe_changes([row for device in devices for row in device["rows"]]),
        tiles=_make_tiles(rows),
        versions=_changed_versions(before.result, after.result),
        unpaired=[(one.name, _describe_unpaired(one.result, *both)) for one in (before, after)],
        colors=colors,
        w=wording,
    )


def _describe_changes(rows: Sequence[_ChangeRow]) -> list[tuple[str, bool | None]]:
    """Return (sentence, whether it is good) for each file that changed for certain: slower ones first, then faster ones.

    If no file did, one sentence says so.

    Args:
        rows: Rows of the condition that the page shows first.
    """
    decided = [row for better in (False, True) for row in rows if row.better is better]
    words = [(f"{row.pair.now.variant} on {row.pair.now.place}: {row.change}", row.better) for row in decided]
    return words or [("no file became clearly faster or slower", None)]


def _device_part(
    device: str, pairs: Sequence[_Pair], colors: dict[str, int], sources: Sequence[Citation]
) -> dict[str, Any]:
    """Return the values for the report's template on one device: sources, plots, rows of the tables.

    Args:
        device: The device with the unit that computed.
        pairs: Its figures in both benchmarks.
        colors: For each file the number from which its colour and shape derive.
        sources: Where the earlier and the later figures come from.

    Returns:
        ``device``, ``provenance`` of its figures, whether they are ``timed``, their ``sources``, the plots (``figures``) with their ``condition`` in words and their ``rows``, ``others``
        (the rows of every other condition), and ``starts`` (load time, first inference and memory of each file and thread count,
        earlier and later).
    """

    def condition(pair: _Pair) -> tuple[int, bool, int, float]:
        m = pair.now
        return m.threads, m.length != TEXT, 0 if m.length == TEXT else int(m.length), m.gap_ms

    # the plots show one condition: fewest threads, real text, one inference after the other
    first = min(map(condition, pairs))
    shown = [pair for pair in pairs if condition(pair) == first]
    starts = {(p.now.variant, p.now.threads): p for p in reversed(pairs) if p.now.cold and p.earlier.cold}
    m = shown[0].now
    words = f"{wording.threads(m.threads)}, {wording.pace(m.length, m.gap_ms)}, batch 1"
    return {
        "device": device,
        "provenance": pairs[0].now.provenance,
        "timed": pairs[0].now.wall is not None,
        "sources": list(dict.fromkeys(sources)),
        "figures": _draw_changes(device, shown, words, colors),
        "condition": words,
        "rows": sorted((_change_row(pair) for pair in shown), key=lambda row: row.better is not False),
        "others": sorted(
            (_change_row(pair) for pair in pairs if pair not in shown), key=lambda row: row.better is not False
        ),
        "starts": list(reversed(starts.values())),
    }


def _draw_changes(device: str, pairs: Sequence[_Pair], condition: str, colors: dict[str, int]) -> list[Figure]:
    """Draw the ratios of later to earlier figures of one device and, for times, both latency distributions."""
    m = pairs[0].now
    what = "time" if m.wall is not None else f"guest instructions ({m.provenance})"
    repeated = [pair for pair in pairs if pair.repeated]
    figures = []
    if repeated:
        changes = []
        for pair in repeated:
            name, change = pair.now.variant, pair.slowdown
            changes.append(plots.Change(name, change.ratio, change.interval.low, change.interval.high, colors[name]))
        caption = f"{what.capitalize()} of the later result over that of the earlier one with its 95 % interval ({condition}): below 1 is better."
        svg = plots.draw_changes(changes, f"{what}, later / earlier", f"Change of {what} on {device}")
        figures.append(make_figure(svg, caption, []))
    if m.wall is not None:
        samples = []
        for pair in pairs:
            earlier, later = ([time for repeat in one.wall_ms for time in repeat] for one in (pair.earlier, pair.now))
            samples.append((colors[pair.now.variant], earlier, later))
        svg = plots.draw_two_distributions(
            samples, f"latency in ms, log scale ({condition})", f"Distributions on {device}"
        )
        caption = (
            f"Share of inferences that finish within a given time ({condition}); dashed and pale: the earlier result."
        )
        legend = [(p.now.variant, colors[p.now.variant]) for p in pairs]
        figures.append(make_figure(svg, caption, [], legend))
    return figures


def _change_row(pair: _Pair) -> _ChangeRow:
    """Return the table row of one figure in both benchmarks."""
    slowdown = pair.slowdown if pair.repeated else None
    ratio, change, better = wording.NONE, "too few repeats for an interval", None
    if slowdown is not None:
        low, high = slowdown.interval.low, slowdown.interval.high
        ratio, change = f"{slowdown.ratio:.3f} [{low:.3f}, {high:.3f}]", "no clear difference"
        if not low <= 1 <= high:
            better = slowdown.ratio < 1
            words = ("faster", "slower") if pair.now.wall is not None else ("fewer", "more")
            change = wording.change(slowdown.ratio, *words)
    sizes = f"{wording.size(pair.earlier.bytes)} → {wording.size(pair.now.bytes)}"
    return _ChangeRow(
        pair=pair,
        earlier=_median_words(pair.earlier),
        later=_median_words(pair.now),
        ratio=ratio,
        change=change,
        better=better,
        file="" if pair.now.sha256 == pair.earlier.sha256 else f"another file, {sizes}",
    )


def _median_words(m: Measurement) -> str:
    """Return the median time in ms, or the median instruction count, as text."""
    if m.wall is not None:
        return wording.milliseconds(m.wall.p50)
    return wording.count(round(m.guest_instructions.p50)) if m.guest_instructions else wording.NONE


def _compilation_key(compilation: Compilation) -> tuple[str, str, int]:
    """Return the key that pairs a compiled file across benchmarks: file, device, length."""
    return compilation.variant, compilation.device, compilation.length


def _compilation_cells(earlier: Compilation, later: Compilation) -> list[str]:
    """Return table cells with nodes on the NPU, compiled size and estimated time, as ``old → new`` if they differ."""
    before, after = (
        (
            describe_compilation(one).on_npu if not one.failed else "not compiled",
            describe_compilation(one).size,
            wording.milliseconds(one.estimate.time_ms) if one.estimate else wording.NONE,
        )
        for one in (earlier, later)
    )
    return [_arrow(old, new) for old, new in zip(before, after, strict=True)]


def _arrow(earlier: str, later: str) -> str:
    """Return ``earlier → later``, or just the value if both are equal."""
    return later if earlier == later else f"{earlier} → {later}"


def _make_tiles(rows: Sequence[_ChangeRow]) -> list[tuple[str, str]]:
    """Return (count, label) of the figures that became better, became worse, or did not clearly change."""
    better, worse = (sum(row.better is value for row in rows) for value in (True, False))
    counts = [(better, "faster, or with fewer instructions"), (worse, "slower, or with more instructions")]
    counts.append((len(rows) - better - worse, "without a clear difference"))
    return [(str(n), f"of {len(rows)} figures {words}") for n, words in counts] if rows else []


def _changed_versions(before: BenchmarkResult, after: BenchmarkResult) -> list[tuple[str, str]]:
    """Return (library, ``old → new``) for libraries whose versions differ between the benchmarks."""
    old, new = ({k: v for s in (one, *one.others) for k, v in s.versions.items()} for one in (before, after))
    return [
        (name, _arrow(old.get(name, "none"), new.get(name, "none")))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _describe_unpaired(
    result: BenchmarkResult, paired: set[_FigureKey], compiled: set[tuple[str, str, int]]
) -> list[str]:
    """Return a line per file and device with the number of figures that the other benchmark lacks."""
    counts = Counter(
        (m.variant, m.place) for session in result.sessions for m in session.measurements if _key_of(m) not in paired
    )
    counts.update((c.variant, c.device) for c in result.compilations if _compilation_key(c) not in compiled)
    return [f"{name} on {place}: {n} figure{'s' * (n > 1)}" for (name, place), n in counts.items()]
