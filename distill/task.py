"""Method `task`: a student learns a fine-tuned teacher's logits, hidden states and attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import Family
from pocketbert.core.recipe import TaskStage
from pocketbert.core.types import Signal
from pocketbert.distill.capture import record_attention
from pocketbert.distill.layer_map import layer_map
from pocketbert.distill.losses import attention_kl, hard_targets, hidden_mse, mean_over_layers, soft_targets


class TaskDistillation:
    """Objective: the weighted sum of up to four terms, on the task's own text.

    The last of the mapped teacher layers need not be the teacher's last; layers that nothing learns from
    compute no attention maps.

    Args:
        teacher: Frozen model with a head; its attention implementation is switched where needed.
        student: The model that will be trained; likewise.
        family: Row of the family table of both.
        stage: Temperature, weights and layer map.
        where: Recipe key, for errors.

    Raises:
        InputError: If a signal is invalid for the family, or the sizes do not fit it.
    """

    def __init__(
        self, teacher: Any, student: Any, family: Family, stage: TaskStage, where: str = "distill.0"
    ) -> None:
        self.teacher, self.family, self.stage = teacher, family, stage
        depth, deep = student.config.num_hidden_layers, teacher.config.num_hidden_layers
        check_signals(teacher.config, student.config, family, stage, where)
        self.layers = layer_map(depth, deep, stage.layers, f"{where}.layers")
        self.depth, self.deep = depth, deep
        self.weights = {k: v for k, v in stage.signals.model_dump().items() if v > 0}
        # Student and teacher both run through the capture, so that no implementation differs between them.
        wanted = Signal.ATTENTION.value in self.weights
        self._student = record_attention(student, family, range(depth) if wanted else ())
        self._teacher = record_attention(teacher, family, [n - 1 for n in self.layers] if wanted else ())

    def __call__(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Terms ``logits``, ``hidden``, ``attention``, ``labels``, as far as weighted."""
        inputs = {name: batch[name] for name in self.family.inputs}
        if next(self.teacher.parameters()).device != batch["input_ids"].device:
            self.teacher.to(batch["input_ids"].device)  # the loop moves the student alone
        wants_hidden = Signal.HIDDEN.value in self.weights
        with torch.no_grad(), self._teacher:
            taught = self.teacher(**inputs, output_hidden_states=wants_hidden)
        with self._student:
            made = model(**inputs, output_hidden_states=wants_hidden)
        terms, mask = {}, batch["attention_mask"]
        if Signal.LOGITS.value in self.weights:
            terms["logits"] = soft_targets(made.logits, taught.logits, self.stage.temperature)
        if wants_hidden:
            ours = _states(made.hidden_states, self.depth)
            theirs = _states(taught.hidden_states, self.deep)
            terms["hidden"] = mean_over_layers(
                [hidden_mse(ours[m], theirs[n], mask) for m, n in enumerate(self.layers, 1)]
            )
        if Signal.ATTENTION.value in self.weights:
            terms["attention"] = mean_over_layers([
                attention_kl(self._student.scores[m], self._teacher.scores[n - 1], mask)
                for m, n in enumerate(self.layers)
            ])  # fmt: skip
        if "labels" in self.weights:
            terms["labels"] = hard_targets(made.logits, batch["labels"])
        return terms


def _states(states: tuple[Tensor, ...], depth: int) -> tuple[Tensor, ...]:
    if len(states) != depth + 1:
        raise RuntimeError(f"{len(states)} hidden states from {depth} layers; expected one more than layers")
    return states


def check_signals(teacher: Any, student: Any, family: Family, stage: TaskStage, where: str) -> None:
    """Refuse signals that the family or the sizes do not allow, with the alternatives.

    Args:
        teacher: Configuration of the teacher.
        student: Configuration of the student.
        family: Row of the family table of both.
        stage: The wanted signals.
        where: Recipe key, for errors.

    Raises:
        InputError: Listing every signal that does not fit.
    """
    problems = []
    valid = ", ".join(family.signals)
    for signal in stage.signals.active():
        key = f"{where}.signals.{signal}"
        if signal not in family.signals:
            reason = family.invalid_signals.get(signal, "the family does not offer it")
            problems.append(Problem(key, f"not valid for {family.title}: {reason}.",
                                    f"Set {signal}: 0; valid signals: {valid}."))  # fmt: skip
    if stage.signals.hidden and student.hidden_size != teacher.hidden_size:
        problems.append(Problem(f"{where}.signals.hidden",
                                f"the student is {student.hidden_size} wide, the teacher {teacher.hidden_size}.",
                                "Set hidden: 0, or give the student the teacher's width."))  # fmt: skip
    if stage.signals.attention and student.num_attention_heads != teacher.num_attention_heads:
        problems.append(Problem(f"{where}.signals.attention",
                                f"the student has {student.num_attention_heads} heads, the teacher "
                                f"{teacher.num_attention_heads}.",
                                "Set attention: 0, or give the student as many heads."))  # fmt: skip
    if problems:
        raise InputError(problems)
