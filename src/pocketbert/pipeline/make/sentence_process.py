"""The separate process in which sentence-transformers answers: an optional library, whose imports and settings stay there.

It reads questions as JSON from stdin and writes answers to the file that its argument names.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Answer texts with the class of sentence-transformers that a folder is for.

    Args:
        asked: ``folder``, ``cross`` (whether it is a CrossEncoder), ``length`` (None for the model's own), ``names`` (the
            inputs to feed, None for the tokenizer's own) and ``rows``: pairs of a text, or two texts, and a prompt's name.

    Returns:
        ``library`` and ``rows``: ids, type_ids and values of each.
    """
    import sentence_transformers
    import torch

    settings = {} if asked["names"] is None else {"model_input_names": asked["names"]}
    kind = sentence_transformers.CrossEncoder if asked["cross"] else sentence_transformers.SentenceTransformer
    model = kind(asked["folder"], device="cpu", local_files_only=True, processor_kwargs=settings)
    if asked["length"] is not None:
        model.max_seq_length = asked["length"]
    rows = []
    for text, prompt in asked["rows"]:
        given = tuple(text) if asked["cross"] else text
        chosen = model.prompts[prompt] if prompt is not None else model.prompts.get(model.default_prompt_name, "")
        features = model.preprocess([given], prompt=chosen or None)
        ids = features["input_ids"]
        types = features.get("token_type_ids", torch.zeros_like(ids))
        with torch.inference_mode():
            made = model.predict([given], prompt=chosen) if asked["cross"] else model.encode([given], prompt=chosen)
        rows.append({"ids": ids[0].tolist(), "type_ids": types[0].tolist(), "values": made[0].reshape(-1).tolist()})
    name = f"sentence-transformers {sentence_transformers.__version__}, {'predict' if asked['cross'] else 'encode'}"
    return {"library": name, "rows": rows}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(answer(json.load(sys.stdin))), encoding="utf-8")
