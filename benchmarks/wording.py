"""Numbers as people read them: the same words in the terminal, the report and the model card."""

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
    """Bytes in decimal units, as app stores count: ``12.4 MB``; a dash where they are not known."""
    if number is None:
        return NONE
    if number < 1e6:
        return f"{number / 1e3:.3g} kB" if number < 999_500 else "1.00 MB"
    return f"{number / 1e6:.1f} MB" if number < 1e9 else f"{number / 1e9:.2f} GB"


def milliseconds(value: float | None) -> str:
    """Milliseconds with three significant digits, without the unit: ``0.0743``, ``1.23``, ``12.3``; a dash where they are not known."""
    if value is None:
        return NONE
    if value <= 0 or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:.{min(4, max(0, 2 - math.floor(math.log10(value))))}f}"


def share(fraction: float | None) -> str:
    """A fraction in per cent: ``98.7 %``."""
    if fraction is None:
        return NONE
    return "not a number" if math.isnan(fraction) else f"{fraction * 100:.1f} %"


def calibration(confidence: Confidence | None, rows: str) -> str:
    """A calibration error without and with a file's temperature: ``5.31 % → 1.20 % (temperature 1.42)``.

    Args:
        confidence: What was measured of the file.
        rows: The set that is spoken of; a dash where it was measured on another one.
    """
    if confidence is None or confidence.measured_on != rows or confidence.error is None:
        return NONE
    if confidence.temperature == 1 or confidence.error_before is None:
        return f"{confidence.error:.2%}".replace("%", " %")
    told = f"{confidence.error_before:.2%} → {confidence.error:.2%}".replace("%", " %")
    return f"{told} (temperature {confidence.temperature:g})"


def selective(confidence: Confidence | None, rows: str) -> str:
    """What a threshold for unknown answers does: ``0.71: 88.2 %, of which 95.3 % right``.

    Args:
        confidence: What was measured of the file.
        rows: The set that is spoken of; a dash where it was measured on another one.
    """
    if confidence is None or confidence.measured_on != rows or None in (confidence.unknown, confidence.answered):
        return NONE
    right = confidence.answered_accuracy
    told = f", of which {share(right)} right" if right is not None else ""
    return f"{confidence.unknown:g}: {share(confidence.answered)}{told}"


def fitted(confidences: Sequence[Confidence]) -> str:
    """Tell what temperatures and thresholds of some files were fitted on, or why there are none, in a few sentences."""
    rows = sorted({c.fitted_rows for c in confidences if c.fitted_rows})
    out = []
    if rows:
        told = " or ".join(f"{n:,}" for n in rows)
        out.append(
            f"Temperatures were fitted for each file on {told} held-out rows, which trained nothing and do not decide the score."
        )
    out += [f"No temperature was fitted: {note}." for note in dict.fromkeys(c.note for c in confidences if c.note)]
    shown = sorted({c.unknown_rows for c in confidences if c.unknown_rows})
    if shown:
        told = " or ".join(f"{n:,}" for n in shown)
        out.append(f"Thresholds for unknown answers were fitted for each file on {told} held-out rows.")
    lost = dict.fromkeys(c.unknown_note for c in confidences if c.unknown_note)
    out += [f"No threshold for unknown answers was fitted: {note}." for note in lost]
    return " ".join(out)


def time_ratio(ratio: Ratio | None) -> str:
    """Time relative to the baseline with its interval; the baseline itself, which is compared with nothing, is 1."""
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else "1"


def factor(value: float) -> str:
    """A factor with three digits at most: ``7.32×``."""
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f}×"


def speed(ratio: Ratio) -> str:
    """A ratio of times in words, with its interval: ``4.81× faster (4.62–5.03)``."""
    if not ratio.decided:
        return f"no clear difference ({ratio.low:.2f}–{ratio.high:.2f} of the time)"
    if ratio.median < 1:
        return f"{factor(1 / ratio.median)} faster ({_plain(1 / ratio.high)}–{_plain(1 / ratio.low)})"
    return f"{factor(ratio.median)} slower ({_plain(ratio.low)}–{_plain(ratio.high)})"


def change(ratio: float, better: str, worse: str) -> str:
    """A ratio of later and earlier figures in words: ``1.21× faster``.

    Args:
        ratio: Later / earlier; below 1 is better.
        better: What a smaller figure is.
        worse: What a larger one is.
    """
    return f"{factor(1 / ratio)} {better}" if ratio < 1 else f"{factor(ratio)} {worse}"


def scale(metric: Metric) -> str:
    """What a metric's numbers are on an axis or in a sentence: ``points``, ``nats, lower is better``."""
    unit = "points" if metric.unit is Unit.FRACTION else str(metric.unit)
    return unit + (", lower is better" if metric.direction is Direction.LOWER else "")


def luck(metric: Metric) -> str:
    """What a model answers that does not read its input: ``always the most frequent label``."""
    return CHANCE[metric.name]


def other_metric(name: str, value: float) -> str:
    """A metric that is reported in addition to the deciding one: ``mcc 71.20``, or in the label's own units ``rmse 0.238``."""
    return f"{name} {value:.3g}" if name in _OWN_UNITS else f"{name} {value * 100:.2f}"


_OWN_UNITS = ("rmse",)
"""Figures that are no share of anything."""


def length(value: Length) -> str:
    """A length in words: ``real text`` or ``64 tokens``."""
    return "real text" if value == TEXT else f"{value} tokens"


def pace(value: Length, gap_ms: float) -> str:
    """A length and how often an inference comes: ``real text``, ``64 tokens, after 100 ms idle``."""
    return length(value) + idle(gap_ms)


def idle(gap_ms: float) -> str:
    """What follows a length where inferences come after an idle time: ``, after 100 ms idle``."""
    return f", after {gap_ms:g} ms idle" if gap_ms else ""


def threads(number: int) -> str:
    """``1 thread``, ``2 threads``; 0 means that the engine decides itself."""
    if not number:
        return "the engine's own threads"
    return f"{number} thread" + ("s" if number != 1 else "")


def thread_count(number: int) -> str:
    """The number for a table, a dash where the engine decides itself."""
    return str(number) if number else NONE


def short_names(folders: Sequence[Path]) -> dict[Path, str]:
    """The part of each path that tells some folders apart: ``a`` and ``b`` for ``runs/a/phone`` and ``runs/b/phone``.

    The paths themselves where no single part does.
    """
    parts = {folder: [p for p in folder.parts if p not in ("/", "..")] for folder in folders}
    while len(parts) > 1 and all(len(p) > 1 for p in parts.values()) and len({p[-1] for p in parts.values()}) == 1:
        parts = {folder: p[:-1] for folder, p in parts.items()}
    short = {folder: p[-1] if p else str(folder) for folder, p in parts.items()}
    return short if len(set(short.values())) == len(folders) else {folder: str(folder) for folder in folders}


def count(value: int) -> str:
    """A large number in short: ``22.7 M``, ``950 k``."""
    if value >= 999_500:
        return f"{value / 1e6:.1f} M"
    return f"{value / 1e3:.0f} k" if value >= 1000 else str(value)


def _plain(value: float) -> str:
    return factor(value).removesuffix("×")
