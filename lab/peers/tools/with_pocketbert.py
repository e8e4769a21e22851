"""PocketBERT: the recipe of the demo, a student without layers, or the teacher as it is; all as int8 ONNX."""

from __future__ import annotations

from pathlib import Path

import yaml
from job import call, read_job, write_answers

import pocketbert

job = read_job()


def trained() -> Path:
    """The artefact folder of a whole run."""
    recipe = yaml.safe_load((Path(pocketbert.__file__).parent / "recipes/text-classification/demo.yaml").read_text())
    recipe["data"].update(train={"path": str(job.train)}, eval={"path": str(job.dev)})
    recipe["export"]["formats"] = ["onnx"]
    del recipe["benchmark"]
    if job.variant == "static":
        signals = {"logits": 1, "hidden": 0, "attention": 0, "labels": 1}
        stage = {"method": "task", "epochs": 8, "batch": 64, "lr": 2e-3, "signals": signals, "cache_teacher": "fp32"}
        recipe.update(student={"layers": 0, "dimensions": 256}, distill=[stage])
    path = job.out / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False))
    call("pocketbert", "run", path, "-o", job.out / "run")
    return job.out / "run/phone"


def exported() -> Path:
    """The artefact folder of the teacher, as it is."""
    call("pocketbert", "export", "-m", job.teacher, "-o", job.out / "phone", "--format", "onnx", "--max-length", 64)
    return job.out / "phone"


phone = exported() if job.variant == "teacher" else trained()
files = [phone / "onnx/model_int8.onnx", phone / "tokenizer.json"]
answers = [
    {"kind": kind, "files": files, "folder": phone, "config": phone / "config.json"}
    for kind in ("onnxruntime", "pocketbert")
]
write_answers(job, *answers)
