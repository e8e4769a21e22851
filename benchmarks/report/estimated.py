"""What the terminal and the report show of the time and memory that a compiler's model of an NPU expects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.compilation import Compilation, Estimate

ESTIMATES = (
    "Estimated times, cycles and memory are what the vendor's compiler expects of its model of the NPU: no NPU and no simulator ran "
    "them. Operators on the CPU are not in them, and they are not compared with measured times."
)
OPERATORS_SHOWN = 8


@dataclass(frozen=True)
class EstimatedRow:
    """One estimate in words.

    Attributes:
        of: The record.
        estimate: Its estimate.
        time: Milliseconds on the NPU.
        cycles: All cycles, and the share in which the NPU computes.
        without: Operators that the time does not contain.
        memory: What is used at most of each memory, and in brackets the bytes moved; those that are not used are left out.
        system: Clock rate, system configuration and memory mode that were assumed.
        operators: Operator type, cycles and share of all cycles, most first, small ones added up.
    """

    of: Compilation
    estimate: Estimate
    time: str
    cycles: str
    without: str
    memory: list[str]
    system: str
    operators: list[tuple[str, str, float]]


def estimated_rows(compilations: Sequence[Compilation]) -> list[EstimatedRow]:
    """The words for all estimates."""
    return [_row(one, one.estimate) for one in compilations if one.estimate is not None]


def _row(one: Compilation, estimate: Estimate) -> EstimatedRow:
    left = f"{one.nodes_left} operators" if one.nodes_left else "nothing"
    products = f", {estimate.products_left} of them products" if estimate.products_left else ""
    busy = estimate.npu_cycles / estimate.cycles if estimate.cycles else 0.0
    return EstimatedRow(
        of=one,
        estimate=estimate,
        time=wording.milliseconds(estimate.time_ms),
        cycles=f"{wording.count(estimate.cycles)} ({wording.share(busy)} computing)",
        without=left + products,
        memory=[
            f"{name} {wording.size(used)} ({wording.size(moved)})"
            for name, used, moved in (
                ("SRAM", estimate.sram_bytes, estimate.sram_traffic),
                ("DRAM", estimate.dram_bytes, estimate.dram_traffic),
                ("flash", estimate.flash_bytes, estimate.flash_traffic),
            )
            if used or moved
        ],
        system=f"{estimate.clock_mhz:g} MHz, {estimate.system}, {estimate.memory}",
        operators=_operators(estimate),
    )


def _operators(estimate: Estimate) -> list[tuple[str, str, float]]:
    total = sum(one.cycles for one in estimate.operators) or 1
    first, rest = estimate.operators[:OPERATORS_SHOWN], estimate.operators[OPERATORS_SHOWN:]
    out = [(one.op_type, wording.count(one.cycles), one.cycles / total) for one in first]
    if rest:
        cycles = sum(one.cycles for one in rest)
        out.append((f"{len(rest)} other types", wording.count(cycles), cycles / total))
    return out


def estimated_table(compilations: Sequence[Compilation]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the terminal's table: one row per device, file and length."""
    header = [
        "file",
        "device",
        "length",
        "estimated ms on the NPU",
        "without",
        "cycles",
        "memory (bytes moved)",
        "assumed system",
    ]
    return header, [
        [r.of.variant, r.of.device, str(r.of.length), r.time, r.without, r.cycles, "; ".join(r.memory), r.system]
        for r in estimated_rows(compilations)
    ]
