"""What training changes on a model in addition to its weights, and takes back at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

_PREPARED = ("forward", "_original_forward")
"""What Accelerate puts on a prepared model: with bf16, a forward pass under autocast that stays for good."""


@contextmanager
def lent(model: nn.Module) -> Iterator[None]:
    """Give a model its own dropout, trainable weights and forward pass back when the block ends.

    Without that, the next stage would inherit a stage's settings, and a model that was trained in bf16 would be scored in
    bf16: the scores of its files, which compute in fp32, would be compared with those of another model.
    """
    rates = [(m, m.p) for m in model.modules() if isinstance(m, nn.Dropout)]
    wanted = [(p, p.requires_grad) for p in model.parameters()]
    before = {name: vars(model)[name] for name in _PREPARED if name in vars(model)}
    try:
        yield
    finally:
        for module, rate in rates:
            module.p = rate
        for parameter, flag in wanted:
            parameter.requires_grad_(flag)
        for name in _PREPARED:
            vars(model).pop(name, None)
        vars(model).update(before)


def mark_trained(model: nn.Module) -> None:
    """Make a model that was read from disk train on as if the stage before had trained the same object.

    Accelerate leaves a mark on a model that it prepared, and prepares it no second time: in bf16 that decides about
    rounding.

    Args:
        model: The model, as an earlier stage left it.
    """
    vars(model)["_is_accelerate_prepared"] = True
