"""A frozen teacher whose weights are divided among the processes of a launch, with PyTorch's FSDP2 (`fully_shard`).

`sharded` divides a teacher while its block runs. Each process then holds an equal part of every weight. In a forward pass the
weights of one layer after the other are gathered, and freed again behind it; the outputs are those of the whole teacher.

To gather is a collective: all processes must run the teacher equally often, and always to its last layer. How many passes a
process makes depends on its rows, so `join_remaining_passes` is called by each process that has no pass left before it meets the others in
another way: it joins the passes that they still make, with a text of two tokens.

`is_sharded` and `whole_tensor` are for code that moves teachers, or reads their weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.families import Family
from pocketbert.core.host.processes import current_process
from pocketbert.core.host.progress import print_note
from pocketbert.distill.training.machine import open_process_group

_active: list[_ShardedTeacher] = []
"""The sharded teacher of this process, while there is one."""


@contextmanager
def sharded(teacher: nn.Module, family: Family, wanted: bool = True) -> Iterator[None]:
    """Divide a teacher's weights among the processes of the launch, for the passes of the block.

    All processes call it with the same teacher. Each of them holds it whole until then, in the memory where it is; the parts go to
    the process's GPU, if there is one, a layer at a time. The weights stay divided after the block, so that the teacher is of no
    further use: each stage loads its own. In a single process nothing is done.

    Args:
        teacher: The teacher, changed in place: its parameters are replaced by this process's parts of them.
        family: Names, layer paths and inputs of the teacher's model family.
        wanted: Whether to divide it; if not, nothing is done.
    """
    if not wanted or current_process().world == 1:
        yield
        return
    shard = _ShardedTeacher(teacher, family)
    if current_process().main:
        whole = sum(p.numel() for p in teacher.parameters())
        own = sum(p.to_local().numel() for p in teacher.parameters())  # type: ignore[attr-defined]
        print_note(
            f"  teacher.shard: each process holds {own / 1e6:,.1f} of the teacher's {whole / 1e6:,.1f} million weights"
        )
    _active.append(shard)
    try:
        yield
    finally:
        _active.remove(shard)


def join_remaining_passes() -> None:
    """Join the passes of the sharded teacher that other processes still make, until all processes have called this.

    Each process calls it after its last pass before an exchange, a collective or the end of the block: equally often in all.
    Without a sharded teacher nothing is done.
    """
    for shard in _active:
        shard.join_remaining_passes()


def is_sharded(model: nn.Module) -> bool:
    """Return whether a model's weights are divided among processes at present, so that it must not be moved."""
    return any(shard.model is model for shard in _active)


def whole_tensor(value: Tensor) -> Tensor:
    """Return a weight with the parts of all processes, which all call this; a tensor that is not divided as it is."""
    gather = getattr(value, "full_tensor", None)  # a method of DTensor
    whole: Tensor = value if gather is None else gather()
    return whole


class _ShardedTeacher:
    """A teacher whose weights are divided among the processes, which all run it equally often.

    Args:
        model: The teacher.
        family: Names, layer paths and inputs of its model family.

    Attributes:
        model: The teacher.
    """

    def __init__(self, model: nn.Module, family: Family) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        self.model, self._only_joins = model, False
        ids, real = torch.ones(1, 2, dtype=torch.long), ("input_ids", "attention_mask")
        two_tokens = {name: ids if name in real else torch.zeros_like(ids) for name in family.inputs}
        layers = _list_called_layers(model, family, two_tokens)
        self._device = open_process_group()
        self._two_tokens = {name: value.to(self._device) for name, value in two_tokens.items()}
        mesh = init_device_mesh(self._device.type, (current_process().world,))
        self._group = mesh.get_group()
        model_class = type(model)
        for module in (*layers, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
        # `fully_shard` renames the model's class; transformers finds by that name what it records in a pass, and PocketBERT the head
        for name in ("__name__", "__qualname__", "__module__"):
            setattr(type(model), name, getattr(model_class, name))
        model.register_forward_pre_hook(self._announce, prepend=True)
        # FSDP lists the layers of each pass until a backward pass, and there is none; this hook runs behind its own
        model.register_forward_hook(lambda *_: model.reset_iter_state())  # type: ignore[operator]

    @torch.no_grad()
    def join_remaining_passes(self) -> None:
        """Run the teacher on two tokens as long as another process announces a pass."""
        while self._any_process_runs(False):
            self._only_joins = True
            try:
                self.model(**self._two_tokens)
            finally:
                self._only_joins = False

    def _announce(self, *_: Any) -> None:
        """Announce a pass of this process to the others, which join it in `join_remaining_passes` or by a pass of their own."""
        if not self._only_joins:
            self._any_process_runs(True)

    def _any_process_runs(self, here: bool) -> bool:
        """Return whether any process is about to run the teacher; `here` says whether this one is."""
        flag = torch.tensor([int(here)], device=self._device)
        torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX, self._group)
        return here or bool(flag)


@torch.no_grad()
def _list_called_layers(model: nn.Module, family: Family, two_tokens: Mapping[str, Tensor]) -> list[nn.Module]:
    """Run a model on two tokens, and return its layers, or the parts of layers, whose hooks ran in this pass.

    The others are divided together with the rest of the model.

    FSDP gathers weights in hooks of modules; SqueezeBERT calls its layers' `forward`, which runs none.

    Args:
        model: The model, in eval mode afterwards.
        family: Names, layer paths and inputs of its family.
        two_tokens: The inputs of two tokens.
    """
    called, layers = set[nn.Module](), list[nn.Module]()
    for path in (family.layer_path, *family.layer_lists):
        first, _, rest = path.partition(".")  # an encoder without a head lacks the first part
        layers += model.get_submodule(path if hasattr(model, first) else rest).children()
    if family.layer_lists:
        # these list attention modules as layers, whose class is replaced when attention is recorded, so that hooks on them do
        # not run: the matrices inside are divided in place of them
        layers = [part for layer in layers for part in [*layer.children()] or [layer] if [*part.parameters()]]
    handles = [layer.register_forward_pre_hook(lambda module, _: called.add(module)) for layer in layers]
    try:
        model.eval()(**{name: value.to(next(model.parameters()).device) for name, value in two_tokens.items()})
    finally:
        for handle in handles:
            handle.remove()
    return [layer for layer in layers if layer in called]
