"""What the terminal and the report show of files that were compiled for an NPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.compilation import Compilation, LeftNodes
from pocketbert.benchmarks.report.estimated import ESTIMATES

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
