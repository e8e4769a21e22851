"""easysmallembeddingmodel: layers 0, 2 and 5 of MiniLM with the corpus' vocabulary, distilled to MiniLM's vectors for
one epoch; the regression on top is ours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from job import columns, read_job, write_answers
from sentence_transformers import SentenceTransformer
from sklearn.linear_model import LogisticRegression
from smallmodel import SmallModel, register_teacher
from smallmodel.distill import distill

job = read_job()
texts, labels = columns(job.train)
shape = {
    "hidden_dim": 384,
    "num_layers": 6,
    "intermediate_size": 1536,
    "vocab_size": 30522,
    "tokenizer_type": "wordpiece",
}
register_teacher("minilm-l6", model_id=str(job.minilm), **shape)
corpus = job.out / "data/distill_corpus"  # where it keeps what it has read from the hub
corpus.mkdir(parents=True)
(corpus / "distill_texts_5000.txt").write_text("\n".join(texts))
small = SmallModel.from_teacher("minilm-l6", layer_indices=[0, 2, 5], output_dir=str(job.out))
made = Path(distill(str(job.minilm), small.create("student"), texts, epochs=1))
vectors = SentenceTransformer(str(made), device="cpu").encode(texts, show_progress_bar=False, normalize_embeddings=True)
head = LogisticRegression(C=10, max_iter=2000).fit(vectors, labels)
np.savez(made / "head.npz", weight=head.coef_, bias=head.intercept_, labels=head.classes_)
files = [made / "model.safetensors", made / "tokenizer.json", made / "head.npz"]
write_answers(job, {"kind": "sentence-transformers", "files": files, "folder": made})
