"""Import figures from saved texts of the measuring programs, run by hand on a device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from pocketbert.benchmarks.devices.runners.benchmark_model import has_operators, read_litert, read_operators
from pocketbert.benchmarks.devices.runners.facts import Fact, Told, told_of
from pocketbert.benchmarks.devices.runners.perf_test import ONNX, read_perf_test, read_printed
from pocketbert.benchmarks.devices.runners.texts import Kind, Settings, kind_of, read_text, settings_of
from pocketbert.benchmarks.records import Reported
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.benchmarks.wording import short_names
from pocketbert.core.artefacts import ModelRecord
from pocketbert.core.errors import InputError, Problem, shown
from pocketbert.core.types import Format, Provenance

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
