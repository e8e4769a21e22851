"""Import figures from saved output of the measuring programs, run by hand on a device.

`import_texts` reads texts that ``benchmark_model`` or ``onnxruntime_perf_test`` printed. Of each text it finds out
which program wrote it, reads its figures and the settings of the run, adds what the user states with ``--fact``
(`parse_fact`), and looks the measured file up in the artefact folders.
"""

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
from pocketbert.core.errors import InputError, Problem, shorten_repr, suggest_allowed
from pocketbert.core.types import Format, Provenance

_MAX_BYTES = 16 << 20
"""Largest text that is read; one with the operators of 12 layers has 0.2 MB."""
_MAX_SETTINGS = 12
_MAX_DEVICE_NAME = 100
_MAX_VALUE = {"length": 65536, "threads": 4096}
_KEYS = ("device", "file", "length", "threads")
_MISSING = {
    "device": ("the device", "device='Maker Model'"),
    "file": ("which file was measured", "file=tflite/model.tflite"),
    "length": ("the length in tokens", "length=32"),
    "threads": ("the number of threads", "threads=1"),
}
_PROFILED = "Measured with the profiler on, which makes an inference slower."


class _Kind(StrEnum):
    """The program that wrote a saved output."""

    LITERT = LITERT
    ONNX = ONNX
    RESULTS = f"the file of results of {ONNX}"


_SIGNS = {
    _Kind.LITERT: ("Inference timings in us:", "Running benchmark for at least", "Log parameter values verbosely"),
    _Kind.ONNX: ("Session creation time cost:", "Total inference requests:", "Total iterations:"),
}
_LAST_LINES = {_Kind.LITERT: "Inference timings in us:", _Kind.ONNX: "Average inference time cost"}
_FORMATS = {_Kind.LITERT: Format.TFLITE, _Kind.ONNX: Format.ONNX, _Kind.RESULTS: Format.ONNX}


@dataclass(frozen=True)
class Fact:
    """One fact about a saved output that the user states, since the output lacks it.

    Attributes:
        key: ``device``, ``file``, ``length`` or ``threads``.
        value: The stated value.
        text: Name of the saved output that the fact is about; empty for all.
    """

    key: str
    value: str
    text: str = ""


@dataclass(frozen=True)
class _TextFacts:
    """All facts that the user states about one saved output; what is not stated is empty or None.

    Attributes:
        device: The device in words.
        file: Path of the measured file.
        length: Input length in tokens.
        threads: Number of threads within an operator.
    """

    device: str = ""
    file: str = ""
    length: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class _Settings:
    """The settings of a run that the saved output contains; what it does not contain is empty or None.

    Attributes:
        file: Name of the measured file on the device.
        megabytes: Size of the file in MB, to six digits.
        length: Input length in tokens.
        threads: Number of threads; 0 if the program was given none.
        others: Other settings, as the output words them.
    """

    file: str = ""
    megabytes: float | None = None
    length: int | None = None
    threads: int | None = None
    others: list[str] = field(default_factory=list)


def parse_fact(written: str) -> Fact:
    """Parse a ``--fact`` argument of the form ``[TEXT:]KEY=VALUE``.

    Raises:
        ValueError: If the key is unknown or the value is not allowed.
    """
    left, equals, value = written.partition("=")
    text, _, key = left.rpartition(":")
    key, value = key.strip(), value.strip()
    if not equals:
        raise ValueError(f"{shorten_repr(written)} is no KEY=VALUE; keys: {', '.join(_KEYS)}")
    if key not in _KEYS:
        raise ValueError(f"unknown key {shorten_repr(key)}; {suggest_allowed(key, list(_KEYS))}")
    if key in _MAX_VALUE:
        number = value.isascii() and value.isdecimal() and len(value) <= 6
        if not number or not 1 <= int(value) <= _MAX_VALUE[key]:
            raise ValueError(f"{key} {shorten_repr(value)}; allowed: whole numbers from 1 to {_MAX_VALUE[key]}")
    if not value or len(value) > (_MAX_DEVICE_NAME if key == "device" else 400) or not value.isprintable():
        allowed = f"a name without control characters, of at most {_MAX_DEVICE_NAME}"
        raise ValueError(f"{key} {shorten_repr(value)}; allowed: {allowed}")
    return Fact(key, value, text.strip())


def is_text(path: Path) -> bool:
    """Return whether a file can be opened and does not begin like JSON, with ``[`` or ``{``."""
    try:
        with open_regular(path) as stream:
            head = stream.read(256) or b""
    except (InputError, OSError):
        return False
    return not re.match(rb"\s*[\[{]", head)


def import_texts(
    paths: Sequence[Path], listed: Mapping[Path, Sequence[ModelRecord]], facts: Sequence[Fact]
) -> list[Reported]:
    """Import saved outputs of ``benchmark_model`` and ``onnxruntime_perf_test``.

    Args:
        paths: The saved outputs.
        listed: Records of the model files of each artefact folder. A saved output contains no digest, so its model file
            is looked up there.
        facts: Facts that the saved outputs leave out and the user states, such as the device.

    Returns:
        One record for each saved output, with the provenance `measured`.

    Raises:
        InputError: Listing every problem of all saved outputs, including two outputs of the same file and settings.
    """
    problems = list(_argument_problems(paths, listed, facts))
    imported: dict[tuple[object, ...], Reported] = {}
    for path in paths if listed else ():
        try:
            record = _read_report(path, listed, _facts_of_text(path.name, facts))
        except InputError as error:
            problems += error.problems
            continue
        settings = ", ".join(record.settings)
        identity = (record.variant, record.device, record.tool, settings, record.threads, record.length)
        if identity in imported:
            what = f"tells of the same as {imported[identity].source}: {', '.join(map(str, identity))}."
            problems.append(Problem(str(path), what))
        imported.setdefault(identity, record)
    if problems:
        raise InputError(problems)
    return list(imported.values())


def _argument_problems(
    paths: Sequence[Path], listed: Mapping[Path, Sequence[ModelRecord]], facts: Sequence[Fact]
) -> Iterator[Problem]:
    """Yield problems of the arguments: facts about an output that is not imported, outputs without an artefact folder."""
    names = {path.name for path in paths}
    if facts and not paths:
        yield Problem("--fact", "tells about a text, and none is imported.", "Give it with --import")
    elif unknown := sorted({fact.text for fact in facts} - names - {""}):
        yield Problem(
            "--fact", f"{shorten_repr(unknown[0])} is none of the imported texts: {', '.join(sorted(names))}."
        )
    if paths and not listed:
        yield Problem(str(paths[0]), "a text does not hold its model file.", "Give the artefact folder with -m.")


def _facts_of_text(name: str, facts: Sequence[Fact]) -> _TextFacts:
    """Collect the user's facts about the text with this name; they override facts about all texts."""
    applying = sorted((f for f in facts if f.text in ("", name)), key=lambda f: bool(f.text))
    value_of = {f.key: f.value for f in applying}
    length, threads = value_of.get("length"), value_of.get("threads")
    return _TextFacts(
        device=value_of.get("device", ""),
        file=value_of.get("file", ""),
        length=int(length) if length else None,
        threads=int(threads) if threads else None,
    )


def _read_report(path: Path, listed: Mapping[Path, Sequence[ModelRecord]], facts: _TextFacts) -> Reported:
    """Read the times and memory in one saved output of a measuring program, and return them as a record.

    It was printed by ``benchmark_model`` or ``onnxruntime_perf_test``, or is the latter's file of results.

    Args:
        path: The saved output.
        listed: Records of the model files of each artefact folder. The measured file is looked up among them.
        facts: Device, file, length and threads as the user states them, for what the output does not say.

    Returns:
        The record, with the provenance `measured`.

    Raises:
        InputError: If the output is malformed, has several runs, or was printed by another program; if the
            measured file is not found among `listed`; or if a fact is missing, or differs from the output.
    """
    text = _read_text(path)
    kind = _find_kind(path, text)
    try:
        figures = _read_figures(kind, text)
        settings = _litert_settings(text) if kind is _Kind.LITERT else _perf_test_settings(kind, text)
        operators = read_operators(text) if kind is _Kind.LITERT and has_operators(text) else None
    except ValueError as error:
        raise InputError(Problem(str(path), f"{error}.")) from error
    problems: list[Problem] = []
    file = _find_file(path, kind, settings, facts, listed, problems)
    length = _agreed_value(path, "length", settings.length, facts.length, problems)
    threads = _agreed_value(path, "threads", settings.threads, facts.threads, problems)
    lengths = file[1].signature.lengths if file and file[1].signature else []
    if length is None and len(lengths) == 1:
        length = lengths[0]
    if length is not None and file and lengths and length not in lengths:
        has = ", ".join(map(str, lengths))
        problems.append(Problem(str(path), f"{file[1].path} takes {has} tokens, not {length}."))
    for key, value in (("device", facts.device or None), ("length", length), ("threads", threads)):
        if value is None:
            problems.append(_missing_fact(path, key))
    if problems or file is None or length is None or threads is None:
        raise InputError(problems)
    name, record = file
    try:
        return Reported(
            variant=name,
            path=record.path,
            sha256=record.sha256,
            bytes=record.bytes,
            device=facts.device,
            tool=ONNX if kind is _Kind.RESULTS else kind,
            source=path.name,
            provenance=Provenance.MEASURED,
            threads=threads,
            length=length,
            settings=settings.others,
            profile=None if operators is None else operators.profile(name, threads, length),
            notes=[] if operators is None else [_PROFILED],
            **figures,
        )
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InputError(Problem(str(path), f"{first['loc'][0]} {first['input']}: {first['msg']}.")) from error


def _read_text(path: Path) -> str:
    """Read a text file of limited size in UTF-8, or in UTF-16, which PowerShell writes."""
    raw = read_regular(path, _MAX_BYTES)
    try:
        text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"is no text: {error.reason} at byte {error.start}.")) from error
    return text.replace("\r\n", "\n")


_RESULTS_ROW = re.compile(r"^[^\n]*,[\d.e+-]+(?:,[\d.e+-]+)?,\d+,-?\d+,0\s*$", re.MULTILINE)


def _find_kind(path: Path, text: str) -> _Kind:
    """Return which measuring program wrote a text; raise InputError if that is unclear, or if the text has several runs."""
    kinds = [kind for kind, signs in _SIGNS.items() if any(sign in text for sign in signs)]
    if not kinds and _RESULTS_ROW.search(text):
        return _Kind.RESULTS
    if not kinds:
        what = f"is no JSON of a Mac or a phone, and no text of {LITERT} or {ONNX}."
        fix = "Save all that the program prints: adb shell COMMAND > text.txt 2>&1"
        raise InputError(Problem(str(path), what, fix))
    runs = sum(text.count(_LAST_LINES[kind]) for kind in kinds)
    if runs > 1 or len(kinds) > 1:
        raise InputError(Problem(str(path), f"holds {max(runs, len(kinds))} runs.", "Save each in a separate file."))
    return kinds[0]


def _read_figures(kind: _Kind, text: str) -> dict[str, Any]:
    """Return the figures that a measuring program printed into a saved output, by their field names in `Reported`.

    Figures that the output lacks are None or left out. `kind` is the program that wrote it.
    """
    if kind is _Kind.RESULTS:
        samples = read_perf_test(text)
        statistics = Statistics.of(samples)
        return {
            "runs": statistics.n,
            "mean_ms": statistics.mean,
            "wall_ms": samples,
            "p50_ms": statistics.p50,
            "p90_ms": statistics.p90,
            "p99_ms": statistics.p99,
            "stdev_ms": statistics.stdev,
            "min_ms": statistics.min,
            "max_ms": max(samples),
        }
    if kind is _Kind.ONNX:
        printed = read_printed(text)
        return {
            "runs": printed.count,
            "mean_ms": printed.mean_ms,
            **{f"{key}_ms": getattr(printed, f"{key}_ms") for key in ("p50", "p90", "p99", "min", "max")},
            "load_ms": None if printed.session_s is None else printed.session_s * 1000,
            "first_ms": printed.first_ms or None,  # in whole ms, so that 0 is no figure
            "peak_rss_bytes": printed.peak_rss_bytes,
        }
    times = read_litert(text)
    microseconds = {
        "p50": times.median_us,
        "min": times.min_us,
        "max": times.max_us,
        "stdev": times.stdev_us,
        "load": times.init_us,
        "first": times.first_us,
    }
    return {
        "runs": times.count,
        "mean_ms": times.mean_us / 1e3,
        **{f"{name}_ms": None if us is None else us / 1e3 for name, us in microseconds.items()},
        "peak_memory_bytes": times.memory_bytes,
    }


_GRAPH = re.compile(r"\bGraph: \[([^\]\n]+)\]|--graph=(\S+)|\bLoaded model (\S+)")
_SIGNATURE = re.compile(r"\bSignature to run: \[(?:seq_)(\d{1,5})\]|--signature_to_run_for=(?:seq_)(\d{1,5})\b")
_SHAPES = re.compile(r"\bInput shapes: \[1,(\d{1,5})(?::1,\1)*\]")
_LITERT_THREADS = re.compile(r"\bNum threads: \[(-?\d{1,4})\]|--num_threads=(-?\d{1,4})\b")
_SIZE = re.compile(r"The input model file size \(MB\): ([\d.]+(?:e[+-]?\d+)?)")
_SETTING = re.compile(r"^[^\n:]{0,20}?(?::\s+)?([A-Z][\w ()/-]{1,60}: \[[\w .,:/-]{1,100}\])\s*$", re.MULTILINE)
_READ_SETTINGS = ("Log parameter", "Graph:", "Num threads", "Signature to run", "Input shapes", "Enable op profiling")


def _litert_settings(text: str) -> _Settings:
    """Read threads, length, file and size from output of ``benchmark_model``; ValueError for a malformed number."""
    graph, size = _GRAPH.search(text), _SIZE.search(text)
    length = _SHAPES.search(text) or _SIGNATURE.search(text)
    threads = _LITERT_THREADS.search(text)
    count = int(threads[1] or threads[2]) if threads else 0 if "Log parameter values" in text else None
    others = [setting for setting in _SETTING.findall(text) if not setting.startswith(_READ_SETTINGS)]
    return _Settings(
        file=next(filter(None, graph.groups()), "") if graph else "",
        megabytes=float(size[1]) if size else None,
        length=int(next(filter(None, length.groups()))) if length else None,
        threads=None if count is None else max(0, count),
        others=list(dict.fromkeys(others))[:_MAX_SETTINGS],
    )


_ONNX_THREADS = re.compile(r"Setting intra_op_num_threads to (\d{1,4})\b")
_ONNX_COMMAND = re.compile(r"\bonnxruntime_perf_test(?:\.exe)?\"?\s+(-[^\n]*|[^\n]*\s-[^\n]*)")


def _perf_test_settings(kind: _Kind, text: str) -> _Settings:
    """Read threads, file and options from output of ``onnxruntime_perf_test``, or from its command line in the text."""
    command = _ONNX_COMMAND.search(text)
    try:
        words = shlex.split(command[1]) if command else []
    except ValueError:  # an open quotation mark: no command line after all
        words = []
    options = dict(pairwise(words))
    message = _ONNX_THREADS.search(text)
    threads = message[1] if message else options.get("-x", "")
    return _Settings(
        file=next((w for w in words if w.endswith((".onnx", ".ort"))), ""),
        threads=int(threads) if threads.isdecimal() else 0 if kind is _Kind.ONNX else None,
        others=[f"{name} {options[name]}" for name in ("-e", "-o") if options.get(name, "").isalnum()],
    )


def _agreed_value(path: Path, key: str, in_text: int | None, stated: int | None, problems: list[Problem]) -> int | None:
    """Return the value in the saved output, else the one that the user stated; add a problem if the two differ."""
    if in_text is not None and stated is not None and in_text != stated:
        problems.append(Problem(str(path), f"tells {key} {in_text}, and --fact {key}={stated}."))
    return stated if in_text is None else in_text


def _find_file(
    path: Path,
    kind: _Kind,
    settings: _Settings,
    facts: _TextFacts,
    listed: Mapping[Path, Sequence[ModelRecord]],
    problems: list[Problem],
) -> tuple[str, ModelRecord] | None:
    """Find the measured file in the artefact folders, by the path that the user stated or by its name on the device.

    Returns:
        (name in tables, record). None, with the reason added to `problems`, if no file is named, none or several match, or
        the program does not run the file's format. A file of another size is returned, with a problem.
    """
    short_name = short_names(list(listed))
    known = [
        (folder, f"{short_name[folder]} {record.path}" if len(listed) > 1 else record.path, record)
        for folder, records in listed.items()
        for record in records
    ]
    measured = facts.file or settings.file
    if not measured:
        problems.append(_missing_fact(path, "file"))
        return None
    base_name = PurePosixPath(measured.replace("\\", "/")).name
    matches = [
        (name, record)
        for folder, name, record in known
        if facts.file in (record.path, name, str(folder / record.path))
        or (not facts.file and PurePosixPath(record.path).name == base_name)
    ]
    if len({record.sha256 for _, record in matches}) != 1:
        what = f"{len(matches)} files of that name" if matches else "no such file"
        example = next((name for _, name, record in known if record.format is _FORMATS[kind]), "PATH")
        where = f"measured was {shorten_repr(measured)}; {', '.join(map(str, listed))}: {what}."
        problems.append(Problem(str(path), where, f"Name it: --fact file='{example}'"))
        return None
    name, record = matches[0]
    if record.format is not _FORMATS[kind]:
        problems.append(Problem(str(path), f"{kind} does not run {record.path}."))
        return None
    megabytes = settings.megabytes
    if megabytes is not None and abs(megabytes * 1e6 - record.bytes) > 1 + 1e-5 * record.bytes:
        what = f"measured was a file of {megabytes:g} MB, and {record.path} has {record.bytes / 1e6:g} MB"
        problems.append(Problem(str(path), f"{what}. Figures belong to the files they were measured on."))
    return name, record


def _missing_fact(path: Path, key: str) -> Problem:
    """Return the problem that neither the saved output nor the user states the fact `key`."""
    what, example = _MISSING[key]
    return Problem(str(path), f"does not tell {what}.", f"Add --fact {example}")
