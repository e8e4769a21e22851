"""The report's plots."""

from pocketbert.benchmarks.report.plots.drawing import SERIES, require
from pocketbert.benchmarks.report.plots.files import Bubble, Considered, bubbles, front, sizes
from pocketbert.benchmarks.report.plots.latency import boxes, distribution
from pocketbert.benchmarks.report.plots.training import curve

__all__ = ["SERIES", "Bubble", "Considered", "boxes", "bubbles", "curve", "distribution", "front", "require", "sizes"]
