"""Which phones are connected at this moment, and what is missing to measure on one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from pocketbert.benchmarks.devices.adb.client import state_problem
from pocketbert.benchmarks.devices.adb.place import FOLDER, RUNNERS
from pocketbert.benchmarks.devices.protocol import Allowed, Reachable
from pocketbert.core.devices import ADB
from pocketbert.core.errors import one_line

LOOK_S = 8.0
"""Most seconds that the client may take to list phones; it starts its server first, which takes about three."""
CORES = (Allowed("CORES", ("little", "big", "prime")),)
_ROW = re.compile(r"(?P<serial>\S+)\s+(?P<state>no permissions|[a-z]+)\b(?P<more>.*)")


def adb_missing() -> str:
    """What keeps this machine from measuring on a phone: the client, and the runners; empty where nothing does."""
    lacking = [] if shutil.which("adb") else ["adb is not installed (sudo apt-get install adb)"]
    runners = _runners_missing()
    return "; ".join([*lacking, *([f"{runners}; --app needs none"] if runners else [])])


def _runners_missing() -> str:
    folder, names = os.environ.get(FOLDER, ""), list(RUNNERS.values())
    if not folder:
        return f"no runners are named (export {FOLDER}=FOLDER, with {' and '.join(names)} built for the phone)"
    absent = [name for name in names if not (Path(folder) / name).is_file()]
    return f"{FOLDER}={one_line(folder)} lacks {' and '.join(absent)}" if absent else ""


def attached() -> list[Reachable]:
    """The phones that ``adb devices -l`` lists, with what keeps one from being used. Nothing is changed on them."""
    client = shutil.which("adb")
    if client is None:
        return []
    # a file, not a pipe: a server that is started meanwhile could keep a pipe open for ever
    with tempfile.TemporaryFile() as said:
        running = subprocess.Popen([client, "devices", "-l"], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            code = running.wait(LOOK_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
            return [Reachable(ADB, problem=f"the client does not answer within {LOOK_S:g} s")]
        said.seek(0)
        text = said.read(1 << 20).decode(errors="replace")
    if code:
        last = next((line for line in reversed(text.splitlines()) if line.strip()), f"exit status {code}")
        return [Reachable(ADB, problem=one_line(last.strip())[:200])]
    return read_attached(text)


def read_attached(text: str) -> list[Reachable]:
    """Read the output of ``adb devices -l``, which may hold messages of the server in front.

    Args:
        text: The output.
    """
    rows = text.partition("List of devices attached")[2].splitlines()
    found = [match for row in rows if (match := _ROW.fullmatch(one_line(" ".join(row.split()))))]
    return [
        Reachable(
            f"{ADB}:{row['serial']}",
            model[1].replace("_", " ") if (model := re.search(r"\bmodel:(\S+)", row["more"])) else "",
            "" if row["state"] == "device" else state_problem(row["state"]),
        )
        for row in found
    ]
