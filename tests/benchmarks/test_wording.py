import pytest

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.statistics import Ratio
from pocketbert.core.predict.scores import Confidence


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (500, "0.5 kB"),
        (320_000, "320 kB"),
        (999_600, "1.00 MB"),
        (12_400_000, "12.4 MB"),
        (1_340_000_000, "1.34 GB"),
    ],
)
def test_size(count, text):
    assert wording.size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [(0.07431, "0.0743"), (0.5, "0.500"), (1.234, "1.23"), (12.34, "12.3"), (123.4, "123"), (0, "0")],
)
def test_milliseconds(ms, text):
    assert wording.milliseconds(ms) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        ((0.2, 0.19, 0.21), "5.00× faster (4.76–5.26)"),
        ((1.5, 1.2, 1.8), "1.50× slower (1.20–1.80)"),
        ((0.99, 0.95, 1.02), "no clear difference (0.95–1.02 of the time)"),
    ],
)
def test_speed(ratio, text):
    median, low, high = ratio
    assert wording.speed(Ratio(median=median, low=low, high=high, pairs=9, confidence=0.96)) == text


def test_others():
    assert (wording.share(0.9876), wording.share(None), wording.share(float("nan"))) == (
        "98.8 %",
        "–",
        "not a number",
    )
    assert (wording.threads(1), wording.threads(2)) == ("1 thread", "2 threads")
    assert (wording.threads(0), wording.thread_count(0), wording.thread_count(2)) == (
        "the engine's own threads",
        "–",
        "2",
    )
    assert (wording.length("text"), wording.length(64)) == ("real text", "64 tokens")
    assert (wording.count(22_713_216), wording.count(950_000), wording.count(7)) == ("22.7 M", "950 k", "7")


def test_thresholds_are_told_with_what_they_do() -> None:
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


def test_figures_that_are_not_known_are_dashes():
    assert wording.size(None) == wording.milliseconds(None) == wording.NONE
