"""What the terminal and the report show of files that were compiled for an NPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.records import Compilation, Estimate, LeftNodes, Reported

# --- estimated ---
# What the terminal and the report show of the time and memory that a compiler's model of an NPU expects.


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


NO_LATENCY = (
    "No NPU was timed. Placement, size and compile time are of the compilation on this machine; answers, where there are any, "
    "come from an emulator and are compared with this machine's CPU on the same file and inputs."
)


@dataclass(frozen=True)
class CompiledRow:
    """One compilation in words; a dash where there is no figure.

    Attributes:
        of: The record.
        on_npu: Nodes on the NPU and of how many, with the pieces where there are several.
        left: What stays on the CPU and why; empty where nothing does.
        size: Of the compiled program.
        seconds: Of the compilation on this machine.
        rows: Emulated rows, and of how many.
        same: Share of equal decisions.
        score: On labelled rows, emulated and on this machine's CPU.
        difference: Largest difference of an output and the one that is allowed.
        verdict: Whether it was compiled and answers as it should.
    """

    of: Compilation
    on_npu: str
    left: str
    size: str
    seconds: str
    rows: str
    same: str
    score: str
    difference: str
    verdict: str


def compiled_row(one: Compilation) -> CompiledRow:
    """The words for a compilation."""
    answers, none = one.answers, wording.NONE
    if one.failed:
        return CompiledRow(one, none, "", none, none, none, none, none, none, "failed")
    pieces = f" in {one.partitions} pieces" if one.partitions > 1 else ""
    return CompiledRow(
        of=one,
        on_npu=f"{one.nodes} of {one.nodes + one.nodes_left}{pieces}",
        left="; ".join(left.words for left in one.left),
        size=wording.size(one.compiled_bytes),
        seconds=f"{one.compile_s:.1f}",
        rows=f"{answers.rows} of {answers.available}" if answers else none,
        same=wording.share(answers.same) if answers else none,
        score=(answers.score_words or none) if answers else none,
        difference=(f"{answers.largest:.3g} of {answers.tolerance:.3g}" if answers.finite else "no number")
        if answers
        else none,
        verdict="failed" if one.wrong else "passed",
    )


def compiled_table(compilations: Sequence[Compilation]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of the terminal's table: one row per device, file and length. Without emulator there is no column of it."""
    emulated = any(one.answers is not None for one in compilations)
    scored = any(one.answers is not None and one.answers.score is not None for one in compilations)
    header = [
        "file",
        "device",
        "length",
        "nodes on NPU",
        "compiled",
        "compile s (here)",
        *(["emulated rows", "same decision (emulated)"] if emulated else []),
        *(["score (emulated)"] if scored else []),
        *(["largest difference of allowed"] if emulated else []),
        "verdict",
    ]
    rows = [compiled_row(one) for one in compilations]
    return header, [
        [
            r.of.variant,
            r.of.device,
            str(r.of.length),
            r.on_npu,
            r.size,
            r.seconds,
            *([r.rows, r.same] if emulated else []),
            *([r.score] if scored else []),
            *([r.difference] if emulated else []),
            r.verdict,
        ]
        for r in rows
    ]


def compiled_lines(compilations: Sequence[Compilation]) -> list[str]:
    """Where the figures come from, and what stays on the CPU; equal stories of several lengths are told once."""
    if not compilations:
        return []
    out = [
        f"{one.device}: {one.target}; {one.provenance} by {one.engine} {one.engine_version}"
        for one in {one.device: one for one in compilations}.values()
    ]
    left = dict.fromkeys(
        f"{row.of.variant} on {row.of.device} leaves on the CPU: {row.left}"
        for row in map(compiled_row, compilations)
        if row.left
    )
    estimated = [ESTIMATES] if any(one.estimate for one in compilations) else []
    return [*out, NO_LATENCY, *estimated, *left]


@dataclass(frozen=True)
class LeftRow:
    """Operators that a file leaves on the CPU for one reason, on every device and at every length where that is so.

    Attributes:
        variant: Name of the file.
        places: Devices, each with its lengths.
        left: The operators.
    """

    variant: str
    places: list[str]
    left: LeftNodes


def left_rows(compilations: Sequence[Compilation]) -> list[LeftRow]:
    """What stays on the CPU, told once where several devices or lengths tell the same."""
    found: dict[tuple[str, LeftNodes], dict[str, list[int]]] = {}
    for one in compilations:
        for left in one.left:
            found.setdefault((one.variant, left), {}).setdefault(one.device, []).append(one.length)
    return [
        LeftRow(variant, [f"{device}, {', '.join(map(str, n))} tokens" for device, n in places.items()], left)
        for (variant, left), places in found.items()
    ]


def compiled_stamps(compilations: Sequence[Compilation]) -> list[str]:
    """Where the figures of each device come from, one line each; those of nothing but failures have no figures."""
    out = dict[str, None]()
    for one in compilations:
        told = [f"placement, size: {one.provenance}"] if not one.failed else []
        told += [f"answers: {one.answers.provenance}"] if one.answers else []
        told += [f"time, cycles, memory: {one.estimate.provenance}"] if one.estimate else []
        if told:
            out[f"{', '.join(told)} · {one.device}: {one.target} · {one.engine} {one.engine_version}"] = None
    return list(out)


# --- reported ---
# What the terminal and the report show of texts that a user saved of measuring programs.


REPORTED = (
    "Figures of texts that measuring programs printed, as their user reported them. The texts tell neither what else the device did "
    "nor repeats, and files did not take turns: there is no interval, and no ratio is formed."
)
_HEADER = (
    "file",
    "device",
    "threads",
    "length",
    "p50 ms",
    "p90 ms",
    "p99 ms",
    "mean ms",
    "min ms",
    "max ms",
    "runs",
    "load ms",
    "first ms",
    "added memory",
    "process memory",
)
_ALWAYS = 4
"""Columns that are shown even if all are empty."""


def reported_table(reported: Sequence[Reported]) -> tuple[list[str], list[list[str]]]:
    """Header and cells, one row for each text; columns without any figure are left out."""
    rows = [
        [
            one.variant,
            one.device,
            wording.thread_count(one.threads),
            str(one.length),
            *map(_ms, (one.p50_ms, one.p90_ms, one.p99_ms, one.mean_ms, one.min_ms, one.max_ms)),
            str(one.runs),
            *map(_ms, (one.load_ms, one.first_ms)),
            *map(_bytes, (one.peak_memory_bytes, one.peak_rss_bytes)),
        ]
        for one in reported
    ]
    kept = [i for i in range(len(_HEADER)) if i < _ALWAYS or any(row[i] != wording.NONE for row in rows)]
    return [_HEADER[i] for i in kept], [[row[i] for i in kept] for row in rows]


def reported_stamps(reported: Sequence[Reported]) -> list[str]:
    """Where the figures of each text come from."""
    out = []
    for one in reported:
        settings = f" ({'; '.join(one.settings)})" if one.settings else ""
        notes = "".join(f" {note}" for note in one.notes)
        out.append(
            f"{one.provenance} on {one.device}, as reported by the user · {one.tool}{settings} · {one.source}.{notes}"
        )
    return out


def reported_lines(reported: Sequence[Reported]) -> list[str]:
    """Lines under the terminal's table."""
    return [*reported_stamps(reported), REPORTED] if reported else []


def _ms(value: float | None) -> str:
    return wording.NONE if value is None else wording.milliseconds(value)


def _bytes(value: int | None) -> str:
    return wording.NONE if value is None else wording.size(value)
