"""The report's plots."""

from pocketbert.benchmarks.report.plots.changes import Change, Spread, changes, spreads
from pocketbert.benchmarks.report.plots.drawing import LOOKS, SERIES, SHAPES, look_of, require
from pocketbert.benchmarks.report.plots.files import Bubble, Considered, bubbles, front, sizes
from pocketbert.benchmarks.report.plots.latency import boxes, distribution
from pocketbert.benchmarks.report.plots.training import curve

__all__ = [
    "LOOKS",
    "SERIES",
    "SHAPES",
    "Bubble",
    "Change",
    "Considered",
    "Spread",
    "boxes",
    "bubbles",
    "changes",
    "curve",
    "distribution",
    "front",
    "look_of",
    "require",
    "sizes",
    "spreads",
]
