"""The machine: its cores, the extensions that matter, and the load."""

from __future__ import annotations

import math
import os
from dataclasses import replace

import pytest

from pocketbert.core.host import hardware
from pocketbert.core.host.hardware import describe_machine, load_average


def test_only_flags_that_matter_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    found = describe_machine()
    assert found.cores >= 1
    assert found.arch in found.summary
    monkeypatch.setattr(hardware, "_cpuinfo", lambda: ("Chip", {"fpu", "avx2", "avx512_vnni", "i8mm"}))
    monkeypatch.setattr(hardware.platform, "machine", lambda: "x86_64")
    found = describe_machine()
    assert found.isa == ["avx2", "avx512_vnni"]
    assert "[avx2 avx512_vnni]" in found.summary
    monkeypatch.setattr(hardware.platform, "machine", lambda: "aarch64")
    assert describe_machine().isa == ["i8mm"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot be bound to a core here")
def test_cores_are_those_of_the_moment() -> None:
    before = os.sched_getaffinity(0)
    assert describe_machine().cores == len(before)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert describe_machine().cores == 1
    finally:
        os.sched_setaffinity(0, before)
    assert describe_machine().cores == len(before)


@pytest.mark.parametrize(
    ("arch", "isa", "saturates"),
    [
        ("x86_64", "avx2 avx512f", True),
        ("x86_64", "avx2 avx_vnni", False),
        ("x86_64", "avx2 avx512f avx512_vnni", False),
        ("aarch64", "asimd", False),
        ("riscv64", "", False),
        ("AMD64", "", True),  # Windows, where the extensions are not known
    ],
)
def test_int8_saturates_on_x86_without_vnni(arch: str, isa: str, saturates: bool) -> None:
    assert replace(describe_machine(), arch=arch, isa=isa.split()).saturates is saturates


def test_load_is_a_number_or_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_average() >= 0

    def absent() -> None:
        raise OSError

    monkeypatch.setattr(hardware.os, "getloadavg", absent)
    assert math.isnan(load_average())
