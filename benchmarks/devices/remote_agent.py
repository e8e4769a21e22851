"""Requests to the agent on a target, and its answers."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pocketbert.benchmarks.devices.machine_facts import Facts
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, PocketBertError, Problem, shown
from pocketbert.core.host.progress import say
from pocketbert.core.host.system import version_of

GREETING = b"pocketbert-agent 1\n"
"""First line of the agent; what a login prints before it is passed over."""
BOOTSTRAP = (
    "import sys; sys.version_info < (3, 8) and sys.exit('it is older than 3.8, which PocketBERT needs there'); "
    "exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())), 'agent', 'exec'))"
)
"""What the target's Python is started with: the agent's source follows on standard input, after its size."""
ANSWER_S, CLOSE_S = 900.0, 30.0
_CHUNK, _MOST_GREETING, _MOST_ANSWER = 1 << 20, 1 << 16, 1 << 28

Lost = Callable[[int, str], PocketBertError]
"""The error for a connection that ended before it was open: given exit status and last messages."""


def source(name: str) -> bytes:
    """Source of a program that runs on the target: ``agent`` or ``worker``."""
    return resources.files(f"{__package__}.on_target").joinpath(f"{name}.py").read_bytes()


class Channel:
    """A connection to an agent, over the standard streams of a process.

    Args:
        command: Starts `BOOTSTRAP` in the target's Python and joins its standard streams with those of the process.
        where: The device, for errors.
        lost: Makes the error where the agent does not start.
    """

    def __init__(self, command: Sequence[str], where: str, lost: Lost) -> None:
        self.where = where
        self._process = (
            subprocess.Popen(  # in a session of its own: Ctrl-C ends this side first, which then tells the target
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "LC_ALL": "C"},
            )
        )
        self._said: list[bytes] = []
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()
        self._buffer = bytearray()
        try:
            agent = source("agent")
            with contextlib.suppress(BrokenPipeError):
                self._send(b"%d\n%s" % (len(agent), agent))
            if not self._greeted():
                raise lost(self._process.wait(CLOSE_S), self.messages)
            self._receive(ANSWER_S)
        except BaseException:
            self.close()
            raise

    @property
    def messages(self) -> str:
        """The last lines that the process wrote to standard error."""
        self._listener.join(1.0) if self._process.poll() is not None else None
        return b"".join(self._said[-20:]).decode(errors="replace").strip()

    def ask(self, do: str, payload: bytes | Path | None = None, timeout_s: float = ANSWER_S, **fields: Any) -> Any:
        """Send a request and wait for its answer.

        Args:
            do: What the agent shall do.
            payload: Bytes, or the file that holds them, which follow the request.
            timeout_s: How long to wait for the answer, in seconds.
            fields: The arguments.

        Returns:
            The answer's fields.

        Raises:
            InputError: If an engine refuses a file.
            MachineError: If the target cannot do it, or the connection is lost.
        """
        if payload is not None:
            fields["size"] = payload.stat().st_size if isinstance(payload, Path) else len(payload)
        try:
            self._send(json.dumps({"do": do, **fields}).encode() + b"\n")
            if isinstance(payload, Path):
                with payload.open("rb") as stream:
                    while chunk := stream.read(_CHUNK):
                        self._send(chunk)
            elif payload is not None:
                self._send(payload)
        except BrokenPipeError as error:
            raise self._lost() from error
        return self._receive(timeout_s)

    def close(self) -> None:
        """End the agent, which removes everything on the target, and wait until it has."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(OSError):
                stdin.close()  # the agent takes the end of its input for the end of the connection
        try:
            self._process.wait(CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                self._listener.join(1.0)
                stream.close()

    def _send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stderr:
                self._said = [*self._said[-50:], line[:2000]]

    def _greeted(self) -> bool:
        """Whether the agent started."""
        end, read = time.monotonic() + ANSWER_S, 0
        while read < _MOST_GREETING:
            line = self._line(end, _MOST_GREETING)
            if not line:
                return False
            if line.endswith(GREETING):
                return True
            read += len(line)
        raise MachineError(
            f"{self.where}: the login prints more than {_MOST_GREETING} bytes instead of starting python3."
        )

    def _receive(self, timeout_s: float) -> Any:
        line = self._line(time.monotonic() + timeout_s, _MOST_ANSWER)
        if not line:
            raise self._lost()
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise MachineError(f"{self.where}: answers with {shown(line)} instead of JSON.") from error
        if not isinstance(answer, dict):
            raise MachineError(f"{self.where}: answers with {shown(answer)} instead of a JSON object.")
        if "error" in answer:
            raise self._error(str(answer["error"]), str(answer.get("text", ""))[:2000])
        return answer

    def _error(self, kind: str, text: str) -> PocketBertError:
        if kind == "refused":
            return InputError(Problem(self.where, f"the engine refuses the file: {text}"))
        if kind == "full":
            return MachineError(
                f"{self.where}: no space is left for temporary files ({text}). Free some, or set TMPDIR there to a "
                "folder on a larger disk."
            )
        if kind == "denied":
            return MachineError(
                f"{self.where}: the folder for temporary files there cannot be written ({text}). Set TMPDIR there to a folder that "
                "you may write."
            )
        return MachineError(f"{self.where}: {text}")

    def _lost(self) -> MachineError:
        said = self.messages.splitlines()[-1:]
        return MachineError(f"{self.where}: the connection was lost{': ' + said[0] if said else ''}. Measure again.")

    def _line(self, end: float, most: int) -> bytes:
        """The next line; empty where the process has closed its output."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            seen = 0
            while (place := self._buffer.find(b"\n", seen)) < 0:
                seen = len(self._buffer)
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise MachineError(f"{self.where}: no answer in time.")
                chunk = os.read(self._process.stdout.fileno(), _CHUNK)
                if not chunk:
                    return b""
                self._buffer += chunk
                if len(self._buffer) > most:
                    raise MachineError(f"{self.where}: an answer is longer than {most} bytes.")
        line = bytes(self._buffer[: place + 1])
        del self._buffer[: place + 1]
        return line


# --- wheels ---
# Fetch wheels for another platform with pip.


OLDEST_GLIBC = 17
"""Minor version of the C library of the oldest platform tag in use: manylinux_2_17."""
TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Platform:
    """What a wheel must fit.

    Attributes:
        python: Version of CPython, e.g. ``3.11``.
        arch: Machine name of its platform tags, e.g. ``aarch64``.
        glibc: Minor version of the C library, e.g. 36 for glibc 2.36.
    """

    python: str
    arch: str
    glibc: int

    @property
    def tags(self) -> list[str]:
        """Platform tags that run there, newest first (PEP 600)."""
        newer = [f"manylinux_2_{minor}_{self.arch}" for minor in range(self.glibc, OLDEST_GLIBC - 1, -1)]
        return [*newer, f"manylinux2014_{self.arch}"]

    def __str__(self) -> str:
        """In words."""
        return f"CPython {self.python} on {self.arch} with glibc 2.{self.glibc}"


def platform_of(python: str, arch: str, libc: str) -> Platform | None:
    """The platform of a machine; None where its C library is not glibc, for which the engines have no wheels.

    Args:
        python: Full version of Python there.
        arch: Machine name.
        libc: Name and version of the C library, e.g. ``glibc 2.36``.
    """
    name, _, version = libc.partition(" ")
    major, _, minor = version.partition(".")
    if name != "glibc" or major != "2" or not minor.isdecimal():
        return None
    return Platform(".".join(python.split(".")[:2]), arch, int(minor))


def fetch(requirements: Sequence[str], platform: Platform, destination: Path) -> str:
    """Download wheels, without those that they depend on.

    Args:
        requirements: Names with or without a version, e.g. ``numpy==2.4.6``.
        platform: What they must fit.
        destination: An existing folder.

    Returns:
        Empty where all were fetched, else pip's reason.
    """
    if importlib.util.find_spec("pip") is None:
        return f"this Python has no pip; add it: {sys.executable} -m ensurepip"
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--implementation", "cp"]
    command += ["--python-version", platform.python, "--dest", str(destination)]
    command += [part for tag in platform.tags for part in ("--platform", tag)]
    try:
        done = subprocess.run(
            [*command, "--", *requirements], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"pip took more than {TIMEOUT_S:.0f} s"
    if done.returncode == 0:
        return ""
    said = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.strip()]
    return said[-1] if said else f"pip ended with exit status {done.returncode}"


# --- environment ---
# Bring an engine to a target: wheels that this machine fetches, else the target's own pip.


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
