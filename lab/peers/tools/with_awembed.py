"""awembed: its stage `capture`, with all-MiniLM-L6-v2 behind the endpoint that it asks and a text of another intent as a hard negative."""

from __future__ import annotations

import json
import random
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import torch
from job import call, read_job, rows
from transformers import AutoModel, AutoTokenizer

job = read_job()
model, tokenizer = AutoModel.from_pretrained(job.minilm).eval(), AutoTokenizer.from_pretrained(job.minilm)


class Embeddings(BaseHTTPRequestHandler):
    """The part of OpenAI's interface that awembed asks for."""

    @torch.inference_mode()
    def do_POST(self) -> None:
        texts = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["input"]
        given = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
        mask = given["attention_mask"][..., None]
        vectors = torch.nn.functional.normalize((model(**given).last_hidden_state * mask).sum(1) / mask.sum(1))
        data = [{"index": i, "embedding": vector} for i, vector in enumerate(vectors.tolist())]
        content = json.dumps({"data": data}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


server = HTTPServer(("127.0.0.1", 0), Embeddings)
Thread(target=server.serve_forever, daemon=True).start()
train, draw = rows(job.train), random.Random(7)
pairs = []
for row in train:
    positive = draw.choice([r["text"] for r in train if r["label"] == row["label"]])
    others = draw.sample([r for r in train if r["label"] != row["label"]], 3)
    pairs.append({
        "query": row["text"], "positive_summary": positive, "positive_dir": row["label"], "split": "train", "kind": "row",
        "hard_negatives": [r["label"] for r in others], "hard_negative_summaries": [r["text"] for r in others],
    })  # fmt: skip
corpus = job.out / "corpus.jsonl"
corpus.write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
given = ("--corpus", corpus, "--out", job.out / "artifacts")
call("awembed", "capture", *given, "--teacher-url", f"http://127.0.0.1:{server.server_port}")
call("awembed", "distill", *given, "--student", job.minilm)
call("awembed", "quantize", *given)
