"""Import figures of other machines: the file itself says which program wrote it."""

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
    """What was imported.

    Attributes:
        sessions: One result for each file of a Mac or a phone.
        reported: One record for each text.
    """

    sessions: list[BenchmarkResult]
    reported: list[Reported]


def import_all(paths: Sequence[Path], folders: Sequence[Path], facts: Sequence[Fact] = ()) -> Imported:
    """Read files of any kind: JSON of a Mac or a phone, and texts of measuring programs.

    Args:
        paths: The files.
        folders: Artefact folders that hold the measured files; texts need them.
        facts: What texts do not tell.

    Raises:
        InputError: Listing every problem of all files.
    """
    texts = [path for path in paths if is_text(path)]
    listed = {folder: read_artefacts(folder).models() for folder in folders} if texts else {}
    problems: list[Problem] = []
    sessions: list[BenchmarkResult] = []
    reported: list[Reported] = []
    try:
        sessions = import_results([path for path in paths if path not in texts], folders)
    except InputError as error:
        problems += error.problems
    try:
        reported = import_texts(texts, listed, facts)
    except InputError as error:
        problems += error.problems
    if problems:
        raise InputError(problems)
    return Imported(sessions, reported)


def import_results(paths: Sequence[Path], folders: Sequence[Path]) -> list[BenchmarkResult]:
    """Read files of ``benchmark_on_mac.py`` and of the Android demo app.

    Args:
        paths: The files.
        folders: Artefact folders that hold the measured files; with none, nothing is checked and the result says so.

    Returns:
        One result per file: those of phones, then those of Macs.

    Raises:
        InputError: Listing every problem of all files.
    """
    if not paths:
        return []
    problems: list[Problem] = []
    of_phones = [path for path in paths if _kind(path) == PHONE]
    of_macs = [path for path in paths if path not in of_phones]
    listed = {folder: read_artefacts(folder).models() for folder in folders}
    results: list[BenchmarkResult] = []
    for kind, of_kind in ((PHONE, of_phones), (None, of_macs)):
        try:
            results += import_phone(of_kind, listed) if kind == PHONE else import_mac(of_kind, folders)
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return results


def _kind(path: Path) -> object:
    """What a file says of itself; a file that cannot be read is left to the reader of Macs, which says why."""
    try:
        content = read_json(path)
    except InputError:
        return None
    return content.get("kind") if isinstance(content, dict) else None
