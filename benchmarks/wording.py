"""Put numbers into words: the same in the terminal, the report and the model card.

Functions take a figure and return its text. For a missing figure they return `NONE`, a dash; only `time_ratio` returns 1. The report's
templates use them as ``w``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from pocketbert.benchmarks.records import TEXT, Length
from pocketbert.benchmarks.statistics import Ratio
from pocketbert.core.metrics import CHANCE, Direction, Metric, Unit
from pocketbert.core.predict.scores import Confidence

NONE = "–"
"""Stands where there is no figure."""


def size(number: int | None) -> str:
    """Return bytes as text in decimal units, as app stores count: ``12.4 MB``; a dash for None."""
    if number is None:
        return NONE
    if number < 1e6:
        return f"{number / 1e3:.3g} kB" if number < 999_500 else "1.00 MB"
    return f"{number / 1e6:.1f} MB" if number < 1e9 else f"{number / 1e9:.2f} GB"


def milliseconds(value: float | None) -> str:
    """Return milliseconds with three significant digits, without unit: ``0.0743``, ``12.3``; a dash for None.

    There are at most four decimals, and none from 100 on.
    """
    if value is None:
        return NONE
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{min(4, max(0, 2 - math.floor(math.log10(value))))}f}"


def share(fraction: float | None) -> str:
    """Return a fraction in per cent: ``98.7 %``; a dash for None, ``not a number`` for NaN."""
    if fraction is None:
        return NONE
    return "not a number" if math.isnan(fraction) else f"{fraction * 100:.1f} %"


def calibration(confidence: Confidence | None, rows: str) -> str:
    """Describe a file's calibration error without and with its temperature: ``5.31 % → 1.20 % (temperature 1.42)``.

    With a temperature of 1, or if the first error is not known, it is one number: ``1.20 %``.

    Args:
        confidence: The calibration and the threshold of a file; None if there are none.
        rows: Name of the set of rows that the text is to be about. If the error was measured on another set, or not at
            all, the text is a dash.
    """
    if confidence is None or confidence.measured_on != rows or confidence.error is None:
        return NONE
    if confidence.temperature == 1 or confidence.error_before is None:
        return f"{confidence.error:.2%}".replace("%", " %")
    errors = f"{confidence.error_before:.2%} → {confidence.error:.2%}".replace("%", " %")
    return f"{errors} (temperature {confidence.temperature:g})"


def selective(confidence: Confidence | None, rows: str) -> str:
    """Describe the threshold for unknown answers, the share of rows answered and right: ``0.71: 88.2 %, of which 95.3 % right``.

    Args:
        confidence: The calibration and the threshold of a file; None if there are none.
        rows: Name of the set of rows that the text is to be about. For another set, or without a threshold, the text is
            a dash.
    """
    if confidence is None or confidence.measured_on != rows or None in (confidence.unknown, confidence.answered):
        return NONE
    right = confidence.answered_accuracy
    accuracy = f", of which {share(right)} right" if right is not None else ""
    return f"{confidence.unknown:g}: {share(confidence.answered)}{accuracy}"


def fitted(confidences: Sequence[Confidence]) -> str:
    """Return sentences on how many held-out rows were used to fit temperatures and thresholds, or on why none were fitted."""
    rows = sorted({c.fitted_rows for c in confidences if c.fitted_rows})
    sentences = []
    if rows:
        counts = " or ".join(f"{n:,}" for n in rows)
        sentences.append(
            f"Temperatures were fitted for each file on {counts} held-out rows, which trained nothing and do not decide the score."
        )
    sentences += [
        f"No temperature was fitted: {note}." for note in dict.fromkeys(c.note for c in confidences if c.note)
    ]
    shown = sorted({c.unknown_rows for c in confidences if c.unknown_rows})
    if shown:
        counts = " or ".join(f"{n:,}" for n in shown)
        sentences.append(f"Thresholds for unknown answers were fitted for each file on {counts} held-out rows.")
    lost = dict.fromkeys(c.unknown_note for c in confidences if c.unknown_note)
    sentences += [f"No threshold for unknown answers was fitted: {note}." for note in lost]
    return " ".join(sentences)


def time_ratio(ratio: Ratio | None) -> str:
    """Return a time ratio to the baseline with its interval: ``0.512 [0.498, 0.530]``; ``1`` for None.

    Of fewer than 6 rounds, which allow no interval of 95 %, it is ``0.512 (3 rounds, no interval)``.
    """
    if ratio is None:
        return "1"
    interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]" if ratio.has_interval else f"({_rounds(ratio)}, no interval)"
    return f"{ratio.median:.3f} {interval}"


def _rounds(ratio: Ratio) -> str:
    return f"{ratio.pairs} round{'s' * (ratio.pairs != 1)}"


def factor(value: float) -> str:
    """Return a factor rounded to three digits: ``7.32×``, ``12.3×``."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}×"


def speed(ratio: Ratio) -> str:
    """Return a time ratio as text, with its interval: ``4.81× faster (4.62–5.03)``, or ``1.30× slower (1.21–1.40)``.

    If the interval includes 1, it is ``no clear difference (0.98–1.03 of the time)``; of too few rounds for an interval
    ``0.98 of the time (3 rounds, no interval)``.
    """
    if not ratio.has_interval:
        return f"{ratio.median:.2f} of the time ({_rounds(ratio)}, no interval)"
    if not ratio.decided:
        return f"no clear difference ({ratio.low:.2f}–{ratio.high:.2f} of the time)"
    if ratio.median < 1:
        low, high = (factor(1 / end).removesuffix("×") for end in (ratio.high, ratio.low))
        return f"{factor(1 / ratio.median)} faster ({low}–{high})"
    low, high = (factor(end).removesuffix("×") for end in (ratio.low, ratio.high))
    return f"{factor(ratio.median)} slower ({low}–{high})"


def change(ratio: float, better: str, worse: str) -> str:
    """Return the ratio of a later to an earlier value in words: ``1.21× faster``.

    Args:
        ratio: Later value / earlier value; below 1 is better.
        better: Word for a smaller value, such as ``faster``.
        worse: Word for a larger value, such as ``slower``.
    """
    return f"{factor(1 / ratio)} {better}" if ratio < 1 else f"{factor(ratio)} {worse}"


def scale(metric: Metric) -> str:
    """Return the unit of a metric's numbers for an axis or a sentence: ``points``, ``nats, lower is better``."""
    unit = "points" if metric.unit is Unit.FRACTION else str(metric.unit)
    return unit + (", lower is better" if metric.direction is Direction.LOWER else "")


def luck(metric: Metric) -> str:
    """Return what the best model without its input would do, in words: ``always the most frequent label``."""
    return CHANCE[metric.name]


def other_metric(name: str, value: float) -> str:
    """Return a secondary metric as text: ``mcc 71.20``; an error in the label's own units as ``rmse 0.238``."""
    return f"{name} {value:.3g}" if name == "rmse" else f"{name} {value * 100:.2f}"


def length(value: Length) -> str:
    """Return an input length as text: ``real text`` or ``64 tokens``."""
    return "real text" if value == TEXT else f"{value} tokens"


def pace(value: Length, gap_ms: float) -> str:
    """Return an input length and idle time as text: ``real text``, ``64 tokens, after 100 ms idle``."""
    return length(value) + idle(gap_ms)


def idle(gap_ms: float) -> str:
    """Return an idle time as a text that follows a length: ``, after 100 ms idle``; empty for 0."""
    return f", after {gap_ms:g} ms idle" if gap_ms else ""


def threads(number: int) -> str:
    """Return a thread count as text: ``1 thread``, ``2 threads``; for 0, ``the engine's own threads``."""
    if not number:
        return "the engine's own threads"
    return f"{number} thread" + ("s" if number != 1 else "")


def thread_count(number: int) -> str:
    """Return a thread count for a table cell; a dash for 0, where the engine decides."""
    return str(number) if number else NONE


def short_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Map each path to the last part in which the paths differ: ``a`` and ``b`` for ``runs/a/phone`` and ``runs/b/phone``.

    If this part is the same for some of the paths, each path maps to itself.
    """
    parts = {folder: [p for p in folder.parts if p not in ("/", "..")] for folder in folders}
    while len(parts) > 1 and all(len(p) > 1 for p in parts.values()) and len({p[-1] for p in parts.values()}) == 1:
        parts = {folder: p[:-1] for folder, p in parts.items()}
    short = {folder: p[-1] if p else str(folder) for folder, p in parts.items()}
    return short if len(set(short.values())) == len(folders) else {folder: str(folder) for folder in folders}


def count(value: int) -> str:
    """Return a large number as short text: ``22.7 M``, ``950 k``."""
    if value >= 999_500:
        return f"{value / 1e6:.1f} M"
    return f"{value / 1e3:.0f} k" if value >= 1000 else str(value)
