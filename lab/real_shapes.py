"""Export models of published sizes with random weights, and measure time, memory, size, parity and latency.

Run: python lab/real_shapes.py                       (all shapes of the table that were not measured yet)
     python lab/real_shapes.py --only BERT-base      (one of them; --anew measures again)

Every export, and every measurement, is a process. What was measured is kept in docs/figures/real-shapes.json after each model.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from systems.shapes import SHAPES, Shape

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs/figures/real-shapes.json"
LENGTH, THREADS, RUNS = 128, 1, 12
FORMATS = {"onnx": ("fp32", "int8"), "tflite": ("fp32", "int8"), "coreml": ("fp16", "w8")}
SUFFIX = {"onnx": ".onnx", "tflite": ".tflite", "coreml": ".mlpackage"}
LIBRARIES = ("torch", "transformers", "onnxruntime", "ai-edge-litert", "litert-torch", "coremltools")


def build(shape: Shape) -> tuple[Any, Any, Any]:
    """A model of a shape with random weights that matter, its row, and the task."""
    import torch
    import transformers

    from pocketbert.core.families import family_of
    from pocketbert.core.models.checkpoints import register_with_transformers
    from pocketbert.core.tasks import TASKS, TaskName

    row, task = family_of(shape.model_type), TASKS[TaskName.TEXT_CLASSIFICATION]
    register_with_transformers(row)
    config = transformers.AutoConfig.for_model(shape.model_type, **shape.sizes)
    torch.manual_seed(7)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.02)
    return model.eval(), row, task


def inputs_of(row: Any, config: Any, lengths: list[int], width: int) -> dict[str, Any]:
    """Drawn ids of some lengths, padded to `width` on the side of the family."""
    import numpy as np

    draw = np.random.default_rng(sum(lengths) + width)
    ids = np.full((len(lengths), width), getattr(config, "pad_token_id", None) or 0, np.int64)
    mask = np.zeros_like(ids)
    for i, length in enumerate(lengths):
        own = slice(0, length) if row.padding_side == "right" else slice(width - length, width)
        ids[i, own], mask[i, own] = draw.integers(1000, min(config.vocab_size, 30000), length), 1
    made = {"input_ids": ids, "attention_mask": mask}
    return {name: made.get(name, np.zeros_like(ids)) for name in row.inputs}


def export(shape: Shape, format: str, folder: Path) -> dict[str, Any]:
    """Write the two files of a format; returns seconds and the peak memory of this process."""
    from pocketbert.core.types import Format, Scheme, Shapes
    from pocketbert.export import coreml, onnx, tflite
    from pocketbert.export.prepare import prepare
    from pocketbert.quantize import Plan, quantize

    model, row, task = build(shape)
    base, small = (folder / f"{scheme}{SUFFIX[format]}" for scheme in FORMATS[format])
    start = time.monotonic()
    module = prepare(model, row, task, Format(format))
    if format == "onnx":
        onnx.export(module, row, task, inputs_of(row, model.config, [32, 20], 32), base)
    elif format == "tflite":
        tflite.export(module, row, task, [LENGTH], base)
    else:
        info = coreml.CoremlInfo("Random weights.", "1", "lab/real_shapes.py", "none")
        coreml.export(module, row, task, [LENGTH], base, coreml.CoremlForm(shapes=Shapes.FIXED), info)
    exported = time.monotonic() - start
    quantize(base, small, Plan(Format(format), Scheme(FORMATS[format][1])))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return {
        "seconds": round(exported, 1),
        "quantize_seconds": round(time.monotonic() - start - exported, 1),
        "peak_mb": round(peak),
        "mb": round(size(base) / 1e6, 2),
        "mb_8": round(size(small) / 1e6, 2),
    }


def size(path: Path) -> int:
    """Bytes of a file, or of all files of a package."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else path.stat().st_size


def measure(shape: Shape, format: str, folder: Path) -> dict[str, Any]:
    """Parity of both files, and latencies where the engine is the phone's own; `torch` times the untouched model."""
    import torch

    from pocketbert.core.compare.evaluate import logit_scale, rms_error, worst_difference
    from pocketbert.core.predict.predictor import TorchPredictor
    from pocketbert.core.types import Format
    from pocketbert.runtime.engines import open_file

    torch.set_num_threads(THREADS)
    model, row, task = build(shape)
    reference = TorchPredictor(model, task, row.inputs)
    full = inputs_of(row, model.config, [LENGTH], LENGTH)
    if format == "torch":
        count = sum(p.numel() for p in model.parameters())
        return {"parameters": count, "torch_ms": median_ms(lambda: reference.run(full))}
    widths = [LENGTH, LENGTH, LENGTH, *([37, 50] if format == "onnx" else [])]
    lengths = [LENGTH, 90, 20, *([37, 33] if format == "onnx" else [])]
    batches = [inputs_of(row, model.config, [n], w) for n, w in zip(lengths, widths, strict=True)]
    import numpy as np

    right = np.concatenate([reference.run(b)["logits"] for b in batches])
    out: dict[str, Any] = {}
    for scheme, key in zip(FORMATS[format], ("parity", "rms"), strict=True):
        file = open_file(folder / f"{scheme}{SUFFIX[format]}", Format(format), THREADS)
        found = np.concatenate([file.run(b)["logits"] for b in batches])
        value = worst_difference(found, right) / logit_scale(right) if key == "parity" else rms_error(found, right)
        out[key] = float(f"{value:.3g}")
        if format != "coreml":
            out["ms" if key == "parity" else "ms_8"] = median_ms(lambda file=file: file.run(full))
    return out


def median_ms(run: Any) -> float:
    """Median CPU time of some inferences on one thread, behind two that are not counted: other programs do not count."""
    times = []
    for _ in range(RUNS + 2):
        start = time.process_time()
        run()
        times.append(time.process_time() - start)
    return round(sorted(times[2:])[RUNS // 2] * 1000, 1)


def worker(kind: str, shape: Shape, format: str, folder: Path) -> dict[str, Any]:
    """Run a part in a process of its own; what went wrong where it fails."""
    words = [
        sys.executable,
        __file__,
        "--part",
        kind,
        "--only",
        shape.name,
        "--format",
        format,
        "--folder",
        str(folder),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS)}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or [f"ended with {done.returncode}"]
        return {"error": last[0][:300]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def whole(shape: Shape) -> dict[str, Any]:
    """Everything about one shape."""
    with tempfile.TemporaryDirectory(prefix="real-shapes-") as folder:
        found = worker("measure", shape, "torch", Path(folder))
    found["formats"] = {}
    for format in FORMATS:
        with tempfile.TemporaryDirectory(prefix="real-shapes-") as folder:
            made = worker("export", shape, format, Path(folder))
            if "error" not in made:
                made |= worker("measure", shape, format, Path(folder))
        found["formats"][format] = made
        print(f"  {shape.name} {format}: {made}", flush=True)
    return found


def main() -> None:
    """Measure what was not measured yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[], help="names of shapes; default all of the table")
    parser.add_argument("--anew", action="store_true", help="measure again what is in the figures")
    for hidden in ("--part", "--format", "--folder"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    given = parser.parse_args()
    chosen = [s for s in SHAPES if not given.only or s.name in given.only]
    if given.part:
        part = export if given.part == "export" else measure
        print(json.dumps(part(chosen[0], given.format, Path(given.folder))))
        return
    from pocketbert.core.families import all_families
    from pocketbert.core.host.hardware import describe_machine
    from pocketbert.core.host.system import version_of

    known = {t for f in all_families() for t in f.model_types}
    content = json.loads(RESULTS.read_text("utf-8")) if RESULTS.is_file() else {"shapes": {}}
    versions = {name: version_of(name) for name in LIBRARIES}
    content |= {"length": LENGTH, "threads": THREADS, "machine": describe_machine().summary, "versions": versions}
    for shape in chosen:
        if shape.model_type not in known:
            print(f"  {shape.name}: '{shape.model_type}' is not in the family table", flush=True)
        elif given.anew or shape.name not in content["shapes"]:
            content["shapes"][shape.name] = whole(shape)
            RESULTS.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
