"""What the sides of the distillation comparison share: models of one seed, and the batch of every step.

The sides differ in how they compute a step, never in what: the same weights, rows, masks and order. Batches are
made by the toolkit's code on all sides, which costs less than 1 % of a step.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

SEED = 1
LENGTH = 128
TURN = 11
"""Layer, from 0, whose transfer is timed: the middle of 24."""
SHORTEST = 12
"""Fewer tokens are dropped from general text, as DistilBERT's data preparation does."""

TITLES = {
    "task": "task: MiniLM-L6 to 3 layers, batch 64, logits + hidden states + attention",
    "task-cached": "task, teacher's answers cached: MiniLM-L6 to 3 layers, batch 64, logits + hidden states + attention; "
    "the plain loop runs its teacher each step",
    "tinybert": "tinybert-general: BERT-base sizes with RANDOM weights to TinyBERT4 (4 x 312, shared projection), batch 16",
    "distilbert": "distilbert: BERT-base sizes with RANDOM weights to 6 layers, triple loss at all real tokens, batch 8",
    "minilm": "minilm (version 2, 48 relation heads): BERT-base sizes with RANDOM weights to 6 x 384, batch 16",
    "mobilebert": "mobilebert, progressive transfer of layer 12 of 24: IB-BERT with RANDOM weights to MobileBERT, batch 8",
}
"""What is compared, by method."""

BATCHES = {"task": 64, "task-cached": 64, "tinybert": 16, "distilbert": 8, "minilm": 16, "mobilebert": 8}
"""Rows of a step. Small, so that a step takes a second or two; AdamW's share is the larger for it."""

GENERAL = ("tinybert", "distilbert", "minilm", "mobilebert")
"""Methods on plain text."""


@dataclass(frozen=True)
class Case:
    """One method, ready to train.

    Attributes:
        name: Key of `TITLES`.
        teacher: Frozen, in eval mode.
        student: Without dropout.
        family: Row of the family table.
        stage: Settings of the stage; the plain loops take rates and weights from it.
        rows: Training rows.
        first: The first step.
    """

    name: str
    teacher: Any
    student: Any
    family: Any
    stage: Any
    rows: Any
    first: int = 0

    def batches(self, width: int | None = None) -> Iterator[dict[str, Tensor]]:
        """Batches of the first step and those after, of length buckets; padded to their longest row or to a fixed width."""
        from pocketbert.distill.training.data import BatchOrder

        order, step = BatchOrder(self.rows.lengths, self.stage.batch, SEED, "distill.0"), self.first
        while True:
            batch = self.rows.batch(order.rows(step).tolist(), step)
            yield batch if width is None else _widened(batch, width)
            step += 1


def case(name: str, texts: list[str]) -> Case:
    """Models and rows of a method, the same in every process."""
    from pocketbert.core.models.folder import open_model_folder
    from pocketbert.core.predict.tokenization import TextTokenizer

    torch.manual_seed(SEED)
    folder = open_model_folder("minilm-l6")  # its vocabulary is bert-base-uncased's
    tokenizer = TextTokenizer(folder.path, LENGTH)
    made = _general(name, folder, tokenizer, texts) if name in GENERAL else _task(name, folder, tokenizer, texts)
    made.teacher.eval().requires_grad_(False)
    for module in made.student.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return made


def _task(name: str, folder: Any, tokenizer: Any, texts: list[str]) -> Case:
    from pocketbert.core.data.labels import Labels
    from pocketbert.core.heads import make_head
    from pocketbert.core.models.checkpoints import load_model
    from pocketbert.core.predict.examples import Example
    from pocketbert.core.recipe.stages import TaskStage
    from pocketbert.core.recipe.student import StudentSection
    from pocketbert.core.tasks import task_of
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.training.data import TrainSet

    task, labels = task_of("text-classification"), Labels(("negative", "positive"))
    teacher = load_model(folder, task, labels, new_head=True)
    student = build_student(teacher, folder.family, StudentSection(layers=3), SEED)
    stage = TaskStage(method="task", steps=100_000, batch=BATCHES[name], dropout=0.0)
    # a cache of 20,000 rows would take 2 GB
    texts = texts[: 2000 if name == "task-cached" else 20_000]
    examples = [Example(t, None, 0, i) for i, t in enumerate(texts, 1)]
    rows = TrainSet(make_head(task, labels).prepare(examples, tokenizer, "texts"), tokenizer)
    return Case(name, teacher, student, folder.family, stage, rows)


def _transfer(tokenizer: Any) -> tuple[Any, Any, Any, int]:
    """IB-BERT and MobileBERT as published, the stage, and the first step of the layer's turn."""
    from pocketbert.core.recipe.stages import MobileBertStage
    from pocketbert.core.types import MobileBertSize
    from pocketbert.distill.methods.transfer import STEPS_PER_LAYER, progressive
    from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForPreTraining
    from pocketbert.distill.students.mobilebert import transfer_student

    teacher = IbBertForPreTraining(IbBertConfig(vocab_size=tokenizer.vocabulary_size))
    student = transfer_student(teacher, MobileBertSize.MOBILEBERT, SEED)
    stage = MobileBertStage(method="mobilebert", steps=progressive().steps, batch=BATCHES["mobilebert"], lr=1e-5)
    return teacher, student, stage, TURN * STEPS_PER_LAYER


def _general(name: str, folder: Any, tokenizer: Any, texts: list[str]) -> Case:
    from transformers import BertConfig, BertForMaskedLM, BertModel

    from pocketbert.core.families import family_of
    from pocketbert.core.recipe.stages import DistilBertStage, MiniLmStage, TinyBertGeneralStage
    from pocketbert.core.recipe.student import StudentSection
    from pocketbert.core.types import MaskingKind, Projection
    from pocketbert.distill.students.build import build_student
    from pocketbert.distill.students.projection import attach_projection
    from pocketbert.distill.text.corpus import EncodedRows
    from pocketbert.distill.text.masking import masking_of
    from pocketbert.distill.text.pairs import GeneralSet, pairs_of

    config = BertConfig(vocab_size=tokenizer.vocabulary_size)
    corpus = EncodedRows([e for e in tokenizer.encode(texts) if len(e) >= SHORTEST], config.vocab_size)
    if name == "mobilebert":
        large, small, transfer, first = _transfer(tokenizer)
        masking = masking_of(MaskingKind.DYNAMIC, corpus.counts, tokenizer, SEED, "distill.0")
        pairs = pairs_of(tokenizer, config.vocab_size, SEED, "distill.0")
        rows = GeneralSet(corpus, tokenizer, masking, pairs=pairs)
        return Case(name, large, small, family_of("ib_bert"), transfer, rows, first)
    teacher = BertForMaskedLM(config) if name == "distilbert" else BertModel(config)
    common = {"steps": 100_000, "batch": BATCHES[name], "dropout": 0.0}
    if name == "tinybert":
        wanted = StudentSection(layers=4, init="random", hidden=312, heads=12, intermediate=1200)
        stage: Any = TinyBertGeneralStage(method="tinybert-general", pairs=False, **common)
    elif name == "distilbert":
        wanted = StudentSection(layers=6, family="distilbert")
        stage = DistilBertStage(method="distilbert", **common)
    else:
        wanted = StudentSection(layers=6, init="random", hidden=384, heads=12, intermediate=1536)
        stage = MiniLmStage(method="minilm", **common)
    student = build_student(teacher, folder.family, wanted, SEED)
    if name == "tinybert":
        attach_projection(student, config.hidden_size, Projection.SHARED, SEED)
    kind = MaskingKind.FREQUENCY if name == "distilbert" else MaskingKind.NONE
    masking = masking_of(kind, corpus.counts, tokenizer, SEED, "distill.0")
    return Case(name, teacher, student, folder.family, stage, GeneralSet(corpus, tokenizer, masking))


def _widened(batch: dict[str, Tensor], width: int) -> dict[str, Tensor]:
    """The batch with every row padded to one width; ids of padding are 0 in BERT's vocabulary, labels -100."""
    return {
        name: F.pad(value, (0, width - value.shape[1]), value=-100 if name == "labels" and value.ndim == 2 else 0)
        if value.ndim == 2
        else value
        for name, value in batch.items()
    }


def plain_step(
    made: Case, loss: Callable[[dict[str, Tensor]], Tensor], dtype: torch.dtype, width: int | None, **optimizer: Any
) -> Callable[[], float]:
    """A training step as one writes it: autocast, clip, AdamW."""
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
    batches, stage = made.batches(width), made.stage
    parameters = [p for p in made.student.parameters() if p.requires_grad]
    adam = torch.optim.AdamW(
        parameters,
        lr=1e-5,
        betas=(0.9, stage.beta2),
        eps=stage.eps,
        weight_decay=stage.weight_decay,
        **optimizer,
    )

    def step() -> float:
        with torch.autocast("cpu", dtype, enabled=dtype is torch.bfloat16):
            value = loss(next(batches))
        value.backward()
        torch.nn.utils.clip_grad_norm_(parameters, stage.clip)
        adam.step()
        adam.zero_grad()
        return float(value.detach())

    return step
