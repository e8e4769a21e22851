"""What the terminal and the report show of figures that no device was timed for.

Of files that were compiled for an NPU: `make_compilation_table`, `describe_compilations` and `collect_cpu_operators`, the operators that
stay on the CPU. Of the time and memory that a compiler expects of its model of the NPU: `make_estimate_table`. Of texts of measuring
programs that a user saved: `make_reported_table`, `describe_reported_texts` and `make_reported_stamps`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.records import Compilation, Estimate, LeftNodes, Reported

NO_LATENCY = (
    "No NPU was timed. Placement, size and compile time are of the compilation on this machine; answers, where there are any, "
    "come from an emulator and are compared with this machine's CPU on the same file and inputs."
)
ESTIMATES = (
    "Estimated times, cycles and memory are what the vendor's compiler expects of its model of the NPU: no NPU and no simulator ran "
    "them. Operators on the CPU are not in them, and they are not compared with measured times."
)
REPORTED = (
    "Figures of texts that measuring programs printed, as their user reported them. The texts tell neither what else the device did "
    "nor repeats, and files did not take turns: there is no interval, and no ratio is formed."
)

# --- compilations ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _CompilationWords:
    """The report's texts on one file compiled for a device; a dash where there is no figure.

    Attributes:
        compilation: The record.
        on_npu: ``120 of 130``: nodes on the NPU and in all, with the number of pieces if several.
        left: Nodes that stay on the CPU and why; empty where none does.
        size: Size of the compiled program.
        seconds: Duration of the compilation on this machine.
        rows: ``20 of 100``: rows that were emulated, and available ones.
        same: Share of rows with the same decision (largest logit) in emulator and CPU.
        score: On labelled rows, emulated and on this machine's CPU.
        difference: Largest difference of an output and the one that is allowed.
        verdict: ``passed`` if the file was compiled and its emulated answers, if any, are near enough; else ``failed``.
    """

    compilation: Compilation
    on_npu: str = wording.NONE
    left: str = ""
    size: str = wording.NONE
    seconds: str = wording.NONE
    rows: str = wording.NONE
    same: str = wording.NONE
    score: str = wording.NONE
    difference: str = wording.NONE
    verdict: str = "failed"


def describe_compilation(compilation: Compilation) -> _CompilationWords:
    """Return the report's texts on one compiled file: nodes on the NPU, size, emulated answers, and whether it passes."""
    if compilation.failed:
        return _CompilationWords(compilation)
    answers, none = compilation.answers, wording.NONE
    pieces = f" in {compilation.partitions} pieces" if compilation.partitions > 1 else ""
    difference = none
    if answers:
        difference = f"{answers.largest:.3g} of {answers.tolerance:.3g}" if answers.finite else "no number"
    return _CompilationWords(
        compilation=compilation,
        on_npu=f"{compilation.nodes} of {compilation.nodes + compilation.nodes_left}{pieces}",
        left="; ".join(left.words for left in compilation.left),
        size=wording.size(compilation.compiled_bytes),
        seconds=f"{compilation.compile_s:.1f}",
        rows=f"{answers.rows} of {answers.available}" if answers else none,
        same=wording.share(answers.same) if answers else none,
        score=(answers.score_words or none) if answers else none,
        difference=difference,
        verdict="failed" if compilation.wrong else "passed",
    )


def make_compilation_table(compilations: Sequence[Compilation]) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows) of the table of compiled files for the terminal: a row per device, file and length.

    Columns of emulated answers and scores are left out where there are none.
    """
    emulated = any(one.answers is not None for one in compilations)
    scored = any(one.answers is not None and one.answers.score is not None for one in compilations)
    rows = [describe_compilation(one) for one in compilations]
    columns = [
        ("file", True, [r.compilation.variant for r in rows]),
        ("device", True, [r.compilation.device for r in rows]),
        ("length", True, [str(r.compilation.length) for r in rows]),
        ("nodes on NPU", True, [r.on_npu for r in rows]),
        ("compiled", True, [r.size for r in rows]),
        ("compile s (here)", True, [r.seconds for r in rows]),
        ("emulated rows", emulated, [r.rows for r in rows]),
        ("same decision (emulated)", emulated, [r.same for r in rows]),
        ("score (emulated)", scored, [r.score for r in rows]),
        ("largest difference of allowed", emulated, [r.difference for r in rows]),
        ("verdict", True, [r.verdict for r in rows]),
    ]
    cells = [column for _, shown, column in columns if shown]
    return [title for title, shown, _ in columns if shown], [list(row) for row in zip(*cells, strict=True)]


def describe_compilations(compilations: Sequence[Compilation]) -> list[str]:
    """Return the lines below the table of compiled files: where the figures come from, nodes left on the CPU and why."""
    if not compilations:
        return []
    origins = [
        f"{one.device}: {one.target}; {one.provenance} by {one.engine} {one.engine_version}"
        for one in {one.device: one for one in compilations}.values()
    ]
    left = dict.fromkeys(
        f"{row.compilation.variant} on {row.compilation.device} leaves on the CPU: {row.left}"
        for row in map(describe_compilation, compilations)
        if row.left
    )
    estimates = [ESTIMATES] if any(one.estimate for one in compilations) else []
    return [*origins, NO_LATENCY, *estimates, *left]


def collect_cpu_operators(compilations: Sequence[Compilation]) -> list[tuple[str, list[str], LeftNodes]]:
    """List the operators that compiled files leave on the CPU; entries with the same reason on several devices are merged.

    Returns:
        Tuples of the file's name, the devices (such as ``"device, 64, 128 tokens"``), and the operators with their reason.
    """
    lengths: dict[tuple[str, LeftNodes], dict[str, list[int]]] = {}
    for one in compilations:
        for left in one.left:
            lengths.setdefault((one.variant, left), {}).setdefault(one.device, []).append(one.length)
    return [
        (variant, [f"{device}, {', '.join(map(str, n))} tokens" for device, n in by_device.items()], left)
        for (variant, left), by_device in lengths.items()
    ]


# --- estimates -------------------------------------------------------------------------------------------------------------------

_OPERATORS_SHOWN = 8


@dataclass(frozen=True)
class _EstimateWords:
    """The report's texts on the estimated time, cycles and memory of one compiled file.

    Attributes:
        compilation: The record.
        estimate: Its estimate.
        time: Milliseconds on the NPU.
        cycles: All cycles, and the share in which the NPU computes.
        without: How many operators the time leaves out, since they stay on the CPU.
        memory: Peak use of each memory that is used, and in brackets the bytes moved.
        system: Clock rate, system configuration and memory mode that were assumed.
        operators: Operator type, cycles and share of all cycles, most first, small ones added up.
    """

    compilation: Compilation
    estimate: Estimate
    time: str
    cycles: str
    without: str
    memory: list[str]
    system: str
    operators: list[tuple[str, str, float]]


def describe_estimates(compilations: Sequence[Compilation]) -> list[_EstimateWords]:
    """Return the report's texts on every compiled file that has an estimate of time, cycles and memory."""
    rows = []
    for one in compilations:
        if (estimate := one.estimate) is None:
            continue
        left = f"{one.nodes_left} operators" if one.nodes_left else "nothing"
        products = f", {estimate.products_left} of them products" if estimate.products_left else ""
        busy = estimate.npu_cycles / estimate.cycles if estimate.cycles else 0.0
        memories = (
            ("SRAM", estimate.sram_bytes, estimate.sram_traffic),
            ("DRAM", estimate.dram_bytes, estimate.dram_traffic),
            ("flash", estimate.flash_bytes, estimate.flash_traffic),
        )
        rows.append(
            _EstimateWords(
                compilation=one,
                estimate=estimate,
                time=wording.milliseconds(estimate.time_ms),
                cycles=f"{wording.count(estimate.cycles)} ({wording.share(busy)} computing)",
                without=left + products,
                memory=[
                    f"{n} {wording.size(used)} ({wording.size(moved)})" for n, used, moved in memories if used or moved
                ],
                system=f"{estimate.clock_mhz:g} MHz, {estimate.system}, {estimate.memory}",
                operators=_largest_operators(estimate),
            )
        )
    return rows


def _largest_operators(estimate: Estimate) -> list[tuple[str, str, float]]:
    """Return (type, cycles, share of all cycles) of the largest operator types, and one entry for all others."""
    total = sum(operator.cycles for operator in estimate.operators) or 1
    first, rest = estimate.operators[:_OPERATORS_SHOWN], estimate.operators[_OPERATORS_SHOWN:]
    cycles = [(operator.op_type, operator.cycles) for operator in first]
    if rest:
        cycles.append((f"{len(rest)} other types", sum(operator.cycles for operator in rest)))
    return [(name, wording.count(n), n / total) for name, n in cycles]


def make_estimate_table(compilations: Sequence[Compilation]) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows) of the table of estimates for the terminal: a row per device, file and length."""
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
    cells = []
    for r in describe_estimates(compilations):
        condition = [r.compilation.variant, r.compilation.device, str(r.compilation.length)]
        cells.append([*condition, r.time, r.without, r.cycles, "; ".join(r.memory), r.system])
    return header, cells


# --- reported texts --------------------------------------------------------------------------------------------------------------


def make_reported_table(reported: Sequence[Reported]) -> tuple[list[str], list[list[str]]]:
    """Return (header, rows) of a table of the times and memory that users' saved outputs of measuring programs report.

    There is one row for each output. Columns of times and memory without any figure are left out.
    """

    def milliseconds(value: float | None) -> str:
        return wording.NONE if value is None else wording.milliseconds(value)

    def size(value: int | None) -> str:
        return wording.NONE if value is None else wording.size(value)

    columns = [
        ("file", [one.variant for one in reported]),
        ("device", [one.device for one in reported]),
        ("threads", [wording.thread_count(one.threads) for one in reported]),
        ("length", [str(one.length) for one in reported]),
        ("p50 ms", [milliseconds(one.p50_ms) for one in reported]),
        ("p90 ms", [milliseconds(one.p90_ms) for one in reported]),
        ("p99 ms", [milliseconds(one.p99_ms) for one in reported]),
        ("mean ms", [milliseconds(one.mean_ms) for one in reported]),
        ("min ms", [milliseconds(one.min_ms) for one in reported]),
        ("max ms", [milliseconds(one.max_ms) for one in reported]),
        ("runs", [str(one.runs) for one in reported]),
        ("load ms", [milliseconds(one.load_ms) for one in reported]),
        ("first ms", [milliseconds(one.first_ms) for one in reported]),
        ("added memory", [size(one.peak_memory_bytes) for one in reported]),
        ("process memory", [size(one.peak_rss_bytes) for one in reported]),
    ]
    shown = [
        (title, cells) for i, (title, cells) in enumerate(columns) if i < 4 or any(c != wording.NONE for c in cells)
    ]
    return [title for title, _ in shown], [list(row) for row in zip(*(cells for _, cells in shown), strict=True)]


def make_reported_stamps(reported: Sequence[Reported]) -> list[str]:
    """Return one line for each saved output of a measuring program: device, program, settings, and name of the saved file."""
    stamps = []
    for one in reported:
        settings = f" ({'; '.join(one.settings)})" if one.settings else ""
        notes = "".join(f" {note}" for note in one.notes)
        origin = f"{one.provenance} on {one.device}, as reported by the user"
        stamps.append(f"{origin} · {one.tool}{settings} · {one.source}.{notes}")
    return stamps


def describe_reported_texts(reported: Sequence[Reported]) -> list[str]:
    """Return the lines below the table of saved program outputs, with their origin; an empty list without any."""
    return [*make_reported_stamps(reported), REPORTED] if reported else []
