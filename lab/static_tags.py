"""Whether a student without layers can tag words: a table of token vectors and a window of neighbours, against its teacher.

Run: python lab/static_tags.py RUN SHARED_DATA SET [--epochs 20] [--seeds 7 8]      # SET: atis, snips or wnut17

RUN is the folder of a run of `lab/kept.py` with that set (``atis-slots-7``), whose teacher is used. The student is a sketch
of what `student: {layers: 0}` has become for tags, made to choose how many tokens it sees. Its table starts as that of `student: {layers: 0}`; convolutions of three tokens, each with its own
place as the centre, see 1, 3, 5 or 9 tokens; a hidden layer and the labels follow. It learns the teacher's logits and the gold
tags. The strict span F1 of both is measured in torch, fp32, on the test (SNIPS: dev) rows.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from kept import WORDS_FOLDER, read_rows, write_words
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification, AutoTokenizer

from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.spans import count_spans, spans_from_tags
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.student import STATIC_DIMENSIONS
from pocketbert.distill.students.static import embed_pieces, reduce_vectors

WIDTHS = {1: 0, 3: 1, 5: 2, 9: 4}
"""Tokens that the student sees at once, and how many convolutions of three tokens see them."""
HIDDEN, BATCH, RATE, TEMPERATURE, MOST, IGNORED = 512, 32, 2e-3, 2.0, 64, -100
SCORED = {"atis": "test", "snips": "dev", "wnut17": "test"}


class Tagger(nn.Module):
    """A table, convolutions over neighbouring tokens with shortcuts around them, and a head: ids [B, L] to logits [B, L, labels]."""

    def __init__(self, table: Tensor, convolutions: int, labels: int) -> None:
        super().__init__()
        self.table = nn.Embedding.from_pretrained(table.clone(), freeze=False)
        width = table.shape[1]
        self.windows = nn.ModuleList(nn.Conv1d(width, width, 3, padding=1) for _ in range(convolutions))
        self.dense, self.classifier = nn.Linear(width, HIDDEN), nn.Linear(HIDDEN, labels)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """Compute the logits."""
        states = F.dropout(self.table(ids), 0.1, self.training) * mask[:, :, None]
        for window in self.windows:
            states = (states + F.relu(window(states.transpose(1, 2)).transpose(1, 2))) * mask[:, :, None]
        logits: Tensor = self.classifier(F.dropout(F.relu(self.dense(states)), 0.3, self.training))
        return logits


def tokenize(tokenizer: Any, rows: list[dict[str, Any]], ids: dict[str, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, mask and gold labels, [N, L] each; labels at the first token of a word, `IGNORED` elsewhere."""
    batch = tokenizer(
        [row["tokens"] for row in rows],
        is_split_into_words=True,
        truncation=True,
        max_length=MOST,
        padding="max_length",
    )
    gold = np.full((len(rows), MOST), IGNORED)
    for i, row in enumerate(rows):
        words = batch.word_ids(i)
        for place, word in enumerate(words):
            if word is not None and (place == 0 or words[place - 1] != word):
                gold[i, place] = ids.get(row["tags"][word], IGNORED)
    return torch.tensor(batch["input_ids"]), torch.tensor(batch["attention_mask"]), torch.from_numpy(gold)


def score_tags(logits: Tensor, gold: Tensor, rows: list[dict[str, Any]], names: list[str]) -> float:
    """Return the strict span F1 of logits [N, L, labels]; words behind the longest input have no tag."""
    found, right = [], []
    for answer, marks, row in zip(logits.argmax(-1), gold, rows, strict=True):
        tags = [names[i] for i in answer[marks != IGNORED].tolist()]
        tags += ["O"] * (len(row["tags"]) - len(tags))
        places = [(i, i + 1) for i in range(len(tags))]
        found.append(spans_from_tags(tags, places))
        right.append(spans_from_tags(row["tags"], places))
    return count_spans(right, found).f1


@torch.inference_mode()
def answer(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Return the logits of a model for all rows."""
    return torch.cat([model(i, m) for i, m in zip(ids.split(128), mask.split(128), strict=True)])


def train(student: Tagger, ids: Tensor, mask: Tensor, gold: Tensor, targets: Tensor, epochs: int, seed: int) -> None:
    """Train a student on the teacher's logits and the gold labels."""
    torch.manual_seed(seed)
    steps = epochs * -(-len(ids) // BATCH)
    optimiser = torch.optim.AdamW(student.parameters(), RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, steps)
    student.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(ids)).split(BATCH):
            longest = int(mask[rows].sum(1).max())
            logits = student(ids[rows, :longest], mask[rows, :longest])
            places = gold[rows, :longest] != IGNORED
            own, labels, wanted = logits[places], gold[rows, :longest][places], targets[rows, :longest][places]
            warm, known = own / TEMPERATURE, F.log_softmax(wanted / TEMPERATURE, -1)
            soft = F.kl_div(F.log_softmax(warm, -1), known, log_target=True, reduction="batchmean")
            loss = F.cross_entropy(own, labels) + TEMPERATURE**2 * soft
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    student.eval()


def main() -> None:
    """Train taggers of several windows, and print their scores beside the teacher's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("set", choices=SCORED)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--seeds", type=int, nargs="+", default=[7])
    options = parser.parse_args()
    write_words(options.data.resolve(), options.run.resolve().parent)
    folder = options.data / options.set if options.set == "wnut17" else options.run.parent / WORDS_FOLDER / options.set
    weights = options.run / "teacher"
    teacher, tokenizer = (
        AutoModelForTokenClassification.from_pretrained(weights).eval(),
        AutoTokenizer.from_pretrained(weights),
    )
    names = [teacher.config.id2label[i] for i in range(teacher.config.num_labels)]
    label_ids = {name: i for i, name in enumerate(names)}
    rows, scored = (read_rows(folder / f"{name}.jsonl.gz") for name in ("train", SCORED[options.set]))
    ids, mask, gold = tokenize(tokenizer, rows, label_ids)
    test = tokenize(tokenizer, scored, label_ids)

    def run_teacher(ids: Tensor, mask: Tensor) -> Tensor:
        logits: Tensor = teacher(input_ids=ids, attention_mask=mask).logits
        return logits

    own = TextTokenizer(weights, MOST)
    vectors = embed_pieces(teacher, open_model_folder(str(weights)).family, own)
    table, _ = reduce_vectors(vectors, [i for i in own.special_ids if i < len(vectors)], STATIC_DIMENSIONS)
    targets = answer(run_teacher, ids, mask)
    best = score_tags(answer(run_teacher, *test[:2]), test[2], scored, names)
    # pieces that no row has would only be carried through every step
    pieces, places = torch.unique(torch.cat([ids, test[0]]), return_inverse=True)
    ids, scored_ids = places.split([len(ids), len(test[0])])
    print(
        f"{describe_machine().summary}; load {load_average():.1f}; {len(rows):,} rows; {len(scored):,} scored; teacher {100 * best:.1f}"
    )
    print("| tokens seen | seed | span F1 | kept, % | MB in int8 | CPU-s |\n|---:|---:|---:|---:|---:|---:|")
    for seen, convolutions in WIDTHS.items():
        for seed in options.seeds:
            torch.manual_seed(seed)
            student, began = Tagger(table[pieces], convolutions, len(names)), time.process_time()
            train(student, ids, mask, gold, targets, options.epochs, seed)
            value = score_tags(answer(student, scored_ids, test[1]), test[2], scored, names)
            size = (sum(p.numel() for p in student.parameters()) + table[len(pieces) :].numel()) / 1e6
            spent = time.process_time() - began
            print(
                f"| {seen} | {seed} | {100 * value:.1f} | {100 * value / best:.1f} | {size:.1f} | {spent:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
