"""Running a masked-language model whose vocabulary projection sees only the tokens that matter.

Projecting every position of a batch on 30,000 words costs more memory than the whole encoder. A hook where the
head begins hands it the selected tokens only. The call still goes through the model's own ``forward``, so
gradients are synchronised and autocast applies when the model is wrapped.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import all_families

_HEADS = ("ForMaskedLM", "ForPreTraining")
"""Suffixes of the classes that guess words."""


@dataclass(frozen=True)
class TokenOutput:
    """What a model makes of a batch.

    Attributes:
        hidden: Last hidden states, behind the final norm, [B, S, d].
        logits: At the selected tokens, in their order in the batch, [n, V].
        next_sentence: Whether the second segment follows the first, as logits of yes and no, [B, 2]; None of a model
            without that head. Of a head that tells the order of segments, whether they are in order.
    """

    hidden: Tensor
    logits: Tensor
    next_sentence: Tensor | None = None


class LmHead:
    """Where a masked-language model's head begins.

    Args:
        model: A transformers model, not wrapped.
        where: Recipe key, for errors.

    Attributes:
        judges_pairs: Whether the model has a next-sentence head too.

    Raises:
        InputError: If the class has no masked-language-model head, or none that is known.
    """

    def __init__(self, model: Any, where: str) -> None:
        name = type(model).__name__
        start = _head_of(model)
        if start is None:
            known = [f.class_name(_HEADS[0]) for f in all_families() if f.lm_head is not None and f.loads_as is None]
            raise InputError(
                Problem(
                    where,
                    f"{name} has no known masked-language-model head; known: {', '.join(known)}.",
                    "Load the checkpoint with its pre-training head.",
                )
            )
        self.judges_pairs = name.endswith("ForPreTraining")
        self._start = start

    def run(self, model: nn.Module, inputs: dict[str, Tensor], selected: Tensor) -> TokenOutput:
        """One forward pass.

        Args:
            model: The model, or what wraps it.
            inputs: Its inputs, [B, S] each.
            selected: Places of the tokens to project, in the batch flattened to B * S; [n] int64.

        Returns:
            Hidden states of all tokens, logits of the selected ones, and what the model says of its pairs.

        Raises:
            RuntimeError: If the head did not run exactly once.
        """
        seen: list[Tensor] = []

        def gather(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            seen.append(arguments[0])
            return (arguments[0].flatten(0, 1).index_select(0, selected), *arguments[1:])

        handle = self._start.register_forward_pre_hook(gather)
        try:
            made = model(**inputs, return_dict=True)
        finally:
            handle.remove()
        if len(seen) != 1:
            raise RuntimeError(f"the language-model head ran {len(seen)} times in one forward pass")
        logits: Tensor = made[0]
        if logits.shape[:-1] != selected.shape:
            raise RuntimeError(f"logits of shape {tuple(logits.shape)} for {len(selected)} selected tokens")
        pairs = made.get("seq_relationship_logits", made.get("sop_logits"))  # BERT's and ALBERT's name
        return TokenOutput(seen[0], logits, pairs)


def _head_of(model: Any) -> nn.Module | None:
    """The module that takes the encoder's output, as the row of the model's family has it."""
    name = type(model).__name__
    for family in all_families():
        if family.lm_head is not None and name in [family.class_name(suffix) for suffix in _HEADS]:
            modules = dict(model.named_modules())
            # none in a class for pre-training that guesses no words
            return next((modules[path] for path in family.lm_head.split("|") if path in modules), None)
    return None


def places(mask: Tensor) -> Tensor:
    """Places of the non-zero entries of a [B, S] mask in the flattened batch, [n] int64."""
    return torch.nonzero(mask.flatten()).squeeze(1)
