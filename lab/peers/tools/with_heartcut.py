"""heartcut: its stages data, label, train and export with its simulated teacher, which gives the gold labels, in place of an LLM's API;
a fifth of the pairs of its SetFit."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import yaml
from job import call, leave_out, read_job, write_answers

job = read_job()
shipped = Path(str(files("heartcut")))
name = {"tfidf": "tfidf-logreg", "setfit": "setfit-minilm"}[job.variant]
student = yaml.safe_load((shipped / f"configs/students/{name}.yaml").read_text())
if job.variant != "tfidf":
    student["params"].update(model_name=str(job.minilm), max_pairs=4000)
sources = [{"loader": "jsonl", "args": {"files": {s: str(getattr(job, s)) for s in ("train", "dev", "test")}}}]
experiment = {
    "name": "demo",
    "dataset": {"name": "demo", "task": "intent classification of commands to an assistant", "sources": sources},
    "teacher": {
        "name": "gold",
        "backend": "simulated",
        "model": "oracle",
        "prompt": str(shipped / "prompts/intent_classification.yaml"),
        "simulated": {"accuracy": 1.0},
    },
    "students": [student],
    "seeds": [0],
}
path = job.out / "experiment.yaml"
path.write_text(yaml.safe_dump(experiment))
for stage in ("data", "label", "train", "export"):
    if stage == "train":
        leave_out(job)  # an LLM would have labelled the rows until here
    call("heartcut", stage, "-c", path, folder=job.out)
made = next((job.out / "artifacts/demo/export").iterdir())
if job.variant == "tfidf":
    write_answers(job, {"kind": "heartcut", "files": [*made.rglob("*.joblib")], "folder": made})
else:
    write_answers(
        job, {"kind": "heartcut", "files": [made / "model.int8.onnx", made / "tokenizer.json"], "folder": made}
    )
