"""Running a masked-language model whose vocabulary projection sees only the tokens that matter.

Projecting every position of a batch on 30,000 words costs more memory than the whole encoder. A hook where the
head begins hands it the selected tokens only. The call still goes through the model's own ``forward``, so
gradients are synchronised and autocast applies when the model is wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import TracebackType
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


# --- layer_outputs ---
# What chosen encoder layers hand on, in a forward pass that may end behind the last of them.


class _EnoughError(Exception):
    """Ends a forward pass behind the last wanted layer; never leaves the object that it carries."""

    def __init__(self, owner: LayerOutputs) -> None:
        self.owner = owner


class LayerOutputs:
    """Collects the outputs of encoder layers.

    Use as a context manager around one forward pass. A recorder of attention scores goes around it, not inside, and
    has the depth that is run.

    Args:
        model: A transformers model.
        layer_path: Dotted path from the class with a head to the list of encoder layers.
        wanted: Layers, from 0.
        stop: End the pass behind the last of them, and leave the ``with`` block; gradients are the same.

    Attributes:
        states: By layer, each [B, S, d].

    Raises:
        ValueError: If the model has no such layer.
    """

    def __init__(self, model: Any, layer_path: str, wanted: Iterable[int], *, stop: bool = False) -> None:
        # an encoder without a head lacks the name it has within one
        path = layer_path if hasattr(model, layer_path.partition(".")[0]) else layer_path.partition(".")[2]
        found = model.get_submodule(path)
        self._wanted = sorted(set(wanted))
        count = len(found) if isinstance(found, nn.ModuleList) else 0
        # layers that share weights run more often than they are stored: numbers are those of the runs, in call order
        self._shared = 0 < count < model.config.num_hidden_layers
        runs = model.config.num_hidden_layers if self._shared else count
        if not isinstance(found, nn.ModuleList) or any(not 0 <= n < runs for n in self._wanted):
            raise ValueError(f"no layers {self._wanted} at '{layer_path}' of {type(model).__name__}, which has {runs}")
        self._layers = list(enumerate(found)) if self._shared else [(n, found[n]) for n in self._wanted]
        self._runs = 0
        self._last = self._wanted[-1] if stop and self._wanted else None
        self.states: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> LayerOutputs:
        """Start collecting."""
        self.states, self._runs = {}, 0
        for number, layer in self._layers:
            self._handles.append(layer.register_forward_hook(self._hook(number)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop, and check that every wanted layer ran.

        Returns:
            Whether this object itself ended the pass.

        Raises:
            RuntimeError: If a layer did not run: a loss over what is missing would silently be 0.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        ended = isinstance(error, _EnoughError) and error.owner is self
        if error is not None and not ended:
            self.states = {}
            return False
        if sorted(self.states) != self._wanted:
            have, self.states = sorted(self.states), {}
            raise RuntimeError(f"layers {have} handed on a state, wanted were {self._wanted}")
        return ended

    def _hook(self, number: int) -> Any:
        def keep(_module: nn.Module, _arguments: Any, output: Any) -> None:
            run = self._runs if self._shared else number
            self._runs += 1
            if run in self._wanted:
                self.states[run] = output[0] if isinstance(output, tuple) else output
            if run == self._last:
                raise _EnoughError(self)

        return keep
