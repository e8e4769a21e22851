"""Waiting until a device is cool, with a false thermometer and a false clock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from pocketbert.benchmarks import load
from pocketbert.benchmarks import load as cooling
from pocketbert.benchmarks.devices import local
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.load import _LOOK_S, _MOST_S, Cooling, Heat, lowest_clock_share
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.benchmarks.report.output import describe_sessions


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Time passes where somebody sleeps."""
    clock = SimpleNamespace(s=100.0)

    def sleep(s: float) -> None:
        clock.s += s

    monkeypatch.setattr(cooling, "time", SimpleNamespace(monotonic=lambda: clock.s, sleep=sleep))
    return clock


def reader(*celsius: float, clock: float | None = None) -> Callable[[], Heat]:
    """Readings of two sensors, one of which is always hot; the last one stays."""
    readings: Iterator[float] = iter(celsius)
    last = [0.0]

    def read() -> Heat:
        last[0] = next(readings, last[0])
        return Heat((last[0], 70.0), clock)

    return read


def test_it_waits_until_the_device_is_cool(now: SimpleNamespace) -> None:
    told = list[str]()
    device = Cooling(reader(40.0, 55.0, 50.0, 45.0, 43.0), budget_s=120)
    device.wait("the measurement", told.append)
    (wait,) = device.waits
    assert (wait.seconds, wait.rise_before, wait.rise_after, wait.cool) == (3 * _LOOK_S, 15.0, 3.0, True)
    assert told == ["waits until it is cool, before the measurement"]
    assert device.note() == "Waited 1 time, 3 s in all, for the device to cool down to within 3 °C of the beginning."


def test_a_cool_device_and_one_that_tells_nothing_are_not_waited_for(now: SimpleNamespace) -> None:
    for read in (reader(40.0, 42.0), lambda: Heat(), None):
        device = Cooling(read, budget_s=120)
        device.wait("the measurement", pytest.fail)
        assert (device.waits, device.note(), now.s) == ([], "", 100.0)


def test_all_waits_together_are_bounded_and_what_stays_warm_is_told(now: SimpleNamespace) -> None:
    device = Cooling(reader(40.0, 60.0), budget_s=1000)
    device.wait("one thing", str)
    device.wait("another one", pytest.fail)
    assert now.s == 100.0 + _MOST_S
    assert [w.seconds for w in device.waits] == [_MOST_S, 0.0]
    assert "before one thing, another one it was still warm" in device.note()
    assert "20 °C above the beginning" in device.note()
    device.wait("a long run", str, 7.0)
    assert device.waits[-1].seconds == 7.0


def test_a_small_budget_waits_for_less(now: SimpleNamespace) -> None:
    device = Cooling(reader(40.0, 60.0), budget_s=10)
    device.wait("one thing", str)
    assert device.waited_s == 5.0


def test_a_limited_clock_rate_is_waited_for(now: SimpleNamespace) -> None:
    rates = iter([1.0, 0.6, 0.8, 1.0])
    device = Cooling(lambda: Heat((), next(rates)), budget_s=120)
    device.wait("one thing", str)
    assert [(w.slowed_before, w.slowed_after, w.cool) for w in device.waits] == [(0.4, 0.0, True)]


def test_the_clock_is_that_of_the_most_limited_cores() -> None:
    assert lowest_clock_share([1800.0, 1200.0], [1800.0, 2400.0]) == 0.5
    assert (
        lowest_clock_share([], []) is lowest_clock_share([1.0], [1.0, 2.0]) is lowest_clock_share([1.0], [0.0]) is None
    )


def test_a_benchmark_waits_before_its_files_and_tells_it(
    variants: list[Variant], texts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    heats = iter([30.0, 50.0, 50.0, 31.0, 30.0, 50.0, 32.0])
    monkeypatch.setattr(local, "read_local_heat", lambda: Heat((next(heats, 30.0),)))
    monkeypatch.setattr(cooling, "_LOOK_S", 0.001)
    options = BenchmarkOptions(runs=10, repeats=2, label="", profile=False, budget_s=2)
    made = benchmark(variants, texts, options)
    assert [(w.before, w.cool) for w in made.protocol.cooling] == [
        (f"the start of {variants[0].name}", True),
        ("the measurement with 1 thread", True),
    ]
    assert any(line.startswith("Waited 2 times") for line in describe_sessions(made))
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made


def test_this_machine_reads_its_own_heat() -> None:
    found = load.read_local_heat()
    assert all(isinstance(value, float) for value in found.celsius)
    assert found.clock is None or 0 < found.clock <= 1
