"""The fixtures of the tiny task and its finished runs."""

from support.fixtures import (
    cli,
    coreml_copy,
    finished,
    finished_coreml,
    finished_tflite,
    pb,
    phone,
    refused,
    run_copy,
    task,
    tflite_copy,
)
