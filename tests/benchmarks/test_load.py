"""What else a machine did meanwhile: other processes, energy, heat, and waiting until it is cool."""

import os
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from pocketbert.benchmarks import load
from pocketbert.benchmarks.devices import local
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.load import Cooling, Heat, Load, LoadWatch, _PackageWatch, energy_of_battery
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
from pocketbert.benchmarks.report.output import describe_sessions


@pytest.mark.parametrize(
    ("busy", "own", "children", "others"),
    [(4.0, 2.0, 0.0, 0.25), (4.0, 1.5, 0.5, 0.25), (1.0, 2.0, 0.0, 0.0), (99.0, 0.0, 0.0, 1.0)],
)
def test_the_share_of_others_is_what_this_process_and_its_children_did_not_use(
    monkeypatch, busy, own, children, others
):
    """Between two readings of 4 s on 2 CPUs; idle seconds and those of guests, which are in `user`, do not count."""
    spent = [0.0]

    def cpu_times():
        return SimpleNamespace(_asdict=lambda: {"user": spent[0] * busy, "idle": spent[0] * 7, "guest": spent[0]})

    monkeypatch.setattr(psutil, "cpu_times", cpu_times)
    monkeypatch.setattr(psutil, "cpu_count", lambda: 2)
    monkeypatch.setattr(
        os,
        "times",
        lambda: SimpleNamespace(children_user=spent[0] * children / 2, children_system=spent[0] * children / 2),
    )
    clock = {"process_time": lambda: spent[0] * own, "monotonic": lambda: 10.0 + 4 * spent[0]}
    monkeypatch.setattr(load, "time", SimpleNamespace(**clock))
    watch = LoadWatch()
    spent[0] = 1.0
    assert watch.stop().others == pytest.approx(others)


def test_busy_other_cores_are_noticed_and_told(variants, texts, monkeypatch):
    busy = Load(before=1.0, after=2.0, others=0.4)
    monkeypatch.setattr(local, "LoadWatch", lambda: SimpleNamespace(stop=lambda: busy))
    made = benchmark(variants[:1], texts, BenchmarkOptions(runs=10, repeats=2, label="", profile=False))
    assert {m.load for m in made.measurements} == {busy}
    (note,) = (note for note in made.protocol.notes if "processes" in note)
    assert note.startswith("Other processes used up to 40 % of the CPU time meanwhile")


def write_counters(root, **counts):
    """Write the folders that Linux makes for two packages, the first one with a part that must not be counted twice."""
    usual = {"intel-rapl": "", "intel-rapl:0:0": 5, "intel-rapl:0": 100, "intel-rapl:1": 200}
    for name, value in {**usual, **counts}.items():
        (root / name).mkdir(exist_ok=True, parents=True)
        (root / name / "energy_uj").write_text(f"{value}\n")
        (root / name / "max_energy_range_uj").write_text("999999\n")
    return root


@pytest.mark.parametrize(
    ("before", "after", "joules"),
    [
        ({}, {"intel-rapl:0": 400_100, "intel-rapl:1": 600_200, "intel-rapl:0:0": 300_000}, 1.0),
        ({"intel-rapl:0": 999_990}, {"intel-rapl:0": 9}, 19e-6),  # it started again at zero
    ],
)
def test_energy_of_all_packages_is_added_up(tmp_path, before, after, joules):
    watch = _PackageWatch(write_counters(tmp_path, **before))
    write_counters(tmp_path, **after)
    found = watch.stop(2.0)
    assert found.joules == pytest.approx(joules)
    assert found.words.startswith(f"energy {joules:.1f} J in 2 s, {joules / 2:.2f} W on average (RAPL")


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("missing", "the system has no counter"),
        ("empty", "the system has no counter"),
        ("words", "unknown content"),
        ("gone", "the system has no counter"),
        ("refused", "the counters are readable by root only"),
    ],
)
def test_energy_that_cannot_be_read_is_not_zero(tmp_path, monkeypatch, damage, why):
    def refuse(path):
        raise PermissionError(path)

    root = tmp_path / "powercap"
    if damage == "empty":
        root.mkdir()
    elif damage != "missing":
        write_counters(root, **({"intel-rapl:0": "none"} if damage == "words" else {}))
    if damage == "refused":
        monkeypatch.setattr(Path, "read_text", refuse)
    watch = _PackageWatch(root)
    if damage == "gone":
        (root / "intel-rapl:1" / "energy_uj").unlink()
    found = watch.stop(1.0)
    assert (found.joules, found.words) == (None, f"energy not readable ({why})")


BATTERY = "  Charge counter: {charge}\n  status: {status}\n  level: 81\n  voltage: {voltage}\n  temperature: 312\n"


@pytest.mark.parametrize(
    ("status", "charge", "voltage", "joules", "why"),
    [
        (3, 802_000, 3900, 36 * 3.95, ""),  # charge times mean voltage
        (2, 800_000, 4000, None, "not discharging"),
        (3, 812_000, 4000, None, "too short"),
    ],
)
def test_a_battery_has_energy_while_it_is_discharging(status, charge, voltage, joules, why):
    before = BATTERY.format(charge=812_000, status=3, voltage=4000)
    found = energy_of_battery(before, BATTERY.format(charge=charge, status=status, voltage=voltage), 60.0)
    assert found.joules == (joules and pytest.approx(joules))
    assert why in found.why
    assert energy_of_battery("  level: 81\n  status: 3\n", before, 60.0) is None


# --- cooling ---------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def now(monkeypatch):
    """Time passes where somebody sleeps."""
    clock = SimpleNamespace(s=100.0)
    sleep = {"sleep": lambda s: setattr(clock, "s", clock.s + s), "monotonic": lambda: clock.s}
    monkeypatch.setattr(load, "time", SimpleNamespace(**sleep))
    return clock


def read_in_turn(*celsius):
    """Return a reader of two sensors, one of which is always hot; the last reading stays."""
    readings, last = iter(celsius), [0.0]

    def read():
        last[0] = next(readings, last[0])
        return Heat((last[0], 70.0))

    return read


def test_it_waits_until_the_device_is_cool(now):
    told = []
    device = Cooling(read_in_turn(40.0, 55.0, 50.0, 45.0, 43.0), budget_s=120)
    device.wait("the measurement", told.append)
    (wait,) = device.waits
    assert (wait.seconds, wait.rise_before, wait.rise_after, wait.cool) == (3.0, 15.0, 3.0, True)
    assert told == ["waits until it is cool, before the measurement"]
    assert device.note() == "Waited 1 time, 3 s in all, for the device to cool down to within 3 °C of the beginning."


def test_a_cool_device_and_one_that_tells_nothing_are_not_waited_for(now):
    for read in (read_in_turn(40.0, 42.0), lambda: Heat(), None):
        device = Cooling(read, budget_s=120)
        device.wait("the measurement", pytest.fail)
        assert (device.waits, device.note(), now.s) == ([], "", 100.0)


def test_all_waits_together_are_bounded_and_what_stays_warm_is_told(now):
    device = Cooling(read_in_turn(40.0, 60.0), budget_s=1000)
    device.wait("one thing", str)
    device.wait("another one", pytest.fail)
    assert [w.seconds for w in device.waits] == [60.0, 0.0]
    assert "before one thing, another one it was still warm" in device.note()
    assert "20 °C above the beginning" in device.note()
    device.wait("a long run", str, 7.0)
    assert device.waits[-1].seconds == 7.0
    small = Cooling(read_in_turn(40.0, 60.0), budget_s=10)
    small.wait("one thing", str)
    assert small.waited_s == 5.0


def test_a_limited_clock_rate_is_waited_for(now):
    rates = iter([1.0, 0.6, 0.8, 1.0])
    device = Cooling(lambda: Heat((), next(rates)), budget_s=120)
    device.wait("one thing", str)
    assert [(w.slowed_before, w.slowed_after, w.cool) for w in device.waits] == [(0.4, 0.0, True)]


@pytest.mark.parametrize(
    ("allowed", "most", "share"),
    [([1800.0, 1200.0], [1800.0, 2400.0], 0.5), ([], [], None), ([1.0], [1.0, 2.0], None), ([1.0], [0.0], None)],
)
def test_the_clock_is_that_of_the_most_limited_cores(allowed, most, share):
    assert load.lowest_clock_share(allowed, most) == share
    heat = load.read_local_heat()
    assert all(isinstance(value, float) for value in heat.celsius)
    assert heat.clock is None or 0 < heat.clock <= 1


def test_a_benchmark_waits_before_its_files_and_tells_it(variants, texts, monkeypatch):
    heats = iter([30.0, 50.0, 50.0, 31.0, 30.0, 50.0, 32.0])
    monkeypatch.setattr(local, "read_local_heat", lambda: Heat((next(heats, 30.0),)))
    monkeypatch.setattr(load, "_LOOK_S", 0.001)
    options = BenchmarkOptions(runs=10, repeats=2, label="", profile=False, budget_s=2)
    made = benchmark(variants, texts, options)
    assert [(w.before, w.cool) for w in made.protocol.cooling] == [
        (f"the start of {variants[0].name}", True),
        ("the measurement with 1 thread", True),
    ]
    assert any(line.startswith("Waited 2 times") for line in describe_sessions(made))
    assert BenchmarkResult.model_validate_json(made.model_dump_json()) == made
