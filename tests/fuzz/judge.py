"""What is wrong with the end of a command."""

from __future__ import annotations

import hashlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

from fuzz.files import read_plain
from fuzz.mutation import Verdict
from fuzz.runner import Ended, Limits
from fuzz.targets import OUT

LINES, COLUMNS = 40, 200
"""The longest error, and its longest line."""
WHOLE = 1 << 22
"""Files up to this size are compared by their bytes, others by size and time."""
MEMORY = re.compile(
    r"MemoryError|bad_alloc|Cannot allocate|[Uu]nable to allocate|[Ff]ailed to allocate|out of memory|ArrowMemoryError"
)
VARIES = re.compile(r"'[^']*'|\"[^\"]*\"|\d+|/\S+|[^\x20-\x7e]|\\x\w\w")
Seen = dict[str, str]
Fault = tuple[str, str] | None


@dataclass(frozen=True)
class Finding:
    """A fault of the command.

    Attributes:
        kind: time, memory, crash, traceback, exit 1, accepted, refused, foreign, leftover or message.
        about: What was seen, in a few words.
        signature: Equal for findings that probably have the same cause.
    """

    kind: str
    about: str
    signature: str


def snapshot(folder: Path) -> Seen:
    """Everything below a folder: kind, size and digest."""
    out = {}
    for base, folders, files in os.walk(folder):
        for path in (Path(base) / name for name in (*folders, *files)):
            seen = path.lstat()
            if stat.S_ISLNK(seen.st_mode):
                what = f"-> {path.readlink()}"
            elif not stat.S_ISREG(seen.st_mode):
                what = oct(stat.S_IFMT(seen.st_mode))
            elif seen.st_size <= WHOLE:
                what = hashlib.sha256(read_plain(path)).hexdigest()
            else:
                what = f"{seen.st_size} {seen.st_mtime_ns}"
            out[str(path.relative_to(folder))] = what
    return out


def judge(verb: str, verdict: Verdict, ended: Ended, limits: Limits, before: Seen, after: Seen) -> Finding | None:
    """The worst thing that is wrong with the end of a command, if anything is.

    Args:
        verb: The command.
        verdict: How it may end.
        ended: How it ended.
        limits: What it may take.
        before: What lay around it when it started.
        after: What lies there now.
    """
    last = (ended.err.strip().splitlines() or [""])[-1]
    found = _taken(ended, limits, last) or _crashed(ended, last) or _touched(ended, before, after)
    if found is None and ended.code not in verdict.value:
        kinds = {0: "accepted", 2: "refused", 3: "refused"}
        found = kinds.get(ended.code, f"exit {ended.code}"), last or f"exit {ended.code}"
    found = found or _message(verb, ended)
    if found is None:
        return None
    kind, about = found
    shape = "" if kind in ("time", "memory", "accepted", "leftover", "foreign") else VARIES.sub("~", about)[:70]
    return Finding(kind, about[:300], f"{kind} | {verb} | {shape}")


def _taken(ended: Ended, limits: Limits, last: str) -> Fault:
    if ended.killed == "memory":
        return "memory", f"{ended.resident >> 20} MiB resident after {ended.seconds:.0f} s"
    if ended.code and MEMORY.search(ended.err):
        return "memory", f"memory ran out: {last}"
    if ended.killed or ended.seconds > limits.seconds:
        how = {"idle": "waits for something that never comes", "time": "works on"}.get(ended.killed, "ended")
        return "time", f"{how} after {ended.seconds:.0f} s"
    return None


def _crashed(ended: Ended, last: str) -> Fault:
    if ended.code < 0:
        return "crash", f"signal {-ended.code}: {last}"
    texts = ended.out + ended.err
    return ("traceback", last) if "Traceback (most recent call last)" in texts or "panicked at" in texts else None


def _touched(ended: Ended, before: Seen, after: Seen) -> Fault:
    gone = sorted(n for n, what in before.items() if after.get(n) != what)
    new = sorted(n for n in after if n not in before)
    strange = [n for n in new if not n.startswith(("here/" + OUT, "here/." + OUT))]
    if gone:
        return "foreign", f"changed or removed: {', '.join(gone)[:200]}"
    if strange:
        return "foreign", f"written beside the output: {', '.join(strange)[:200]}"
    return (
        ("leftover", f"left after exit {ended.code}: {', '.join(new)[:200]}") if new and ended.code in (1, 2) else None
    )


def _message(verb: str, ended: Ended) -> Fault:
    """An error without text, too long, or with characters that a terminal obeys."""
    if ended.code == 0:
        lines = ended.out.count("\n")
        return ("message", f"{lines} lines for one text") if verb == "predict-model-file" and lines != 1 else None
    texts = ended.err.rstrip("\n").split("\n")
    starts = [i for i, x in enumerate(texts) if x.startswith(("Error:", "Usage:")) or x.endswith("problems:")]
    if not starts or texts[starts[0]].strip() in ("Error:", ""):
        return "message", "an error without text"
    shown = texts[starts[0] :]
    if len(shown) > LINES:
        return "message", f"an error of more than {LINES} lines"
    if max(map(len, shown)) > COLUMNS or ended.err_bytes > len(ended.err) + 10**6:
        return "message", f"an error with a line of more than {COLUMNS} columns"
    if not all(c.isprintable() or c == "\n" for c in "\n".join(shown)):
        return "message", "an error with control characters"
    return None
