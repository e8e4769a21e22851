"""How long a training is: in steps or in passes over the rows, of which a recipe gives one."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from pocketbert.core.recipe.sections import Optimisation
from pocketbert.core.recipe.stages import MobileBertStage, TaskStage


@pytest.mark.parametrize(
    ("epochs", "batch", "rows", "steps"), [(1, 32, 64, 2), (1, 32, 65, 3), (0.64, 32, 9003, 181), (2.5, 48, 9007, 470)]
)
def test_passes_become_steps(epochs: float, batch: int, rows: int, steps: int) -> None:
    settings = Optimisation(epochs=epochs, batch=batch, lr=1e-3).for_rows(rows)
    assert (settings.steps, settings.epochs, settings.lr) == (steps, None, 1e-3)


def test_steps_stay() -> None:
    settings = Optimisation(steps=180, batch=32)
    assert settings.for_rows(9003) is settings
    assert settings.passes(9003) == "180 steps of 32 rows: 0.64 passes over 9,003 rows"
    assert Optimisation(steps=4000, batch=64).passes(100).endswith("2,560 passes over 100 rows")


@pytest.mark.parametrize("given", [{}, {"steps": 3, "epochs": 1}])
def test_exactly_one_is_given(given: dict[str, int]) -> None:
    with pytest.raises(ValidationError, match="exactly one of 'steps' and 'epochs'"):
        TaskStage(method="task", **given)


@pytest.mark.parametrize("given", [{"steps": 0}, {"epochs": 0}, {"epochs": -1}, {"epochs": float("inf")}])
def test_numbers_that_are_no_length(given: dict[str, float]) -> None:
    with pytest.raises(ValidationError):
        TaskStage(method="task", **given)


def test_only_what_was_given_is_written() -> None:
    by_steps, by_epochs = TaskStage(method="task", steps=3), TaskStage(method="task", epochs=1.5)
    assert "epochs" not in by_steps.model_dump()
    assert "steps" not in by_epochs.model_dump()
    for stage in (by_steps, by_epochs, MobileBertStage(method="mobilebert", epochs=2, transfer_steps=5)):
        assert type(stage).model_validate(stage.model_dump()) == stage
