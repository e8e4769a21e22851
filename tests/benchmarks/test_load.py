from types import SimpleNamespace

import pytest

from pocketbert.benchmarks import load


@pytest.mark.parametrize(
    ("busy", "own", "others"),
    [((100.0, 104.0), (1.0, 3.0), 0.25), ((100.0, 101.0), (1.0, 3.0), 0.0), ((0.0, 99.0), (0.0, 0.0), 1.0)],
)
def test_the_share_of_others_is_what_is_left_of_the_busy_time(monkeypatch, busy, own, others):
    busy_readings, own_readings, clock = iter(busy), iter(own), iter((10.0, 14.0))  # 4 s on 2 CPUs
    fake = SimpleNamespace(process_time=lambda: next(own_readings), monotonic=lambda: next(clock))
    monkeypatch.setattr(load, "time", fake)
    monkeypatch.setattr(load, "_busy_seconds", lambda: next(busy_readings))
    monkeypatch.setattr(load, "psutil", SimpleNamespace(cpu_count=lambda: 2))
    watch = load.LoadWatch()
    assert watch.stop().others == pytest.approx(others)


def test_what_nobody_counted_is_left_out():
    assert load.Load(before=1, after=2, others=None).summary == "load average 1.00 → 2.00"
    assert load.Load(before=None, after=None, others=0.5).summary == "other processes used 50 % of the CPU time"
    assert load.Load(before=None, after=None, others=None).summary == "load not known"


def test_a_system_without_load_average_is_none_not_nan(monkeypatch):
    monkeypatch.setattr(load, "load_average", lambda: float("nan"))
    found = load.LoadWatch().stop()
    assert found.before is None
    assert load.Load.model_validate_json(found.model_dump_json()) == found
    assert "load" not in found.summary.split(",")[0]
