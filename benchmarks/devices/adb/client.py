"""Calls of the `adb` client, and its errors."""

from __future__ import annotations

import secrets
import shlex
import shutil
import subprocess
from pathlib import Path

from pocketbert.core.errors import InputError, MachineError, MissingBackendError, PocketBertError, Problem

TEMPORARY = "/data/local/tmp"
"""The only place where the shell of a phone may write and start programs."""
RUNNING = "running.pid"
"""File in the folder with the number of the process that runs there, which ends with the connection."""
CALL_S, PUSH_S, RUN_S = 30.0, 600.0, 600.0
MOST_PULLED = 128 << 20
"""Most bytes of a file that is copied from the device."""
_STATES = {
    "unauthorized": "has not allowed this computer. Unlock it and accept the question about USB debugging",
    "offline": "does not answer. Plug it in again, or: adb reconnect",
    "no permissions": "may not be opened by this user. Add a udev rule, or become a member of the group plugdev",
}
_SILENT = 255
"""Exit status of the client, without a word, where the connection ends while a program runs."""
_LOST = ("not found", "offline", "closed", "no devices", "disconnected", "protocol fault", "cannot connect to daemon")


def state_problem(state: str) -> str:
    """Why a device in a state that ``adb devices`` tells cannot be used, as a sentence without its subject."""
    return next((words for sign, words in _STATES.items() if state.startswith(sign)), f"is in the state '{state}'")


class Adb:
    """One device, and a folder on it that is removed at the end.

    A shell on the device holds the folder and waits for the end of its input, which also comes when the connection is
    lost; then it ends what runs there and removes the folder.

    Args:
        serial: Serial number, or address and port; empty for the only device.
        afterwards: What the shell does in addition at the end; words of the program, never of a user.

    Raises:
        MissingBackendError: If there is no client.
        InputError: If the device cannot be used, or none is named and there are several.
    """

    def __init__(self, serial: str, afterwards: str = "") -> None:
        client = shutil.which("adb")
        if client is None:
            raise MissingBackendError("adb", "sudo apt-get install adb")
        self._client = client
        self.serial = serial or self._only()
        self.where = f"adb:{self.serial}"
        self._check_state()
        self.folder = f"{TEMPORARY}/pocketbert-{secrets.token_hex(6)}"
        script = (
            f'trap "" HUP INT TERM PIPE; mkdir {self.folder} || exit 1; echo ready; cat > /dev/null; '
            f"{{ kill $(cat {self.folder}/{RUNNING}); {afterwards or 'true'}; }} > /dev/null 2>&1; "
            f"rm -rf {self.folder} || {{ sleep 1; rm -rf {self.folder}; }}"  # what was ended may still have written
        )
        self._guard = subprocess.Popen(
            [client, "-s", self.serial, "shell", "-T", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._guard.stdout is not None
        if self._guard.stdout.readline().strip() != b"ready":
            _, said = self._guard.communicate(timeout=CALL_S)
            raise self._error("", said.decode(errors="replace"), self._guard.returncode)

    def shell(self, *arguments: str, timeout_s: float = CALL_S) -> str:
        """Run a program on the device, in the folder; its output, messages included.

        Raises:
            MachineError: If it fails or the device is lost.
        """
        return self.script(shlex.join(arguments), timeout_s)

    def script(self, text: str, timeout_s: float = CALL_S) -> str:
        """Run commands of a shell on the device, in the folder; see `shell`."""
        return self._call(
            "-s", self.serial, "shell", "-T", f"cd {self.folder} && {{ {text}; }} 2>&1", timeout_s=timeout_s
        )

    def told(self, *arguments: str) -> str:
        """What a program of the device prints; empty where it fails or is not there, as on other systems than Android."""
        return self.script(f"{shlex.join(arguments)} 2>/dev/null || true")

    def push(self, source: Path, name: str) -> None:
        """Copy a file or folder into the folder on the device.

        Raises:
            MachineError: If there is no space, or the device is lost.
        """
        self._call("-s", self.serial, "push", str(source), f"{self.folder}/{name}", timeout_s=PUSH_S)

    def pull(self, name: str, destination: Path) -> None:
        """Copy a file out of the folder on the device.

        Raises:
            MachineError: If it is not there, is larger than `MOST_PULLED`, or the device is lost.
        """
        told = self.shell("wc", "-c", name).split()
        if not told or not told[0].isdecimal() or int(told[0]) > MOST_PULLED:
            size = told[0] if told else "unknown"
            raise MachineError(f"{self.where}: {name} has {size[:20]} bytes; at most {MOST_PULLED} are copied.")
        self._call("-s", self.serial, "pull", f"{self.folder}/{name}", str(destination), timeout_s=PUSH_S)

    def close(self) -> None:
        """Have the folder removed, and wait until it is."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        assert self._guard.stderr is not None
        try:
            self._guard.stdin.close()
            self._guard.wait(CALL_S)
        except (OSError, subprocess.TimeoutExpired):
            self._guard.kill()
            self._guard.wait()
        self._guard.stdout.close()
        self._guard.stderr.close()

    def _only(self) -> str:
        found = [serial for serial, _ in self._devices()]
        if not found:
            raise InputError(
                Problem(
                    "adb", "no device is connected.", "Plug in a phone with USB debugging, or: adb connect HOST:PORT"
                )
            )
        if len(found) > 1:
            raise InputError(
                Problem("adb", f"{len(found)} devices are connected: {', '.join(found)}.", f"Name one: adb:{found[0]}")
            )
        return found[0]

    def _check_state(self) -> None:
        states = dict(self._devices())
        state = states.get(self.serial)
        if state is None:
            known = ", ".join(states) or "none"
            raise InputError(
                Problem(self.where, f"is not connected; connected: {known}.", "Plug it in, or: adb connect HOST:PORT")
            )
        if state != "device":
            raise InputError(Problem(self.where, f"{state_problem(state)}."))

    def _devices(self) -> list[tuple[str, str]]:
        """Serial and state of every device."""
        lines = self._call("devices").splitlines()
        rows = [line.partition("\t") for line in lines if "\t" in line]
        return [(serial, state.strip()) for serial, _, state in rows]

    def _call(self, *arguments: str, timeout_s: float = CALL_S) -> str:
        try:
            done = subprocess.run(
                [self._client, *arguments],
                capture_output=True,
                timeout=timeout_s,
                check=False,
                stdin=subprocess.DEVNULL,
            )
        except subprocess.TimeoutExpired as error:
            raise MachineError(f"{getattr(self, 'where', 'adb')}: no answer within {timeout_s:.0f} s.") from error
        out = done.stdout.decode(errors="replace")
        if done.returncode:
            raise self._error(out, done.stderr.decode(errors="replace"), done.returncode)
        return out

    def _error(self, out: str, client: str, code: int) -> PocketBertError:
        """The error for what a program on the device has printed, and what the client has."""
        where, said = getattr(self, "where", "adb"), f"{out}\n{client}"
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = lines[-1][:300] if lines else f"exit status {code}"
        if "No space left on device" in said:
            return MachineError(f"{where}: no space is left in {TEMPORARY} ({last}). Remove files from the device.")
        if "Permission denied" in said:
            check = f"adb -s {self.serial} shell touch {TEMPORARY}/x"
            return InputError(Problem(where, f"permission refused: {last}.", f"Check that this works: {check}"))
        if any(sign in client for sign in _LOST) or (not lines and code == _SILENT):
            return MachineError(f"{where}: the device was lost: {last}. Plug it in and measure again.")
        return MachineError(f"{where}: {last}")
