"""The verbs of PocketBERT as functions: the command line calls these, and so may you.

Every function imports what it needs when called: importing this package is cheap, and a core-only install can predict.
"""

from __future__ import annotations

from pocketbert.api.data import data_augment, data_check, data_demo, data_prepare
from pocketbert.api.folders import export, pack, plan_export, quantize
from pocketbert.api.judging import benchmark, predict, report, sensitivity, verify
from pocketbert.api.machine import doctor
from pocketbert.api.recipes import demo, distill, finetune, load_recipe, plan, run, starting_recipe
from pocketbert.core.host.platforms import refusal
from pocketbert.pipeline.options import DataFiles, PlannedStep

__all__ = [
    "DataFiles",
    "PlannedStep",
    "benchmark",
    "data_augment",
    "data_check",
    "data_demo",
    "data_prepare",
    "demo",
    "distill",
    "doctor",
    "export",
    "finetune",
    "load_recipe",
    "pack",
    "plan",
    "plan_export",
    "predict",
    "quantize",
    "report",
    "run",
    "sensitivity",
    "starting_recipe",
    "verify",
]

if text := refusal():
    raise ImportError(text)
