"""What a device cannot do for some files though it does it for others: single calls after idle times, minutes without a pause."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pocketbert.benchmarks.devices.table import device
from pocketbert.benchmarks.measurement import Variant
from pocketbert.benchmarks.options import BenchmarkOptions
from pocketbert.core.devices import DeviceName, Figure
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import Format


def without_idle(name: DeviceName, variants: Sequence[Variant]) -> list[str]:
    """Names of the files that a device cannot time after idle times."""
    if Figure.IDLE_LATENCY not in name.info.figures:
        return [v.name for v in variants]
    return [v.name for v in variants if device(str(name)).idle_refusal(v.format)]


def lasting(name: DeviceName, variants: Sequence[Variant]) -> list[Variant]:
    """The files that a device can run for minutes without a pause."""
    return [v for v in variants if not device(str(name)).sustained_refusal(v.format)]


def limit_notes(name: DeviceName, variants: Sequence[Variant], options: BenchmarkOptions) -> Iterator[str]:
    """What is left out of what was asked for, with the reason."""
    if options.gaps_ms:
        for why, files in _refused(variants, device(str(name)).idle_refusal).items():
            yield f"Not timed after idle times: {', '.join(files)}, since {why}."
    if options.sustained_min:
        for why, files in _refused(variants, device(str(name)).sustained_refusal).items():
            yield f"Not run for minutes: {', '.join(files)}, since {why}."


def check_sustained(
    names: Sequence[DeviceName], taken: Mapping[str, Sequence[Variant]], options: BenchmarkOptions
) -> list[Problem]:
    """Files that devices cannot run for minutes, where that is asked for.

    Args:
        names: The devices.
        taken: What is measured on each.
        options: What is asked for.

    Raises:
        InputError: If a device can run none of its files so.
    """
    if not options.sustained_min:
        return []
    out, none = list[Problem](), list[Problem]()
    for name in names:
        variants = taken[str(name)]
        for why, files in _refused(variants, device(str(name)).sustained_refusal).items():
            problem = Problem(f"{name} {', '.join(files)}", f"not run for minutes: {why}.", "Leave --sustained out")
            (out if lasting(name, variants) else none).append(problem)
    if none:
        raise InputError(none)
    return out


def _refused(variants: Sequence[Variant], refusal: Callable[[Format], str]) -> dict[str, list[str]]:
    """Names of files that are refused, by reason."""
    out = dict[str, list[str]]()
    for variant in variants:
        if why := refusal(variant.format):
            out.setdefault(why, []).append(variant.name)
    return out
