"""What two processes do with a teacher whose weights are divided between them; a script, started once for each of them."""

from __future__ import annotations

import copy
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pocketbert.core.families import Family, family_of, find_family
from pocketbert.core.host.processes import current_process, exchange
from pocketbert.core.recipe.stages import TinyBertGeneralStage
from pocketbert.core.types import Projection, Signal
from pocketbert.distill.capture.outputs import LmHead
from pocketbert.distill.methods.tinybert import TinyBertDistillation
from pocketbert.distill.students.projection import attach_projection
from pocketbert.distill.teacher.cache import cached_teacher, weights_digest
from pocketbert.distill.teacher.signals import OnlineTeacher, Wanted
from pocketbert.distill.training import loop
from pocketbert.distill.training.sharding import is_sharded, join_remaining_passes, sharded, whole_tensor
from support import training_cases as cases
from support.tiny import GRAPHS, GUESSING, NAMES, tiny_classifier

PASSES = (3, 1)
"""Passes of each process, with rows of its own."""
TEXT = ("input_ids", "attention_mask")
TRAININGS: dict[str, dict[str, Any]] = {
    "as many portions": {},
    "other numbers of portions": {"batch": 5, "micro_batch": 2},
    "a process without rows": {"batch": 1},
}
"""Settings of the training loop, with which the processes run the teacher equally often, and not."""


def batch_of(family: Family, number: int) -> dict[str, Tensor]:
    """Two rows of this process, one of them padded, for its n-th pass."""
    rank = current_process().rank
    width = 5 + 2 * number + rank
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(10 * number + rank)
        ids = torch.randint(5, 20, (2, width))
    mask = torch.ones_like(ids)
    mask[1, width - 2 :] = 0
    return {name: {"input_ids": ids, "attention_mask": mask}.get(name, torch.zeros_like(ids)) for name in family.inputs}


def signals(teacher: OnlineTeacher, number: int) -> list[Tensor]:
    """All that a teacher says of a batch."""
    taught = teacher(batch_of(teacher.family, number))
    related = [t for value in taught.relations.values() for t in (value.query, value.key, value.value)]
    return [*taught.outputs.values(), *taught.hidden.values(), *taught.scores.values(), *related]


def difference(own: list[Tensor], others: list[Tensor]) -> float:
    """Largest difference of two lists of tensors."""
    assert len(own) == len(others) > 0
    return max(float((a - b).abs().max()) for a, b in zip(own, others, strict=True))


def ask(name: str) -> dict[str, float]:
    """Signals of a sharded model of a family against those of the whole one, and how much of it a process holds."""
    family, whole = find_family(name), tiny_classifier(name, 2, NAMES)
    teacher, known = copy.deepcopy(whole), family.signals
    wanted = [
        Wanted(hidden=(0, 2), attention=(0,) if Signal.ATTENTION in known else ()),
        *([Wanted(outputs=False, relations=(0,))] if Signal.RELATIONS in known else []),  # whose passes could end early
    ]
    expected = [[signals(OnlineTeacher(whole, family, w), n) for n in range(max(PASSES))] for w in wanted]
    with sharded(teacher, family):
        assert is_sharded(teacher) and type(teacher).__name__ == type(whole).__name__
        own = [
            [signals(OnlineTeacher(teacher, family, w), n) for n in range(PASSES[current_process().rank])]
            for w in wanted
        ]
        join_remaining_passes()
        listed = teacher._get_fsdp_state()._comm_ctx.post_forward_order
        assert not listed, "what FSDP notes of a pass is forgotten behind it"
        assert weights_digest(teacher) == weights_digest(whole)
        parts = sum(p.to_local().numel() for p in teacher.parameters())  # type: ignore[operator]
        table = whole_tensor(teacher.get_input_embeddings().weight)
    assert torch.equal(table, whole.get_input_embeddings().weight)
    return {
        "difference": max(
            difference(a, b) for i, j in zip(own, expected, strict=True) for a, b in zip(i, j, strict=False)
        ),
        "share": parts / sum(p.numel() for p in whole.parameters()),
    }


@torch.no_grad()
def guess(name: str) -> float:
    """Guesses of selected tokens by a sharded masked-language model, which process 1 does not ask."""
    family, whole = find_family(name), tiny_classifier(name, 2, (), auto_class="AutoModelForMaskedLM")
    teacher, inputs, selected = copy.deepcopy(whole), batch_of(family, 0), torch.tensor([1, 3])
    expected = LmHead(whole, "teacher").run(whole, inputs, selected)
    with sharded(teacher, family):
        head, found = LmHead(teacher, "teacher"), expected
        if current_process().main:
            found = head.run(teacher, inputs, selected)
        join_remaining_passes()
    return difference([found.logits, found.hidden], [expected.logits, expected.hidden])


def cached(folder: Path, *, shards: bool) -> None:
    """Build a teacher's cache, and open it a second time."""
    teacher = cases.tagger(hidden_size=24, num_hidden_layers=3).float().eval().requires_grad_(False)
    family = replace(family_of("bert"), inputs=TEXT)
    with sharded(teacher, family, shards):
        for _ in range(2):
            cached_teacher(teacher, family, cases.Rows(), Wanted(hidden=(0, 2), attention=(1,)), folder, batch=7)


def tinybert(student: nn.Module, teacher: nn.Module) -> TinyBertDistillation:
    """TinyBERT's layer losses from a wider and deeper teacher."""
    stage = TinyBertGeneralStage(method="tinybert-general", steps=1)
    attach_projection(student, 24, Projection.PER_LAYER, 5)
    return TinyBertDistillation(teacher, student, replace(family_of("bert"), inputs=TEXT), stage)


METHODS: dict[str, Callable[[nn.Module, nn.Module], Any]] = {"minilm": cases.minilm_of, "tinybert": tinybert}


def distil(method: str, name: str, out: Path, *, shards: bool) -> None:
    """Train a student with a sharded or whole teacher, and write its weights."""
    student, teacher = cases.tagger(), cases.wide_teacher()
    folder = out / ("sharded" if shards else "whole") / f"{method}, {name}"
    with sharded(teacher, family_of("bert"), shards):
        objective, plan = METHODS[method](student, teacher), cases.settings(**TRAININGS[name])
        loop.train(student, objective, cases.Rows(), plan, 5, "distill.0", folder / "work")
    if current_process().main:
        weights = {k: v.detach().contiguous() for k, v in student.named_parameters()}
        save_file(weights, folder / "student.safetensors")


def main(out: Path) -> None:
    """Every family, caches, and trainings; process 0 writes what all found."""
    torch.set_num_threads(1)
    found = {"signals": {name: ask(name) for name in GRAPHS}, "guesses": {name: guess(name) for name in GUESSING}}
    texts = exchange(json.dumps(found))
    cached(out / "cache", shards=True)
    loop.training_dtype = lambda *_: torch.float32  # type: ignore[assignment]  # where the CPU would choose bfloat16
    for method in METHODS:
        for name in TRAININGS:
            for shards in (True, False):
                distil(method, name, out, shards=shards)
    if current_process().main:
        (out / "found.json").write_text(json.dumps([json.loads(text) for text in texts]))
    exchange()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    torch.distributed.destroy_process_group()
