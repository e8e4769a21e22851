"""What the rewritten graph is worth: the same weights exported with and without `export.adapters.lean`.

    cd .venv && bin/python ../lab/peers/graphs.py --model ../runs/demo/phone

Every file is int8, made by the toolkit's own exporters and quantizers, and timed by the toolkit's own protocol: batch 1,
interleaved, ratios of wall and of CPU time paired by round.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import task_of
from pocketbert.core.types import Format, Scheme
from pocketbert.export import onnx, tflite
from pocketbert.export.adapters import mask_4d
from pocketbert.export.prepare import prepare
from pocketbert.quantize import Plan, quantize

SLIM = mask_4d.rewrite_layers


def export(model: Path, format: Format, lean: bool, lengths: list[int], folder: Path) -> Path:
    """One int8 file of a model, with or without the rewrite."""
    opened = open_model_folder(str(model))
    task, family = task_of("text-classification"), opened.family
    mask_4d.rewrite_layers = SLIM if lean else (lambda stock, _: stock)
    module = prepare(load_model(opened, task), family, task, format)
    fp32 = folder / f"{format}-{'lean' if lean else 'stock'}.fp32"
    if format is Format.ONNX:
        tokenizer = TextTokenizer(model, max(lengths))
        example = tokenizer.pad(tokenizer.encode(list(SENTENCES[:2])), min(lengths))
        onnx.export(module, family, task, example, fp32)
    else:
        tflite.export(module, family, task, lengths, fp32)
    int8 = fp32.with_suffix(f".{format}")
    quantize(fp32, int8, Plan(format, Scheme.INT8))
    return int8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face or artefact folder")
    parser.add_argument("--lengths", default="32,128")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--runs", type=int, default=60)
    given = parser.parse_args()
    lengths = [int(n) for n in given.lengths.split(",")]
    threads = [int(n) for n in given.threads.split(",")]
    with tempfile.TemporaryDirectory(prefix="pocketbert-graphs-") as work:
        print(
            "| format | threads | length | stock ms | rewritten ms | wall ratio | CPU ratio |\n|---|---:|---:|---:|---:|---:|---:|"
        )
        for format in (Format.ONNX, Format.TFLITE):
            files = {lean: export(given.model, format, lean, lengths, Path(work)) for lean in (False, True)}
            variants = [
                Variant.of("rewritten" if lean else "stock", path, given.model, max(lengths), Scheme.INT8, format)
                for lean, path in files.items()
            ]
            result = benchmark(
                variants,
                list(SENTENCES),
                BenchmarkOptions(
                    threads=threads,
                    lengths=lengths,
                    runs=given.runs,
                    repeats=3,
                    label="",
                    budget_s=120,
                    profile=False,
                ),
            )
            for count in threads:
                for length in lengths:
                    found = [result.find(name, count, length) for name in ("stock", "rewritten")]
                    compared = result.compare("rewritten", count, length)
                    if compared is None or None in found:
                        continue
                    times = " | ".join(f"{m.wall.p50:.2f}" for m in found if m is not None and m.wall is not None)
                    ratios = " | ".join(
                        f"{r.median:.3f} [{r.low:.3f}, {r.high:.3f}]" for r in (compared.wall, compared.cpu)
                    )
                    print(f"| {format} int8 | {count} | {length} | {times} | {ratios} |", flush=True)
        print(f"\nmeasured on {result.machine.summary}; load {result.measurements[-1].load.summary}")


if __name__ == "__main__":
    main()
