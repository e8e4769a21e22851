"""Forward passes of which only a part is needed.

* `LmHead` runs a masked-language model whose vocabulary projection is computed only for selected tokens. Projecting
  every position of a batch to 30,000 words costs more memory than the whole encoder.
* `LayerOutputs` collects the outputs of chosen encoder layers, and can end the pass after the last of them.

Both use hooks, so that the call still goes through the model's ``forward``: if the model is wrapped, gradients are
synchronised and autocast applies.
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
from pocketbert.distill.capture.recorder import EndOfPassError

_HEADS = ("ForMaskedLM", "ForPreTraining")
"""Suffixes of transformers' classes with a masked-language-model head."""


@dataclass(frozen=True)
class TokenOutput:
    """Result of `LmHead.run`: hidden states, and logits of the selected tokens.

    Attributes:
        hidden: Last hidden states, after the final norm, [B, S, d].
        logits: Vocabulary logits of the selected tokens, in their order in the batch, [n, V].
        next_sentence: Logits of "the second segment follows the first" and "does not", [B, 2]. If the head predicts the
            order of the segments (ALBERT), logits of "in order" and "swapped". None if the model has no such head.
    """

    hidden: Tensor
    logits: Tensor
    next_sentence: Tensor | None = None


class LmHead:
    """Runs a masked-language model whose head (vocabulary projection) is computed only for selected tokens.

    Args:
        model: A transformers model, not wrapped by DDP or the like.
        where: Recipe key that error messages name.

    Attributes:
        has_next_sentence: Whether the model also has a head for two segments: next sentence, or ALBERT's order.

    Raises:
        InputError: If the model's class has no masked-language-model head, or one that this project does not know.
    """

    def __init__(self, model: Any, where: str) -> None:
        name = type(model).__name__
        first_module = _first_head_module(model)
        if first_module is None:
            known = [f.class_name(_HEADS[0]) for f in all_families() if f.lm_head is not None and f.loads_as is None]
            what = f"{name} has no known masked-language-model head; known: {', '.join(known)}."
            raise InputError(Problem(where, what, "Load the checkpoint with its pre-training head."))
        self.has_next_sentence = name.endswith("ForPreTraining")
        self._first_module = first_module

    def run(self, model: nn.Module, inputs: dict[str, Tensor], selected: Tensor) -> TokenOutput:
        """Run the model with its head computed only for selected tokens, and return hidden states and logits.

        Args:
            model: The model of this head, or its DDP wrapper.
            inputs: The model's inputs by name, [B, S] each.
            selected: Indices of the tokens to project, in the batch flattened to B * S; [n] int64.

        Returns:
            Hidden states of all tokens, logits of the selected tokens, and logits of the next-sentence head if there is
            one.

        Raises:
            RuntimeError: If the head did not run exactly once, or did not return one row of logits for each selected
                token.
        """
        head_inputs: list[Tensor] = []

        def select_tokens(_: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
            head_inputs.append(arguments[0])
            return (arguments[0].flatten(0, 1).index_select(0, selected), *arguments[1:])

        handle = self._first_module.register_forward_pre_hook(select_tokens)
        try:
            output = model(**inputs, return_dict=True)
        finally:
            handle.remove()
        if len(head_inputs) != 1:
            raise RuntimeError(f"the language-model head ran {len(head_inputs)} times in one forward pass")
        logits: Tensor = output[0]
        if logits.shape[:-1] != selected.shape:
            raise RuntimeError(f"logits of shape {tuple(logits.shape)} for {len(selected)} selected tokens")
        pair_logits = output.get("seq_relationship_logits", output.get("sop_logits"))  # BERT's and ALBERT's name
        return TokenOutput(head_inputs[0], logits, pair_logits)


def _first_head_module(model: Any) -> nn.Module | None:
    """Return the first module of a model's masked-LM head, which reads the encoder's output; None if none is known."""
    name = type(model).__name__
    for family in all_families():
        if family.lm_head is not None and name in [family.class_name(suffix) for suffix in _HEADS]:
            modules = dict(model.named_modules())
            # none in a class for pre-training that predicts no words
            return next((modules[path] for path in family.lm_head.split("|") if path in modules), None)
    return None


def flat_indices(mask: Tensor) -> Tensor:
    """Return the positions of non-zero entries of a [B, S] mask in the batch flattened to B * S, [n] int64."""
    return torch.nonzero(mask.flatten()).squeeze(1)


class LayerOutputs:
    """Context manager that collects the outputs of chosen encoder layers during one forward pass.

    To record attention scores in the same pass, open the `AttentionRecorder` outside of this one; its `depth` is then
    the number of layers that run.

    Args:
        model: A transformers model.
        layer_path: Dotted path from the class with a head to the list of encoder layers.
        layers: Numbers of the chosen layers, from 0.
        stop: Whether to end the pass after the last chosen layer, which leaves the ``with`` block; gradients of the
            collected outputs are the same.

    Attributes:
        states: Output of each chosen layer by its number, [B, S, d].

    Raises:
        ValueError: If the model has no such layer.
    """

    def __init__(self, model: Any, layer_path: str, layers: Iterable[int], *, stop: bool = False) -> None:
        # an encoder without a head lacks the first part of the path
        path = layer_path if hasattr(model, layer_path.partition(".")[0]) else layer_path.partition(".")[2]
        stack = model.get_submodule(path)
        self._wanted = sorted(set(layers))
        stored = len(stack) if isinstance(stack, nn.ModuleList) else 0
        # layers that share weights run more often than they are stored: they are numbered by runs, in call order
        self._shared = 0 < stored < model.config.num_hidden_layers
        runs = model.config.num_hidden_layers if self._shared else stored
        if not isinstance(stack, nn.ModuleList) or any(not 0 <= n < runs for n in self._wanted):
            raise ValueError(f"no layers {self._wanted} at '{layer_path}' of {type(model).__name__}, which has {runs}")
        self._layers = list(enumerate(stack)) if self._shared else [(n, stack[n]) for n in self._wanted]
        self._runs = 0
        self._last = self._wanted[-1] if stop and self._wanted else None
        self.states: dict[int, Tensor] = {}
        self._handles: list[Any] = []

    def __enter__(self) -> LayerOutputs:
        """Register the hooks that collect the outputs of one forward pass."""
        self.states, self._runs = {}, 0
        for number, layer in self._layers:
            self._handles.append(layer.register_forward_hook(self._hook(number)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Remove the hooks, and check that every chosen layer ran.

        Returns:
            Whether this object itself ended the pass.

        Raises:
            RuntimeError: If a chosen layer did not run: a loss over its missing output would silently be 0.
        """
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        ended = isinstance(error, EndOfPassError) and error.owner is self
        if error is not None and not ended:
            self.states = {}
            return False
        if sorted(self.states) != self._wanted:
            collected, self.states = sorted(self.states), {}
            raise RuntimeError(f"layers {collected} handed on a state, wanted were {self._wanted}")
        return ended

    def _hook(self, number: int) -> Any:
        """Return a forward hook that stores layer `number`'s output, and after the last wanted layer ends the pass."""

        def store_output(_module: nn.Module, _arguments: Any, output: Any) -> None:
            """Store the layer's output if it is wanted."""
            run = self._runs if self._shared else number
            self._runs += 1
            if run in self._wanted:
                self.states[run] = output[0] if isinstance(output, tuple) else output
            if run == self._last:
                raise EndOfPassError(self)

        return store_output
