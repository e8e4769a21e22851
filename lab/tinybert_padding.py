"""How much padding in the means of TinyBERT's loss weighs down attention against hidden states: a table of docs/lab/distillation.md.

The teacher is MiniLM-L6, the student has 3 layers of width 312 and random weights. Of each file the first 512 texts are read
in batches of 32, as a stage reads them. Without `reference` means are over real tokens and pairs of them; with it they are over
padding too, which reaches to LENGTH: the loss of the released code. Both divide by B * S * S and B * S, so that a short text
counts little, and its attention even less.

Run: python lab/tinybert_padding.py ../shared/data/sst2/dev.jsonl.gz ../shared/data/mrpc/dev.jsonl.gz:text_pair
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from itertools import islice

import numpy as np
import torch

from pocketbert.core.families import family_of
from pocketbert.core.heads.head import Prepared
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.stages import TinyBertIntermediateStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Projection
from pocketbert.distill.methods.tinybert import TinyBertDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.students.projection import attach_projection
from pocketbert.distill.training.data import BatchOrder, FixedLengthSet, TrainSet

ROWS, BATCH, SEED = 512, 32, 0


def read_texts(argument: str) -> list[str | tuple[str, str]]:
    """Read the first texts of FILE, or the first pairs of FILE:SECOND_COLUMN."""
    path, _, second = argument.partition(":")
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        rows = [json.loads(line) for line in islice(stream, ROWS)]
    return [(str(row["text"]), str(row[second])) if second else str(row["text"]) for row in rows]


def measure(objective: TinyBertDistillation, student: torch.nn.Module, data: TrainSet | FixedLengthSet) -> float:
    """Return the attention term divided by the sum of the terms of states, each a mean over all batches of the rows."""

    def batches() -> Iterator[dict[str, float]]:
        order = BatchOrder(data.lengths, BATCH, SEED, "distill.0")
        for step in range(order.per_epoch):
            terms = objective(student, data.batch(order.rows(step), step))
            yield {name: float(term.mean) for name, term in terms.items()}

    with torch.no_grad():
        found = list(batches())
    means = {name: np.mean([terms[name] for terms in found]) for name in found[0]}
    return float(means["attention"] / (means["hidden"] + means["embeddings"]))


def main() -> None:
    """Print a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", help=".jsonl.gz with a column 'text', or FILE:SECOND_COLUMN for pairs")
    parser.add_argument("--lengths", default="64,128", help="lengths of the released code's padding; default 64,128")
    options = parser.parse_args()
    source, lengths = open_model_folder("minilm-l6"), [int(n) for n in options.lengths.split(",")]
    teacher = load_model(source, TASKS[TaskName.FEATURE_EXTRACTION]).eval()
    student = build_student(
        teacher, source.family, StudentSection(layers=3, hidden=312, heads=12, intermediate=1200, init="random"), SEED
    ).eval()
    attach_projection(student, teacher.config.hidden_size, Projection.SHARED, SEED)

    def objective(reference: bool) -> TinyBertDistillation:
        stage = TinyBertIntermediateStage(method="tinybert-intermediate", steps=1, reference=reference)
        return TinyBertDistillation(teacher, student, family_of("bert"), stage)

    print(
        "| texts | tokens, mean | default | "
        + " | ".join(f"`reference`, {n}" for n in lengths)
        + " | default : `reference` |"
    )
    print("|---|---:|---:|" + "---:|" * len(lengths) + "---|")
    for argument in options.files:
        texts = read_texts(argument)

        def rows(length: int, texts: list[str | tuple[str, str]] = texts) -> TrainSet:
            tokenizer = TextTokenizer(source.tokenizer_folder, length)
            return TrainSet(Prepared([], tokenizer.encode(texts), np.arange(len(texts))), tokenizer)

        plain = rows(max(lengths))
        default = measure(objective(False), student, plain)
        padded = [measure(objective(True), student, FixedLengthSet(rows(n))) for n in lengths]
        cells = [argument, f"{np.mean(plain.lengths):.0f}", *(f"{ratio:.2f}" for ratio in (default, *padded))]
        print("| " + " | ".join([*cells, ", ".join(f"{default / ratio:.1f}" for ratio in padded)]) + " |")


if __name__ == "__main__":
    main()
