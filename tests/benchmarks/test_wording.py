from pathlib import Path

import pytest

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.statistics import Ratio, paired_ratio
from pocketbert.core.predict.scores import Confidence


def make_ratio(median, low, high):
    return Ratio(median=median, low=low, high=high, pairs=9, confidence=0.96)


@pytest.mark.parametrize(
    ("words", "value", "text"),
    [
        (wording.size, 500, "0.5 kB"),
        (wording.size, 320_000, "320 kB"),
        (wording.size, 999_600, "1.00 MB"),
        (wording.size, 1_340_000_000, "1.34 GB"),
        (wording.size, None, wording.NONE),
        (wording.milliseconds, 0.07431, "0.0743"),
        (wording.milliseconds, 0.5, "0.500"),
        (wording.milliseconds, 123.4, "123"),
        (wording.milliseconds, 0, "0"),
        (wording.milliseconds, None, wording.NONE),
        (wording.share, 0.9876, "98.8 %"),
        (wording.share, float("nan"), "not a number"),
        (wording.share, None, wording.NONE),
        (wording.threads, 1, "1 thread"),
        (wording.threads, 0, "the engine's own threads"),
        (wording.thread_count, 0, wording.NONE),
        (wording.length, "text", "real text"),
        (wording.length, 64, "64 tokens"),
        (wording.count, 22_713_216, "22.7 M"),
        (wording.count, 7, "7"),
        (wording.speed, make_ratio(0.2, 0.19, 0.21), "5.00× faster (4.76–5.26)"),
        (wording.speed, make_ratio(1.5, 1.2, 1.8), "1.50× slower (1.20–1.80)"),
        (wording.speed, make_ratio(0.99, 0.95, 1.02), "no clear difference (0.95–1.02 of the time)"),
        (wording.speed, paired_ratio([1.0, 1.1], [2.0, 2.0]), "0.52 of the time (2 rounds, no interval)"),
        (wording.time_ratio, paired_ratio([1.0] * 6, [2.0] * 6), "0.500 [0.500, 0.500]"),
        (wording.time_ratio, paired_ratio([1.0], [2.0]), "0.500 (1 round, no interval)"),
        (wording.time_ratio, None, "1"),
    ],
)
def test_figures_in_words(words, value, text):
    assert words(value) == text


def test_thresholds_are_told_with_what_they_do():
    figures = {"measured_on": "eval", "unknown": 0.7125, "unknown_rows": 900, "answered": 0.815}
    told = Confidence(answered_accuracy=0.9625, **figures)
    assert wording.selective(told, "eval") == "0.7125: 81.5 %, of which 96.2 % right"
    assert wording.selective(Confidence(**figures), "eval") == "0.7125: 81.5 %"
    assert wording.selective(told, "holdout") == wording.selective(None, "eval") == wording.NONE
    assert wording.selective(Confidence(measured_on="eval"), "eval") == wording.NONE
    lost = Confidence(unknown_note="900 held-out rows do not show it")
    assert wording.fitted([told, lost]) == (
        "Thresholds for unknown answers were fitted for each file on 900 held-out rows. "
        "No threshold for unknown answers was fitted: 900 held-out rows do not show it."
    )


@pytest.mark.parametrize(
    ("folders", "names"),
    [
        (["runs/a/phone", "runs/b/phone"], ["a", "b"]),
        (["before", "after"], ["before", "after"]),
        (["/x/a/y/phone", "/z/a/y/phone"], ["x", "z"]),
        (["phone", "other/phone"], ["phone", "other/phone"]),
        (["a/x/p", "a/y/p", "b/x/p"], ["a/x/p", "a/y/p", "b/x/p"]),  # no single part tells these apart
    ],
)
def test_folders_have_short_names(folders, names):
    assert list(wording.short_names([Path(f) for f in folders]).values()) == names
