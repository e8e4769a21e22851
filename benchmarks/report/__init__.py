"""The report of a run or a benchmark: one HTML page, and the closing table of the terminal."""

from pocketbert.benchmarks.report.figures import (
    GateRow,
    ModelRow,
    ParityRow,
    ReportData,
    make_summary_table,
)
from pocketbert.benchmarks.report.output import ModelFigures, collect_model_figures
from pocketbert.benchmarks.report.page import render_report, write_report

__all__ = [
    "GateRow",
    "ModelFigures",
    "ModelRow",
    "ParityRow",
    "ReportData",
    "collect_model_figures",
    "make_summary_table",
    "render_report",
    "write_report",
]
