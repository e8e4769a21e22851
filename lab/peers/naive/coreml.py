"""Static int8 of Core ML as coremltools writes it with its defaults: symmetric activations and weights, nothing left out.

coremltools measures ranges by running the model, which needs macOS. The project's evaluator runs it here. Version 9 of
coremltools keeps the ranges of the last row only; `write_naive` does the same, and can keep those of all rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.quantize.coreml import write_compressed
from pocketbert.runtime.coreml.evaluator import Evaluator, Step

Ranges = dict[str, dict[str, Any]]


def write_naive(
    source: Path, destination: Path, tokenizer: TextTokenizer, rows: Sequence[Encoded], all_rows: bool = False
) -> None:
    """Quantize activations and weights of a package in fp16.

    Args:
        source: The package.
        destination: Where to write.
        tokenizer: Pads rows.
        rows: Calibration rows.
        all_rows: Whether ranges are those of all rows, not of the last one.
    """
    ranges = measure(source, tokenizer, rows if all_rows else rows[-1:])

    def compress(model: Any) -> Any:
        import coremltools.optimize as cto
        from coremltools.optimize.coreml import _post_training_quantization as own

        config = cto.coreml.OptimizationConfig(global_config=cto.coreml.OpLinearQuantizerConfig())
        with mock.patch.object(own, "_get_activation_calibration_stats", lambda *_: ranges):
            model = cto.coreml.experimental.linear_quantize_activations(model, config, [])
        return cto.coreml.linear_quantize_weights(model, config)

    write_compressed(source, destination, compress)


def measure(source: Path, tokenizer: TextTokenizer, rows: Sequence[Encoded]) -> Ranges:
    """Measure the range of every number that the program computes, padding included, by its name."""
    evaluator, ranges = Evaluator(source), defaultdict[str, dict[str, Any]](dict)

    def keep(step: Step) -> None:
        if isinstance(step.value, np.ndarray) and step.value.size:
            known = ranges[step.output]
            low, high = step.value.min(), step.value.max()
            known["rmin"] = min(low, known.get("rmin", low))
            known["rmax"] = max(high, known.get("rmax", high))

    for row in rows:
        wide = tokenizer.pad([row], next(n for n in evaluator.lengths if n >= len(row)))
        evaluator.run({f.name: wide[f.name].astype(np.int32) for f in evaluator.inputs}, keep)
    return dict(ranges)
