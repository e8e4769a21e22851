"""Olive: a workflow of three passes, conversion, fusion and dynamic int8. Its command `olive optimize --precision int8` calibrates with WikiText
from the hub, and exports with onnxruntime-genai unless it is told otherwise; so it cannot be used without a network."""

from __future__ import annotations

import json

from job import call, read_job, write_answers

job = read_job()
cpu = {"type": "LocalSystem", "accelerators": [{"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}]}
workflow = {
    "input_model": {"type": "HfModel", "model_path": str(job.model), "task": "text-classification"},
    "systems": {"local": cpu},
    "passes": {
        "conversion": {"type": "OnnxConversion"},
        "fusion": {"type": "OrtTransformersOptimization"},
        "quantization": {"type": "OnnxDynamicQuantization"},
    },
    "target": "local",
    "output_dir": str(job.out / "made"),
    "cache_dir": str(job.out / "cache"),
}
path = job.out / "workflow.json"
path.write_text(json.dumps(workflow))
call("olive", "run", "--config", path, "--disable_telemetry", folder=job.out)
files = [job.out / "made/model.onnx", job.model / "tokenizer.json"]
write_answers(job, {"kind": "onnxruntime", "files": files, "config": job.model / "config.json"})
