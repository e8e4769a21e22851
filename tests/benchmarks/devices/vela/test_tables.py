"""The tables of vela: those that version 5.2.0 wrote of a tiny student on an Ethos-U55, and wrong ones."""

import re
import shutil
from pathlib import Path

import pytest

from pocketbert.benchmarks.devices import vela as summary
from pocketbert.benchmarks.devices.vela import _last_error, _read_estimate, _vela_reasons
from pocketbert.core.types import Provenance

RECORDED = Path(__file__).parent / "recorded"
SUMMARY, LAYERS = "given_summary_Ethos_U55_High_End_Embedded.csv", "given_per-layer.csv"
OPERATORS = ("FULLY_CONNECTED", "BATCH_MATMUL", "EMBEDDING_LOOKUP", "MUL")
# Of vela 5.2.0 on the demo's a16w8 file.
LOG = """
Warning (supported operators) operator: DEQUANTIZE, ofm: 'seq_64_logits_output_dequant'
Reason: Unsupported opType

Warning (supported operators) operator: QUANTIZE, ofm: 'operator0008_0_signature2_quantized'
Reason: Operation has tensor with unsupported DataType Float32 (operator0008_0_signature2)
Feature-map dataTypes must be one of {"INT16", "INT8"}

Warning (supported operators) operator: QUANTIZE, ofm: 'operator0005_0_signature2_quantized'
Reason: Operation has tensor with unsupported DataType Float32 (operator0005_0_signature2)
Feature-map dataTypes must be one of {"INT16", "INT8"}

Warning (supported operators) operator: BATCH_MATMUL, ofm: 'a (or b), 'c''
Reason: Matmul with unsupported IFM type
IF Matmul or (FC with dynamic weights): IFM precision must be Int8

################################################################################
"""


@pytest.fixture
def tables(tmp_path):
    for name in (SUMMARY, LAYERS):
        shutil.copy(RECORDED / name, tmp_path / name)
    return tmp_path


def change(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


def test_the_recorded_tables(tables):
    found = _read_estimate(tables, OPERATORS, 2)
    assert (found.system, found.memory, found.clock_mhz) == ("Ethos_U55_High_End_Embedded", "Shared_Sram", 500)
    assert found.provenance is Provenance.ESTIMATED
    assert found.products_left == 2
    assert found.time_ms == pytest.approx(found.cycles / 500e3)
    assert 0 < found.npu_cycles < found.cycles
    assert found.sram_bytes == round(
        640 / 0.009608455440787893
    )  # bytes and share of the first operator in the other table
    assert found.flash_bytes > 0
    assert found.dram_bytes == found.dram_traffic == 0
    assert found.sram_traffic > found.sram_bytes
    cycles = {one.op_type: one.cycles for one in found.operators}
    assert set(OPERATORS) - set(cycles) == {"EMBEDDING_LOOKUP"}  # which stays on the CPU, without cycles
    assert list(cycles.values()) == sorted(cycles.values(), reverse=True)
    assert sum(cycles.values()) == found.cycles


@pytest.mark.parametrize(
    ("name", "old", "new", "why"),
    [
        (SUMMARY, "cycles_total", "cycles_all", "no cycles_total"),
        (SUMMARY, "Shared_Sram,500000000.0", "Shared_Sram,-1", "'-1' as core_clock"),
        (SUMMARY, "Shared_Sram,500000000.0", "Shared_Sram,nan", "'nan' as core_clock"),
        (SUMMARY, "Shared_Sram,500000000.0", "Shared_Sram,fast", "'fast' as core_clock"),
        (LAYERS, "NPU,640,0.9608455440787893,509", "NPU,640,0.9608455440787893,", "no Op Cycles"),
        (LAYERS, "Target", "Place", "no Target"),
    ],
)
def test_wrong_tables_are_told(tables, name, old, new, why):
    change(tables / name, old, new)
    with pytest.raises(ValueError, match=re.escape(why)):
        _read_estimate(tables, OPERATORS, 0)


def test_missing_doubled_large_and_unreadable_tables_are_told(tables, monkeypatch):
    content = (tables / SUMMARY).read_text()
    (tables / SUMMARY).write_text(content + content.splitlines()[1] + "\n")
    with pytest.raises(ValueError, match="2 rows instead of 1"):
        _read_estimate(tables, OPERATORS, 0)
    (tables / SUMMARY).write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match=r"is wrong: .*decode"):
        _read_estimate(tables, OPERATORS, 0)
    (tables / SUMMARY).write_text(content)
    monkeypatch.setattr(summary, "_MAX_TABLE_BYTES", 5000)
    with pytest.raises(ValueError, match="has 23,783 bytes, more than 5,000"):
        _read_estimate(tables, OPERATORS, 0)
    (tables / LAYERS).unlink()
    with pytest.raises(ValueError, match=r"0 files \*_per-layer.csv instead of 1"):
        _read_estimate(tables, OPERATORS, 0)


def test_the_reasons_of_the_log():
    assert _vela_reasons(LOG) == {
        "DEQUANTIZE": "Unsupported opType",
        "QUANTIZE": "Operation has tensor with unsupported DataType Float32",
        "BATCH_MATMUL": "Matmul with unsupported IFM type: IF Matmul or (FC with dynamic weights): IFM precision must be Int8",
    }
    assert _vela_reasons("") == {}
    assert _last_error("x\nError: no such file\nbye") == "Error: no such file"
    assert _last_error("Traceback:\nethosu.vela.errors.CliOptionError: Incorrect argument\n").endswith("argument")
    assert _last_error("") == "no output"
