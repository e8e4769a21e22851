"""Write questions with their paragraph, other paragraphs of the same article, and a model's scores of both, as triplets.

    python lab/triplets.py SQUAD.jsonl.gz MODEL OUT.jsonl

The scores are 20 times the cosines of an embedding model, which stands for a reranker: of any range, and larger than the cosines of a student.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

import pocketbert

SCALE, NEGATIVES, SEED = 20.0, 2, 7


def main(squad: str, folder: str, destination: str) -> None:
    """Write a row for each question of a SQuAD file whose article has other paragraphs."""
    with gzip.open(squad, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in stream]
    articles = defaultdict[str, dict[str, None]](dict)
    for row in rows:
        articles[row["title"]][row["context"]] = None
    texts = list(dict.fromkeys(text for row in rows for text in (row["question"], row["context"])))
    answers = pocketbert.load(folder).predict(texts)
    vectors = {text: answer.vector / np.linalg.norm(answer.vector) for text, answer in zip(texts, answers, strict=True)}
    draw = np.random.default_rng(SEED)
    with Path(destination).open("w", encoding="utf-8") as out:
        for row in rows:
            question, context = row["question"], row["context"]
            others = [text for text in articles[row["title"]] if text != context]
            chosen = [others[i] for i in draw.permutation(len(others))[:NEGATIVES]]
            if not chosen:
                continue
            positive, *negative = (SCALE * float(vectors[question] @ vectors[text]) for text in (context, *chosen))
            made = {
                "query": question,
                "pos": [context],
                "neg": chosen,
                "pos_scores": [positive],
                "neg_scores": negative,
            }
            out.write(json.dumps(made, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
