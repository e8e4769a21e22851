"""Saved texts of the measuring programs: which program it is of, and which settings it tells."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

from pocketbert.benchmarks.devices.runners.benchmark_model import LITERT
from pocketbert.benchmarks.devices.runners.perf_test import ONNX
from pocketbert.core.disk.regular import open_regular, read_regular
from pocketbert.core.errors import InputError, Problem

MOST_BYTES = 16 << 20
"""Largest text that is read; one with the operators of 12 layers has 0.2 MB."""
MOST_SETTINGS = 12
_JSON = re.compile(rb"\s*[\[{]")
_UTF16 = (b"\xff\xfe", b"\xfe\xff")
_ROW = re.compile(r"^[^\n]*,[\d.e+-]+(?:,[\d.e+-]+)?,\d+,-?\d+,0\s*$", re.MULTILINE)
_GRAPH = re.compile(r"\bGraph: \[([^\]\n]+)\]|--graph=(\S+)|\bLoaded model (\S+)")
_SIGNATURE = re.compile(r"\bSignature to run: \[(?:seq_)(\d{1,5})\]|--signature_to_run_for=(?:seq_)(\d{1,5})\b")
_SHAPES = re.compile(r"\bInput shapes: \[1,(\d{1,5})(?::1,\1)*\]")
_LITERT_THREADS = re.compile(r"\bNum threads: \[(-?\d{1,4})\]|--num_threads=(-?\d{1,4})\b")
_SIZE = re.compile(r"The input model file size \(MB\): ([\d.]+(?:e[+-]?\d+)?)")
_SETTING = re.compile(r"^[^\n:]{0,20}?(?::\s+)?([A-Z][\w ()/-]{1,60}: \[[\w .,:/-]{1,100}\])\s*$", re.MULTILINE)
_KNOWN = ("Log parameter", "Graph:", "Num threads", "Signature to run", "Input shapes", "Enable op profiling")
_ONNX_THREADS = re.compile(r"Setting intra_op_num_threads to (\d{1,4})\b")
_COMMAND = re.compile(r"\bonnxruntime_perf_test(?:\.exe)?\"?\s+(-[^\n]*|[^\n]*\s-[^\n]*)")


class Kind(StrEnum):
    """What a text is."""

    LITERT = LITERT
    ONNX = ONNX
    RESULTS = f"the file of results of {ONNX}"


_SIGNS = {
    Kind.LITERT: ("Inference timings in us:", "Running benchmark for at least", "Log parameter values verbosely"),
    Kind.ONNX: ("Session creation time cost:", "Total inference requests:", "Total iterations:"),
}
_ENDS = {Kind.LITERT: "Inference timings in us:", Kind.ONNX: "Average inference time cost"}


@dataclass(frozen=True)
class Settings:
    """What a text tells of the run; empty or None where it does not.

    Attributes:
        file: The measured file as it is called on the device.
        megabytes: Its size, to six digits.
        length: Tokens.
        threads: Threads; 0 where the program was given no number.
        others: Other settings in the text's words.
    """

    file: str = ""
    megabytes: float | None = None
    length: int | None = None
    threads: int | None = None
    others: list[str] = field(default_factory=list)


def is_text(path: Path) -> bool:
    """Whether a file holds no JSON; one that is not there, or is no file, is left to the reader of JSON, which tells why."""
    try:
        with open_regular(path) as stream:
            head = stream.read(256) or b""
    except (InputError, OSError):
        return False
    return not _JSON.match(head)


def read_text(path: Path) -> str:
    """Read a text of bounded size, in UTF-8 or in UTF-16 as PowerShell writes it.

    Raises:
        InputError: If it is larger, or no text.
    """
    raw = read_regular(path, MOST_BYTES)
    try:
        text = raw.decode("utf-16" if raw[:2] in _UTF16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"is no text: {error.reason} at byte {error.start}.")) from error
    return text.replace("\r\n", "\n")


def kind_of(path: Path, text: str) -> Kind:
    """Which program a text is of.

    Raises:
        InputError: If it is of none, or of several runs.
    """
    found = [kind for kind, signs in _SIGNS.items() if any(sign in text for sign in signs)]
    if not found and _ROW.search(text):
        return Kind.RESULTS
    if not found:
        raise InputError(
            Problem(
                str(path),
                f"is no JSON of a Mac or a phone, and no text of {LITERT} or {ONNX}.",
                "Save all that the program prints: adb shell COMMAND > text.txt 2>&1",
            )
        )
    runs = sum(text.count(_ENDS[kind]) for kind in found)
    if runs > 1 or len(found) > 1:
        raise InputError(Problem(str(path), f"holds {max(runs, len(found))} runs.", "Save each in a separate file."))
    return found[0]


def settings_of(kind: Kind, text: str) -> Settings:
    """What a text tells of its run.

    Raises:
        ValueError: If it holds a number that is none.
    """
    if kind is Kind.LITERT:
        return _litert(text)
    command = _COMMAND.search(text)
    try:
        words = shlex.split(command[1]) if command else []
    except ValueError:  # an open quotation mark: no command line after all
        words = []
    options = dict(pairwise(words))
    threads = _ONNX_THREADS.search(text)
    given = threads[1] if threads else options.get("-x", "")
    return Settings(
        file=next((w for w in words if w.endswith((".onnx", ".ort"))), ""),
        threads=int(given) if given.isdecimal() else 0 if kind is Kind.ONNX else None,
        others=[f"{name} {options[name]}" for name in ("-e", "-o") if options.get(name, "").isalnum()],
    )


def _litert(text: str) -> Settings:
    graph, size = _GRAPH.search(text), _SIZE.search(text)
    length = _SHAPES.search(text) or _SIGNATURE.search(text)
    threads = _LITERT_THREADS.search(text)
    count = int(threads[1] or threads[2]) if threads else 0 if "Log parameter values" in text else None
    others = [one for one in _SETTING.findall(text) if not one.startswith(_KNOWN)]
    return Settings(
        file=next(filter(None, graph.groups()), "") if graph else "",
        megabytes=float(size[1]) if size else None,
        length=int(next(filter(None, length.groups()))) if length else None,
        threads=None if count is None else max(0, count),
        others=list(dict.fromkeys(others))[:MOST_SETTINGS],
    )
