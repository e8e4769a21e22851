"""The device `ssh:[USER@]HOST[:PORT]`: a Linux machine with python3, reached by the OpenSSH client."""

from __future__ import annotations

import re
import shutil

from pocketbert.benchmarks.devices.remote import RemoteConnection
from pocketbert.benchmarks.devices.remote_agent import BOOTSTRAP, Channel
from pocketbert.core.devices import DEVICES, SSH
from pocketbert.core.errors import InputError, MachineError, MissingBackendError, PocketBertError, Problem

_CONNECT_S, _ALIVE_S = 10, 10
_OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={_CONNECT_S}",
    f"ServerAliveInterval={_ALIVE_S}",
    "ServerAliveCountMax=3",
    "ClearAllForwardings=yes",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "ControlMaster=no",
    "ControlPath=none",
    "LogLevel=ERROR",
)
"""No question is asked, nothing is forwarded, and a connection that is silent for half a minute is lost."""
CLIENT_FAILED, _NOT_FOUND = 255, 127
_FIXES = (
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its host key is not the one in known_hosts",
        "If the machine was installed anew, remove the old key with 'ssh-keygen -R' and compare the new one.",
    ),
    (
        "Host key verification failed",
        "its host key is not in known_hosts",
        "Connect once with 'ssh {host}' and compare the key that it shows.",
    ),
    (
        "Permission denied",
        "it does not accept the key or the user",
        "Let 'ssh {host} true' work without a password first: ssh-copy-id, or an IdentityFile in ~/.ssh/config.",
    ),
    ("Connection refused", "nothing accepts connections at that port", "Start sshd there, or write another port."),
    ("Could not resolve hostname", "the name is not known", "Check the name: ssh {host}"),
    ("timed out", "it does not answer", "Check the address and the network: ssh {host}"),
    ("No route to host", "it cannot be reached", "Check the address and the network: ssh {host}"),
)


def connect_ssh(argument: str) -> RemoteConnection:
    """Reach a machine; see `pocketbert.benchmarks.devices.protocol.Connection`.

    Args:
        argument: ``[USER@]HOST[:PORT]``, an IPv6 address in brackets. A name of ``~/.ssh/config`` will do.

    Raises:
        InputError: If the machine cannot be reached or refuses the login.
        MissingBackendError: If there is no OpenSSH client here or no python3 there.
        MachineError: If there is no space there.
    """
    where = f"ssh:{argument}"
    started = command(client_program(), argument)
    return _opened(Channel(started, where, lambda code, said: _failure(where, argument, code, said)))


def ssh_missing() -> str:
    """What keeps this machine from reaching others; empty where nothing is known to."""
    return "" if shutil.which("ssh") else "ssh is not installed (sudo apt-get install openssh-client)"


def client_program() -> str:
    """The OpenSSH client of this machine.

    Raises:
        MissingBackendError: If there is none.
    """
    client = shutil.which("ssh")
    if client is None:
        raise MissingBackendError("the OpenSSH client", "sudo apt-get install openssh-client")
    return client


def _opened(channel: Channel) -> RemoteConnection:
    try:
        return RemoteConnection(channel)
    except BaseException:
        channel.close()
        raise


def command(client: str, argument: str, remote: str = f'exec python3 -c "{BOOTSTRAP}"') -> list[str]:
    """The client's command line. What the user wrote is passed as an argument of a process, never to a shell.

    Args:
        client: The OpenSSH client.
        argument: ``[USER@]HOST[:PORT]``.
        remote: What the login shell of the machine runs.

    Raises:
        InputError: If the argument is no machine.
    """
    parts = re.fullmatch(DEVICES[SSH].pattern, argument, re.ASCII)
    if parts is None:
        raise InputError(
            Problem(f"ssh:{argument}", f"is no {DEVICES[SSH].argument}.", "For example ssh:pi@raspberrypi.local")
        )
    out = [client, "-T"]
    for option in _OPTIONS:
        out += ["-o", option]
    out += ["-l", parts["user"]] if parts["user"] else []
    out += ["-p", parts["port"]] if parts["port"] else []
    return [*out, "--", parts["host"].strip("[]"), remote]


def _failure(where: str, argument: str, code: int, said: str) -> PocketBertError:
    lines = said.splitlines()
    last = lines[-1].rstrip(".") if lines else f"exit status {code}"
    if code == _NOT_FOUND:
        return MissingBackendError(f"{where}: python3", f"ssh {_host_words(argument)} sudo apt-get install python3")
    if code == CLIENT_FAILED:
        return unreachable(argument, said)
    return MachineError(f"{where}: python3 did not start there: {last}")


def unreachable(argument: str, said: str) -> InputError:
    """The error for a machine that the client does not reach, given its messages."""
    where, host = f"ssh:{argument}", _host_words(argument)
    last = (said.splitlines() or [f"exit status {CLIENT_FAILED}"])[-1].rstrip(".")
    for sign, what, fix in _FIXES:
        if sign in said:
            return InputError(Problem(where, f"{what}: {last}.", fix.format(host=host)))
    return InputError(Problem(where, f"cannot be reached: {last}.", f"Check that this works: ssh {host} true"))


def _host_words(argument: str) -> str:
    """The machine as the client takes it on a command line."""
    login, colon, port = argument.rpartition(":")
    host = f"-p {port} {login}" if colon and port.isdecimal() else argument
    return host.replace("[", "").replace("]", "")  # brackets are for addresses with a port, as in a URL
