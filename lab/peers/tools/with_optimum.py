"""optimum-onnx: export, and dynamic int8 for the instructions of this machine, by its command line."""

from __future__ import annotations

from pathlib import Path

from job import call, read_job, write_answers

job = read_job()
flags = Path("/proc/cpuinfo").read_text()
target = "--avx512_vnni" if "avx512_vnni" in flags else "--avx2"
call("optimum-cli", "export", "onnx", "--model", job.model, "--task", "text-classification", job.out / "fp32")
call("optimum-cli", "onnxruntime", "quantize", target, "--onnx_model", job.out / "fp32", "-o", job.out / "int8")
made = job.out / "int8"
files = [made / "model_quantized.onnx", made / "tokenizer.json"]
write_answers(job, {"kind": "onnxruntime", "files": files, "config": made / "config.json"})
