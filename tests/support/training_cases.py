"""Small training runs: models, rows and objectives for tests of the training loop.

`CASES` are runs that one process and two must end alike. Started as a script with the variables of a launcher and a folder,
this file is one of several processes that make them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn

from pocketbert.core.families import family_of
from pocketbert.core.host.processes import current_process
from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import MiniLmStage, MobileBertStage, TinyBertGeneralStage, TransferWeights
from pocketbert.core.types import MobileBertSize, Projection
from pocketbert.distill.losses.common import Term
from pocketbert.distill.methods.minilm import MiniLmDistillation
from pocketbert.distill.methods.mobilebert import MobileBertDistillation
from pocketbert.distill.methods.tinybert import TinyBertDistillation
from pocketbert.distill.students.ib_bert import IbBertConfig, IbBertForMaskedLM
from pocketbert.distill.students.mobilebert import transfer_student
from pocketbert.distill.students.projection import attach_projection
from pocketbert.distill.training import loop
from pocketbert.distill.training.finite import NotFiniteError
from pocketbert.distill.training.monitor import Monitor, Validation

VOCABULARY, CLASSES, NONE = 50, 3, -100


class Killed(Exception):
    """All processes die here, as under a launcher that lost one."""


@dataclass(frozen=True)
class Rows:
    """Rows of 3 to 20 random tokens; labels on about a third of them.

    Attributes:
        labelled: How many rows of a batch keep their labels, from the first; all by default.
    """

    labelled: int | None = None

    @property
    def lengths(self) -> list[int]:
        """Tokens of each row."""
        return [3 + 7 * i % 18 for i in range(45)]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """input_ids, attention_mask and labels, [B, S]."""
        wide = max(self.lengths[i] for i in rows)
        out = {k: torch.zeros(len(rows), wide, dtype=torch.long) for k in ("input_ids", "attention_mask")}
        out["labels"] = torch.full((len(rows), wide), NONE)
        for place, row in enumerate(rows):
            random, size = torch.Generator().manual_seed(row), self.lengths[row]
            out["input_ids"][place, :size] = torch.randint(1, VOCABULARY, (size,), generator=random)
            out["attention_mask"][place, :size] = 1
            labels = torch.randint(0, CLASSES, (size,), generator=random)
            labels[torch.rand(size, generator=random) > 0.3] = NONE
            if self.labelled is None or place < self.labelled:
                out["labels"][place, :size] = labels
        return out | {"steps": torch.full((len(rows),), step)}


class OwnRows(Rows):
    """Rows of which each process makes only its own, not more than four at a time."""

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        """The whole batch, for one process alone."""
        assert current_process().world == 1 or len(rows) <= 4
        return super().batch(rows, step)

    def part(self, rows: Sequence[int], step: int, own: slice) -> dict[str, Tensor]:
        """The rows `own`, as wide as the whole batch."""
        made, wide = self.batch(rows[own], step), max(self.lengths[i] for i in rows)
        filled = {"input_ids": 0, "attention_mask": 0, "labels": NONE}
        padded = {name: F.pad(made[name], (0, wide - made[name].shape[1]), value=v) for name, v in filled.items()}
        return made | padded


class Tagging:
    """Cross-entropy over labelled tokens, and the squared width of the first token's state: means over tokens and rows."""

    def __init__(self, **weights: float) -> None:
        self.weights, self.left = weights or {"tags": 1.0, "states": 0.5}, -1

    def counts(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Labelled tokens."""
        return {"tags": (batch["labels"] != NONE).sum()}

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term | Tensor]:
        """Both terms, as far as weighted."""
        if self.left == 0:
            raise Killed
        self.left -= 1
        labels = batch["labels"]
        made = model(batch["input_ids"], attention_mask=batch["attention_mask"], output_hidden_states=True)
        out: dict[str, Term | Tensor] = {}
        if "tags" in self.weights:
            mean = F.cross_entropy(made.logits.flatten(0, 1), labels.flatten(), ignore_index=NONE)
            out["tags"] = Term.of(mean, float((labels != NONE).sum()))
        if "states" in self.weights:
            out["states"] = made.hidden_states[-1][:, 0].square().sum(-1).mean()
        return out


class Teaching:
    """An objective with a teacher, made for the model that is trained; with another model where given."""

    def __init__(self, make: Callable[[nn.Module], Any], start: Callable[[], nn.Module] | None = None) -> None:
        self.make, self.start, self.left = make, start or tagger, -1

    def join(self, student: nn.Module) -> None:
        """Make it."""
        self.right = self.make(student)
        self.weights, self.counts = self.right.weights, self.right.counts
        if hasattr(self.right, "course"):
            self.course = self.right.course

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> Mapping[str, Term]:
        """The terms."""
        if self.left == 0:
            raise Killed
        self.left -= 1
        made: Mapping[str, Term] = self.right(model, batch)
        return made


def tinybert(reference: bool) -> Callable[[nn.Module], TinyBertDistillation]:
    """TinyBERT's layer losses from a wider and deeper teacher, with a projection for each layer."""

    def make(student: nn.Module) -> TinyBertDistillation:
        teacher = tagger(hidden_size=24, num_hidden_layers=3).requires_grad_(False)
        stage = TinyBertGeneralStage(method="tinybert-general", steps=1, reference=reference)
        attach_projection(student, 24, Projection.PER_LAYER, 5)
        family = replace(family_of("bert"), inputs=("input_ids", "attention_mask"))
        return TinyBertDistillation(teacher, student, family, stage)

    return make


def wide_teacher() -> nn.Module:
    """A frozen teacher wider and deeper than the students."""
    return tagger(hidden_size=24, num_hidden_layers=3).requires_grad_(False)


def minilm(student: nn.Module) -> MiniLmDistillation:
    """MiniLM from a wider and deeper teacher: passes end early, and no term reaches what lies behind."""
    return minilm_of(student, wide_teacher())


def minilm_of(student: nn.Module, teacher: nn.Module) -> MiniLmDistillation:
    """MiniLM from a given teacher."""
    family = replace(family_of("bert"), inputs=("input_ids", "attention_mask"))
    return MiniLmDistillation(teacher, student, family, MiniLmStage(method="minilm", steps=1))


class Poisoned(Tagging):
    """Tagging that a NaN is added to in one process only, from one forward pass on.

    Args:
        rank: The process.
        at: The forward pass of that process, from 0.
        gradient: Whether the value stays as it is, and only its gradient is NaN.
    """

    def __init__(self, rank: int, at: int, gradient: bool = False) -> None:
        super().__init__()
        self.rank, self.at, self.gradient, self.passes = rank, at, gradient, 0

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Term | Tensor]:
        """Both terms."""
        terms = super().__call__(model, batch)
        if current_process().rank == self.rank and self.passes >= self.at:
            zero = 0 * next(model.parameters()).sum()
            states = terms["states"]
            assert isinstance(states, Tensor)
            terms["states"] = states + (zero.sqrt() if self.gradient else zero + torch.nan)
        self.passes += 1
        return terms


BLOCKS = ("input_ids", "attention_mask")


def ib_bert() -> Any:
    """A tiny random IB-BERT with its masked-LM head, in float64."""
    config = IbBertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=2,
        hidden_size=16,
        embedding_size=8,
        intra_bottleneck_size=24,
        intermediate_size=32,
        num_attention_heads=4,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return IbBertForMaskedLM(config).double().requires_grad_(False)


def mobilebert() -> nn.Module:
    """A MobileBERT of its width."""
    made: nn.Module = transfer_student(ib_bert(), MobileBertSize.MINI, 1).double()
    return made


def transfer(student: nn.Module) -> MobileBertDistillation:
    """Two layers in turn, then the guesses: four of the eight steps for each."""
    stage = MobileBertStage(method="mobilebert", steps=8, transfer_steps=4, weights=TransferWeights(next_sentence=0))
    families = [replace(family_of(name), inputs=BLOCKS) for name in ("ib_bert", "mobilebert")]
    return MobileBertDistillation(ib_bert(), student, families[0], stage, student_family=families[1])


def tagger(**more: int) -> nn.Module:
    """A tiny random BERT with a head on every token, in float64: rounding must not hide a wrong mean."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, **more}
    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=CLASSES,
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model: nn.Module = transformers.BertForTokenClassification(config)
        for parameter in model.parameters():
            nn.init.normal_(parameter, std=0.2) if parameter.ndim > 1 else None
    return model.double()


CASES: dict[str, tuple[Tagging | Teaching, Rows, dict[str, Any]]] = {
    "uneven": (Tagging(), Rows(), {}),
    "portions": (Tagging(), Rows(), {"micro_batch": 3}),
    "first row alone labelled": (Tagging(), Rows(labelled=1), {}),
    "nothing labelled": (Tagging(tags=1.0), Rows(labelled=0), {}),
    "head unused": (Tagging(states=1.0), Rows(), {"weight_decay": 0.5}),
    "one row": (Tagging(), Rows(), {"batch": 1}),
    "own rows": (Tagging(), OwnRows(), {"micro_batch": 3}),
    "own rows, one": (Tagging(), OwnRows(), {"batch": 1}),
    "dropout": (Tagging(), OwnRows(), {"dropout": 0.3}),
    "relations": (Teaching(minilm), Rows(), {"micro_batch": 3, "weight_decay": 0.5}),
    "tinybert": (Teaching(tinybert(reference=False)), Rows(), {"micro_batch": 3}),
    "mobilebert": (Teaching(transfer, mobilebert), Rows(), {"micro_batch": 3}),
    "tinybert reference": (Teaching(tinybert(reference=True)), Rows(), {}),
    "scored": (Tagging(), Rows(), {"lr": 0.1}),
}
VALIDATED = {"scored"}
VALIDATION = Validation(lambda model: float(next(model.parameters()).detach().abs().sum()), 2, patience=3, higher=False)
"""The score of those runs, a function of the weights; it gets worse at so high a learning rate, so that an earlier step is best."""
POISONED: dict[str, tuple[Poisoned, dict[str, Any]]] = {
    "one portion of process 1": (Poisoned(1, 9), {"micro_batch": 2}),  # 2 portions: the 2nd of step 5
    "a gradient of process 1": (Poisoned(1, 4, gradient=True), {}),
    "process 0, and 1 has no rows": (Poisoned(0, 4), {"batch": 1}),
}
"""Runs that one process meets a NaN in, in step 5, and all must leave."""
"""What is minimised, on what, with which settings. The default batch of 7 rows divides into 4 and 3."""


def settings(**more: Any) -> Optimisation:
    """Eight steps without dropout."""
    given = {"steps": 8, "batch": 7, "lr": 1e-3, "dropout": 0.0, "checkpoint": 3, "clip": 0.5, **more}
    return Optimisation(**given)


def run(name: str, out: Path, at: int = -1) -> None:
    """Make a case, up to a kill if wanted, and write its losses and weights."""
    objective, data, more = CASES[name]
    objective.left = at
    loop.training_dtype = lambda *_: torch.float32  # type: ignore[assignment]  # where the CPU would choose bfloat16
    model, plan = tagger(), settings(**more)
    if isinstance(objective, Teaching):
        model = objective.start()
        objective.join(model)
    monitor = Monitor(out / f"{name}.jsonl", VALIDATION if name in VALIDATED else None)
    outcome = loop.train(model, objective, data, plan, 5, "distill.0", out / f"{name}.work", monitor)
    if current_process().main:
        (out / f"{name}.json").write_text(json.dumps([r.model_dump() for r in outcome.history]))
        save_file({k: v.detach().contiguous() for k, v in model.named_parameters()}, out / f"{name}.safetensors")


def killed(name: str, out: Path, at: int) -> None:
    """Make a case up to the n-th forward pass."""
    try:
        run(name, out, at)
    except Killed:
        return
    raise AssertionError("it was to die")


def stopped(name: str, out: Path) -> None:
    """Make a poisoned case; write what this process said, and its weights."""
    objective, more = POISONED[name]
    model = tagger()
    work, here = out / f"{name}.work", current_process().rank
    try:
        loop.train(model, objective, Rows(), settings(**more), 5, "distill.0", work)
    except NotFiniteError as error:
        said = {"message": str(error), "code": error.exit_code}
        (out / f"{name}.{here}.json").write_text(json.dumps(said))
        save_file({k: v.detach() for k, v in model.named_parameters()}, out / f"{name}.{here}.safetensors")
        return
    raise AssertionError("it was to stop")


def main(out: Path) -> None:
    """Every case; those that stop; then one killed and resumed, and one left killed."""
    for name in CASES:
        run(name, out)
    for name in POISONED:
        stopped(name, out)
    for folder in ("resumed", "left"):
        if current_process().main:
            (out / folder).mkdir()
    killed("dropout", out / "resumed", 5)
    run("dropout", out / "resumed")
    killed("uneven", out / "left", 7)
    if not current_process().main:
        assert not list(Path.cwd().iterdir()), "process 0 alone writes"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
