"""The agent on a target machine: talking to it, and bringing an engine to its Python.

`AgentChannel` starts the agent (`on_target/agent.py`) over the standard streams of a process such as an ssh client,
sends it requests as lines of JSON, and reads its answers. `install` brings distributions to the target: wheels that
pip on this machine downloads for it (`download_wheels`), else what the target's own pip installs.
"""

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

from pocketbert.benchmarks.devices.machine_facts import AgentFacts
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, PocketBertError, Problem, shorten_repr
from pocketbert.core.host.progress import print_note
from pocketbert.core.host.system import version_of

BOOTSTRAP = (
    "import sys; sys.version_info < (3, 8) and sys.exit('it is older than 3.8, which PocketBERT needs there'); "
    "exec(compile(sys.stdin.buffer.read(int(sys.stdin.buffer.readline())), 'agent', 'exec'))"
)
"""Program of the target's Python at its start: the agent's source follows on standard input, after its size."""
_GREETING = b"pocketbert-agent 1\n"
"""First line of the agent; what a login prints before it is passed over."""
_ANSWER_S, _CLOSE_S, _PIP_S = 900.0, 30.0, 600.0
_CHUNK, _MAX_GREETING, _MAX_ANSWER = 1 << 20, 1 << 16, 1 << 28
_OLDEST_GLIBC = 17
"""Minor version of the C library of the oldest platform tag in use: manylinux_2_17."""


def read_program(name: str) -> bytes:
    """Return the source code of a program that runs on the target: ``agent`` or ``worker``."""
    return resources.files(f"{__package__}.on_target").joinpath(f"{name}.py").read_bytes()


class AgentChannel:
    """A connection to the agent on a target, over standard input and output of a local process such as ssh.

    Args:
        command: Command that starts `BOOTSTRAP` with the other machine's Python, and connects its standard streams.
        where: Name of the device in errors.
        start_error: Function that builds the error if the agent does not start, from the exit status and last messages
            of the process.
    """

    def __init__(self, command: Sequence[str], where: str, start_error: Callable[[int, str], PocketBertError]) -> None:
        self.where = where
        # in a session of its own: Ctrl-C ends this side first, which then ends the agent
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
        self._messages: list[bytes] = []
        self._listener = threading.Thread(target=self._collect_messages, daemon=True)
        self._listener.start()
        self._buffer = bytearray()
        try:
            agent = read_program("agent")
            with contextlib.suppress(BrokenPipeError):
                self._send(b"%d\n%s" % (len(agent), agent))
            if not self._wait_for_greeting():
                raise start_error(self._process.wait(_CLOSE_S), self._last_messages())
            self._receive(_ANSWER_S)
        except BaseException:
            self.close()
            raise

    def ask(self, do: str, payload: bytes | Path | None = None, timeout_s: float = _ANSWER_S, **fields: Any) -> Any:
        """Send a request to the agent on the target, and return its answer.

        Args:
            do: Name of the request, such as ``put``.
            payload: Bytes that follow the request, or a file that contains them; None for none.
            timeout_s: Seconds to wait for the answer.
            fields: Arguments of the request.

        Returns:
            The fields of the answer.

        Raises:
            InputError: If an engine refuses a file.
            MachineError: If the request fails on the target, or the connection is lost.
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
            raise self._lost_error() from error
        return self._receive(timeout_s)

    def close(self) -> None:
        """End the agent, and wait until it has removed its files from the target; after 30 s the process here is killed."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(OSError):
                stdin.close()  # the agent takes the end of its input for the end of the connection
        try:
            self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                self._listener.join(1.0)
                stream.close()

    def _send(self, data: bytes) -> None:
        """Write bytes to the agent and flush them."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def _wait_for_greeting(self) -> bool:
        """Skip what the login prints, up to the agent's first line; return False if the process ends before that."""
        end, read = time.monotonic() + _ANSWER_S, 0
        while read < _MAX_GREETING:
            line = self._read_line(end, _MAX_GREETING)
            if not line:
                return False
            if line.endswith(_GREETING):
                return True
            read += len(line)
        what = f"the login prints more than {_MAX_GREETING} bytes instead of starting python3."
        raise MachineError(f"{self.where}: {what}")

    def _receive(self, timeout_s: float) -> Any:
        """Read the agent's answer and return it; raise the error if the agent reports one."""
        line = self._read_line(time.monotonic() + timeout_s, _MAX_ANSWER)
        if not line:
            raise self._lost_error()
        try:
            answer = json.loads(line)
        except ValueError as error:
            raise MachineError(f"{self.where}: answers with {shorten_repr(line)} instead of JSON.") from error
        if not isinstance(answer, dict):
            raise MachineError(f"{self.where}: answers with {shorten_repr(answer)} instead of a JSON object.")
        if "error" in answer:
            raise self._reported_error(str(answer["error"]), str(answer.get("text", ""))[:2000])
        return answer

    def _read_line(self, end: float, max_bytes: int) -> bytes:
        """Read the next line, waiting until the monotonic time `end`; empty if the process closed its output."""
        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            searched = 0
            while (line_end := self._buffer.find(b"\n", searched)) < 0:
                searched = len(self._buffer)
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise MachineError(f"{self.where}: no answer in time.")
                chunk = os.read(self._process.stdout.fileno(), _CHUNK)
                if not chunk:
                    return b""
                self._buffer += chunk
                if len(self._buffer) > max_bytes:
                    raise MachineError(f"{self.where}: an answer is longer than {max_bytes} bytes.")
        line = bytes(self._buffer[: line_end + 1])
        del self._buffer[: line_end + 1]
        return line

    def _reported_error(self, kind: str, text: str) -> PocketBertError:
        """Return the error for an answer in which the agent reports a failure of this kind."""
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

    def _lost_error(self) -> MachineError:
        """Return the error for a lost connection, with the last line that the process wrote to standard error."""
        last = self._last_messages().splitlines()[-1:]
        return MachineError(f"{self.where}: the connection was lost{': ' + last[0] if last else ''}. Measure again.")

    def _collect_messages(self) -> None:
        """Keep the last lines of the other process's standard error; runs in a thread."""
        assert self._process.stderr is not None
        with contextlib.suppress(ValueError, OSError):
            for line in self._process.stderr:
                self._messages = [*self._messages[-50:], line[:2000]]

    def _last_messages(self) -> str:
        """Return the last lines that the process wrote to standard error."""
        if self._process.poll() is not None:
            self._listener.join(1.0)
        return b"".join(self._messages[-20:]).decode(errors="replace").strip()


def install(channel: AgentChannel, facts: AgentFacts, names: Sequence[str], own_pip: bool = True) -> None:
    """Install Python distributions, without their dependencies, in the agent's temporary folder on the target.

    The versions installed on this machine are tried first, so that both machines measure the same engine, and then the
    newest versions for the other machine's Python. Results name the version that was used.

    Args:
        channel: Connection to the agent on the other machine.
        facts: Python, CPU and C library of the other machine.
        names: Distributions to install, e.g. ``onnxruntime``; no running worker may have loaded one of them.
        own_pip: Whether the other machine's pip may be used if this machine cannot download fitting wheels.

    Raises:
        MissingBackendError: If the distributions cannot be installed on the other machine.
    """
    print_note(f"  {channel.where}: installs {', '.join(names)} in a temporary folder there")
    same_versions = [f"{name}=={version}" if (version := version_of(name)) else name for name in names]
    choices = [same_versions, list(names)]
    platform = wheel_platform(facts.python, facts.arch, facts.libc)
    if platform is None:
        reasons = [f"there are wheels for glibc only, not for {facts.libc or 'this C library'}"]
    else:
        reasons = _send_wheels(channel, platform, choices)
    if not reasons:
        return
    for requirements in choices if own_pip else ():
        try:
            channel.ask("pip", requirements=requirements)
        except MachineError as error:
            reasons.append((str(error).strip().splitlines() or ["no reason given"])[-1])
            continue
        return
    raise MissingBackendError(
        f"{channel.where}: {', '.join(names)} for Python {facts.python} on {facts.arch} ({'; '.join(dict.fromkeys(reasons))})",
        f"python3 -m pip install {' '.join(names)} (on a machine with the same Python, to see whether its index has it)",
    )


def _send_wheels(channel: AgentChannel, platform: Platform, choices: Sequence[Sequence[str]]) -> list[str]:
    """Download wheels, and unpack them on the other machine, for the first of `choices` that works.

    The result is empty if one works, else the reasons why none does.
    """
    reasons = []
    for requirements in choices:
        with tempfile.TemporaryDirectory(prefix="pocketbert-wheels-") as folder:
            reason = download_wheels(requirements, platform, Path(folder))
            if reason:
                reasons.append(reason)
                continue
            for wheel in sorted(Path(folder).glob("*.whl")):
                channel.ask("put", wheel, name=wheel.name)
                channel.ask("unpack", name=wheel.name)
        return []
    return reasons


@dataclass(frozen=True)
class Platform:
    """Python version, architecture and C library that a wheel must fit.

    Attributes:
        python: Version of CPython, e.g. ``3.11``.
        arch: Architecture as in platform tags, e.g. ``aarch64``.
        glibc: Minor version of the C library, e.g. 36 for glibc 2.36.
    """

    python: str
    arch: str
    glibc: int

    def __str__(self) -> str:
        """Return the platform as text for error messages."""
        return f"CPython {self.python} on {self.arch} with glibc 2.{self.glibc}"


def wheel_platform(python: str, arch: str, libc: str) -> Platform | None:
    """Return the platform that wheels for a machine must fit; None if its C library is not glibc, as the engines need.

    Args:
        python: Full version of Python on the machine.
        arch: Name of the machine's architecture.
        libc: Name and version of the C library, e.g. ``glibc 2.36``.
    """
    name, _, version = libc.partition(" ")
    major, _, minor = version.partition(".")
    if name != "glibc" or major != "2" or not minor.isdecimal():
        return None
    return Platform(".".join(python.split(".")[:2]), arch, int(minor))


def download_wheels(requirements: Sequence[str], platform: Platform, destination: Path) -> str:
    """Download wheels for another platform with pip, without their dependencies.

    Args:
        requirements: Names with or without a version, e.g. ``numpy==2.4.6``.
        platform: The Python version and machine that the wheels must fit.
        destination: An existing folder.

    Returns:
        An empty text if all wheels were downloaded, else pip's reason.
    """
    if importlib.util.find_spec("pip") is None:
        return f"this Python has no pip; add it: {sys.executable} -m ensurepip"
    # platform tags that run there, newest first (PEP 600)
    newer = [f"manylinux_2_{minor}_{platform.arch}" for minor in range(platform.glibc, _OLDEST_GLIBC - 1, -1)]
    tags = [*newer, f"manylinux2014_{platform.arch}"]
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    command += ["--disable-pip-version-check", "--no-input", "--retries", "1", "--implementation", "cp"]
    command += ["--python-version", platform.python, "--dest", str(destination)]
    command += [part for tag in tags for part in ("--platform", tag)]
    try:
        done = subprocess.run(
            [*command, "--", *requirements], capture_output=True, text=True, timeout=_PIP_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"pip took more than {_PIP_S:.0f} s"
    if done.returncode == 0:
        return ""
    messages = [line.removeprefix("ERROR: ") for line in done.stderr.splitlines() if line.strip()]
    return messages[-1] if messages else f"pip ended with exit status {done.returncode}"
