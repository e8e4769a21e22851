from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pocketbert.core.errors import InputError
from pocketbert.core.types import Projection
from pocketbert.distill.students.projection import (
    LayerProjection,
    attach_projection,
    detach_projection,
    learn_rotation,
    projected,
)

SHARED, PER_LAYER = Projection.SHARED, Projection.PER_LAYER


@pytest.fixture
def student(make_classifier) -> Any:
    """2 layers, 32 wide."""
    return make_classifier("bert", 2, ("a", "b"))


def attach(student: Any, kind: Projection = SHARED, seed: int = 3, **more: Any) -> LayerProjection:
    made = attach_projection(student, 48, kind, seed, **more)
    assert made is not None
    return made


@pytest.mark.parametrize(("kind", "count"), [(SHARED, 1), (PER_LAYER, 3)])
def test_states_are_mapped_by_matrix_and_bias_in_the_students_number_type(kind, count, student):
    made = attach(student.double(), kind)
    weights = dict(made.named_parameters())
    assert sum(p.numel() for p in weights.values()) == count * (32 + 1) * 48
    with torch.no_grad():
        for parameter in weights.values():
            parameter.normal_()
    state = torch.randn(2, 5, 32, dtype=torch.float64)
    for number in range(3):
        which = number if kind is PER_LAYER else 0
        wanted = state @ weights[f"maps.{which}.weight"].T + weights[f"maps.{which}.bias"]
        torch.testing.assert_close(projected(student, number, state), wanted)


def test_weights_depend_on_the_seed_alone(student):
    found = []
    for seed, state in ((3, 1), (3, 2), (4, 1)):
        torch.manual_seed(state)
        before = torch.get_rng_state()
        attach(student, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        made = detach_projection(student)
        assert made is not None
        found.append(made.maps.get_parameter("0.weight"))
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])
    assert float(found[0].detach().std()) == pytest.approx(0.02, rel=0.1)


def test_a_student_of_the_teachers_width_gets_none_and_states_stay_as_they_are(student):
    state = torch.randn(2, 5, 32)
    assert attach_projection(student, 32, PER_LAYER, 3) is None
    assert projected(student, 1, state) is state


@pytest.mark.parametrize(("kind", "layers", "width"), [(PER_LAYER, 2, 48), (SHARED, 3, 48), (SHARED, 2, 40)])
def test_one_that_does_not_fit_is_refused(kind, layers, width, student, make_classifier):
    attach(student)
    other, trained = make_classifier("bert", layers, ("a", "b")), detach_projection(student)
    said = f"^distill.1.projection: {kind} from 32 to {width} for {layers} layers; .* shared from 32 to 48 for 2 layers"
    with pytest.raises(InputError, match=said):
        attach_projection(other, width, kind, 3, "distill.1", carried=trained)
    assert detach_projection(other) is None


def errors_of_cut_cosines(vectors: NDArray[np.floating], n: int) -> float:
    """Mean squared error of the cosines of the first numbers, against those of whole vectors."""
    whole, cut = (v / np.linalg.norm(v, axis=1, keepdims=True) for v in (vectors, vectors[:, :n]))
    return float(np.square(cut @ cut.T - whole @ whole.T).mean())


def test_a_rotation_brings_into_the_first_numbers_what_tells_vectors_apart():
    draw = np.random.default_rng(3)
    # the last four of sixteen numbers tell vectors apart, the first are noise
    vectors = (draw.normal(size=(300, 16)) * np.repeat([0.1, 1.0], [12, 4])).astype(np.float32)
    rotation = learn_rotation(vectors, [4, 8], 7)
    assert rotation.dtype == np.float32
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(16), atol=1e-6)
    np.testing.assert_array_equal(rotation, learn_rotation(vectors, [4, 8], 7))
    assert errors_of_cut_cosines(vectors @ rotation.T, 4) < errors_of_cut_cosines(vectors, 4) / 3
    assert errors_of_cut_cosines(vectors @ rotation.T, 16) < 1e-12
