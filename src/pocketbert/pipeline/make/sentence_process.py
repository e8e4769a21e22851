"""Run sentence-transformers in a separate process, so that this optional library's imports and settings stay there.

The process reads texts as JSON from stdin and writes token ids and outputs to the file that its argument names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from pocketbert.core.models.tokenizers import cut_pairs_as_tokenizer_json


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Run sentence-transformers on each text or pair; return token ids, segment ids and output values of each.

    Args:
        request: ``folder`` of the checkpoint; ``cross``, whether it is a CrossEncoder; ``length``, the longest input
            (None for the checkpoint's own); ``names`` of the inputs to feed (None for the tokenizer's own); and
            ``rows``, a list of (text, prompt name), where the text of a CrossEncoder is a list of two texts.

    Returns:
        ``library``, the library's name, version and function; and ``rows``, a dictionary with ``ids``, ``type_ids`` and
        ``values`` for each text.
    """
    import sentence_transformers
    import torch

    settings = {} if request["names"] is None else {"model_input_names": request["names"]}
    kind = sentence_transformers.CrossEncoder if request["cross"] else sentence_transformers.SentenceTransformer
    model = kind(request["folder"], device="cpu", local_files_only=True, processor_kwargs=settings)
    if request["length"] is not None:
        model.max_seq_length = request["length"]
    cut_pairs_as_tokenizer_json(model.tokenizer)
    rows = []
    for text, prompt in request["rows"]:
        text = tuple(text) if request["cross"] else text
        prefix = model.prompts[prompt] if prompt is not None else model.prompts.get(model.default_prompt_name, "")
        features = model.preprocess([text], prompt=prefix or None)
        ids = features["input_ids"]
        types = features.get("token_type_ids", torch.zeros_like(ids))
        with torch.inference_mode():
            ask = model.predict if request["cross"] else model.encode
            values = ask([text], prompt=prefix)
        rows.append({"ids": ids[0].tolist(), "type_ids": types[0].tolist(), "values": values[0].reshape(-1).tolist()})
    name = f"sentence-transformers {sentence_transformers.__version__}, {'predict' if request['cross'] else 'encode'}"
    return {"library": name, "rows": rows}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))), encoding="utf-8")
