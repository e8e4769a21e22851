"""Runs inside an environment with transformers: `python transformers_client.py question.json answer.json`.

Opens a folder with torch, or one of its ONNX files with optimum.
"""

import json
import os
import sys
from pathlib import Path

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # ONNX Runtime reports to its vendor otherwise

import torch
import transformers

CLASSES = {
    "text-classification": "SequenceClassification",
    "multi-label": "SequenceClassification",
    "regression": "SequenceClassification",
    "token-classification": "TokenClassification",
    "question-answering": "QuestionAnswering",
    "fill-mask": "MaskedLM",
    "feature-extraction": "FeatureExtraction",
}


def open_model(question):
    """The model by torch, or by optimum where the question names a file."""
    kind = CLASSES[question["task"]]
    if question.get("file"):
        import optimum.onnxruntime

        subfolder, _, name = question["file"].rpartition("/")
        opener = getattr(optimum.onnxruntime, f"ORTModelFor{kind}")
        return opener.from_pretrained(question["folder"], file_name=name, subfolder=subfolder)
    name = "AutoModel" if kind == "FeatureExtraction" else f"AutoModelFor{kind}"
    return getattr(transformers, name).from_pretrained(question["folder"]).eval()


def answers(question, model, tokenizer):
    """Per text, what the library's own pipeline says, or the model where there is none."""
    task, texts = question["task"], question["texts"]
    if task in ("text-classification", "multi-label", "regression"):
        run = transformers.pipeline("text-classification", model=model, tokenizer=tokenizer)
        # `top_k` in the call: given to the pipeline, one text's answer lies in a list of its own
        return [{a["label"]: a["score"] for a in run(text, top_k=None, truncation=True)} for text in texts]
    if task == "token-classification":
        run = transformers.pipeline(task, model=model, tokenizer=tokenizer, ignore_labels=[])
        return [[(a["entity"], float(a["score"]), a["start"], a["end"]) for a in run(text)] for text in texts]
    if task == "fill-mask":
        run = transformers.pipeline(task, model=model, tokenizer=tokenizer, top_k=10)
        return [[(a["token_str"], a["score"]) for a in run(text)] for text in texts]
    out = []
    for text in texts:
        fed = tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt", truncation=True)
        with torch.no_grad():
            given = model(**fed)
        if task == "question-answering":
            out.append([given.start_logits[0].tolist(), given.end_logits[0].tolist()])
            continue
        vector = given.last_hidden_state[0].mean(0)  # one text has no padding
        out.append((vector / vector.norm()).tolist())
    return out


def main():
    """Answer one question."""
    question = json.loads(Path(sys.argv[1]).read_text())
    torch.set_num_threads(1)
    model = open_model(question)
    tokenizer = transformers.AutoTokenizer.from_pretrained(question["folder"])
    rows = answers(question, model, tokenizer)
    Path(sys.argv[2]).write_text(json.dumps({"rows": rows, "version": transformers.__version__}))


main()
