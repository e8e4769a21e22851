"""Core ML packages of published shapes: how long they take to write, how large they are, how fast the evaluator is.

Random weights (no checkpoint can be had where this was made): shapes, sizes, times and agreement with torch, no accuracy. The
evaluator's time is what verifying a row costs on this machine; it is no latency of any device.

Run: python lab/peers/coreml.py [--models tinybert4 ...] [--lengths 32 128] [--layouts plain ane]
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import transformers
from engine.models import BASE, ROOT, SHAPES

from pocketbert.core.disk.files import path_bytes, write_atomic
from pocketbert.core.families import family_of
from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.host.system import installed_versions
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Layout, Scheme
from pocketbert.export.coreml import CoremlForm, CoremlInfo, export
from pocketbert.export.prepare import prepare
from pocketbert.quantize import Plan, quantize
from pocketbert.runtime.coreml.evaluator import Evaluator, EvaluatorPrecision

RUNS = 5
STUDENTS = ("distilbert", "tinybert4")
"""Also written in the layout for the Neural Engine. coremltools takes more than ten minutes for twelve layers of twelve heads."""


@dataclass(frozen=True)
class Row:
    """One model in one layout.

    Attributes:
        name: Shape.
        layout: plain or ane.
        write_s: CPU seconds of exporting the fp16 package.
        compress_s: CPU seconds of making w8 from it.
        fp16_mb: Size of the fp16 package.
        w8_mb: Size of the w8 package.
        operations: Operations of the program, constants left out.
        error: Largest difference of the fp16 logits to torch, relative to the largest logit.
        weight_error: The same with results not rounded: what fp16 weights alone cost.
        ms: CPU milliseconds of one evaluation by length in tokens, w8.
    """

    name: str
    layout: str
    write_s: float
    compress_s: float
    fp16_mb: float
    w8_mb: float
    operations: int
    error: float
    weight_error: float
    ms: dict[int, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--lengths", nargs="+", type=int, default=[32, 128])
    parser.add_argument("--layouts", nargs="+", default=list(Layout), type=Layout, choices=list(Layout))
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "figures" / "coreml.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.models:
        for layout in options.layouts:
            if layout is Layout.ANE and name not in STUDENTS:
                continue
            rows.append(_measure(name, layout, options.lengths))
            print(_line(rows[-1], options.lengths), flush=True)
    write_atomic(options.page, _page(rows, options.lengths))
    print(f"written: {options.page}")


def _measure(name: str, layout: Layout, lengths: Sequence[int]) -> Row:
    kind, changes = SHAPES[name]
    config = getattr(transformers, kind)(**changes, **BASE)
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    family, task = family_of(config.model_type), task_of("text-classification")
    module = prepare(model, family, task, Format.COREML, layout)
    with tempfile.TemporaryDirectory() as folder:
        fp16, w8 = Path(folder) / "Model.mlpackage", Path(folder) / "Model_w8.mlpackage"
        info = CoremlInfo("", "", "", "", ("negative", "positive"))
        write_s = _cpu(lambda: export(module, family, task, lengths, fp16, CoremlForm(), info))
        compress_s = _cpu(lambda: quantize(fp16, w8, Plan(Format.COREML, Scheme.W8)))
        errors = [_error(fp16, p, model, family.inputs, lengths[-1]) for p in EvaluatorPrecision]
        evaluator, feeds = Evaluator(w8), {n: _inputs(n, family.inputs) for n in lengths}
        counts: list[str] = []
        evaluator.run(feeds[lengths[0]], lambda step: counts.append(step.op_type))
        ms = {}
        for n, feed in feeds.items():
            evaluator.run(feed)
            ms[n] = 1000 * min(_cpu(lambda f=feed: evaluator.run(f)) for _ in range(RUNS))
        return Row(
            name,
            layout.value,
            write_s,
            compress_s,
            path_bytes(fp16) / 1e6,
            path_bytes(w8) / 1e6,
            len(counts),
            errors[0],
            errors[1],
            ms,
        )


def _cpu(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def _inputs(length: int, names: Sequence[str]) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(length)
    mask = np.ones((1, length), np.int32)
    mask[:, length - length // 4 :] = 0
    values = {
        "input_ids": draw.integers(1000, 20000, (1, length)).astype(np.int32),
        "attention_mask": mask,
        "token_type_ids": np.zeros_like(mask),
    }
    return {name: values[name] for name in names}


def _error(
    path: Path, precision: EvaluatorPrecision, model: torch.nn.Module, names: Sequence[str], length: int
) -> float:
    feed = _inputs(length, names)
    with torch.inference_mode():
        expected = model(**{n: torch.from_numpy(v.astype(np.int64)) for n, v in feed.items()}).logits.numpy()
    found = np.asarray(Evaluator(path, precision).run(feed)["logits"], np.float64)
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _line(row: Row, lengths: Sequence[int]) -> str:
    speed = " | ".join(f"{row.ms[n]:.0f}" for n in lengths)
    return (
        f"| {row.name} | {row.layout} | {row.operations} | {row.write_s:.0f} | {row.compress_s:.0f} | {row.fp16_mb:.1f} | "
        f"{row.w8_mb:.1f} | {row.error:.1e} | {row.weight_error:.1e} | {speed} |"
    )


def _page(rows: Sequence[Row], lengths: Sequence[int]) -> str:
    versions = ", ".join(f"{k} {v}" for k, v in installed_versions(("coremltools", "torch", "numpy")).items())
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    head = [
        "shape",
        "layout",
        "operations",
        "write, CPU s",
        "w8, CPU s",
        "fp16 MB",
        "w8 MB",
        "fp16 error",
        "of it weights",
        *(f"evaluator, {n} tokens, CPU ms" for n in lengths),
    ]
    return "\n".join(
        [
            "<!-- written by lab/peers/coreml.py -->",
            f"Random weights, so nothing is said about accuracy. {versions}; {describe_machine().summary}; load {load_average():.1f}; "
            f"peak memory {peak:.1f} GiB.",
            "",
            f"| {' | '.join(head)} |",
            f"|{'---|' * len(head)}",
            *(_line(r, lengths) for r in rows),
            "",
            "Provenance: writing measured; the evaluator's time is what checking one row costs here, no device's latency. Errors are "
            "emulated fp16 against torch in fp32, relative to the largest logit.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
