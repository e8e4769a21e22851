from pathlib import Path

import pytest

from pocketbert.benchmarks.load import Load, LoadWatch, _PackageWatch, energy_of_battery

BATTERY = "  Charge counter: {charge}\n  status: {status}\n  level: 81\n  voltage: {voltage}\n  temperature: 312\n"


def zones(root: Path, **counts: object) -> Path:
    """The folders that Linux makes for two packages, the second one without a part of its own."""
    for name, value in {
        "intel-rapl": "",
        "intel-rapl:0:0": 5,
        "intel-rapl:0": 100,
        "intel-rapl:1": 200,
        **counts,
    }.items():
        folder = root / name
        folder.mkdir(exist_ok=True, parents=True)
        (folder / "energy_uj").write_text(f"{value}\n")
        (folder / "max_energy_range_uj").write_text("999999\n")
    return root


def test_energy_of_all_packages_is_added_up_and_parts_are_not_counted_twice(tmp_path: Path) -> None:
    watch = _PackageWatch(zones(tmp_path))
    zones(tmp_path, **{"intel-rapl:0": 400_100, "intel-rapl:1": 600_200, "intel-rapl:0:0": 300_000})
    found = watch.stop(2.0)
    assert found.joules == pytest.approx(1.0)
    assert found.words == "energy 1.0 J in 2 s, 0.50 W on average (RAPL, processor packages)"


def test_a_counter_that_started_again_is_not_negative(tmp_path: Path) -> None:
    watch = _PackageWatch(zones(tmp_path, **{"intel-rapl:0": 999_990}))
    zones(tmp_path, **{"intel-rapl:0": 9})
    assert watch.stop(1.0).joules == pytest.approx(19e-6)


@pytest.mark.parametrize("damage", ["missing", "empty", "words", "gone"])
def test_what_cannot_be_read_is_not_zero(tmp_path: Path, damage: str) -> None:
    root = tmp_path / "powercap"
    if damage == "empty":
        root.mkdir()
    elif damage != "missing":
        zones(root, **({"intel-rapl:0": "none"} if damage == "words" else {}))
    watch = _PackageWatch(root)
    if damage == "gone":
        (root / "intel-rapl:1" / "energy_uj").unlink()
    found = watch.stop(1.0)
    assert found.joules is None
    assert found.words.startswith("energy not readable (")


def test_counters_for_root_only_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Path) -> str:
        raise PermissionError(path)

    monkeypatch.setattr(Path, "read_text", refused)
    assert _PackageWatch(zones_made(tmp_path)).stop(1.0).why == "the counters are readable by root only"


def zones_made(root: Path) -> Path:
    (root / "intel-rapl:0").mkdir()
    return root


def test_the_load_of_this_machine_tells_its_energy_or_why_not() -> None:
    found = LoadWatch().stop()
    assert found.energy is not None
    assert found.energy.words in found.summary
    assert Load.model_validate_json(found.model_dump_json()) == found


def test_a_battery_gives_charge_times_voltage_while_it_is_discharging() -> None:
    before = BATTERY.format(charge=812_000, status=3, voltage=4000)
    after = BATTERY.format(charge=802_000, status=3, voltage=3900)
    found = energy_of_battery(before, after, 60.0)
    assert found is not None
    assert found.joules == pytest.approx(36 * 3.95)


@pytest.mark.parametrize(("status", "charge", "why"), [(2, 800_000, "not discharging"), (3, 812_000, "too short")])
def test_a_battery_that_charges_or_has_not_changed_has_no_energy(status: int, charge: int, why: str) -> None:
    before = BATTERY.format(charge=812_000, status=3, voltage=4000)
    found = energy_of_battery(before, BATTERY.format(charge=charge, status=status, voltage=4000), 60.0)
    assert found is not None
    assert found.joules is None and why in found.why


def test_a_phone_that_does_not_tell_its_charge_has_no_figure() -> None:
    assert energy_of_battery("  level: 81\n  status: 3\n", "", 60.0) is None
