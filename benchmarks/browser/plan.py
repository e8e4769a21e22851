"""What a browser measures: files, inputs of every length, the order, and the inputs on which its answers are checked first.

`make_plan` prepares it: all texts are tokenized here, so that the page needs no tokenizer. `PlannedFile.check` compares the outputs
that a browser sent back.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.browser.libraries import LITERT_JS, ORT_WEB, WebLibrary
from pocketbert.benchmarks.inputs import ANSWERS_COMPARED, Differences, make_feeds, tolerated_share
from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant
from pocketbert.benchmarks.records import TEXT, AnswerCheck, Length
from pocketbert.core.artefacts import ARTEFACTS_FILE, read_artefacts
from pocketbert.core.compare.golden import GOLDEN_FILE, GoldenRow
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import Arrays
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.tasks import Task
from pocketbert.core.types import Format, Provenance
from pocketbert.runtime.engines import FilePredictor, add_missing_inputs
from pocketbert.runtime.selftest import golden_difference, read_test_rows
from pocketbert.runtime.tflite import TflitePredictor

BURST = 5
"""Fewest timed inferences of a length in one repeat."""
_WARMUP_LEAST, _WARMUP_MOST, _STABLE = 10, 60, 0.03
_IDLE_SHARE, _LEAST_SINGLES, _MOST_SINGLES = 0.5, 3, 20
"""As on other devices (`pocketbert.benchmarks.timing`, which imports the devices)."""
_TEXTS = 32
"""Real texts that a browser cycles through."""
_MOST_FILES = 64

LIBRARY_OF: dict[Format, WebLibrary] = {Format.TFLITE: LITERT_JS, Format.ONNX: ORT_WEB}
"""The library that runs files of a format in a browser."""


class _TrackedPredictor:
    """A predictor that records its inputs, and either runs the file or returns given outputs.

    Args:
        predictor: The opened file.
        outputs: The outputs to return, one entry per run in order; None to run the file.
    """

    def __init__(self, predictor: FilePredictor, outputs: Sequence[Arrays] | None = None) -> None:
        self.engine, self.engine_version = predictor.engine, predictor.engine_version
        self.inputs, self.outputs, self.lengths = predictor.inputs, predictor.outputs, predictor.lengths
        self.given = list[Arrays]()
        self._predictor, self._outputs = predictor, outputs

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> Arrays:
        """Record the inputs, and return the outputs for them."""
        self.given.append(dict(inputs))
        return self._predictor.run(inputs) if self._outputs is None else self._outputs[len(self.given) - 1]


@dataclass
class PlannedFile:
    """A model file that browsers measure, with the inputs whose outputs are checked first.

    Attributes:
        variant: The record of the file.
        tokenizer: The tokenizer of the file's folder.
        predictor: The file opened on this machine, for the names of inputs and outputs, and for outputs to compare
            with.
        golden: Golden rows of the folder; empty if it has none.
        shares: The share of a golden row's tolerance that is allowed in each column.
        checked: The inputs of the runs whose outputs are compared, for each golden row; if there are none, for some
            texts.
    """

    variant: Variant
    tokenizer: TextTokenizer
    predictor: FilePredictor
    golden: list[GoldenRow] = field(default_factory=list)
    shares: NDArray[np.floating] = field(default_factory=lambda: np.ones(1))
    checked: list[list[Arrays]] = field(default_factory=list)

    @classmethod
    def open(cls, variant: Variant, texts: Sequence[Text]) -> PlannedFile:
        """Open a file, and choose the inputs to check: those of golden rows, or of some texts if there are none."""
        tokenizer, predictor = TextTokenizer(variant.tokenizer, variant.max_length), variant.file.open(1)
        planned, golden = cls(variant, tokenizer, predictor), variant.tokenizer / GOLDEN_FILE
        if planned.path and golden.is_file():
            rows, planned.shares = read_test_rows(golden, planned.path, planned.task)
            planned.golden = [row for _, row in rows]
        for row in planned.golden:
            tracked = _TrackedPredictor(predictor)
            golden_difference(tracked, tokenizer, row, planned.path, planned.task, planned.shares)
            planned.checked.append(tracked.given)
        if not planned.golden:
            feeds = [make_feeds(tokenizer, [text], TEXT, predictor.lengths)[0] for text in texts[:ANSWERS_COMPARED]]
            planned.checked = [[add_missing_inputs(predictor, feed)] for feed in feeds]
        return planned

    @cached_property
    def path(self) -> str:
        """The path under which an artefact folder lists the file; empty if no folder does."""
        folder = self.variant.tokenizer
        if not (folder / ARTEFACTS_FILE).is_file():
            return ""
        return next((r.path for r in read_artefacts(folder).models() if folder / r.path == self.variant.path), "")

    @cached_property
    def task(self) -> Task:
        """The task of the file's artefact folder."""
        return read_artefacts(self.variant.tokenizer).head().task

    @property
    def library(self) -> WebLibrary:
        """The npm package that runs the file in a browser."""
        return LIBRARY_OF[self.variant.format]

    @property
    def keys(self) -> dict[int, str]:
        """Names of the signatures of a TFLite file by length; empty for other files."""
        return self.predictor.signature_keys if isinstance(self.predictor, TflitePredictor) else {}

    def feeds(self, texts: Sequence[Text], length: Length) -> list[Arrays]:
        """Return the inputs for timing a length; inputs of the file that are not made from text are zeros."""
        feeds = make_feeds(self.tokenizer, texts[:_TEXTS], length, self.predictor.lengths)
        return [add_missing_inputs(self.predictor, feed) for feed in feeds]

    def check(self, name: str, outputs: Sequence[Arrays]) -> AnswerCheck:
        """Compare a browser's outputs for the checked inputs with the golden rows, or without any with this machine's.

        Args:
            name: Name of the file on that browser's accelerator.
            outputs: The outputs of each checked run by name, float32.
        """
        runs, names = sum(map(len, self.checked)), set(self.predictor.outputs)
        complete = len(outputs) == runs and all(names <= set(o) for o in outputs)
        compare = self._compare_golden if self.golden else self._compare_here
        largest, tolerance, finite = compare(outputs) if complete else (0.0, 0.0, False)
        return AnswerCheck(
            variant=name,
            rows=len(self.checked),
            largest=largest,
            tolerance=tolerance,
            finite=finite,
            provenance=Provenance.MEASURED,
            against="golden rows" if self.golden else "inputs compared with this machine",
        )

    def _compare_golden(self, outputs: Sequence[Arrays]) -> tuple[float, float, bool]:
        """Return (difference, tolerance) of the worst golden row, and whether all outputs are finite and fit.

        The worst row is the one whose difference is the largest share of its tolerance.
        """
        worst, begin = (0.0, 0.0), 0
        for row, runs in zip(self.golden, self.checked, strict=True):
            replayed = _TrackedPredictor(self.predictor, outputs[begin : begin + len(runs)])
            begin += len(runs)
            bound = row.tolerance[self.path]
            try:
                difference = golden_difference(replayed, self.tokenizer, row, self.path, self.task, self.shares)
            except (ValueError, IndexError):  # outputs of another shape
                return 0.0, bound, False
            if not np.isfinite(difference):
                return 0.0, bound, False
            if worst == (0.0, 0.0) or difference * worst[1] > worst[0] * bound:
                worst = (float(difference), bound)
        return (*worst, True)

    def _compare_here(self, outputs: Sequence[Arrays]) -> tuple[float, float, bool]:
        """Return (difference, tolerance) of the output that differs most from this machine's, and if all are finite."""
        differences = Differences()
        inputs = [run for runs in self.checked for run in runs]
        for given, there in zip(inputs, outputs, strict=True):
            for output, value in self.predictor.run(given).items():
                differences.add(output, np.asarray(value), np.asarray(there[output]))
        return (*differences.worst(tolerated_share(self.variant.scheme)), differences.finite)


@dataclass(frozen=True)
class Plan:
    """What each browser measures; it is the same for all of them.

    Attributes:
        files: The files.
        lengths: Lengths in tokens, or ``"text"``, in the order in which they are measured.
        options: The settings of the benchmark.
        cases: (repeat, threads, number of the file) in the order in which they are measured.
        notes: Notes for the benchmark result.
        texts: Real texts from which inputs are made.
    """

    files: list[PlannedFile]
    lengths: list[Length]
    options: BenchmarkOptions
    cases: list[tuple[int, int, int]]
    notes: list[str]
    texts: Sequence[Text]

    @cached_property
    def content(self) -> bytes:
        """The plan as JSON for the page; inputs that several files share are in it once."""
        options, sets = self.options, dict[str, int]()

        def number_of(feeds: Sequence[Arrays]) -> int:
            return sets.setdefault(json.dumps([*map(_as_lists, feeds)]), len(sets))

        files = [
            {
                "number": number,
                "name": planned.variant.name,
                "format": planned.variant.format,
                "bytes": planned.variant.bytes,
                "keys": planned.keys,
                "checked": number_of([run for runs in planned.checked for run in runs]),
                "inputs": {str(length): number_of(planned.feeds(self.texts, length)) for length in self.lengths},
            }
            for number, planned in enumerate(self.files)
        ]
        content = {
            "files": files,
            "lengths": self.lengths,
            "cases": self.cases,
            "sets": [json.loads(text) for text in sets],
            "repeats": options.repeats,
            "runs": options.runs,
            "gaps_ms": list(options.gaps_ms),
            "budget_s": options.budget_s,
            "least_s": options.least_s,
            "burst": BURST,
            "warmup": {"least": _WARMUP_LEAST, "most": _WARMUP_MOST, "stable": _STABLE},
            "idle": {"share": _IDLE_SHARE, "least": _LEAST_SINGLES, "most": _MOST_SINGLES},
            "first_threads": options.threads[0],
        }
        return json.dumps(content).encode()


def make_plan(variants: Sequence[Variant], texts: Sequence[Text], options: BenchmarkOptions) -> Plan:
    """Open the files, reduce lengths that are too long for one of them, and return the plan with its cases in random order.

    In each repeat every file is opened again, in another order, so that a phone that slows down affects all files.

    Args:
        variants: The files.
        texts: Real texts, in the order in which they are used.
        options: The settings of the benchmark.

    Raises:
        InputError: If a file is a link out of its folder, or there are too many files.
    """
    problems = [Problem(str(v.path), f"leads out of {v.tokenizer}; it is not served.") for v in variants if _leaves(v)]
    if len(variants) > _MOST_FILES:
        problems.append(Problem("files", f"{len(variants)}; a browser measures {_MOST_FILES} at most."))
    if problems:
        raise InputError(problems)
    files = [PlannedFile.open(variant, texts) for variant in variants]
    most = min(min(f.variant.max_length, max(f.predictor.lengths, default=f.variant.max_length)) for f in files)
    clipped = [str(x) for x in options.lengths if x != TEXT and int(x) > most]
    notes = [f"Length {', '.join(clipped)} clipped to {most}, the most the files take."] if clipped else []
    lengths = list(dict.fromkeys(TEXT if x == TEXT else min(int(x), most) for x in options.lengths))
    draw = generator(options.seed, "browser order")
    threads = list(dict.fromkeys(options.threads))
    cases = [
        (repeat, count, int(number))
        for repeat in range(options.repeats)
        for count in threads
        for number in draw.permutation(len(files))
    ]
    return Plan(files, lengths, options, cases, notes, texts)


def _leaves(variant: Variant) -> bool:
    """Return whether a model file is a link to a place outside of its folder."""
    root = variant.tokenizer if variant.tokenizer.is_dir() else variant.tokenizer.parent
    inside = Path(variant.path).absolute().is_relative_to(root.absolute())
    return inside and not variant.path.resolve().is_relative_to(root.resolve())


def _as_lists(feed: Mapping[str, NDArray[Any]]) -> dict[str, dict[str, Any]]:
    """Return each input of a run as JSON values (shape and numbers), by name."""
    return {name: {"shape": list(value.shape), "data": value.ravel().tolist()} for name, value in feed.items()}
