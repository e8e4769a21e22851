"""The report of a run or a benchmark: one HTML page, and the closing table of the terminal."""

from pocketbert.benchmarks.report.figures import (
    GateRow,
    ModelFigures,
    ModelRow,
    ParityRow,
    ReportData,
    model_figures,
    summary_table,
)
from pocketbert.benchmarks.report.page import render_report, write_report

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
