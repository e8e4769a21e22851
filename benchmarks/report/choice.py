"""Which file to take on which platform, as scores, sizes and latencies justify it.

`choose_files` is the rule, for the report's first lines and for the model card's. `collect_times` gives it the latencies of a
benchmark, `list_files` and `describe_choice` word the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pocketbert.benchmarks import wording
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.report.figures import ModelRow, headline_condition
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Direction
from pocketbert.core.types import Scheme, Status

RULE = (
    "On each platform: the file with the scheme of the default file, unless it failed a gate, or another file for the platform is "
    "at least as good in score, size and latency and better in one of them."
)
_DEVICES = {"adb:": "Android", "qai-hub:": "Android", "browser": "Web"}
"""The platform of a device, by the beginning of its name; other devices tell theirs by their system, as imported phones do."""


@dataclass(frozen=True)
class FileChoice:
    """The file to take on one platform.

    Attributes:
        place: The platform, as the model card names it, or the device that was measured; empty if neither is known.
        row: The file; None if no file for the platform passed its gates.
        reason: Why it is not the file of the default scheme; empty if it is.
        time: Its median latency in ms; None if it was not timed.
        device: The device of that latency.
    """

    place: str
    row: ModelRow | None
    reason: str = ""
    time: float | None = None
    device: str = ""


@dataclass(frozen=True)
class DeviceTimes:
    """The latencies that were measured on one device.

    Attributes:
        p50: Median latency in ms by name of the file.
        platform: First word of the platform that the device is of, ``Android`` or ``Web``; empty for others.
    """

    p50: dict[str, float]
    platform: str = ""


Times = Mapping[str, DeviceTimes]
"""Latencies by device; the device that is shown first comes first."""


def collect_times(rows: Sequence[ModelRow], result: BenchmarkResult | None) -> Times:
    """Return each file's median latency on each device, at the length, threads and idle time that tables show first.

    A browser measures the same file once for each accelerator (wasm, WebGPU); the shortest time counts.
    """
    if result is None:
        return {}
    by_digest = {row.sha256: row.name for row in rows if row.sha256}
    names = {row.name for row in rows}
    times: dict[str, DeviceTimes] = {}
    for session in sorted(result.sessions, key=lambda s: s is not result.headline):
        for variant in session.variants:
            m = session.find(variant.name, *headline_condition(session)) if session.timed else None
            name = variant.name if variant.name in names else by_digest.get(variant.sha256)
            if m is not None and m.wall is not None and name is not None:
                p50 = times.setdefault(session.device, DeviceTimes({}, _platform_of(session))).p50
                p50[name] = min(m.wall.p50, p50.get(name, m.wall.p50))
    return times


def _platform_of(session: BenchmarkResult) -> str:
    """Return the platform of a session's device, ``Android`` or ``Web``; empty for others."""
    by_name = (platform for beginning, platform in _DEVICES.items() if session.device.startswith(beginning))
    return next(by_name, "Android" if session.machine.system.startswith("Android") else "")


def choose_files(rows: Sequence[ModelRow], times: Times) -> list[FileChoice]:
    """Choose the file to take on each platform, and return one choice for each platform that has files.

    By `RULE` it is the file with the default file's scheme, unless that one failed a gate, or another file for the
    platform is at least as good in score, size and latency and better in one of them. If the file with that scheme failed
    or does not exist, the fastest other file (the smallest without latencies) takes its place in this rule.

    If no file names a platform, one file is chosen for each measured device instead. If nothing was timed either, one
    file is chosen for no platform in particular; none if the files have no score and no result of a gate.

    Args:
        rows: The files with scores, sizes, gates and platforms; teachers are never chosen.
        times: Latencies as `collect_times` returns them.
    """
    files = [row for row in rows if not row.is_teacher]
    default = next((row for row in files if row.is_default), None)
    if places := sorted({place for row in files for place in row.platforms}, key=str.casefold):
        offered = [(p, [row for row in files if p in row.platforms], _device_of(p, times)) for p in places]
    elif times:
        offered = [(d, [row for row in files if row.name in of_device.p50], d) for d, of_device in times.items()]
    else:
        judged = any(row.eval_score is not None or row.status is not None for row in files)
        offered = [("", files if judged else [], "")]
    none = DeviceTimes({})
    return [
        _choose(place, some, default, times.get(device, none).p50, device) for place, some, device in offered if some
    ]


def _device_of(platform: str, times: Times) -> str:
    """Return the measured device that belongs to a platform, else the device that tables show first; "" if nothing was timed."""
    word = platform.split(",")[0]
    return next((device for device, measured in times.items() if measured.platform == word), next(iter(times), ""))


def _choose(
    place: str, files: Sequence[ModelRow], default: ModelRow | None, times: Mapping[str, float], device: str
) -> FileChoice:
    """Choose one of the files for a platform by `RULE`; see `choose_files`."""
    usable = [row for row in files if row.status is not Status.FAILED]
    if not usable:
        return FileChoice(place, None, reason="no file passed its gates")
    planned = _planned_file(files, default)
    chosen = _planned_file(usable, default) or min(
        usable, key=lambda row: (times.get(row.name, float("inf")), row.bytes)
    )
    while better := [row for row in usable if _beats(row, chosen, times)]:
        chosen = min(better, key=lambda row: (-_score(row), times.get(row.name, float("inf")), row.bytes))
    reason = ""
    if planned is not None and planned is not chosen:
        failed = planned.status is Status.FAILED
        why = "failed a gate" if failed else f"is beaten in {', '.join(_better_in(chosen, planned, times))}"
        reason = f"{planned.name} {why}"
    time = times.get(chosen.name)
    return FileChoice(place, chosen, reason, time, device if time is not None else "")


def _planned_file(files: Sequence[ModelRow], default: ModelRow | None) -> ModelRow | None:
    """Return the default file; if it is not among `files`, the first file of its scheme.

    Without one, it is a file of the scheme that replaces it in another format. None if there is none, or no default file.
    """
    if default is None or default in files:
        return default
    wanted = default.scheme
    instead = [f.base if wanted is Scheme.FP32 else f.instead.get(wanted) for f in FORMATS.values() if wanted]
    return next((row for scheme in (wanted, *instead) for row in files if scheme and row.scheme is scheme), None)


def _score(row: ModelRow) -> float:
    """Return a file's score so that a higher one is better; minus infinity without a score."""
    if row.eval_score is None or not row.eval_score.finite:
        return float("-inf")
    lower = METRICS[row.eval_score.metric].direction is Direction.LOWER
    return -row.eval_score.value if lower else row.eval_score.value


def _better_in(row: ModelRow, other: ModelRow, times: Mapping[str, float]) -> list[str]:
    """Return the names of those figures (score, size, latency) in which a file is better than another one."""
    faster = times.get(row.name, float("inf")) < times.get(other.name, float("inf"))
    parts = [("score", _score(row) > _score(other)), ("size", row.bytes < other.bytes), ("latency", faster)]
    return [what for what, better in parts if better]


def _beats(row: ModelRow, other: ModelRow, times: Mapping[str, float]) -> bool:
    """Return whether a file is at least as good as another in everything that both have, and better in something.

    Files of which only one was scored, or timed, are not comparable.
    """
    known = [(a.eval_score is None, a.name in times) for a in (row, other)]
    return known[0] == known[1] and bool(_better_in(row, other, times)) and not _better_in(other, row, times)


def list_files(choices: Sequence[FileChoice]) -> list[tuple[ModelRow, list[str]]]:
    """Return each file that is to be taken with its platforms; the default file comes first."""
    places: dict[str, tuple[ModelRow, list[str]]] = {}
    for choice in choices:
        if choice.row is not None:
            places.setdefault(choice.row.name, (choice.row, []))[1].append(choice.place)
    return sorted(places.values(), key=lambda pair: not pair[0].is_default)


def describe_choice(choice: FileChoice, reference: ModelRow | None) -> Iterator[str]:
    """Yield the table cells of a choice: score with the share that is kept, size with its ratio to the reference, latency."""
    row = choice.row
    if row is None:
        yield from [wording.NONE] * 3
        return
    score = row.eval_score
    kept = f" ({wording.share(row.kept)} kept)" if row.kept is not None else ""
    yield wording.NONE if score is None else METRICS[score.metric].format(score.value) + kept
    smaller = reference.bytes / row.bytes if reference is not None and reference is not row and row.bytes else 1.0
    yield wording.size(row.bytes) + (f" ({wording.factor(smaller)} smaller)" if smaller > 1.005 else "")
    yield wording.milliseconds(choice.time)
