"""litert-torch and ai-edge-quantizer: one TFLite file with signatures of 16, 32 and 64 tokens, dynamic int8, by their Python calls."""

from __future__ import annotations

import litert_torch
import torch
from ai_edge_quantizer import quantizer, recipe
from job import read_job, write_answers
from transformers import AutoModelForSequenceClassification

LENGTHS = (16, 32, 64)
INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Logits(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
    ) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids).logits


job = read_job()
module = Logits(AutoModelForSequenceClassification.from_pretrained(job.model).eval()).eval()
converter = litert_torch.Converter()
for length in LENGTHS:
    converter.signature(
        f"s{length}", module, sample_kwargs={k: torch.ones(1, length, dtype=torch.int32) for k in INPUTS}
    )
converter.convert().export(str(job.out / "model.tflite"))
tool = quantizer.Quantizer(str(job.out / "model.tflite"), recipe.dynamic_wi8_afp32())
(job.out / "model_int8.tflite").write_bytes(bytes(tool.quantize().quantized_model))
files = [job.out / "model_int8.tflite", job.model / "tokenizer.json"]
write_answers(job, {"kind": "litert", "files": files, "config": job.model / "config.json", "inputs": INPUTS})
