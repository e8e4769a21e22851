"""Files for chips next to the CPU: what the gate `placement` reads, and that no CPU times them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("ai_edge_quantizer", reason="needs pocketbert[tflite]")

from pocketbert.benchmarks.devices import adb, local, ssh
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Runtime, Scheme
from pocketbert.pipeline.formats.base import format_place
from pocketbert.pipeline.results import Subject
from pocketbert.quantize import Plan, quantize, weights
from pocketbert.quantize.tflite import gpu

Exported = Callable[[str], Path]
ACCELERATORS = [runtime for runtime in Runtime if runtime.accelerator]


def subject(path: Path, runtime: Runtime) -> Subject:
    """A file under verification; its gate reads the file only."""
    unread: Any = SimpleNamespace()
    return Subject(
        name=path.name,
        path=path,
        format=Format.TFLITE,
        scheme=Scheme.FP16,
        client=None,
        runtime=runtime,
        predictor=unread,
        tokenizer=unread,
        labels=[],
        task=task_of("text-classification"),
        folder=path.parent,
    )


def test_the_gate_passes_where_the_gpu_takes_the_products_and_names_the_rest(
    exported_tflite: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weights, "SMALL", 512)
    file, place = tmp_path / "model_fp16_gpu.tflite", format_place(Format.TFLITE)
    quantize(exported_tflite("bert"), file, Plan(Format.TFLITE, Scheme.FP16, Runtime.GPU))
    one = subject(file, Runtime.GPU)
    [good] = place.gates(one, ())
    assert (good.name, good.passed, good.value) == ("placement", True, 0.0)
    assert good.detail.endswith("Compiled-only: read from the graph, not run on the chip.")
    monkeypatch.delitem(gpu.RULES, "GELU")
    [partly] = place.gates(one, ())
    assert (partly.passed, partly.value) == (True, 2.0)
    assert "stays on the CPU: 2 GELU (the delegate does not know this operator)" in partly.detail
    monkeypatch.delitem(gpu.RULES, "FULLY_CONNECTED")
    [refused] = place.gates(one, ())
    assert not refused.passed
    assert "FULLY_CONNECTED" in refused.failure
    assert place.gates(replace(one, runtime=None), ()) == []


@pytest.mark.parametrize("runtime", ACCELERATORS)
def test_no_cpu_times_such_a_file(runtime: Runtime) -> None:
    for refusal in (local.DEVICE.refusal, adb.DEVICE.refusal, ssh.DEVICE.refusal):
        assert f"made for {runtime}" in refusal(Format.TFLITE, runtime)
