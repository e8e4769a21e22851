"""transformers.js: it makes no file; its pipeline in Node runs the file that optimum made of the teacher, or PocketBERT's folder."""

from __future__ import annotations

import os
import shutil

from job import read_job, write_answers

job = read_job()
made = job.out / "model"
if job.variant == "student":
    shutil.copytree(job.student.parent / "phone", made)
else:
    quantized = job.out.parent / "optimum-teacher/int8"
    (made / "onnx").mkdir(parents=True)
    shutil.copy(quantized / "model_quantized.onnx", made / "onnx/model_int8.onnx")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(quantized / name, made)
files = [made / "onnx/model_int8.onnx", made / "tokenizer.json"]
runs = {"packages": os.environ["NODE_PACKAGES"], "parent": f"{job.out}/", "name": "model", "dtype": "int8"}
write_answers(job, {"kind": "transformers.js", "files": files, **runs})
