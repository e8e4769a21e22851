"""Show the comparison of two models' answers: sentences and a table for the terminal, and one HTML page with everything inside.

`describe_difference` and `make_model_table` are for both, `write_difference` writes the page. The page shares style and macros with the
report; its pictures are drawn by the style sheet alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.report.page import open_template
from pocketbert.benchmarks.report.sources import Sources
from pocketbert.benchmarks.statistics import CONFIDENCE, Ratio
from pocketbert.core.compare.differences import Differences, Flip, ModelDiff, ScoreChange
from pocketbert.core.disk.files import write_atomic
from pocketbert.core.metrics import METRICS, Unit

_TEMPLATE = "difference.html.j2"
_MOST_FLIPS = 300
"""Rows that the page shows; JSON has all of them."""
_MOST_LETTERS = 600
"""Letters of a text that the page shows."""
_MOST_LABELS = 200


def describe_difference(diff: ModelDiff) -> list[str]:
    """Return the result as sentences: score, gains and losses, answers that differ, times."""
    found, sentences = diff.differences, list[str]()
    if found.score is not None:
        sentences.append(_describe_score(found.score))
    if found.mean_distance is None:
        share = f"{found.flip_share * 100:.2f} %"
        sentences.append(f"{found.flipped:,} of {found.rows:,} answers differ ({share}).")
    else:
        related = f"; correlation {found.correlation:.4f}" if found.correlation is not None else ""
        what = "difference of the two numbers" if found.correlation is not None else "1 - cosine of the two vectors"
        sentences.append(f"{found.rows:,} rows: mean {what} {found.mean_distance:.4g}{related}.")
    if (o := found.outcomes) is not None:
        test = "McNemar's exact test" if o.exact else "McNemar's test"
        sentences.append(
            f"{o.lost:,} lost (only OLD is right), {o.gained:,} gained (only NEW is right), {o.both_right:,} both right, "
            f"{o.both_wrong:,} both wrong; {test}: p = {o.p_value:.3g}."
        )
    if diff.time_ratio is not None:
        engines = (diff.old.engine, diff.new.engine)
        other = f" OLD ran in {engines[0]}, NEW in {engines[1]}." if engines[0] != engines[1] else ""
        sentences.append(f"Latency: {diff.latency}.{other}")
    return sentences


def _describe_score(score: ScoreChange) -> str:
    """Return the change of the score with its interval, such as ``accuracy 91.20 -> 90.10: 1.10 points worse ...``."""
    metric = METRICS[score.metric]
    unit = "points" if metric.unit is Unit.FRACTION else "per cent"
    low, high = (round(end * 100, 2) + 0.0 for end in (-score.high, -score.low))
    return (
        f"{score.metric} {metric.format(score.old)} -> {metric.format(score.new)}: {metric.lost(score.drop)}; "
        f"95 % of {score.resamples:,} resamples of the rows lie between {low:+.2f} and {high:+.2f} {unit}."
    )


def _describe_speed(ratio: tuple[float, float, float]) -> str:
    """Return the ratio of times in words as `wording.speed` does: ``2.31× faster (2.20–2.42)``."""
    median, low, high = ratio
    return wording.speed(Ratio(median=median, low=low, high=high, pairs=0, confidence=CONFIDENCE))


def make_model_table(diff: ModelDiff) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the table that sets both models side by side."""
    old, new = diff.old, diff.new
    rows = [
        ["file", old.file, new.file, ""],
        ["format and scheme", old.kind, new.kind, ""],
        ["engine", old.engine, new.engine, ""],
        ["size", wording.size(old.bytes), wording.size(new.bytes), _change(new.bytes, old.bytes, "smaller", "larger")],
        ["longest input", f"{old.max_length} tokens", f"{new.max_length} tokens", ""],
    ]
    if diff.time_ratio is not None:
        times = [wording.milliseconds(one.p50_ms) for one in (old, new)]
        rows.append(["p50 ms (short)", *times, _describe_speed(diff.time_ratio)])
    if (score := diff.differences.score) is not None:
        metric = METRICS[score.metric]
        rows.append([score.metric, metric.format(score.old), metric.format(score.new), metric.lost(score.drop)])
    return ["", f"OLD {old.name}", f"NEW {new.name}", "change"], rows


def _change(new: float, old: float, better: str, worse: str) -> str:
    """Return the ratio of two figures in words; a dash where they are equal or one is missing."""
    return wording.change(new / old, better, worse) if old and new and new != old else wording.NONE


def write_difference(diff: ModelDiff, path: Path) -> None:
    """Write the page that shows a comparison of two models.

    Args:
        diff: The comparison.
        path: The HTML file.

    Raises:
        MissingBackendError: If matplotlib or jinja2 is not installed.
    """
    found = diff.differences
    names = wording.short_names([Path(diff.old.name), Path(diff.new.name)])
    sources = Sources()
    engines = f"answers by OLD: {diff.old.engine}, NEW: {diff.new.engine}"
    latency = f"; latency: {diff.latency}" if diff.latency else ""
    page = open_template(_TEMPLATE).render(
        d=diff,
        f=found,
        old=names[Path(diff.old.name)],
        new=names.get(Path(diff.new.name), diff.new.name),
        sources=sources,
        source=sources.cite(diff.machine, "measured", engines + latency),
        headline=_describe_verdict(found),
        tiles=_make_tiles(diff),
        sentences=describe_difference(diff),
        table=make_model_table(diff)[1],
        interval=_place_interval(found.score) if found.score else None,
        outcomes=_outcome_shares(found),
        label_flips=found.label_flips[:_MOST_LABELS],
        by_label=[change for change in found.by_label if change.lost or change.gained][:_MOST_LABELS],
        flips=_shorten(found.flips[:_MOST_FLIPS]),
        w=wording,
        colors={},
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page)


def _describe_verdict(found: Differences) -> str:
    """Return what decides in a few words: whether NEW scores better or worse for certain, or how many answers changed."""
    if found.score is None:
        same = found.mean_distance is None
        return f"NEW changes {found.flip_share * 100:.2f} % of the answers." if same else "NEW gives other numbers."
    if not (found.score.low > 0 or found.score.high < 0):
        return f"No clear difference in {found.score.metric}."
    return f"NEW is {'worse' if found.score.low > 0 else 'better'} than OLD in {found.score.metric}."


def _make_tiles(diff: ModelDiff) -> list[tuple[str, str]]:
    """Return (value, label) of the large figures on top: change of the score, changed answers, size and time."""
    found, tiles = diff.differences, list[tuple[str, str]]()
    if (score := found.score) is not None:
        metric = METRICS[score.metric]
        tiles.append(
            (metric.lost(score.drop), f"{score.metric}: {metric.format(score.new)} after {metric.format(score.old)}")
        )
    if found.mean_distance is None:
        words = f"of {found.rows:,} answers differ"
        if found.outcomes is not None:
            words += f": {found.outcomes.lost:,} lost, {found.outcomes.gained:,} gained"
        tiles.append((f"{found.flipped:,}", words))
    else:
        tiles.append((f"{found.mean_distance:.4g}", f"mean difference of {found.rows:,} answers"))
    tiles.append((wording.size(diff.new.bytes), f"on disk, after {wording.size(diff.old.bytes)}"))
    if diff.new.p50_ms is not None:
        before = wording.milliseconds(diff.old.p50_ms)
        tiles.append(
            (f"{wording.milliseconds(diff.new.p50_ms)} ms", f"median of a short measurement, after {before} ms")
        )
    return tiles


def _place_interval(score: ScoreChange) -> dict[str, str]:
    """Return the places, in per cent of the picture's width, of the interval's ends, the change and zero; right is better."""
    low, middle, high = -score.high, -score.drop, -score.low
    reach = max(abs(low), abs(high), abs(middle), 1e-9) * 1.15
    places = {"low": low, "high": high, "middle": middle, "zero": 0.0}
    left = {name: 50 + 50 * value / reach for name, value in places.items()}
    return {**{name: f"{value:.2f}%" for name, value in left.items()}, "width": f"{left['high'] - left['low']:.2f}%"}


def _outcome_shares(found: Differences) -> list[tuple[str, int, str, str]]:
    """Return (words, rows, width in per cent, colour of the style sheet) for each part of the bar of gains and losses.

    The list is empty without gold labels.
    """
    o = found.outcomes
    if o is None or not found.rows:
        return []
    parts = [
        ("both right", o.both_right, "--c0"),
        ("gained", o.gained, "--good"),
        ("lost", o.lost, "--bad"),
        ("both wrong", o.both_wrong, "--line"),
    ]
    return [(words, rows, f"{100 * rows / found.rows:.3f}%", color) for words, rows, color in parts]


def _shorten(flips: Sequence[Flip]) -> list[tuple[Flip, list[str]]]:
    """Return each changed answer with its texts, of which long ones are cut to what the page shows."""
    return [(flip, [t if len(t) <= _MOST_LETTERS else f"{t[:_MOST_LETTERS]} …" for t in flip.texts]) for flip in flips]
