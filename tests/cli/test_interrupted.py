"""Ctrl-C in the middle of every command that can run for a minute: the same command then does what the message says."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.predict.predictor import TorchPredictor
from pocketbert.pipeline.make import measuring
from pocketbert.runtime.onnx import OnnxPredictor
from support.folders import tree
from support.tiny_texts import task_rows, write_lines

Cli = Callable[..., Any]
KEPT = "Finished work is kept; run the same command to continue."
ANEW = "The same command starts anew."
SHORT = {"batch": 16, "lr": 3e-3, "dropout": 0.0, "checkpoint": 4}
TIMES = {"run.log", "report.html", "benchmark.json", "metrics.jsonl", "README.md", "artifacts.json", "run-facts.json"}
"""Files that hold times, or digests of files that do, and files that tell of the interruption."""
TIMED = {"benchmark", "plan"}
"""Commands whose outputs are times, or chosen by times: only the names of their files are compared."""
SUFFIXES = {"data augment": ".jsonl", "benchmark": ".json", "predict": ".jsonl"}
"""Endings of outputs that are files."""


@dataclass(frozen=True)
class Case:
    """A command.

    Attributes:
        arguments: Its words; ``{recipe}``, ``{run}``, ``{phone}``, ``{student}``, ``{teacher}``, ``{rows}`` and ``{out}`` are
            filled in.
        continues: Whether the same command goes on where it was stopped.
        said: What it prints when it does.
        output: Whether it writes ``out``.
        anew: The step that it is stopped in soon after it began, and that begins anew; empty for a stop in the middle of the
            command.
    """

    arguments: str
    continues: bool = False
    said: str = ""
    output: bool = True
    anew: str = ""


CASES = {
    "run": Case("run {recipe} -o {out}", True, "finished before, skipped"),
    "finetune": Case("finetune {recipe} -o {out}", True, "resumed"),
    "distill": Case("distill {recipe} -o {out}", True, "finished before, skipped"),
    "export": Case("export -m {student} --format onnx -o {out}", True, "export to ONNX: finished before, skipped"),
    "quantize": Case("quantize -m {phone} --scheme w4 -o {out}", True, "finished before, skipped"),
    "verify": Case("verify -m {phone} --data {rows} --max-drop 0.5", output=False),
    "pack": Case("pack -m {run} -o {out}"),
    "predict": Case("predict -m {phone} --file {rows} -o {out}"),
    "benchmark": Case("benchmark -m {phone} --runs 10 --budget 1 --gaps none --lengths 16 -o {out}"),
    "sensitivity": Case("sensitivity -m {phone} --calibrate {rows} --scheme int8", output=False),
    "benchmark --record": Case(
        "benchmark -m {phone} --runs 10 --budget 1 --gaps none --lengths 16 --record", output=False
    ),
    "run, benchmark": Case(
        "run {recipe} 'benchmark={{threads: [1], runs: 10, repeats: 2, gaps_ms: []}}' -o {out}",
        True,
        "] benchmark: begins again\n",
        anew="benchmark",
    ),
    "plan": Case(
        "plan --data {rows} --max-size-mb 30 --max-p90-ms 900 --scheme int8 -o {out} teacher.model={teacher} "
        "'teacher.finetune={{steps: 20, batch: 16, lr: 3.0e-3}}' 'distill=[{{method: task, steps: 20, batch: 16}}]'"
    ),
    "diagnose": Case("diagnose {run} --rows 40 --json", output=False),
    "diff": Case("diff {run} {run}:fp32 --data {rows} --threads 1 --json", output=False),
    "data check": Case("data check {rows} --json", output=False),
    "data prepare": Case("data prepare {recipe} -o {out}"),
    "data augment": Case("data augment {recipe} -o {out}", True),
}
SLOW = {
    "run",
    "distill",
    "export",
    "quantize",
    "sensitivity",
    "benchmark",
    "benchmark --record",
    "run, benchmark",
    "plan",
}


class Moments:
    """Counts what commands do, and stops one at a chosen count as Ctrl-C does."""

    def __init__(self, patch: pytest.MonkeyPatch, *more: tuple[Any, str]) -> None:
        self.first, self.count, self.stop_at = 0, 0, -1
        for owner, name in (
            (os, "rename"),
            (os, "replace"),
            (os, "fsync"),
            (OnnxPredictor, "run"),
            (TorchPredictor, "run"),
            *more,
        ):
            patch.setattr(owner, name, self._counted(getattr(owner, name)))

    def _counted(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def count_and_call(*args: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.stop_at:
                raise KeyboardInterrupt
            return call(*args, **options)

        return count_and_call

    def start(self, stop_at: int = -1) -> None:
        self.count, self.stop_at = self.first, stop_at

    def count_from(self, owner: Any, name: str, patch: pytest.MonkeyPatch) -> None:
        """Begin to count when a function is called."""
        begin, self.first = getattr(owner, name), -(10**6)

        def count_anew(*args: Any, **options: Any) -> Any:
            self.count = 0
            return begin(*args, **options)

        patch.setattr(owner, name, count_anew)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in CASES])
def test_a_command_that_was_interrupted_ends_as_one_that_was_not(
    cli: Cli, task: Any, finished: Path, phone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES[name]
    moments = Moments(monkeypatch, *([(json, "loads")] if name == "data check" else []))  # which only reads
    if case.anew == "benchmark":
        moments.count_from(measuring, "measure", monkeypatch)
    write_lines(tmp_path / "rows.jsonl", task_rows(40, 7))
    places = {"run": tmp_path / "run", "phone": phone, "student": finished / "student", "rows": tmp_path / "rows.jsonl"}
    places |= {"recipe": write_recipe(task, tmp_path), "teacher": task.folder / "teacher"}

    def start(output: str, stop_at: int = -1) -> Any:
        moments.start(stop_at)
        out = tmp_path / output / f"out{SUFFIXES.get(name, '')}"
        return cli(*shlex.split(case.arguments.format(out=out, **places)))

    def prepare(output: str) -> None:
        """An empty folder for the output, and the finished run as it was: other tests verify it in ways that leave a command more to do."""
        (tmp_path / output).mkdir()
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(finished, tmp_path / "run")

    prepare("whole")
    whole = start("whole")
    assert whole.exit_code == 0, whole.output
    assert moments.count > 4
    middle, before = 1 + moments.count // 2, tree(phone)
    prepare("stopped")
    stopped = start("stopped", stop_at=2 if case.anew else middle)
    assert (stopped.exit_code, stopped.stderr.splitlines()[-1]) == (
        130,
        f"Stopped by Ctrl-C. {KEPT if case.continues else ANEW}",
    )
    if not case.continues:
        assert list((tmp_path / "stopped").iterdir()) == [], "nothing is left of it"
        assert tree(phone) == before
    if case.anew:
        assert f"; the same command continues there, and begins the step {case.anew} anew.\n" in stopped.stderr
    again = start("stopped")
    assert again.exit_code == 0, again.output
    assert case.said in again.stderr, stopped.stderr + again.stderr
    if name in TIMED:
        assert [*tree(tmp_path / "stopped")] == [*tree(tmp_path / "whole")]
    else:
        assert left(tmp_path / "stopped") == left(tmp_path / "whole")
    assert any((tmp_path / "whole").iterdir()) == case.output
    if not case.output and name != "benchmark --record":
        assert comparable(again.stdout) == comparable(whole.stdout)


def write_recipe(task: Any, folder: Path) -> Path:
    """A recipe with rows, plain text and copies of rows, short in each step."""
    text = write_lines(folder / "text.jsonl", [{"text": row["text"]} for row in task_rows(200, 9)])
    return Path(
        task.variant(
            folder / "recipe.yaml",
            data={
                "corpus": {"sources": [{"path": str(text)}], "length": 32},
                "augment": {"copies": 2, "candidates": 3},
            },
            teacher={"finetune": {"steps": 60, **SHORT}},
            distill=[
                {"method": "minilm", "steps": 8, **SHORT},
                {"method": "task", "steps": 40, "augmented": True, **SHORT},
            ],
            verify={"max_drop": 0.5},
        )
    )


def left(folder: Path) -> dict[str, bytes]:
    """What a command has left, without files that hold times."""
    return {
        name: content
        for name, content in tree(folder).items()
        if not TIMES & {*Path(name).parts} and ".steps" not in name
    }


def comparable(printed: str) -> list[str]:
    """Lines without those that hold times."""
    return [line for line in printed.splitlines() if " s" not in line]
