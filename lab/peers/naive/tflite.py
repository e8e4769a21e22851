"""Static int8 of TFLite as ai-edge-quantizer's recipe `static_wi8_ai8` makes it: every operator that it knows.

Only the answers stay float, as they do in files of other schemes, so that they can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pocketbert.core.host.quiet import silence_output
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.runtime.tflite import TflitePredictor


def write_naive(source: Path, destination: Path, tokenizer: TextTokenizer, rows: Sequence[Encoded]) -> None:
    """Quantize an fp32 file with ranges of padded rows: each signature reads every row that fits into it.

    Args:
        source: The fp32 file.
        destination: Where to write.
        tokenizer: Pads rows.
        rows: Calibration rows.
    """
    predictor = TflitePredictor(source)
    calibration = {}
    for length, key in predictor.signature_keys.items():
        wide = [tokenizer.pad([row], length) for row in rows if len(row) <= length]
        calibration[key] = [{name: values[name].astype(np.int32) for name in predictor.inputs} for values in wide]
    with silence_output():
        from ai_edge_quantizer import recipe
        from ai_edge_quantizer.qtyping import TFLOperationName
        from ai_edge_quantizer.quantizer import Quantizer
        from ai_edge_quantizer.recipe import AlgorithmName
        from ai_edge_quantizer.recipe_manager import RecipeManager

        quantizer = Quantizer(str(source))
        manager = RecipeManager()
        manager.load_quantization_recipe(recipe.static_wi8_ai8())
        manager.add_quantization_config(".*", TFLOperationName.OUTPUT, algorithm_key=AlgorithmName.NO_QUANTIZE)
        quantizer.load_quantization_recipe(manager.get_quantization_recipe())
        ranges = quantizer.calibrate(calibration, num_threads=1)
        content = bytes(quantizer.quantize(ranges).quantized_model)
    destination.write_bytes(content)
