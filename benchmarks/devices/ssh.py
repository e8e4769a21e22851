"""The device ``ssh:[USER@]HOST[:PORT]``: a Linux machine with python3, reached by the OpenSSH client.

`DEVICE` is its row of the table of devices; its connection starts the agent there. `command` builds the client's
command line and `unreachable` explains its failures, also for the probe.
"""

from __future__ import annotations

import re
import shutil

from pocketbert.benchmarks.devices.protocol import Device
from pocketbert.benchmarks.devices.remote import RemoteConnection, remote_refusal
from pocketbert.benchmarks.devices.remote_agent import BOOTSTRAP, AgentChannel
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


def _ssh_missing() -> str:
    """Return what this machine lacks to use SSH; empty if nothing."""
    return "" if shutil.which("ssh") else "ssh is not installed (sudo apt-get install openssh-client)"


def _connect_ssh(argument: str) -> RemoteConnection:
    """Start an agent on a machine over SSH and return the connection.

    Args:
        argument: ``[USER@]HOST[:PORT]``, an IPv6 address in brackets, or a name of ``~/.ssh/config``.

    Raises:
        InputError: If the machine cannot be reached or refuses the login.
        MissingBackendError: If there is no OpenSSH client on this machine, or no python3 on the other one.
        MachineError: If python3 does not start there or does not answer, or there is no disk space for temporary files
            there.
    """
    where = f"ssh:{argument}"

    def start_error(status: int, messages: str) -> PocketBertError:
        """Build the error for an ssh client that ended before the agent started."""
        if status == _NOT_FOUND:
            return MissingBackendError(f"{where}: python3", f"ssh {_login(argument)} sudo apt-get install python3")
        if status == CLIENT_FAILED:
            return unreachable(argument, messages)
        lines = messages.splitlines()
        last = lines[-1].rstrip(".") if lines else f"exit status {status}"
        return MachineError(f"{where}: python3 did not start there: {last}")

    channel = AgentChannel(command(client_program(), argument), where, start_error)
    try:
        return RemoteConnection(channel)
    except BaseException:
        channel.close()
        raise


def client_program() -> str:
    """Return the path of the OpenSSH client.

    Raises:
        MissingBackendError: If there is no OpenSSH client.
    """
    client = shutil.which("ssh")
    if client is None:
        raise MissingBackendError("the OpenSSH client", "sudo apt-get install openssh-client")
    return client


def command(client: str, argument: str, remote: str = f'exec python3 -c "{BOOTSTRAP}"') -> list[str]:
    """Return the ssh command line as a list of arguments, so that no local shell interprets the user's text.

    Args:
        client: The OpenSSH client.
        argument: ``[USER@]HOST[:PORT]``.
        remote: Command that the login shell of the other machine runs.

    Raises:
        InputError: If the argument has another form.
    """
    parts = re.fullmatch(DEVICES[SSH].pattern, argument, re.ASCII)
    if parts is None:
        what = f"is no {DEVICES[SSH].argument}."
        raise InputError(Problem(f"ssh:{argument}", what, "For example ssh:pi@raspberrypi.local"))
    options = [word for option in _OPTIONS for word in ("-o", option)]
    options += ["-l", parts["user"]] if parts["user"] else []
    options += ["-p", parts["port"]] if parts["port"] else []
    return [client, "-T", *options, "--", parts["host"].strip("[]"), remote]


def unreachable(argument: str, messages: str) -> InputError:
    """Return the error for a machine that ssh cannot reach, with the fix that fits ssh's messages."""
    where, host = f"ssh:{argument}", _login(argument)
    last = (messages.splitlines() or [f"exit status {CLIENT_FAILED}"])[-1].rstrip(".")
    for sign, what, fix in _FIXES:
        if sign in messages:
            return InputError(Problem(where, f"{what}: {last}.", fix.format(host=host)))
    return InputError(Problem(where, f"cannot be reached: {last}.", f"Check that this works: ssh {host} true"))


def _login(argument: str) -> str:
    """Return the arguments of ``ssh`` that name the host: a port as ``-p``, IPv6 addresses without brackets."""
    login, colon, port = argument.rpartition(":")
    host = f"-p {port} {login}" if colon and port.isdecimal() else argument
    return host.replace("[", "").replace("]", "")


DEVICE = Device(DEVICES[SSH], _connect_ssh, remote_refusal, missing=_ssh_missing)
"""The row of the table of devices; the probe is added there."""
