import contextlib
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import psutil
import pytest

from pocketbert.benchmarks import load
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions
from pocketbert.benchmarks.report.output import describe_sessions
from pocketbert.benchmarks.results import BUSY

SPIN = "while True: pass"


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


@pytest.mark.skipif(
    (os.cpu_count() or 1) < 2, reason="this machine has one CPU: another process on it is no second core"
)
def test_busy_other_cores_are_noticed_and_told(variants, texts):
    cpus, began = os.cpu_count() or 1, time.monotonic()
    with contextlib.ExitStack() as held:
        spinning = [held.enter_context(subprocess.Popen([sys.executable, "-c", SPIN])) for _ in range(cpus // 2)]
        for process in spinning:
            held.callback(process.kill)
        options = BenchmarkOptions(
            threads=[1], lengths=["text"], runs=10, repeats=2, label="", profile=False, least_s=1.0
        )
        made = benchmark(variants, texts, options)
        used = sum(sum(psutil.Process(p.pid).cpu_times()[:2]) for p in spinning)
    shares = [m.load.others for m in made.measurements]
    if (share := used / (time.monotonic() - began) / cpus) < 2 * BUSY and min(shares) <= BUSY:
        pytest.skip(f"the busy processes got {share:.0%} of the CPUs only")
    assert all(BUSY < share <= 1 for share in shares)
    assert any(note.startswith("Other processes used up to ") for note in made.protocol.notes)
    lines = describe_sessions(made)
    assert "Warning: local was busy with other work: read the ratios rather than the times." in lines
    assert any("other processes used " in line for line in lines)
