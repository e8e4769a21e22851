"""Measure whether a file with random weights takes as long as the trained file of the same shape, which `plan` assumes.

Run: python lab/planned_latency.py runs/demo/phone [--tries 3] [--lengths text,32,64] [--work FOLDER]

A student of the folder's shape is drawn at random and exported like the folder's own. Each try measures both int8 files of each
format in turns, in one run, and gives the ratio of random to trained with its interval, at p50; a plan and a run that are
minutes apart differ by the machine's drift as well, which this leaves out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pocketbert import BenchmarkOptions, ExportOptions, api
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import Variant
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.host.hardware import describe_machine
from pocketbert.runtime.tflite import TflitePredictor

FILES = ("onnx/model_int8.onnx", "tflite/model_int8.tflite")

NOISE = 0.01
"""Standard deviation of what is added to new weights, as in `plan`: exporters leave out biases of zeros."""
WITHIN = 0.10
"""What the latency of a plan may be off by."""


def write_random_student(phone: Path, folder: Path) -> Path:
    """Write a model of the shape and with the tokenizer of an artefact folder, with random weights."""
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.AutoConfig.from_pretrained(phone)
    model = transformers.AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * NOISE)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(phone).save_pretrained(folder)
    return folder


def main() -> None:
    """Export the random student, measure it beside the folder, and print a line per try, format and length."""
    parser = argparse.ArgumentParser(description="Compare random with trained weights in latency.")
    parser.add_argument("phone", type=Path, help="artefact folder of a text classifier with ONNX and TFLite files")
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--lengths", default="text,32,64")
    parser.add_argument("--work", type=Path, help="folder for the random model; default: a temporary one")
    options = parser.parse_args()
    lengths = [length if length == "text" else int(length) for length in options.lengths.split(",")]
    listed, machine = read_artefacts(options.phone), describe_machine()
    print(machine.summary)
    worst = 0.0
    with tempfile.TemporaryDirectory() as temporary:
        work = options.work or Path(temporary)
        model = write_random_student(options.phone, work / "model")
        taken = TflitePredictor(options.phone / FILES[1]).lengths
        settings = ExportOptions(formats=["onnx", "tflite"], max_length=taken[-1], lengths=taken[:-1])
        random = api.export(str(model), work / "phone", settings)
        for attempt in range(1, options.tries + 1):
            for record in (r for r in listed.models() if r.path in FILES):
                variants = [
                    Variant.of(
                        name, folder / record.path, folder, listed.processing.max_length, record.scheme, record.format
                    )
                    for name, folder in (("trained", options.phone), ("random", random))
                ]
                asked = BenchmarkOptions(
                    lengths=lengths, runs=60, repeats=10, budget_s=90, profile=False, fresh=True, label=""
                )
                for one in benchmark(variants, SENTENCES, asked).comparisons:
                    wall = one.wall
                    worst = max(worst, abs(wall.median - 1))
                    ratio = f"{wall.median:.3f} [{wall.low:.3f}, {wall.high:.3f}]"
                    print(f"try {attempt}: {record.path}, {one.length} tokens: {ratio}", flush=True)
    print(f"at most {worst:.1%} off; a plan may be {WITHIN:.0%} off")


if __name__ == "__main__":
    main()
