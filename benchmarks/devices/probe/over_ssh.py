"""Run the probe on a machine that is reached by the OpenSSH client; nothing but a shell is needed there."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path

from pocketbert.benchmarks.devices.probe.build import architecture, build_probe
from pocketbert.benchmarks.devices.probe.places import RUN_S, ended, everything, measured
from pocketbert.benchmarks.devices.probed import Probe
from pocketbert.benchmarks.devices.ssh import CLIENT_FAILED, client_program, command, unreachable
from pocketbert.core.errors import MachineError

_RUN = (
    'umask 077; d=$(mktemp -d) || exit 1; trap "rm -rf $d" EXIT; trap "exit 1" HUP INT TERM PIPE; '
    'cat > "$d/probe" && chmod 700 "$d/probe" && "$d/probe" '
)
"""Takes the program from standard input into a folder that is removed when it ends, also when the connection is lost."""


def probe_ssh(argument: str) -> Probe:
    """Probe a Linux machine.

    Args:
        argument: ``[USER@]HOST[:PORT]``; see `pocketbert.benchmarks.devices.ssh.connect_ssh`.

    Raises:
        InputError: If the machine cannot be reached, or the program is not written for its processor.
        MissingBackendError: If there is no OpenSSH client or no compiler here.
        MachineError: If the program fails there.
    """
    where, client = f"ssh:{argument}", client_program()
    arch = architecture(_run(client, argument, "uname -m"), where)
    with tempfile.TemporaryDirectory(prefix="pocketbert-probe-") as name:
        built = build_probe(arch, Path(name), where)
        script = _RUN + shlex.join(everything())
        said = _run(client, argument, f"exec sh -c {shlex.quote(script)}", built.path.read_bytes())
    return measured(where, said, built.program)


def _run(client: str, argument: str, remote: str, given: bytes = b"") -> str:
    """Run commands of a shell there; what they print."""
    where = f"ssh:{argument}"
    try:
        done = subprocess.run(
            command(client, argument, remote), input=given, capture_output=True, timeout=RUN_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MachineError(f"{where}: no answer within {RUN_S:.0f} s.") from error
    if done.returncode == CLIENT_FAILED:
        raise unreachable(argument, done.stderr.decode(errors="replace").strip())
    if done.returncode:
        raise MachineError(f"{where}: {ended(done.returncode, done.stderr)}")
    return done.stdout.decode(errors="replace")
