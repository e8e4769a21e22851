"""Learned linear maps between a student's vectors and its teacher's.

`LayerProjection` maps a student's states to its teacher's width, and is part of the student only during training:
`attach_projection` adds it to a student, `projected` applies it, `detach_projection` removes it, and
`restore_projection` creates it from the arguments and weights that an earlier stage passed on. A student that makes
text vectors keeps the map of its last states (`find_vector_projection`) as a layer behind its pooling
(`add_projection`).

`learn_rotation` finds a rotation after which a teacher's text vectors may be cut to their first numbers; the student
keeps the rotation. `find_principal_axes` finds the axes by which vectors are reduced to a smaller width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.hardware import default_threads
from pocketbert.core.predict.sentence_settings import Pooling, add_dense
from pocketbert.core.seeds import derive_seed
from pocketbert.core.types import Projection

_SUBMODULE = "layer_projection"
"""Name of the student's submodule; it is part of the training checkpoints."""
_INITIAL_STD = 0.02
"""Standard deviation of BERT's random weights, which the released code also uses here."""
_ROTATION_STEPS, _ROTATION_BATCH, _ROTATION_RATE = 400, 256, 2e-3


class LayerProjection(nn.Module):
    """Linear maps ``H W + b`` from a student's hidden states to the teacher's width, as W_h and W_e of TinyBERT.

    The paper has two matrices, W_h for all layers and W_e for the embeddings. `Projection.SHARED` is as in the released
    code: one map for both, with a bias. `Projection.PER_LAYER` is as in the published "v2" checkpoints: one map for the
    embeddings and one for each layer.

    Args:
        width: Width d of the student.
        teacher_width: Width D of the teacher.
        layers: Number of layers of the student.
        kind: Whether there is one map for all states or one for each.
    """

    def __init__(self, width: int, teacher_width: int, layers: int, kind: Projection) -> None:
        super().__init__()
        self.width, self.teacher_width, self.layers, self.kind = width, teacher_width, layers, kind
        count = 1 if kind is Projection.SHARED else layers + 1
        self.maps = nn.ModuleList(nn.Linear(width, teacher_width) for _ in range(count))
        for linear in self.maps.children():
            nn.init.normal_(linear.get_parameter("weight"), std=_INITIAL_STD)
            nn.init.zeros_(linear.get_parameter("bias"))

    def forward(self, number: int, state: Tensor) -> Tensor:
        """Map a hidden state of the student to the teacher's width, [B, S, D].

        Args:
            number: Number of the state; 0 is the embeddings, m the output of the student's layer m.
            state: The hidden state, [B, S, d].
        """
        projected_state: Tensor = self.map_of(number)(state)
        return projected_state

    def map_of(self, number: int) -> nn.Linear:
        """Return the linear layer that maps a hidden state, by the state's number."""
        linear = self.maps[0 if self.kind is Projection.SHARED else number]
        assert isinstance(linear, nn.Linear)
        return linear

    @property
    def facts(self) -> dict[str, Any]:
        """Constructor arguments as JSON values, for `restore_projection`."""
        return {
            "width": self.width,
            "teacher_width": self.teacher_width,
            "layers": self.layers,
            "kind": self.kind.value,
        }


def restore_projection(facts: Mapping[str, Any], weights: Mapping[str, Tensor]) -> LayerProjection:
    """Create a projection from the arguments and weights that an earlier stage saved.

    Args:
        facts: The projection's `LayerProjection.facts`.
        weights: The projection's state dict.
    """
    with torch.random.fork_rng(devices=[]):
        projection = LayerProjection(facts["width"], facts["teacher_width"], facts["layers"], Projection(facts["kind"]))
    projection.load_state_dict(dict(weights))
    return projection


def attach_projection(
    student: Any,
    teacher_width: int,
    kind: Projection,
    seed: int,
    where: str = "distill.0",
    *,
    carried: LayerProjection | None = None,
) -> LayerProjection | None:
    """Add a trainable projection from the student's to the teacher's width to a student, and return it.

    It becomes a submodule: the training loop optimises it, and checkpoints hold it. Remove it with `detach_projection`
    before the student is saved, or its encoder is copied.

    A student of the teacher's width gets no projection, and its states are compared as they are. That deviates from the
    released code, which maps every student's states, also TinyBERT6's of 768 to 768: here a student with the teacher's
    weights has loss 0 from the first step.

    Args:
        student: A transformers model.
        teacher_width: Width of the teacher's hidden states.
        kind: Whether there is one map for all states or one for each.
        seed: Seed of the run. It alone decides the weights, which are normal with standard deviation 0.02; biases are
            0.
        where: Recipe key of the stage, which error messages name.
        carried: The projection that an earlier stage trained, to use instead of a new one.

    Returns:
        The submodule; None if the widths are equal.

    Raises:
        InputError: If the earlier stage's projection is of another kind or size.
        ValueError: If the student has a projection already.
    """
    config = student.config
    if config.hidden_size == teacher_width:
        return None
    if attached_projection(student) is not None:
        raise ValueError(f"{type(student).__name__} has a projection already: detach it first")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "projection"))
        projection = LayerProjection(config.hidden_size, teacher_width, config.num_hidden_layers, kind)
    if carried is not None:
        if carried.facts != projection.facts:
            what = f"{_describe(projection)}; the stage before trained {_describe(carried)}."
            fix = "Give both stages the same projection, and both teachers the same width."
            raise InputError(Problem(f"{where}.projection", what, fix))
        projection = carried
    parameter = next(student.parameters())
    student.add_module(_SUBMODULE, projection.to(parameter.device, parameter.dtype))
    return projection


def detach_projection(student: Any) -> LayerProjection | None:
    """Remove the projection from a student, and return it.

    Args:
        student: A transformers model.

    Returns:
        The projection, for the next stage; None if there is none.
    """
    projection = attached_projection(student)
    if projection is not None:
        delattr(student, _SUBMODULE)
    return projection


def attached_projection(student: Any) -> LayerProjection | None:
    """Return the projection that is attached to a student; None if there is none."""
    projection: LayerProjection | None = getattr(student, _SUBMODULE, None)
    return projection


def projected(student: Any, number: int, state: Tensor) -> Tensor:
    """Map a student's hidden state to the teacher's width, [B, S, D]; without a projection, return it unchanged.

    Args:
        student: The student.
        number: Number of the state; 0 is the embeddings, m the output of the student's layer m.
        state: The hidden state, [B, S, d].
    """
    projection = attached_projection(student)
    return state if projection is None else projection(number, state)


def find_vector_projection(student: Any) -> nn.Linear | None:
    """Return the map of a student's last states, pooled or not, to the teacher's width; None if no projection is attached."""
    projection = attached_projection(student)
    return None if projection is None else projection.map_of(projection.layers)


def add_projection(pooling: Pooling, projection: LayerProjection | None) -> Pooling:
    """Return a teacher's pooling with a Dense layer in front of its layers, which projects each of a student's pooled states.

    Args:
        pooling: The pooling and its layers.
        projection: The student's projection; None leaves the pooling as it is.
    """
    if projection is None:
        return pooling
    linear, kinds = projection.map_of(projection.layers), len(pooling.kinds)
    weight, bias = (p.detach().float().cpu().numpy() for p in (linear.weight, linear.bias))
    weights = {"linear.weight": np.kron(np.eye(kinds, dtype=np.float32), weight), "linear.bias": np.tile(bias, kinds)}
    return add_dense(pooling, weights, first=True)


def find_principal_axes(moment: Tensor, count: int) -> Tensor:
    """Return the axes along which vectors vary most, [D, count] float64 with orthonormal columns, most varying first.

    The sign of an axis is arbitrary; here its largest number is positive, so that all machines agree.

    Args:
        moment: Covariance of the vectors, or the sum of their outer products, [D, D] float64.
        count: Number of axes, at most D.
    """
    axes: Tensor = torch.linalg.eigh(moment).eigenvectors.flip(-1)[:, :count]
    return axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()


def _describe(projection: LayerProjection) -> str:
    """Return the kind and the sizes of a projection in words."""
    return f"{projection.kind} from {projection.width} to {projection.teacher_width} for {projection.layers} layers"


def learn_rotation(vectors: NDArray[np.floating], lengths: Sequence[int], seed: int) -> NDArray[np.float32]:
    """Learn a rotation R after which the first numbers of text vectors have nearly the cosines of the whole vectors.

    Minimises, over pairs of vectors in a batch (of all vectors, if there are no more than in a batch), the sum over the lengths n of
    ``(cos((R v)[:n], (R w)[:n]) - cos(v, w))^2``, by 400 steps of Adam from the identity. A rotation leaves cosines,
    dot products and Euclidean distances of whole vectors as they are. A student that learns from rotated vectors is
    trained on each length (`pocketbert.distill.losses.task.soft_loss`).

    Kusupati et al. 2022, "Matryoshka Representation Learning", arXiv 2205.13147, train a whole encoder for it; here the teacher is
    fixed, and only the axes of its vectors are chosen. Principal components are no substitute: they spend the first numbers on
    what all texts share.

    Args:
        vectors: Vectors of some texts, [N, W].
        lengths: Numbers to which vectors will be cut, each at most W.
        seed: Seed of the run.

    Returns:
        R, float32 [W, W].
    """
    torch.set_num_threads(default_threads())
    unit = F.normalize(torch.from_numpy(np.asarray(vectors, np.float32)), dim=-1)
    width = unit.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "rotation"))
        linear = nn.Linear(width, width, bias=False)
        nn.init.eye_(linear.weight)
        orthogonal(linear, orthogonal_map="cayley")
        optimizer = torch.optim.Adam(linear.parameters(), lr=_ROTATION_RATE)
        few = len(unit) <= _ROTATION_BATCH
        for step in range(_ROTATION_STEPS):
            optimizer.param_groups[0]["lr"] = _ROTATION_RATE * (1 - step / _ROTATION_STEPS)
            batch = unit if few else unit[torch.randint(len(unit), (_ROTATION_BATCH,))]
            cosines, turned = batch @ batch.T, linear(batch)
            loss = torch.zeros(())
            for n in lengths:
                cut = F.normalize(turned[:, :n], dim=-1)
                loss = loss + (cut @ cut.T - cosines).square().mean()
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        learned = linear.weight.detach().double()
    # the nearest rotation in double precision: rounding of the steps would change cosines of whole vectors
    left, _, right = torch.linalg.svd(learned)
    return np.asarray((left @ right).float().numpy())
