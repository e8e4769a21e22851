"""The learned map from a student's width to its teacher's: part of the student while it is trained, and of no file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.seeds import derive_seed
from pocketbert.core.types import Projection

_NAME = "layer_projection"
_STD = 0.02
"""Spread of BERT's random weights, which the released code also draws these from."""


class LayerProjection(nn.Module):
    """``H W + b`` of hidden states: W_h and W_e of TinyBERT (Jiao et al. 2020, arXiv 1909.10351, eqs. 8 and 9).

    The paper has two matrices, W_h for all layers and W_e for the embeddings. `Projection.SHARED` is the released code:
    one for both, with a bias; `Projection.PER_LAYER` is what the published "v2" checkpoints hold: one for the
    embeddings and one for each layer.

    Args:
        width: Student's width d.
        teacher_width: Teacher's width D.
        layers: Student's layers.
        kind: How many maps.
    """

    def __init__(self, width: int, teacher_width: int, layers: int, kind: Projection) -> None:
        super().__init__()
        self.width, self.teacher_width, self.layers, self.kind = width, teacher_width, layers, kind
        count = 1 if kind is Projection.SHARED else layers + 1
        self.maps = nn.ModuleList(nn.Linear(width, teacher_width) for _ in range(count))
        for made in self.maps.children():
            nn.init.normal_(made.get_parameter("weight"), std=_STD)
            nn.init.zeros_(made.get_parameter("bias"))

    def forward(self, number: int, state: Tensor) -> Tensor:
        """A hidden state in the teacher's width, [B, S, D].

        Args:
            number: Which one; 0 is the embeddings, m the output of the student's layer m.
            state: [B, S, d].
        """
        out: Tensor = self.maps[0 if self.kind is Projection.SHARED else number](state)
        return out

    @property
    def sizes(self) -> tuple[int, int, int, Projection]:
        """Student's width, teacher's width, student's layers, kind: what must agree to be used elsewhere."""
        return self.width, self.teacher_width, self.layers, self.kind

    @property
    def facts(self) -> dict[str, Any]:
        """What `restore_projection` needs in addition to the weights, as JSON values."""
        return {
            "width": self.width,
            "teacher_width": self.teacher_width,
            "layers": self.layers,
            "kind": self.kind.value,
        }


def restore_projection(facts: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LayerProjection:
    """A projection as it was saved.

    Args:
        facts: Its `LayerProjection.facts`.
        weights: Its state dict.
    """
    with torch.random.fork_rng(devices=[]):
        made = LayerProjection(facts["width"], facts["teacher_width"], facts["layers"], Projection(facts["kind"]))
    made.load_state_dict(dict(weights))
    return made


def attach_projection(
    student: Any,
    teacher_width: int,
    kind: Projection,
    seed: int,
    where: str = "distill.0",
    *,
    carried: LayerProjection | None = None,
) -> LayerProjection | None:
    """Give a student a trainable projection to its teacher's width for the time of training.

    It becomes a submodule: the training loop optimises it, and checkpoints hold it. Take it off with
    `detach_projection` before the student is saved, or its encoder is copied.

    Students of the teacher's own width get none, and their states are compared as they are. That deviates from the
    released code, which maps every student's states, also TinyBERT6's of 768 to 768: here a student with the teacher's
    weights has loss 0 from the first step.

    Args:
        student: A transformers model.
        teacher_width: Width of the teacher's hidden states.
        kind: How many maps.
        seed: Seed of the run; weights are normal with spread 0.02, biases 0, whatever torch's own random state.
        where: Recipe key of the stage, for errors.
        carried: The projection that an earlier stage trained, to go on with instead of a new one.

    Returns:
        The submodule; None where widths are equal.

    Raises:
        InputError: If the earlier stage's projection is of another kind or size.
        ValueError: If the student has one.
    """
    config = student.config
    if config.hidden_size == teacher_width:
        return None
    if projection_of(student) is not None:
        raise ValueError(f"{type(student).__name__} has a projection already: detach it first")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "projection"))
        made = LayerProjection(config.hidden_size, teacher_width, config.num_hidden_layers, kind)
    if carried is not None:
        if carried.sizes != made.sizes:
            raise InputError(
                Problem(
                    f"{where}.projection",
                    f"{_described(made)}; the stage before trained {_described(carried)}.",
                    "Give both stages the same projection, and both teachers the same width.",
                )
            )
        made = carried
    parameter = next(student.parameters())
    student.add_module(_NAME, made.to(parameter.device, parameter.dtype))
    return made


def detach_projection(student: Any) -> LayerProjection | None:
    """Remove a student's projection.

    Args:
        student: A transformers model.

    Returns:
        It, to carry over to the next stage; None if there is none.
    """
    found = projection_of(student)
    if found is not None:
        delattr(student, _NAME)
    return found


def projection_of(student: Any) -> LayerProjection | None:
    """The projection that is attached to a student, if any."""
    found: LayerProjection | None = getattr(student, _NAME, None)
    return found


def projected(student: Any, number: int, state: Tensor) -> Tensor:
    """Return a student's hidden state in its teacher's width, [B, S, D]; without a projection, the state itself.

    Args:
        student: The model that the state is of.
        number: Which state; 0 is the embeddings.
        state: [B, S, d].
    """
    found = projection_of(student)
    return state if found is None else found(number, state)


def _described(projection: LayerProjection) -> str:
    width, teacher_width, layers, kind = projection.sizes
    return f"{kind} from {width} to {teacher_width} for {layers} layers"
