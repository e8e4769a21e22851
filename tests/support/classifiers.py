"""What transformers answers with a classifier's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
import transformers

from pocketbert.core.families import family_of


def expected(folder: Path, texts: list[str]) -> np.ndarray:
    """Probabilities as transformers itself computes them from the untouched folder, [N, labels]."""
    untouched = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    segments = family_of(untouched.config.model_type).uses_segments
    rows = []
    for text in texts:
        ids = torch.tensor([tokenizer(text)["input_ids"]])
        more = {"token_type_ids": torch.zeros_like(ids)} if segments else {}
        with torch.inference_mode():
            rows.append(untouched(ids, attention_mask=torch.ones_like(ids), **more).logits.softmax(-1)[0].numpy())
    return np.stack(rows)
