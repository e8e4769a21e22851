"""Run a command without network, and tell whom it tried to contact and which files it left in its home folder.

    python scripts/contacts.py -- python -c "import pocketbert, time; pocketbert.load('phone').predict(['x']); time.sleep(45)"

The command gets an empty folder as HOME, and none of the variables by which libraries notice that they run in continuous
integration, where some of them are silent. Its system calls that connect or send, and those of its child processes, are
refused, and what they were for is noted: addresses, and the names that it wanted to look up. The computer itself
(127.0.0.1, ::1 and local sockets) may be contacted. Needs Linux 5.5 or newer on x86-64 or arm64, and no special rights.

Exit codes: 0 nothing to tell, 1 contacts, files or a command that failed, 2 wrong arguments, 4 it is not possible here.
"""

from __future__ import annotations

import argparse
import array
import ctypes
import errno
import fcntl
import ipaddress
import json
import os
import platform
import select
import signal
import socket
import struct
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

CI_VARIABLES = (
    "CI",
    "TF_BUILD",
    "GITHUB_ACTIONS",
    "GITLAB_CI",
    "CIRCLECI",
    "TRAVIS",
    "JENKINS_URL",
    "CODEBUILD_BUILD_ID",
    "BUILDKITE",
    "TEAMCITY_VERSION",
    "APPVEYOR",
    "BITBUCKET_BUILD_NUMBER",
    "ORT_RUNNING_UNIT_TESTS",
    "PYTEST_CURRENT_TEST",
)
"""What silences ONNX Runtime 1.31 or openvino-telemetry 2025.2 in continuous integration."""
PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
"""A proxy on this computer would hide who is contacted through it."""
FOLDERS = (
    "XDG_CACHE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_STATE_HOME",
    "POCKETBERT_CACHE",
    "HF_HOME",
)
"""Variables that lead out of the home folder."""
LOOKUP_SOCKETS = ("nscd", "io.systemd.Resolve", "avahi-daemon", "system_bus_socket")
"""Parts of the names of local sockets whose servers look names up for others; refused, so that the command does it itself."""
DNS_PORT = 53

# the numbers of the kernel's interface: linux/seccomp.h, linux/filter.h, linux/audit.h and the tables of system calls
CALLS = {
    "x86_64": {
        "arch": 0xC000003E,
        "connect": 42,
        "sendto": 44,
        "sendmsg": 46,
        "sendmmsg": 307,
        "seccomp": 317,
    },
    "aarch64": {
        "arch": 0xC00000B7,
        "connect": 203,
        "sendto": 206,
        "sendmsg": 211,
        "sendmmsg": 269,
        "seccomp": 277,
    },
}
IO_URING_SETUP = 425
NEW_LISTENER, NO_NEW_PRIVILEGES, CONTINUE = 1 << 3, 38, 1
RECEIVE, SEND = 0xC0502100, 0xC0182101
ALLOW, REFUSE, NOTIFY = 0x7FFF0000, 0x00050000 | errno.ENOSYS, 0x7FC00000
LOAD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NOTICE, ANSWER = struct.Struct("=QIIiIQ6Q"), struct.Struct("=QqiI")
CONTROL = 200
"""Number of the descriptor over which the child hands over the listener; messages on it are not watched."""


class NotPossibleError(Exception):
    """The kernel or its owner does not allow system calls to be watched."""


class Watcher:
    """Answers the system calls of a process and its children that connect or send.

    Attributes:
        contacts: Descriptions of what the process tried to contact, in order, each once.
    """

    def __init__(self, listener: int, calls: dict[str, int]) -> None:
        self.contacts: dict[str, None] = {}
        self._listener = listener
        self._names = {number: name for name, number in calls.items()}
        self._lookups: set[tuple[int, int]] = set()

    def handle(self) -> None:
        """Receive one system call that waits for an answer, decide about it, and answer it."""
        notice = bytearray(NOTICE.size)
        try:
            fcntl.ioctl(self._listener, RECEIVE, notice)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):  # the thread was killed meanwhile
                return
            raise
        number, thread, _, call, _, _, *arguments = NOTICE.unpack(notice)
        try:
            answer = self._decide(self._names[call], thread, arguments)
        except OSError as error:  # its memory cannot be read: it is no longer there, or nobody may look
            self.contacts[f"unknown address ({error.strerror})"] = None
            answer = -errno.ENETUNREACH
        value, refusal, flags = (0, answer or 0, CONTINUE if answer is None else 0)
        try:
            fcntl.ioctl(self._listener, SEND, ANSWER.pack(number, value, refusal, flags))
        except OSError as error:
            if error.errno != errno.ENOENT:
                raise

    def _decide(self, name: str, thread: int, arguments: list[int]) -> int | None:
        """Decide about one system call, and record what it tried to contact.

        Args:
            name: Name of the system call.
            thread: Id of the calling thread.
            arguments: Arguments of the call, as numbers.

        Returns:
            None to let the kernel do the call, 0 to pretend that it was done, a negative error number to refuse it.
        """
        handle = arguments[0]
        if name == "connect":
            return self._connected(thread, handle, read(thread, arguments[1], arguments[2]))
        if name == "sendto":
            address = read(thread, arguments[4], arguments[5]) if arguments[4] else b""
            data = read(thread, arguments[1], min(arguments[2], 512))
        else:  # the first message; struct msghdr begins with name, its length, iovec and their number
            where, size, pieces, count = struct.unpack("=QI4xQQ", read(thread, arguments[1], 32))
            address = read(thread, where, size) if where else b""
            data = b""
            if count:
                start, length = struct.unpack("=QQ", read(thread, pieces, 16))
                data = read(thread, start, min(length, 512))
        if address:
            answer = self._connected(thread, handle, address)
            if answer != 0:
                return answer
        if (process_of(thread), handle) in self._lookups:
            self.contacts[f"name lookup of {question(data)}"] = None
            return -errno.ENETUNREACH
        return None

    def _connected(self, thread: int, handle: int, address: bytes) -> int | None:
        """Decide about a connection, and record its address; see `_decide` for the result.

        A connection to a name server seems to succeed, so that the name can be read from the question that follows.
        """
        family = int.from_bytes(address[:2], sys.byteorder) if len(address) >= 2 else socket.AF_UNSPEC
        self._lookups.discard((process_of(thread), handle))
        if family == socket.AF_UNIX:
            path = address[2:].split(b"\0")[0].decode(errors="replace")
            return -errno.ENOENT if any(s in path for s in LOOKUP_SOCKETS) else None
        if family not in (socket.AF_INET, socket.AF_INET6):
            return None
        port = int.from_bytes(address[2:4], "big")
        raw = address[4:8] if family == socket.AF_INET else address[8:24]
        if port == DNS_PORT:
            self._lookups.add((process_of(thread), handle))
            self.contacts["a name server"] = None
            return 0
        to = ipaddress.ip_address(raw)
        if to.is_loopback or (isinstance(to, ipaddress.IPv6Address) and to.ipv4_mapped and to.ipv4_mapped.is_loopback):
            return None
        self.contacts[f"{to} port {port}"] = None
        return -errno.ENETUNREACH


def read(thread: int, start: int, size: int) -> bytes:
    """Read memory of a thread that waits for the answer to its system call."""
    with Path(f"/proc/{thread}/mem").open("rb", buffering=0) as memory:
        memory.seek(start)
        return memory.read(size)


def process_of(thread: int) -> int:
    """Return the id of the process that a thread belongs to."""
    lines = Path(f"/proc/{thread}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Tgid:"))


def question(data: bytes) -> str:
    """Return the name in a question to a name server."""
    labels, at = [], 12
    while at < len(data) and 0 < data[at] < 64:
        labels.append(data[at + 1 : at + 1 + data[at]].decode("ascii", errors="replace"))
        at += 1 + data[at]
    return ".".join(labels) or "something unknown"


def program(calls: dict[str, int]) -> bytes:
    """Return the seccomp filter, as the kernel reads it, that makes the watched system calls wait for an answer."""
    watched = [n for name, n in calls.items() if name not in ("arch", "seccomp")]
    steps = [(LOAD, 0, 0, 4), (JUMP_IF_EQUAL, 1, 0, calls["arch"]), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, 0)]
    steps += [
        (JUMP_IF_EQUAL, 0, 1, IO_URING_SETUP),
        (RETURN, 0, 0, REFUSE),
    ]  # it would send without system calls
    # messages on the control descriptor hand over the listener itself, when nobody can answer yet
    steps += [(JUMP_IF_EQUAL, 0, 4, calls["sendmsg"]), (LOAD, 0, 0, 16), (JUMP_IF_EQUAL, 0, 1, CONTROL)]
    steps += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, NOTIFY)]
    for number in watched:
        steps += [(JUMP_IF_EQUAL, 0, 1, number), (RETURN, 0, 0, NOTIFY)]
    steps.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


def begin(command: list[str], environment: dict[str, str], control: socket.socket, calls: dict[str, int]) -> NoReturn:
    """Turn the child process into the command: install the filter, pass its listener to the parent, execute it."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.dup2(control.fileno(), CONTROL)
        library = ctypes.CDLL(None, use_errno=True)
        code = program(calls)
        steps = ctypes.create_string_buffer(code, len(code))
        given = struct.pack("=H6xQ", len(code) // 8, ctypes.addressof(steps))
        if library.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0):
            raise OSError(ctypes.get_errno(), "prctl")
        listener = library.syscall(calls["seccomp"], 1, NEW_LISTENER, ctypes.create_string_buffer(given, len(given)))
        if listener < 0:
            raise OSError(ctypes.get_errno(), "seccomp")
        with socket.socket(fileno=CONTROL) as channel:
            channel.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))])
        os.close(listener)
        os.execvpe(command[0], command, environment)  # noqa: S606  # the command is the user's own
    except OSError as error:
        print(f"{command[0]}: {error}", file=sys.stderr)
    finally:
        os._exit(127)


def watch(command: list[str], environment: dict[str, str]) -> tuple[int, list[str]]:
    """Run a command to its end, and watch the system calls of it and its children.

    Returns:
        The exit code of the command, and what it tried to contact.

    Raises:
        NotPossibleError: If system calls cannot be watched here.
    """
    calls = CALLS.get(platform.machine())
    if sys.platform != "linux" or calls is None:
        raise NotPossibleError(f"not written for {sys.platform} on {platform.machine()}")
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        here.close()
        begin(command, environment, there, calls)
    there.close()
    _, handles, _, _ = socket.recv_fds(here, 1, 1)
    if not handles:
        os.waitpid(child, 0)
        raise NotPossibleError("the kernel refuses to let system calls be watched")
    watched = {n: v for n, v in calls.items() if n not in ("arch", "seccomp")}
    watcher, waiting = Watcher(handles[0], watched), select.poll()
    waiting.register(handles[0], select.POLLIN)
    while True:
        for _, event in waiting.poll(100):
            if event & select.POLLIN:
                watcher.handle()
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), list(watcher.contacts)


def surroundings(home: Path) -> dict[str, str]:
    """Return the environment of the command: this one, with an empty home folder.

    Variables that change what libraries send are left out.
    """
    hidden = {*CI_VARIABLES, *PROXIES, *(p.upper() for p in PROXIES), *FOLDERS}
    kept = {n: v for n, v in os.environ.items() if n not in hidden}
    (home / "tmp").mkdir()
    return {**kept, "HOME": str(home), "TMPDIR": str(home / "tmp")}


def main() -> int:
    """Run the command that the arguments name, print what it tried to contact and wrote, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write exit_code, contacts and files here too")
    parser.add_argument("--only-refuse", action="store_true", help="keep the home folder, end as the command does")
    parser.add_argument("command", nargs="+", help="behind --")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is for the command
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        home = Path(folder)
        environment = dict(os.environ) if options.only_refuse else surroundings(home)
        try:
            code, contacts = watch(options.command, environment)
        except NotPossibleError as error:
            print(f"not possible here: {error}", file=sys.stderr)
            return 4
        files = sorted(p.relative_to(home).as_posix() for p in home.rglob("*") if not p.is_dir())
    if options.only_refuse:
        return code if code >= 0 else 128 - code
    for title, found in (("contacts", contacts), ("files in the home folder", files)):
        print(f"{title}: {', '.join(found) or 'none'}", file=sys.stderr)
    if code:
        print(f"the command ended with {code}", file=sys.stderr)
    if options.json is not None:
        options.json.write_text(json.dumps({"exit_code": code, "contacts": contacts, "files": files}))
    return 1 if contacts or files or code else 0


if __name__ == "__main__":
    sys.exit(main())
