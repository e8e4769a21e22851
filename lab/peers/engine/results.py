"""What was measured of one model, in one JSON file with the raw samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import BaseModel, ValidationError

from engine.measure import QUIET, TEXT, Part, typical
from engine.pool import Worker
from pocketbert.benchmarks.statistics import Ratio, paired_ratio
from pocketbert.core.disk.files import write_atomic

ENOUGH = 6
"""With so many quiet rounds the others are left out; fewer pairs have no 95 % interval."""


class Agreement(BaseModel):
    """How an engine's answers compare with torch's on the real texts.

    Attributes:
        labels: Share of texts with the same label.
        worst: Largest difference of a logit, relative to the spread of the logits.
    """

    labels: float
    worst: float


class Opened(BaseModel):
    """What an engine said of itself when it was opened.

    Attributes:
        name: The engine.
        threads: Threads within an operator.
        generation: Of its process.
        note: In its own words.
        choices: What it runs at each length, inputs of one length after one another.
        mixed: The same for inputs of mixed lengths.
    """

    name: str
    threads: int
    generation: int
    note: str = ""
    choices: dict[str, str] = {}
    mixed: dict[str, str] = {}


@dataclass(frozen=True)
class Round:
    """One round of a cell.

    Attributes:
        part: Whose it is.
        number: Its number there.
    """

    part: Part
    number: int

    def has(self, names: Iterable[str]) -> bool:
        """Whether all of these engines took part."""
        engines = self.part.engines
        return all(n in engines and self.number < len(engines[n].wall) for n in names)

    def time(self, name: str, cpu: bool = False) -> float:
        """One time of one engine in ms."""
        engine = self.part.engines[name]
        return engine.cpu[self.number] if cpu else typical(engine.wall[self.number], self.part.length)

    @property
    def quiet(self) -> bool:
        """Whether other processes left the CPU alone."""
        return self.part.others[self.number] <= QUIET


@dataclass(frozen=True)
class Cell:
    """All engines at one thread count and one length.

    Attributes:
        threads: Threads within an operator.
        length: Tokens, or ``text``.
        parts: One per generation.
    """

    threads: int
    length: str
    parts: tuple[Part, ...]

    @property
    def engines(self) -> list[str]:
        """Everything that was measured."""
        return list(dict.fromkeys(name for part in self.parts for name in part.engines))

    @property
    def finalists(self) -> list[str]:
        """Engines that went on after the first rounds."""
        return self.parts[0].finalists

    def rounds(self, *names: str) -> list[Round]:
        """All rounds in which these engines took part, generation by generation."""
        every = [Round(part, i) for part in self.parts for i in range(len(part.others))]
        return [r for r in every if r.has(names)]

    def kept(self, *names: str) -> list[Round]:
        """Those to compute with: the quiet ones if they are enough for an interval, else all."""
        rounds = self.rounds(*names)
        quiet = [r for r in rounds if r.quiet]
        return quiet if len(quiet) >= ENOUGH else rounds

    def median(self, name: str, cpu: bool = False) -> float:
        """Median time of an inference in ms."""
        return float(np.median([r.time(name, cpu) for r in self.kept(name)]))

    def after(self, name: str) -> float:
        """Median CPU time in ms that an engine used after its turn."""
        return float(np.median([r.part.engines[name].after[r.number] for r in self.kept(name)]))

    def ratio(self, a: str, b: str, cpu: bool = False) -> Ratio:
        """Time of one engine over that of another, of the rounds that have both."""
        rounds = self.kept(a, b)
        return paired_ratio([r.time(a, cpu) for r in rounds], [r.time(b, cpu) for r in rounds])


class Result(BaseModel):
    """Everything measured of one model.

    Attributes:
        model: How the table calls it.
        key: Changes with the files and settings; what was measured under another key is forgotten.
        weights: ``trained`` or ``random weights``.
        machine: CPU and instruction-set extensions.
        texts: Which real texts.
        tokens_mean: Their mean length.
        versions: Engine versions by column.
        opened: What engines said of themselves, once per process.
        agreement: Answers against torch's, by column.
        parts: Timings.
    """

    model: str
    key: str
    weights: str
    machine: str
    texts: str
    tokens_mean: float = 0.0
    versions: dict[str, str] = {}
    opened: list[Opened] = []
    agreement: dict[str, Agreement] = {}
    parts: list[Part] = []

    @classmethod
    def resume(cls, path: Path, model: str, key: str, weights: str, machine: str, texts: str) -> Result:
        """What was measured so far, if it is of the same files on the same machine."""
        fresh = cls(model=model, key=key, weights=weights, machine=machine, texts=texts)
        try:
            old = cls.model_validate_json(path.read_text())
        except (OSError, ValidationError):
            return fresh
        same = (old.key, old.machine, old.texts) == (key, machine, texts)
        return old if same else fresh

    def part(self, threads: int, length: str, generation: int) -> Part | None:
        """What was measured there, or None."""
        wanted = (threads, length, generation)
        return next((p for p in self.parts if (p.threads, p.length, p.generation) == wanted), None)

    def cells(self) -> list[Cell]:
        """The cells whose first generation was measured, in the order in which that was."""
        return [
            Cell(
                first.threads,
                first.length,
                tuple(
                    sorted(
                        (p for p in self.parts if (p.threads, p.length) == (first.threads, first.length)),
                        key=lambda p: p.generation,
                    )
                ),
            )
            for first in self.parts
            if first.generation == 0
        ]

    def choice(self, threads: int, length: str, generation: int) -> str | None:
        """What `fastest` said that it runs there; None where it said nothing."""
        for opened in self.opened:
            if opened.choices and (opened.threads, opened.generation) == (threads, generation):
                return next(iter(opened.mixed.values()), None) if length == TEXT else opened.choices.get(length)
        return None

    def note(self, threads: int, generation: int, workers: Mapping[str, Worker]) -> None:
        """Keep what was opened, and what it said."""
        self.versions |= {name: worker.version for name, worker in workers.items()}
        told = (
            Opened(name=name, threads=threads, generation=generation, note=w.note, choices=w.choices, mixed=w.mixed)
            for name, w in workers.items()
        )
        self.opened += [o for o in told if o.note or o.choices]

    def save(self, path: Path) -> None:
        """Write the file, whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, self.model_dump_json())
