"""MobileBERT's published shapes beside BERT-base and DistilBERT, in the files that the toolkit writes for phones.

Random weights (no checkpoint can be had where this was made): latency, sizes and agreement with torch, no accuracy. All files are
open at once and take turns in one run, so that ratios are paired by round. Core ML packages are converted, weighed and compared
with torch by the reference evaluator, whose time is no latency of any device.

Run: python lab/peers/mobilebert.py [--models mobilebert ...] [--runs 5 --repeats 1] [--skip-coreml]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from engine.models import BASE, ROOT, SHAPES

from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Measurement, Variant
from pocketbert.benchmarks.statistics import burst_medians, paired_ratio
from pocketbert.benchmarks.timing import BURST
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.disk.files import path_bytes, write_atomic
from pocketbert.core.families import family_of
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import installed_versions
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, MobileBertSize, Scheme
from pocketbert.distill.students.mobilebert import transfer_config
from pocketbert.export import coreml, onnx, tflite
from pocketbert.export.prepare import prepare
from pocketbert.quantize import Plan, quantize
from pocketbert.runtime.coreml.evaluator import Evaluator

BASELINE = "bert-base"
TINY = "mobilebert-tiny"
NAMES = (BASELINE, "distilbert", "mobilebert", TINY)
ENGINES = {Format.ONNX: "ONNX Runtime", Format.TFLITE: "LiteRT"}
SCHEMES = (Scheme.FP32, Scheme.INT8)
LENGTHS = (32, 128)
TASK = task_of("text-classification")


@dataclass(frozen=True)
class Package:
    """A Core ML package of one shape.

    Attributes:
        name: Shape.
        write_s: CPU seconds of converting it.
        fp16_mb: Its size.
        w8_mb: Size of its copy with int8 weights.
        error: Largest difference of the fp16 logits to torch, relative to the largest logit, at 128 tokens.
    """

    name: str
    write_s: float
    fp16_mb: float
    w8_mb: float
    error: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(NAMES), choices=NAMES)
    parser.add_argument("--lengths", nargs="+", type=int, default=list(LENGTHS))
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--runs", type=int, default=30, help="inferences per file, length and repeat")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=float, default=1200, help="most seconds that measuring takes")
    parser.add_argument("--skip-coreml", action="store_true")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "figures" / "mobilebert.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = list(dict.fromkeys([BASELINE, *options.models]))
    with tempfile.TemporaryDirectory(prefix="pocketbert-mobilebert-") as work:
        variants, packages = list[Variant](), list[Package]()
        for name in names:
            model = _model(name)
            variants += _variants(name, model, options.lengths, Path(work))
            if not options.skip_coreml:
                packages.append(_package(name, model, max(options.lengths), Path(work)))
        result = benchmark(
            variants,
            list(SENTENCES),
            BenchmarkOptions(
                threads=options.threads,
                lengths=options.lengths,
                runs=options.runs,
                repeats=options.repeats,
                budget_s=options.budget,
                profile=False,
            ),
        )
    write_atomic(options.page, _page(names, result, packages))
    print_note(f"written: {options.page}")


def _model(name: str) -> Any:
    if name == TINY:
        config = transfer_config(transformers.MobileBertConfig(**BASE), MobileBertSize.TINY)
    else:
        kind, values = SHAPES[name]
        config = getattr(transformers, kind)(**BASE, **values)
    torch.manual_seed(1)
    return transformers.AutoModelForSequenceClassification.from_config(config).eval()


def _variants(name: str, model: Any, lengths: Sequence[int], folder: Path) -> list[Variant]:
    """The shape's ONNX and TFLite files, fp32 and int8."""
    family, tokenizer, out = family_of(model.config.model_type), open_model_folder("minilm-l6").path, []
    for format in ENGINES:
        began = time.monotonic()
        fp32, int8 = (folder / f"{name}-{s}.{format}" for s in SCHEMES)
        module = prepare(model, family, TASK, format)
        if format is Format.ONNX:
            rows = [_inputs(min(lengths), family.inputs, seed) for seed in (0, 1)]
            example = {n: np.concatenate([r[n] for r in rows]).astype(np.int64) for n in family.inputs}
            onnx.export(module, family, TASK, example, fp32)
        else:
            tflite.export(module, family, TASK, lengths, fp32)
        quantize(fp32, int8, Plan(format, Scheme.INT8))
        for scheme, path in zip(SCHEMES, (fp32, int8), strict=True):
            out.append(Variant.of(_row(name, format, scheme), path, tokenizer, max(lengths), scheme, format))
        print_note(f"  {name}: {format} files in {time.monotonic() - began:.0f} s")
    return out


def _package(name: str, model: Any, length: int, folder: Path) -> Package:
    family, began = family_of(model.config.model_type), time.process_time()
    fp16, w8 = folder / f"{name}.mlpackage", folder / f"{name}-w8.mlpackage"
    module = prepare(model, family, TASK, Format.COREML)
    info = coreml.CoremlInfo("", "", "", "", ("negative", "positive"))
    coreml.export(module, family, TASK, [length], fp16, coreml.CoremlForm(), info)
    took = time.process_time() - began
    quantize(fp16, w8, Plan(Format.COREML, Scheme.W8))
    feed = _inputs(length, family.inputs)
    with torch.inference_mode():
        right = model(**{n: torch.from_numpy(v.astype(np.int64)) for n, v in feed.items()}).logits.numpy()
    found = np.asarray(Evaluator(fp16).run(feed)["logits"], np.float64)
    print_note(f"  {name}: Core ML package in {took:.0f} CPU s")
    error = float(np.abs(found - right).max() / np.abs(right).max())
    return Package(name, took, path_bytes(fp16) / 1e6, path_bytes(w8) / 1e6, error)


def _inputs(length: int, names: Sequence[str], seed: int = 0) -> dict[str, np.ndarray]:
    ids = np.random.default_rng([length, seed]).integers(1000, 20000, (1, length)).astype(np.int32)
    mask = np.ones_like(ids)
    mask[:, length - length // 4 :] = 0
    values = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    return {name: values[name] for name in names}


def _row(name: str, format: Format, scheme: Scheme) -> str:
    return f"{name} {format} {scheme}"


def _page(names: Sequence[str], result: BenchmarkResult, packages: Sequence[Package]) -> str:
    versions = installed_versions(("torch", "transformers", "onnxruntime", "ai-edge-litert", "coremltools"))
    protocol = result.protocol
    out = [
        "<!-- written by lab/peers/mobilebert.py -->",
        "# MobileBERT's shapes",
        "",
        f"**Random weights**, so nothing is said about accuracy. {', '.join(f'{k} {v}' for k, v in versions.items())}; "
        f"{describe_machine().summary}; {result.measurements[-1].load.summary}.",
        f"Batch 1, {protocol.runs_made[0]} to {protocol.runs_made[1]} runs in each of {protocol.repeats} repeats, all files of a thread "
        "count interleaved; provenance measured. Ratios: wall time over that of BERT-base int8 in the same engine, paired by round, "
        "with the interval of their median (95 % from 6 rounds on).",
    ]
    for format, engine in ENGINES.items():
        for threads in protocol.threads:
            out += ["", f"## {engine}, {threads} thread{'s' if threads > 1 else ''}", ""]
            head = ["shape (random weights)", "scheme", "MB"]
            head += [f"{n} tokens: {what}" for n in protocol.lengths for what in ("ms", "ratio")]
            out += [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
            out += [_line(name, format, scheme, threads, result) for name in names for scheme in SCHEMES]
    if packages:
        out += [
            "",
            "## Core ML",
            "",
            "Compiled-only: converted here, run by the evaluator, on no device. The error is emulated fp16 against torch in fp32, "
            "relative to the largest logit.",
            "",
            "| shape (random weights) | conversion, CPU s | fp16 MB | w8 MB | error |",
            "|---|---|---|---|---|",
            *(f"| {p.name} | {p.write_s:.0f} | {p.fp16_mb:.1f} | {p.w8_mb:.1f} | {p.error:.1e} |" for p in packages),
        ]
    return "\n".join([*out, ""])


def _line(name: str, format: Format, scheme: Scheme, threads: int, result: BenchmarkResult) -> str:
    cells: list[str] = []
    size = 0.0
    for length in result.protocol.lengths:
        own = result.find(_row(name, format, scheme), threads, length)
        base = result.find(_row(BASELINE, format, Scheme.INT8), threads, length)
        assert own is not None
        assert own.wall is not None
        assert base is not None
        ratio = paired_ratio(_rounds(own), _rounds(base))
        size = own.bytes / 1e6
        cells += [f"{own.wall.p50:.2f}", f"{ratio.median:.2f} [{ratio.low:.2f}, {ratio.high:.2f}]"]
    return f"| {name} | {scheme} | {size:.1f} | {' | '.join(cells)} |"


def _rounds(measured: Measurement) -> list[float]:
    return burst_medians(measured.wall_ms, BURST)


if __name__ == "__main__":
    main()
