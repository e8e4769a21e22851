"""The fixtures of the tiny task."""

from support.fixtures import cli, finished, finished_tflite, pb, phone, run_copy, task
