"""Import figures from saved texts of the measuring programs, run by hand on a device."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from pocketbert.benchmarks.devices.runners import (
    LITERT,
    ONNX,
    has_operators,
    read_litert,
    read_operators,
    read_perf_test,
    read_printed,
)
from pocketbert.benchmarks.records import Reported
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.benchmarks.wording import short_names
from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.disk.files import open_regular, read_regular
from pocketbert.core.errors import InputError, Problem, nearest, shown
from pocketbert.core.types import Format, Provenance

# --- texts ---
# Saved texts of the measuring programs: which program it is of, and which settings it tells.


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


# --- facts ---
# What a user tells about a text of a measuring program, since the text does not.


KEYS = ("device", "file", "length", "threads")
MOST_WORDS = 100
"""Characters of a device's name."""
_MOST = {"length": 65536, "threads": 4096}


@dataclass(frozen=True)
class Fact:
    """One thing that is told of a text.

    Attributes:
        key: ``device``, ``file``, ``length`` or ``threads``.
        value: What it is.
        text: Name of the text's file; empty for all texts.
    """

    key: str
    value: str
    text: str = ""


@dataclass(frozen=True)
class Told:
    """What is told of one text; empty or None where nothing is.

    Attributes:
        device: The device in words.
        file: Path of the measured file.
        length: Tokens.
        threads: Threads within an operator.
    """

    device: str = ""
    file: str = ""
    length: int | None = None
    threads: int | None = None


def parse_fact(written: str) -> Fact:
    """Read ``[TEXT:]KEY=VALUE``.

    Raises:
        ValueError: If the key is unknown or the value is none of its kind.
    """
    left, equals, value = written.partition("=")
    text, _, key = left.rpartition(":")
    key, value = key.strip(), value.strip()
    if not equals:
        raise ValueError(f"{shown(written)} is no KEY=VALUE; keys: {', '.join(KEYS)}")
    if key not in KEYS:
        raise ValueError(f"unknown key {shown(key)}; {nearest(key, list(KEYS))}")
    if key in _MOST and not (
        value.isascii() and value.isdecimal() and 1 <= int(value[:6]) <= _MOST[key] and len(value) <= 6
    ):
        raise ValueError(f"{key} {shown(value)}; allowed: whole numbers from 1 to {_MOST[key]}")
    if not value or len(value) > (MOST_WORDS if key == "device" else 400) or not value.isprintable():
        raise ValueError(f"{key} {shown(value)}; allowed: a name without control characters, of at most {MOST_WORDS}")
    return Fact(key, value, text.strip())


def told_of(name: str, facts: Sequence[Fact]) -> Told:
    """What is told of the text in a file of that name; a fact of this text wins over one of all texts."""
    last = {f.key: f.value for f in sorted((f for f in facts if f.text in ("", name)), key=lambda f: bool(f.text))}
    length, threads = last.get("length"), last.get("threads")
    return Told(
        device=last.get("device", ""),
        file=last.get("file", ""),
        length=int(length) if length else None,
        threads=int(threads) if threads else None,
    )


PROFILED = "Measured with the profiler on, which makes an inference slower."
_FORMATS = {Kind.LITERT: Format.TFLITE, Kind.ONNX: Format.ONNX, Kind.RESULTS: Format.ONNX}
_MISSING = {
    "device": ("the device", "device='Maker Model'"),
    "file": ("which file was measured", "file=tflite/model.tflite"),
    "length": ("the length in tokens", "length=32"),
    "threads": ("the number of threads", "threads=1"),
}


@dataclass(frozen=True)
class _Listed:
    """A file of an artefact folder with its name in tables."""

    name: str
    record: ModelRecord


def import_texts(
    paths: Sequence[Path], listed: Mapping[Path, Sequence[ModelRecord]], facts: Sequence[Fact]
) -> list[Reported]:
    """Read saved texts of ``benchmark_model`` and ``onnxruntime_perf_test``.

    Args:
        paths: The texts.
        listed: Model files of artefact folders, by folder: a text tells no digest, so that its file is looked up there.
        facts: What the texts do not tell.

    Returns:
        One record for each text, its provenance `measured`.

    Raises:
        InputError: Listing every problem of all texts.
    """
    problems = list(_misplaced(paths, listed, facts))
    out: list[Reported] = []
    for path in paths if listed else ():
        try:
            made = _reported(path, listed, told_of(path.name, facts))
        except InputError as error:
            problems += error.problems
            continue
        same = next((one for one in out if _what(one) == _what(made)), None)
        if same is not None:
            problems.append(
                Problem(str(path), f"tells of the same as {same.source}: {', '.join(map(str, _what(made)))}.")
            )
        out.append(made)
    if problems:
        raise InputError(problems)
    return out


def _misplaced(
    paths: Sequence[Path], listed: Mapping[Path, Sequence[ModelRecord]], facts: Sequence[Fact]
) -> Iterator[Problem]:
    names = {path.name for path in paths}
    if facts and not paths:
        yield Problem("--fact", "tells about a text, and none is imported.", "Give it with --import")
    elif unknown := sorted({fact.text for fact in facts} - names - {""}):
        yield Problem("--fact", f"{shown(unknown[0])} is none of the imported texts: {', '.join(sorted(names))}.")
    if paths and not listed:
        yield Problem(str(paths[0]), "a text does not hold its model file.", "Give the artefact folder with -m.")


def _what(one: Reported) -> tuple[str, str, str, str, int, int]:
    return one.variant, one.device, one.tool, ", ".join(one.settings), one.threads, one.length


def _reported(path: Path, listed: Mapping[Path, Sequence[ModelRecord]], told: Told) -> Reported:
    text = read_text(path)
    kind = kind_of(path, text)
    try:
        figures, settings = _figures(kind, text), settings_of(kind, text)
        operators = read_operators(text) if kind is Kind.LITERT and has_operators(text) else None
    except ValueError as error:
        raise InputError(Problem(str(path), f"{error}.")) from error
    problems: list[Problem] = []
    file = _file(path, kind, settings, told, listed, problems)
    length = _settled(path, "length", settings.length, told.length, problems)
    threads = _settled(path, "threads", settings.threads, told.threads, problems)
    lengths = file.record.signature.lengths if file and file.record.signature else []
    if length is None and len(lengths) == 1:
        length = lengths[0]
    if length is not None and file and lengths and length not in lengths:
        has = ", ".join(map(str, lengths))
        problems.append(Problem(str(path), f"{file.record.path} takes {has} tokens, not {length}."))
    for key, value in (("device", told.device or None), ("length", length), ("threads", threads)):
        if value is None:
            problems.append(_untold(path, key))
    if problems or file is None or length is None or threads is None:
        raise InputError(problems)
    try:
        return Reported(
            variant=file.name,
            path=file.record.path,
            sha256=file.record.sha256,
            bytes=file.record.bytes,
            device=told.device,
            tool=ONNX if kind is Kind.RESULTS else kind,
            source=path.name,
            provenance=Provenance.MEASURED,
            threads=threads,
            length=length,
            settings=settings.others,
            profile=None if operators is None else operators.profile(file.name, threads, length),
            notes=[] if operators is None else [PROFILED],
            **figures,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(Problem(str(path), f"{first['loc'][0]} {first['input']}: {first['msg']}.")) from error


def _figures(kind: Kind, text: str) -> dict[str, Any]:
    """The figures as `Reported` calls them; what the text does not tell is not among them."""
    if kind is Kind.RESULTS:
        samples = read_perf_test(text)
        found = Statistics.of(samples)
        many = {"p50_ms": found.p50, "p90_ms": found.p90, "p99_ms": found.p99, "stdev_ms": found.stdev}
        ends = {"min_ms": found.min, "max_ms": max(samples)}
        return {"runs": found.n, "mean_ms": found.mean, "wall_ms": samples, **many, **ends}
    if kind is Kind.ONNX:
        told = read_printed(text)
        return {
            "runs": told.count,
            "mean_ms": told.mean_ms,
            "p50_ms": told.p50_ms,
            "p90_ms": told.p90_ms,
            "p99_ms": told.p99_ms,
            "min_ms": told.min_ms,
            "max_ms": told.max_ms,
            "load_ms": None if told.session_s is None else told.session_s * 1000,
            "first_ms": told.first_ms or None,  # whole ms: 0 tells nothing
            "peak_rss_bytes": told.peak_rss_bytes,
        }
    times = read_litert(text)
    return {
        "runs": times.count,
        "mean_ms": times.mean_us / 1e3,
        **{
            f"{name}_ms": None if us is None else us / 1e3
            for name, us in (
                ("p50", times.median_us),
                ("min", times.min_us),
                ("max", times.max_us),
                ("stdev", times.stdev_us),
                ("load", times.init_us),
                ("first", times.first_us),
            )
        },
        "peak_memory_bytes": times.memory_bytes,
    }


def _settled(path: Path, key: str, told: int | None, given: int | None, problems: list[Problem]) -> int | None:
    """What the text tells, else what the user does; they must not contradict each other."""
    if told is not None and given is not None and told != given:
        problems.append(Problem(str(path), f"tells {key} {told}, and --fact {key}={given}."))
    return given if told is None else told


def _file(
    path: Path,
    kind: Kind,
    settings: Settings,
    told: Told,
    listed: Mapping[Path, Sequence[ModelRecord]],
    problems: list[Problem],
) -> _Listed | None:
    """The file that was measured: the one that the user names, else the one that is called as on the device."""
    names = short_names(list(listed))
    here = [
        (folder, _Listed(f"{names[folder]} {record.path}" if len(listed) > 1 else record.path, record))
        for folder, records in listed.items()
        for record in records
    ]
    called = told.file or settings.file
    if not called:
        problems.append(_untold(path, "file"))
        return None
    last = PurePosixPath(called.replace("\\", "/")).name
    found = [
        one
        for folder, one in here
        if (told.file in (one.record.path, one.name, str(folder / one.record.path)))
        or (not told.file and PurePosixPath(one.record.path).name == last)
    ]
    if len({one.record.sha256 for one in found}) != 1:
        folders = ", ".join(map(str, listed))
        what = f"{len(found)} files of that name" if found else "no such file"
        known = next((one.name for _, one in here if one.record.format is _FORMATS[kind]), "PATH")
        problems.append(
            Problem(str(path), f"measured was {shown(called)}; {folders}: {what}.", f"Name it: --fact file='{known}'")
        )
        return None
    if found[0].record.format is not _FORMATS[kind]:
        problems.append(Problem(str(path), f"{kind} does not run {found[0].record.path}."))
        return None
    megabytes, bytes = settings.megabytes, found[0].record.bytes
    if megabytes is not None and abs(megabytes * 1e6 - bytes) > 1 + 1e-5 * bytes:
        what = f"measured was a file of {megabytes:g} MB, and {found[0].record.path} has {bytes / 1e6:g} MB"
        problems.append(Problem(str(path), f"{what}. Figures belong to the files they were measured on."))
    return found[0]


def _untold(path: Path, key: str) -> Problem:
    what, example = _MISSING[key]
    return Problem(str(path), f"does not tell {what}.", f"Add --fact {example}")
