"""maatml: a folder of its architecture `classifier` with one head, on MiniLM, by its stages prepare, train and export; one epoch at the
demo's learning rate, and as many tokens as the longest row has."""

from __future__ import annotations

import json

import yaml
from job import call, read_job, rows, write_answers

job = read_job()
folder = job.out / "demo"
call("maatml", "scaffold", folder, "--architecture", "classifier", "--name", "demo")
path = folder / "model.yml"
model = yaml.safe_load(path.read_text())
head = {"name": "intent", "kind": "classification", "labels": job.labels, "target_path": "intent"}
model["base_model"] = str(job.minilm)
model["training"].update(model_id=str(job.minilm), max_input_tokens=40, learning_rate=3e-4, epochs=1, heads=[head])
model["packaging"]["max_input_tokens"] = 40
model["dataset"].pop("schema")
path.write_text(yaml.safe_dump(model, sort_keys=False))
seeds = [
    {"sample_id": f"row-{i}", "source": "demo", "family": f"f{i}", "category": row["label"], "request": row["text"],
     "expected_output": {"intent": row["label"]}}
    for i, row in enumerate(rows(job.train))
]  # fmt: skip
(folder / "datasets/samples/seed_samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in seeds))
call("maatml", "prepare", folder)
call("maatml", "train", folder, "--device", "cpu")
call("maatml", "export", folder)
made = next((folder / "output/export").iterdir())
files = [made / "model.safetensors", made / "classifier_heads.safetensors", made / "tokenizer.json"]
write_answers(job, {"kind": "maatml", "files": files, "folder": made})
