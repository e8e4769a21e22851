"""Write the data of the rankings in docs/lab/results.md: SQuAD's questions with their paragraph, as pairs and as scored triplets.

    python lab/triplets.py ../shared/data/squad MODEL OUT

`OUT/train.jsonl.gz` and `OUT/dev.jsonl.gz` get some of the rows, `OUT/triplets.jsonl` the training questions with two other paragraphs of the
same article. The scores are 20 times the cosines of the artefact folder MODEL, which stands for a reranker: of another range than cosines.
"""

from __future__ import annotations

import gzip
import json
import random
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

import pocketbert

ROWS = {"train": 4000, "dev": 600}
SCALE, NEGATIVES, SEED = 20.0, 2, 7


def main(squad: str, model: str, destination: str) -> None:
    """Write the three files to an existing folder."""
    out = Path(destination)
    for name, count in ROWS.items():
        with gzip.open(f"{squad}/{name}.jsonl.gz", "rt", encoding="utf-8") as stream:
            rows = [json.loads(line) for line in stream]
        random.Random(SEED).shuffle(rows)  # noqa: S311
        with gzip.open(out / f"{name}.jsonl.gz", "wt", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows[:count])
        if name == "train":
            _write_triplets(rows[:count], model, out / "triplets.jsonl")


def _write_triplets(rows: list[dict[str, Any]], model: str, destination: Path) -> None:
    """Write a triplet for each question whose article has other paragraphs among the rows."""
    articles = defaultdict[str, dict[str, None]](dict)
    for row in rows:
        articles[row["title"]][row["context"]] = None
    texts = list(dict.fromkeys(text for row in rows for text in (row["question"], row["context"])))
    answers = pocketbert.load(model).predict(texts)
    vectors = {text: answer.vector / np.linalg.norm(answer.vector) for text, answer in zip(texts, answers, strict=True)}
    draw = random.Random(SEED)  # noqa: S311
    with destination.open("w", encoding="utf-8") as file:
        for row in rows:
            question, context = row["question"], row["context"]
            others = [text for text in articles[row["title"]] if text != context]
            chosen = draw.sample(others, min(NEGATIVES, len(others)))
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
            file.write(json.dumps(made, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
