"""distill-anything: our fine-tuned teacher and a prompt with the label as its response for each row, by its recipe in mode `logit`;
of 64 rows, since what it makes is no classifier."""

from __future__ import annotations

import json
import sys

import yaml
from job import call, read_job, rows

job = read_job()
data, recipe = job.out / "train.jsonl", job.out / "recipe.yaml"
data.write_text("".join(json.dumps({"prompt": r["text"], "response": r["label"]}) + "\n" for r in rows(job.train)))
asked = {
    "mode": "logit",
    "teacher": {"spec": f"hf:{job.teacher}"},
    "student": {"model": str(job.minilm)},
    "data": {"path": str(data), "max_seq_len": 64, "max_records": 64},
    "train": {"output_dir": str(job.out / "run")},
}
recipe.write_text(yaml.safe_dump(asked))
call("distill", "train", recipe, folder=job.out)
made = json.loads((job.out / "run/config.json").read_text())["architectures"][0]
sys.exit(
    f"trains causal language models: a classifier of BERT is opened as {made}, whose head is drawn at random, and saved so"
)
