"""Import figures of other machines.

`import_figures` reads JSON of the Mac script and the Android app, and outputs of measuring programs that users saved. Each file itself
shows which program wrote it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pocketbert.benchmarks.imported.android_app import KIND as PHONE
from pocketbert.benchmarks.imported.android_app import import_phone
from pocketbert.benchmarks.imported.mac import import_mac
from pocketbert.benchmarks.imported.saved_texts import Fact, import_texts, is_text
from pocketbert.benchmarks.measurement import BenchmarkResult
from pocketbert.benchmarks.records import Reported
from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem


@dataclass(frozen=True)
class Imported:
    """Results that were read from files of other machines.

    Attributes:
        sessions: One result for each file from a phone, then one for each file from a Mac.
        reported: One record for each saved output of a measuring program.
    """

    sessions: list[BenchmarkResult]
    reported: list[Reported]


def import_figures(paths: Sequence[Path], folders: Sequence[Path], facts: Sequence[Fact] = ()) -> Imported:
    """Import results of other machines: JSON of the Mac script or Android app, saved outputs of measuring programs.

    Args:
        paths: The files to import.
        folders: Artefact folders with the measured model files. Saved outputs need them. Without folders, it is not
            checked that the other results belong to known files, and the results say so.
        facts: Facts that saved outputs leave out and the user states, such as the device.

    Raises:
        InputError: Listing every problem of all files.
    """
    texts = [path for path in paths if is_text(path)]
    phones = [path for path in paths if path not in texts and _kind(path) == PHONE]
    macs = [path for path in paths if path not in texts and path not in phones]
    listed = {folder: read_artefacts(folder).models() for folder in folders} if paths else {}
    problems: list[Problem] = []
    sessions: list[BenchmarkResult] = []
    reported: list[Reported] = []
    for import_results, of_kind in ((import_phone, phones), (import_mac, macs)):
        try:
            sessions += import_results(of_kind, listed)
        except InputError as error:
            problems += error.problems
    try:
        reported = import_texts(texts, listed, facts)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return Imported(sessions, reported)


def _kind(path: Path) -> object:
    """Return the entry `kind` of a JSON file; None if the file cannot be read or has no such entry."""
    try:
        content = read_json(path)
    except InputError:
        return None
    return content.get("kind") if isinstance(content, dict) else None
