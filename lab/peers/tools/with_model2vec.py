"""model2vec: 256 dimensions of MiniLM's token vectors, and a classifier on the gold labels with the library's settings; as saved, and in int8."""

from __future__ import annotations

from job import columns, read_job, write_answers
from model2vec.distill import distill
from model2vec.quantization import DType, quantize_embeddings
from model2vec.train import StaticModelForClassification

job = read_job()
classifier = StaticModelForClassification.from_static_model(model=distill(model_name=str(job.minilm), pca_dims=256))
classifier.fit(*columns(job.train))
pipeline = classifier.to_pipeline()
pipeline.save_pretrained(job.out / "fp32")
pipeline.model.embedding = quantize_embeddings(pipeline.model.embedding, DType.Int8)
pipeline.save_pretrained(job.out / "int8")
answers = []
for kept in ("fp32", "int8"):
    made = job.out / kept
    files = [*made.glob("*.safetensors"), made / "tokenizer.json"]
    answers.append({"kind": "model2vec", "as": kept, "files": files, "folder": made})
write_answers(job, *answers)
