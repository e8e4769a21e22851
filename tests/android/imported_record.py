"""python -m android.imported_record RECORD FOLDER: a record that the app wrote is imported as its user would import it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

EMULATED = "measured on an emulator, whose times are no latencies"


def pocketbert(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command line and return what it printed."""
    program = Path(sys.executable).parent / "pocketbert"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def problems(record: Path, folder: Path, scratch: Path) -> list[str]:
    """What is wrong, a sentence each: as written it is refused, since a desktop wrote it; said to be a phone's it is read."""
    found = []
    command = ("benchmark", "-m", folder, "--no-local", "--json", "--import")
    refused = pocketbert(*command, record)
    if refused.returncode != 2 or EMULATED not in refused.stderr:
        found.append(f"exit {refused.returncode} for a desktop's record, not 2: {refused.stderr}")
    told = json.loads(record.read_text(encoding="utf-8"))
    told["phone"]["emulated"] = False
    phones = scratch / "phone.json"
    phones.write_text(json.dumps(told), encoding="utf-8")
    read = pocketbert(*command, phones)
    if read.returncode:
        return [*found, f"exit {read.returncode} for a phone's record: {read.stderr}"]
    result = json.loads(read.stdout)
    (measured,) = result["measurements"]
    (cell,) = told["files"][0]["cells"]
    runs = sorted(x for burst in cell["wall_ms"] for x in burst)
    seen = (measured["variant"].split()[0], measured["length"], measured["wall"]["n"], measured["wall"]["min"])
    if seen != (wanted := (told["files"][0]["path"], cell["length"], len(runs), runs[0])):
        found.append(f"the import has {seen}, the record {wanted}")
    return found


def main() -> int:
    """Print what is wrong; the exit status is 1 if anything is."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("record", type=Path)
    parser.add_argument("folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = problems(given.record.resolve(), given.folder.resolve(), Path(scratch))
    for line in found:
        print(f"test-android: FAILED: {given.record.name}: {line}")
    if not found:
        print(f"test-android: {given.record.name} is imported by pocketbert benchmark")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
