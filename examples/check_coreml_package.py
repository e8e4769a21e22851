"""Inspect a Core ML package without a Mac: its inputs and outputs, its room in fp16, and where rounding changes the result.

Run: python examples/check_coreml_package.py phone "a text" "another text"
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from pocketbert.runtime import CoremlPredictor, TextTokenizer, feed, layer_differences, overflow_scan


def main(folder: Path, texts: list[str]) -> None:
    """Print the facts of every package of an artefact folder, with some texts as inputs."""
    for package in sorted((folder / "coreml").glob("*.mlpackage")):
        predictor = CoremlPredictor(package, reference=True)
        tokenizer = TextTokenizer(folder, max(predictor.lengths, default=128))
        batches = [feed(predictor, tokenizer, [e]) for e in tokenizer.encode(list(texts))]
        inputs = [{n: b[n].astype(np.int32) for n in predictor.inputs} for b in batches]
        print(f"{package.name}: {', '.join(predictor.inputs)} -> {', '.join(predictor.outputs)}")
        print(f"  lengths: {', '.join(map(str, predictor.lengths)) or 'any'}")
        print(f"  room in fp16: {overflow_scan(package, inputs).summary}")
        for step in layer_differences(package, inputs[0])[:3]:
            print(f"  rounding grows at {step.op_type} {step.output}: {step.growth:.1e}, then {step.relative:.1e}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
