"""Classify texts that come in, one at a time, with a file of a tool: the label of each, and how long one took.

The argument is what a maker wrote of its file: `kind` names the runner below. Each line of standard input is a JSON list of texts; each answer is
a line of JSON: labels, median milliseconds of a text, and CPU milliseconds of a text. The first line has the versions of what runs.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

Classify = Callable[[str], str]
RUNNERS = ("pocketbert", "onnxruntime", "ai-edge-litert", "torch", "transformers", "model2vec", "heartcut", "maatml")


def pocketbert(answer: dict[str, Any]) -> Classify:
    from pocketbert import load

    model = load(answer["folder"], "int8", threads=1, format="onnx")
    return lambda text: str(model.predict([text])[0].label)


def _names(answer: dict[str, Any]) -> dict[str, str]:
    names: dict[str, str] = json.loads(Path(answer["config"]).read_text())["id2label"]
    return names


def onnxruntime(answer: dict[str, Any]) -> Classify:
    """A plain script: tokenizers and ONNX Runtime."""
    import onnxruntime as ort
    from tokenizers import Tokenizer

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = ort.InferenceSession(answer["files"][0], options, providers=["CPUExecutionProvider"])
    types = {i.name: np.int32 if "int32" in i.type else np.int64 for i in session.get_inputs()}
    tokenizer, names = Tokenizer.from_file(answer["files"][1]), _names(answer)
    tokenizer.no_padding()

    def classify(text: str) -> str:
        row = tokenizer.encode(text)
        feed = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
        return names[str(int(session.run(None, {k: np.array([feed[k]], t) for k, t in types.items()})[0].argmax()))]

    return classify


def litert(answer: dict[str, Any]) -> Classify:
    """A plain script: tokenizers and LiteRT, by the shortest signature that holds the text."""
    from ai_edge_litert.interpreter import Interpreter
    from tokenizers import Tokenizer

    interpreter = Interpreter(answer["files"][0], num_threads=1)
    signatures = {int(name[1:]): interpreter.get_signature_runner(name) for name in interpreter.get_signature_list()}
    tokenizer, names = Tokenizer.from_file(answer["files"][1]), _names(answer)
    tokenizer.no_padding()

    def classify(text: str) -> str:
        row = tokenizer.encode(text)
        length = min(n for n in signatures if n >= len(row.ids))
        feed = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
        padded = {k: np.array([v + [0] * (length - len(v))], np.int32) for k, v in feed.items()}
        found = signatures[length](**{k: padded[k] for k in answer["inputs"]})
        return names[str(int(next(iter(found.values()))[0].argmax()))]

    return classify


def transformers(answer: dict[str, Any]) -> Classify:
    """A checkpoint of a classifier in torch."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    torch.set_num_threads(1)
    model = AutoModelForSequenceClassification.from_pretrained(answer["folder"]).eval()
    tokenizer = AutoTokenizer.from_pretrained(answer["folder"])

    @torch.inference_mode()
    def classify(text: str) -> str:
        return str(model.config.id2label[int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())])

    return classify


def sentence_transformers(answer: dict[str, Any]) -> Classify:
    """An encoder of sentences, and a logistic regression on its vectors."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(1)
    model, head = SentenceTransformer(answer["folder"], device="cpu"), np.load(answer["files"][-1])

    def classify(text: str) -> str:
        vector = model.encode([text], show_progress_bar=False, normalize_embeddings=True)[0]
        return str(head["labels"][(head["weight"] @ vector + head["bias"]).argmax()])

    return classify


def model2vec(answer: dict[str, Any]) -> Classify:
    from model2vec.inference import StaticModelPipeline

    pipeline = StaticModelPipeline.from_pretrained(answer["folder"])
    return lambda text: str(pipeline.predict([text])[0])


def heartcut(answer: dict[str, Any]) -> Classify:
    from heartcut.serve.runtime import load_predictor, predict

    predictor = load_predictor(answer["folder"], threads=1)
    return lambda text: str(predict(predictor, [text])[0][0].label)


def maatml(answer: dict[str, Any]) -> Classify:
    import torch
    from maatml.evaluation.predictors import MultiHeadClassifierPredictor

    torch.set_num_threads(1)
    predictor = MultiHeadClassifierPredictor()
    predictor.setup(Path(answer["folder"]), device="cpu", max_input_tokens=40)
    return lambda text: str(predictor.predict_heads({"request": text})["intent"]["label"])


def _time(classify: Classify, texts: Sequence[str]) -> dict[str, Any]:
    labels, times, cpu = [], [], time.process_time()
    for text in texts:
        start = time.perf_counter()
        labels.append(classify(text))
        times.append(time.perf_counter() - start)
    cpu = time.process_time() - cpu
    return {"labels": labels, "ms": 1e3 * statistics.median(times), "cpu_ms": 1e3 * cpu / len(texts)}


def _versions() -> dict[str, str]:
    found = {}
    for name in RUNNERS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> None:
    answer = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is no reply
    classify: Classify = globals()[answer["kind"].replace("-", "_")](answer)
    print(json.dumps(_versions()), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(_time(classify, json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    main()
