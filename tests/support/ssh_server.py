"""A real OpenSSH server on this machine's loopback, with its own keys: what `make tools` has unpacked.

Nothing outside of a temporary folder is changed. A server that runs as root wants a user `sshd` and a folder below
`/run`: as root it gets them in a mount namespace. Its client is the system's, called with an own configuration.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.ports import free_port, listens

TOOLS = Path(__file__).resolve().parents[2] / ".cache" / "tools" / "ssh"
CLIENT = shutil.which("ssh")
"""The system's client, before a test puts another one in front of it."""
SPACE = "256k"
"""Size of the folder for temporary files of a server without space."""


def missing() -> str:
    """Why there is no server here; empty where there is one."""
    if not (TOOLS / "usr/sbin/sshd").is_file():
        return "no sshd: run 'make tools' on Debian"
    lacking = [tool for tool in ("ssh", "ssh-keygen") if shutil.which(tool) is None]
    if lacking:
        return f"no {', '.join(lacking)}"
    return "" if os.getuid() or namespaces() else "root without mount namespaces cannot run an unpacked sshd"


def namespaces() -> bool:
    """Whether this process may make a mount namespace, and mount in it."""
    script = "mount -t tmpfs none /run"
    return subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, check=False).returncode == 0


@dataclass
class Server:
    """A running server.

    Attributes:
        folder: Its files.
        port: Where it listens.
        process: The server.
        temporary: Where its sessions put temporary files.
    """

    folder: Path
    port: int
    process: subprocess.Popen[bytes]
    temporary: Path

    @property
    def device(self) -> str:
        """How `--device` names it."""
        return f"ssh:127.0.0.1:{self.port}"

    def left(self) -> list[str]:
        """What is in the folder for temporary files, after what runs in the background has had time to end."""
        end = time.monotonic() + 20
        seen = Path(f"/proc/{self.process.pid}/root{self.temporary}")  # it may be mounted for the server only
        while (names := sorted(p.name for p in seen.iterdir())) and time.monotonic() < end:
            time.sleep(0.05)
        return names

    def sessions(self) -> list[int]:
        """Processes of the server that each hold a connection."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return [int(child) for child in children]

    def cut(self) -> None:
        """End all connections as a lost network does: neither side says anything more."""
        for child in self.sessions():
            inner = Path(f"/proc/{child}/task/{child}/children").read_text().split()
            for process in (child, *map(int, inner)):
                if "sshd" in Path(f"/proc/{process}/comm").read_text():
                    os.kill(process, signal.SIGKILL)

    def stop(self) -> None:
        """End the server."""
        self.process.terminate()
        self.process.wait(20)


def make_keys(folder: Path, *names: str) -> None:
    """Write key pairs without a password."""
    for name in names:
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)


def as_nobody() -> list[str]:
    """Lines of the configuration with which sessions run as somebody who may write into no folder of root; none are needed else."""
    if os.getuid():
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv to become another user")
    return ['ForceCommand exec setpriv --reuid=65534 --regid=65534 --clear-groups sh -c "$SSH_ORIGINAL_COMMAND"']


def start(folder: Path, *lines: str, full: bool = False) -> Server:
    """Start a server for the key `user` in a folder.

    Args:
        folder: Holds the pairs `user` and `host`.
        lines: Further lines of its configuration.
        full: Whether its folder for temporary files is nearly full.
    """
    port, temporary = free_port(), folder / f"temporary-{len(list(folder.iterdir()))}"
    temporary.mkdir()
    settings = [
        "ListenAddress 127.0.0.1",
        f"Port {port}",
        f"HostKey {folder / 'host'}",
        f"AuthorizedKeysFile {folder / 'user.pub'}",
        "StrictModes no",
        "PidFile none",
        "UsePAM no",
        "PasswordAuthentication no",
        "KbdInteractiveAuthentication no",
        "PermitRootLogin yes",
        f"SetEnv TMPDIR={temporary}",
        *lines,
    ]
    config = folder / f"sshd_{port}"
    config.write_text("\n".join(settings) + "\n")
    libraries = ":".join(str(p) for part in ("lib", "usr/lib") for p in (TOOLS / part).glob("*-linux-gnu*"))
    command = [str(TOOLS / "usr/sbin/sshd"), "-D", "-e", "-f", str(config)]
    if os.getuid() == 0:
        (folder / "home").mkdir(exist_ok=True)
        users = f"root:x:0:0:root:{folder / 'home'}:/bin/sh\nsshd:x:105:65534::/run/sshd:/usr/sbin/nologin\n"
        (folder / "passwd").write_text(users)
        mounts = f"mount -t tmpfs none /run && mkdir /run/sshd && mount --bind '{folder / 'passwd'}' /etc/passwd"
        if full:
            mounts += f" && mount -t tmpfs -o size={SPACE} none '{temporary}'"
        command = ["unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh", *command]
    with (folder / f"log_{port}").open("wb") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "LD_LIBRARY_PATH": libraries})
    server = Server(folder, port, process, temporary)
    end = time.monotonic() + 20
    while not listens(port):
        if process.poll() is not None or time.monotonic() > end:
            server.stop()
            pytest.skip(f"sshd does not start here: {(folder / f'log_{port}').read_text()[-300:]}")
        time.sleep(0.02)
    return server


def client(folder: Path, *servers: Server, key: str = "user", host_key: str = "host") -> Path:
    """A folder for PATH in which `ssh` is the system's client with an own configuration: keys and known hosts.

    Args:
        folder: Where to write.
        servers: Servers that it knows.
        key: Name of the pair that it logs in with, in the folder of the servers.
        host_key: Name of the pair that it knows the servers by; empty for none.
    """
    tools = folder / "bin"
    tools.mkdir()
    known = "".join(f"[127.0.0.1]:{s.port} {(s.folder / f'{host_key}.pub').read_text()}" for s in servers if host_key)
    (folder / "known_hosts").write_text(known)
    identity = servers[0].folder / key
    settings = f"IdentityFile {identity}\nIdentitiesOnly yes\nUserKnownHostsFile {folder / 'known_hosts'}\nGlobalKnownHostsFile none\n"
    (folder / "ssh_config").write_text(settings)
    script = tools / "ssh"
    script.write_text(f"#!/bin/sh\nexec {shutil.which('ssh')} -F '{folder / 'ssh_config'}' \"$@\"\n")
    script.chmod(0o755)
    return tools
