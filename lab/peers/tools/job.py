"""What a maker reads and writes: rows, models and a folder come in as JSON, and the files that answer go out as JSON.

The makers beside this module run in the environment of their tool; so this module imports nothing but the standard library.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # before a maker imports the engine


@dataclass(frozen=True)
class Job:
    """What to make, and from what.

    Attributes:
        variant: Which of the tool's ways to go.
        train: Rows with `text` and `label`, one JSON object a line; `dev` and `test` likewise.
        minilm: Folder of all-MiniLM-L6-v2.
        teacher: Folder of the teacher that PocketBERT has fine-tuned, `student` that of its student.
        out: Where to write.
    """

    variant: str
    train: Path
    dev: Path
    test: Path
    minilm: Path
    teacher: Path
    student: Path
    out: Path

    @property
    def model(self) -> Path:
        """The trained model that the variant names."""
        return {"teacher": self.teacher, "student": self.student}[self.variant]

    @property
    def labels(self) -> list[str]:
        return sorted({row["label"] for row in rows(self.train)})


def read_job() -> Job:
    """The job whose file is the first argument."""
    given = json.loads(Path(sys.argv[1]).read_text())
    return Job(given.pop("variant"), **{key: Path(path) for key, path in given.items()})


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def columns(path: Path) -> tuple[list[str], list[str]]:
    """Texts and labels of a file."""
    found = rows(path)
    return [row["text"] for row in found], [row["label"] for row in found]


def call(*command: object, folder: Path | None = None) -> None:
    """Run a program of this environment, by the name in its `bin` folder; end as it does if it fails, so that its last line is that of the log."""
    program, *arguments = map(str, command)
    if ended := subprocess.run([Path(sys.executable).parent / program, *arguments], check=False, cwd=folder).returncode:
        sys.exit(ended)


def leave_out(job: Job) -> None:
    """Leave what this process and its programs have used so far out of the time to the result."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu, wall = sum(u.ru_utime + u.ru_stime for u in used), time.time() - (job.out / "job.json").stat().st_mtime
    (job.out / "left_out.json").write_text(json.dumps({"cpu": cpu, "wall": wall}))


def write_answers(job: Job, *answers: dict[str, Any]) -> None:
    """Write what was made: for each way to answer its `kind` (see answers.py), the `files` that it needs, and its options."""
    for answer in answers:
        answer["files"] = [str(Path(file).resolve()) for file in answer["files"]]
    (job.out / "answers.json").write_text(json.dumps(answers, indent=1, default=str))
