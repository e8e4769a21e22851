"""Run the commands of the guides in docs/guides/ and compare what they print with what the guides show.

A block of the language `console` is a session: lines that begin with `$ ` are commands, the others what they print. Numbers and the
width of blanks may differ, `…` stands for any text, also for lines. A block of the language `python` is a script. All blocks of a guide
run one after the other in one temporary folder, in which `runs/demo` is the folder that `make demo` made. A comment
`<!-- not run: REASON -->` in front of a block leaves it out, and is printed.

Run: python scripts/run_guides.py [GUIDE.md ...]; the exit code is 1 if a guide shows what is not so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
GUIDES = ROOT / "docs" / "guides"
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n)?```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL
)
_LONGEST_COMMAND_S = 1800


@dataclass(frozen=True)
class Step:
    """One command or script of a guide.

    Attributes:
        command: The shell command, or the source of the Python script.
        is_script: Whether it is a Python script.
        shown: The lines that the guide shows as printed.
        reason: Reason why the step is not run; empty for a step that is run.
    """

    command: str
    is_script: bool
    shown: list[str]
    reason: str = ""


def read_steps(text: str) -> Iterator[Step]:
    """Yield the steps of a guide's Markdown in their order."""
    for block in _BLOCK.finditer(text):
        language, body, reason = block["language"], block["body"], block["reason"] or ""
        if language == "python":
            yield Step(body, True, [], reason)
        elif language == "console":
            commands = re.split(r"^\$ ", body.replace("\\\n", " "), flags=re.MULTILINE)[1:]
            for command, *shown in (part.splitlines() for part in commands):
                yield Step(command, False, [line for line in shown if line.strip()], reason)
        elif reason:
            yield Step(body.splitlines()[0], False, [], reason)


def find_unprinted_line(shown: list[str], printed: str) -> str | None:
    """Return the first line that a guide shows and the output lacks behind the lines before; None if all are there."""
    rest = iter(_simplify(line) for line in printed.splitlines())
    for line in shown:
        if line.strip() == "…":
            continue
        pattern = ".*".join(re.escape(part) for part in _simplify(line).split("…"))
        if not any(re.fullmatch(pattern, candidate) for candidate in rest):
            return line
    return None


def _simplify(line: str) -> str:
    """Replace each number of a line by 0, each run of blanks by one, and which of two files is better by nothing."""
    line = re.sub(
        r"\bpoints (better|worse)\b", "points", line.replace("no difference", "0 points")
    )  # processors differ
    return re.sub(r"\s+", " ", re.sub(r"\d[\d,.]*", "0", line)).strip()


def run_guide(text: str, demo: Path) -> Iterator[str]:
    """Run the steps of a guide in a temporary folder, and yield a line on each.

    The line begins with FAILED if a step fails or does not print what the guide shows.

    Args:
        text: The guide's Markdown.
        demo: The run folder of the demo.
    """
    bin_folder = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "200",
        "PYTHONUNBUFFERED": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "runs").mkdir()
        (Path(folder) / "runs/demo").symlink_to(demo.resolve(), target_is_directory=True)
        for step in read_steps(text):
            name = "a Python script" if step.is_script else step.command
            if step.reason:
                yield f"not run  {name}: {step.reason}"
                continue
            command = [sys.executable, "-c", step.command] if step.is_script else ["bash", "-c", step.command]
            began = time.monotonic()
            done = subprocess.run(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_LONGEST_COMMAND_S,
                check=False,
            )
            seconds = f"{time.monotonic() - began:.0f} s"
            lost = find_unprinted_line(step.shown, done.stdout)
            if done.returncode:
                yield f"FAILED   {name}: exit code {done.returncode}\n{done.stdout[-2000:]}"
            elif lost is not None:
                yield f"FAILED   {name}: it does not print {lost!r}\n{done.stdout[-2000:]}"
            else:
                yield f"as shown {name} ({seconds})"


def main(guides: list[Path]) -> int:
    """Run guides and print a line on each step; return 1 if a step failed, else 0."""
    failed, left_out = 0, 0
    for guide in guides or sorted(GUIDES.glob("*.md")):
        print(f"== {guide.name}", flush=True)
        for line in run_guide(guide.read_text(encoding="utf-8"), ROOT / "runs" / "demo"):
            failed += line.startswith("FAILED")
            left_out += line.startswith("not run")
            print(line, flush=True)
    print(f"{failed} failed, {left_out} not run")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
