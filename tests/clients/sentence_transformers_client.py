"""Runs inside an environment with sentence-transformers: `python sentence_transformers_client.py question.json answer.json`.

Opens a folder with torch, or one of its ONNX files where the question names one.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime reports to its vendor otherwise

import sentence_transformers
import torch


def main():
    """Vectors of texts, each text alone and all at once, and what the model says of itself."""
    question = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    how = {"backend": "onnx", "model_kwargs": {"file_name": question["file"]}} if question.get("file") else {}
    model = sentence_transformers.SentenceTransformer(question["folder"], device="cpu", **how)
    answer = {
        "version": sentence_transformers.__version__,
        "longest": model.max_seq_length,
        "alone": [model.encode([text], show_progress_bar=False)[0].tolist() for text in question["texts"]],
        "together": model.encode(question["texts"], show_progress_bar=False).tolist(),
    }
    Path(sys.argv[2]).write_text(json.dumps(answer))


main()
