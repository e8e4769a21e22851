"""Bring an engine to a target: wheels that this machine fetches, else the target's own pip."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from pocketbert.benchmarks.devices.remote.channel import Channel
from pocketbert.benchmarks.devices.remote.cpus import Facts
from pocketbert.benchmarks.devices.remote.wheels import fetch, platform_of
from pocketbert.core.errors import MachineError, MissingBackendError
from pocketbert.core.host.progress import say
from pocketbert.core.host.versions import version_of


def install(channel: Channel, facts: Facts, names: Sequence[str], own_pip: bool = True) -> None:
    """Install distributions into the environment of a connection, without those that they depend on.

    The versions installed here come first, so that both machines measure the same engine; then the newest that Python
    on the target takes. Every figure names the version that was used.

    Args:
        channel: The target.
        facts: What it is.
        names: Distributions, e.g. ``onnxruntime``; none that a running worker may have loaded.
        own_pip: Whether the target's own pip may install what this machine cannot fetch.

    Raises:
        MissingBackendError: If they cannot be installed there.
    """
    say(f"  {channel.where}: installs {', '.join(names)} in a temporary folder there")
    same = [f"{name}=={version}" if (version := version_of(name)) else name for name in names]
    reasons = _from_here(channel, facts, [same, list(names)])
    if not reasons:
        return
    for wanted in (same, list(names)) if own_pip else ():
        try:
            channel.ask("pip", requirements=wanted)
        except MachineError as error:
            reasons.append(_last_line(error))
            continue
        return
    raise MissingBackendError(
        f"{channel.where}: {', '.join(names)} for Python {facts.python} on {facts.arch} ({'; '.join(dict.fromkeys(reasons))})",
        f"python3 -m pip install {' '.join(names)} (on a machine with the same Python, to see whether its index has it)",
    )


def _from_here(channel: Channel, facts: Facts, choices: list[list[str]]) -> list[str]:
    """Fetch wheels here and unpack them there; why it was not possible, empty where it was."""
    platform = platform_of(facts.python, facts.arch, facts.libc)
    if platform is None:
        return [f"there are wheels for glibc only, not for {facts.libc or 'this C library'}"]
    reasons = []
    for wanted in choices:
        with tempfile.TemporaryDirectory(prefix="pocketbert-wheels-") as folder:
            reason = fetch(wanted, platform, Path(folder))
            if reason:
                reasons.append(reason)
                continue
            for wheel in sorted(Path(folder).glob("*.whl")):
                channel.ask("put", wheel, name=wheel.name)
                channel.ask("unpack", name=wheel.name)
        return []
    return reasons


def _last_line(error: MachineError) -> str:
    return (str(error).strip().splitlines() or ["no reason given"])[-1]
