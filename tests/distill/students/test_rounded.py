"""Rounding that can be trained: the numbers of the quantizer's rounding, and gradients to values and ranges."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from pocketbert.distill.students.fake_quantization import (
    Ranges,
    RangeSite,
    RoundedModule,
    _round_in_range,
    _round_straight_through,
)
from pocketbert.quantize.rounding import Simulation, per_row, per_tensor, round_between


class Two(nn.Module):
    """Two products that read one tensor, and a third that reads their sum."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.last = nn.Linear(8, 6), nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (self.last(self.left(x) + self.right(x)),)


def weights_of(module: nn.Module) -> dict[str, torch.Tensor]:
    return dict(module.named_parameters())


def how(**more: object) -> Simulation:
    return Simulation(**{"weights": per_row, "tables": per_tensor, "static": True, **more})  # type: ignore[arg-type]


def test_rounding_in_a_range_is_the_quantizers() -> None:
    values, low, high = torch.randn(50, 40), torch.tensor(-1.3), torch.tensor(2.1)
    assert torch.equal(_round_in_range(values, low, high), round_between(values, low, high))


def test_gradients_reach_values_inside_and_the_ends_of_a_range() -> None:
    values = torch.tensor([-9.0, 0.5, 9.0], requires_grad=True)
    low, high = torch.tensor(-1.0, requires_grad=True), torch.tensor(2.0, requires_grad=True)
    _round_in_range(values, low, high).sum().backward()
    assert values.grad is not None
    assert values.grad.tolist() == [0, 1, 0]
    assert low.grad is not None
    assert float(low.grad) == pytest.approx(1, abs=0.02), "what lies below the range follows its lower end"
    assert high.grad is not None
    assert float(high.grad) == pytest.approx(1, abs=0.02)
    weight = torch.randn(4, 5, requires_grad=True)
    _round_straight_through(weight, per_row).sum().backward()
    assert weight.grad is not None
    assert weight.grad.eq(1).all()


def test_products_that_read_one_tensor_share_its_range() -> None:
    rounded = RoundedModule(Two().eval(), how(outputs=True))
    rows = [(torch.randn(1, 5, 8),) for _ in range(4)]
    ranges = rounded.measure_ranges(rows)
    assert rounded.sites[RangeSite("left", is_input=True)] == rounded.sites[RangeSite("right", is_input=True)]
    assert len(rounded.sites) == 6
    assert len(set(rounded.sites.values())) == 5
    number = rounded.sites[RangeSite("left", is_input=True)]
    assert float(ranges.low[number]) == float(torch.cat([r[0].flatten() for r in rows]).min())


def test_a_range_that_others_share_stays_and_a_narrowing_product_has_none() -> None:
    module = Two()
    module.left, module.right = nn.Linear(8, 8), nn.Linear(8, 8)
    module.last = nn.Linear(8, 3)
    rounded = RoundedModule(module.eval(), how(outputs=True, narrowing=False, shared_inputs=True))
    rows = [(torch.randn(1, 5, 8),) for _ in range(4)]
    ranges = rounded.measure_ranges(rows)
    assert {site.layer for site in rounded.sites} == {"left", "right"}
    assert rounded.trained_sites("left") == [RangeSite("left", is_input=False)]
    read, made = (rounded.sites[RangeSite("left", is_input)] for is_input in (True, False))
    before = [float(end) for end in (ranges.low[read], ranges.high[read], ranges.low[made])]
    values = torch.cat([r[0].flatten() for r in rows])
    assert before[:2] == [float(values.min()), float(values.max())], "it is what the rows had"
    with torch.no_grad():
        ranges.lower += 0.5
        ranges.upper += 0.5
    low, high = (end.detach() for end in ranges.ends())
    assert [float(low[read]), float(high[read])] == before[:2]
    assert float(low[made]) < before[2]


def test_a_module_runs_with_rounded_numbers_and_its_ranges_are_trained() -> None:
    module = Two().eval()
    rounded, x = RoundedModule(module, how(outputs=True)), torch.randn(2, 5, 8)
    ranges = rounded.measure_ranges([(x,)])
    (made,), (exact,) = rounded(weights_of(module), ranges, (x,)), module(x)
    error = float((made - exact).detach().square().mean().sqrt() / exact.detach().std())
    assert 0 < error < 0.1
    made.square().sum().backward()
    assert ranges.lower.grad is not None
    assert ranges.upper.grad is not None
    assert ranges.upper.grad.ne(0).any()
    assert all(p.grad is not None and p.grad.ne(0).any() for p in module.parameters())
    floats = RoundedModule(module, how(static=False, small=1000))
    assert torch.equal(floats(weights_of(module), Ranges([]), (x,))[0], exact), "weights of at most `small` stay float"
