"""The report of a run or a benchmark: one HTML page, and the closing table of the terminal."""

from pocketbert.benchmarks.report.data import GateRow, ModelRow, ParityRow, ReportData
from pocketbert.benchmarks.report.figures import ModelFigures, model_figures
from pocketbert.benchmarks.report.page import render_report, write_report
from pocketbert.benchmarks.report.summary import summary_table

__all__ = [
    "GateRow",
    "ModelFigures",
    "ModelRow",
    "ParityRow",
    "ReportData",
    "model_figures",
    "render_report",
    "summary_table",
    "write_report",
]
