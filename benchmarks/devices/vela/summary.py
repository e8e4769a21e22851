"""Read the tables that vela writes: the estimate of a whole network, and the cycles of each operator."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from pocketbert.benchmarks.compilation import Estimate, OperatorCycles
from pocketbert.core.types import Provenance

MOST_BYTES = 32 << 20
"""Largest table that is read; that of a BERT-base has less than 1 MB."""
_KIB = 1024


def read_estimate(folder: Path, operators: Iterable[str], products_left: int) -> Estimate:
    """Read what vela wrote into a folder.

    Args:
        folder: Its output folder, with the tables of one network.
        operators: Operator types of the network, by their names in the TFLite schema: vela writes them in another way.
        products_left: Matrix products that stay on the CPU.

    Raises:
        ValueError: If a table is missing, too large or of another form; the message says what is wrong.
    """
    rows = _rows(_only(folder, "*_summary_*.csv"))
    if len(rows) != 1:
        raise ValueError(f"its summary has {len(rows)} rows instead of 1")
    row = rows[0]
    return Estimate(
        system=_text(row, "system_config"),
        memory=_text(row, "memory_mode"),
        clock_mhz=_number(row, "core_clock") / 1e6,
        time_ms=_number(row, "inference_time") * 1000,
        cycles=round(_number(row, "cycles_total")),
        npu_cycles=round(_number(row, "cycles_npu")),
        sram_bytes=round(_number(row, "sram_memory_used") * _KIB),
        dram_bytes=round(_number(row, "dram_memory_used") * _KIB),
        flash_bytes=round(_flash(row, "memory_used") * _KIB),
        sram_traffic=round(_number(row, "sram_total_bytes")),
        dram_traffic=round(_number(row, "dram_total_bytes")),
        flash_traffic=round(_flash(row, "total_bytes")),
        operators=_operators(_rows(_only(folder, "*_per-layer.csv")), {_plain(name): name for name in operators}),
        products_left=products_left,
        provenance=Provenance.ESTIMATED,
    )


def _operators(rows: list[dict[str, str]], names: Mapping[str, str]) -> list[OperatorCycles]:
    """Cycles on the NPU by the operator of the file that they come from: vela splits some operators."""
    cycles = Counter[str]()
    for row in rows:
        if _text(row, "Target") == "NPU":
            kind = _text(row, "Original Operator")
            cycles[names.get(_plain(kind), kind)] += round(_number(row, "Op Cycles"))
    return [OperatorCycles(op_type=kind, cycles=number) for kind, number in cycles.most_common()]


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise ValueError(f"it wrote {len(found)} files {pattern} instead of 1")
    return found[0]


def _rows(path: Path) -> list[dict[str, str]]:
    if (size := path.stat().st_size) > MOST_BYTES:
        raise ValueError(f"its table {path.name} has {size:,} bytes, more than {MOST_BYTES:,}")
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"its table {path.name} is wrong: {error}") from error


def _flash(row: Mapping[str, str], end: str) -> float:
    return _number(row, f"on_chip_flash_{end}") + _number(row, f"off_chip_flash_{end}")


def _text(row: Mapping[str, str | None], name: str) -> str:
    value = row.get(name)
    if not value:
        raise ValueError(f"its table has no {name}")
    return value


def _number(row: Mapping[str, str | None], name: str) -> float:
    text = _text(row, name)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"its table has {text!r} as {name}")
    return value
