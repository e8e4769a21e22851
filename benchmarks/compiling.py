"""Files compiled for the devices on which nothing is timed, and their emulated answers compared with this machine's."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.devices.protocol import Compiler
from pocketbert.benchmarks.inputs import Differences, Feed, fixed_shapes, row_of_length
from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant
from pocketbert.benchmarks.records import Compilation, EmulatedAnswers
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.compare.golden import GOLDEN_FILE, read_golden
from pocketbert.core.data.examples import Example
from pocketbert.core.devices import DeviceName, Figure
from pocketbert.core.host.progress import Meter
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import Scheme
from pocketbert.runtime.engines import FilePredictor, filled

Outputs = Mapping[str, NDArray[Any]]
"""Outputs of one row by name."""
FLOAT = 0.05
"""How far answers of float files may differ, as a fraction of the largest answer here: an NPU computes them in fp16. The
demo's student differs by 0.004, tiny models with random weights by up to 0.04; wrong answers differ by 0.9 and more."""
QUANTIZED = 0.2
"""The same for other files: the demo's dynamic int8 file differs by up to 0.09 of a row's largest logit, with the same label."""
SCALED = 16
"""Rows among which the largest answer here is looked for, where fewer were emulated."""
_EXACT = (Scheme.FP32, Scheme.FP16)
_PLACES = ("start_logits", "end_logits")
_CLASSES = "logits"


@dataclass(frozen=True)
class Target:
    """A device that files are compiled for.

    Attributes:
        name: The device.
        compiler: Its compiler.
        variants: The files.
    """

    name: DeviceName
    compiler: Compiler
    variants: Sequence[Variant]


@dataclass(frozen=True)
class _Inputs:
    """What is emulated of one file at one length.

    Attributes:
        feeds: Inputs of exactly that length.
        length: Tokens.
        tokenizer: The file's tokenizer.
        labelled: The labelled rows that the feeds are made of, in their order; None where they have no labels.
    """

    feeds: list[Feed]
    length: int
    tokenizer: TextTokenizer
    labelled: EvalSet | None = None

    def scores(self, predictor: FilePredictor, told: Sequence[Outputs]) -> tuple[Score, Score] | None:
        """Score of the rows that were emulated as a whole, and that of the same rows on this machine's CPU."""
        if self.labelled is None:
            return None
        rows = self.labelled.rows
        whole = int(rows.owner[len(told)]) if len(told) < len(rows.owner) else len(rows.examples)
        if not whole:
            return None
        chosen = _prepared(self.labelled, rows.examples[:whole], self.tokenizer, self.length)
        emulated = _Recorded(predictor, self.length, self.feeds, told)
        return evaluate(emulated, self.tokenizer, chosen)[0], evaluate(predictor, self.tokenizer, chosen)[0]


class _Recorded:
    """A predictor that answers what was emulated.

    Args:
        file: The file, for the names of its inputs and outputs.
        length: The only length it takes.
        feeds: Inputs.
        told: Outputs of the first of them.
    """

    engine, engine_version = "emulator", ""

    def __init__(self, file: FilePredictor, length: int, feeds: Sequence[Feed], told: Sequence[Outputs]) -> None:
        self.inputs, self.outputs = file.inputs, file.outputs
        self.lengths: tuple[int, ...] = (length,)
        self._told = {self._key(feed): outputs for feed, outputs in zip(feeds, told, strict=False)}

    def _key(self, feed: Mapping[str, NDArray[Any]]) -> tuple[bytes, ...]:
        return tuple(np.asarray(feed[name]).tobytes() for name in self.inputs if name in feed)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[Any]]:
        """Look up the outputs of one row."""
        return dict(self._told[self._key(inputs)])


def _prepared(labelled: EvalSet, examples: list[Example], tokenizer: TextTokenizer, length: int) -> EvalSet:
    return EvalSet(labelled.name, labelled.head, labelled.head.prepare(examples, tokenizer, labelled.name)).within(
        length
    )


def compile_for(
    targets: Sequence[Target],
    texts: Sequence[Text],
    options: BenchmarkOptions,
    budget_s: float,
    labelled: EvalSet | None = None,
) -> list[Compilation]:
    """Compile every file at every length for every target, and emulate rows of real text.

    The rows are those of ``golden.jsonl`` next to the tokenizer, then `texts`, both in a random order that the seed
    decides; a length takes the rows that fit without truncation. Labelled rows take the place of both, and longer ones are
    truncated, as they would be on a phone with that file.

    Args:
        targets: Devices with their files.
        texts: Real texts.
        options: Lengths and seed. ``"text"`` is left out where numbers are given: an NPU takes fixed shapes only.
        budget_s: Seconds for all emulated rows together; each compilation emulates at least one.
        labelled: Rows to score on.

    Returns:
        One record per target, file and length.
    """
    variants = {v.name: v for target in targets for v in target.variants}
    lengths = {n: fixed_shapes(options.lengths, v.file.lengths, v.max_length) for n, v in variants.items()}
    work = [(t, v, x) for t in targets for v in t.variants for x in lengths[v.name]]
    end, out = time.monotonic() + budget_s, list[Compilation]()
    label = options.label and "compile and emulate"
    with Meter(label, len(work)) as meter:
        for number, (target, variant, length) in enumerate(work):
            seconds = max(0.0, end - time.monotonic()) / (len(work) - number)
            inputs = (
                _labelled_inputs(variant, labelled, length, options.seed)
                if labelled is not None
                else _inputs(variant, texts, length, options.seed)
            )
            out.append(_compile(target, variant, inputs, seconds))
            if label:
                meter.advance(note=f"{target.name}: {variant.name}, {length} tokens")
    return out


def _labelled_inputs(variant: Variant, labelled: EvalSet, length: int, seed: int) -> _Inputs:
    """Labelled rows in a random order that the seed decides."""
    examples, tokenizer = labelled.rows.examples, TextTokenizer(variant.tokenizer, variant.max_length)
    order = generator(seed, "emulated rows").permutation(len(examples))
    rows = _prepared(labelled, [examples[i] for i in order], tokenizer, length)
    return _Inputs([tokenizer.pad([row], length) for row in rows.rows.encoded], length, tokenizer, rows)


def _inputs(variant: Variant, texts: Sequence[Text], length: int, seed: int) -> _Inputs:
    """Inputs of exactly `length` tokens: padded rows of real text, or joined texts where no row fits."""
    golden = variant.tokenizer / GOLDEN_FILE
    recorded = [row.input for row in read_golden(golden)] if golden.is_file() else []
    tokenizer = TextTokenizer(variant.tokenizer, variant.max_length)
    out = []
    for some in (recorded, [t for t in texts if t not in recorded]):
        rows = tokenizer.encode(some) if some else []
        fitting = [row for row in rows if len(row) <= length and not row.truncated]
        order = generator(seed, "emulated rows").permutation(len(fitting))
        out += [tokenizer.pad([fitting[i]], length) for i in order]
    out = out or [tokenizer.pad([row_of_length(tokenizer.encode(list(texts)), length)], length)]
    return _Inputs(out, length, tokenizer)


def _compile(target: Target, variant: Variant, inputs: _Inputs, budget_s: float) -> Compilation:
    predictor = variant.file.open(1)
    made = target.compiler.compile(predictor, Path(variant.path), inputs.length, inputs.feeds, budget_s)
    figures = target.name.info.figures
    return Compilation(
        variant=variant.name,
        sha256=variant.sha256,
        bytes=variant.bytes,
        device=str(target.name),
        target=target.compiler.target,
        engine=target.compiler.engine,
        engine_version=target.compiler.engine_version,
        provenance=figures[Figure.PLACEMENT],
        length=inputs.length,
        op_types=made.op_types,
        partitions=made.partitions,
        left=made.left,
        compiled_bytes=made.bytes,
        compile_s=made.compile_s,
        answers=_compare(target, variant, predictor, inputs, made.answers) if made.answers else None,
        failed=made.failed,
        stopped=made.stopped,
        estimate=made.estimate,
    )


def _compare(
    target: Target,
    variant: Variant,
    predictor: FilePredictor,
    inputs: _Inputs,
    told: Sequence[Outputs],
) -> EmulatedAnswers:
    """Compare the first rows' emulated outputs at real tokens with those of this machine's CPU for the same file."""
    found, same = Differences(), list[bool]()
    for number, feed in enumerate(inputs.feeds[: max(len(told), SCALED)]):
        real = np.asarray(feed["attention_mask"])[0] == 1
        for name, value in predictor.run(filled(predictor, feed)).items():
            here = _real(name, np.asarray(value, np.float64), real)
            if number >= len(told):
                found.scale(name, here)
                continue
            there = _real(name, np.asarray(told[number].get(name, np.nan), np.float64), real)
            if found.add(name, here, there):
                same += _decisions(name, here, there)
    largest, tolerance = found.worst(FLOAT if variant.scheme in _EXACT else QUANTIZED)
    scores = inputs.scores(predictor, told) if found.finite else None
    return EmulatedAnswers(
        variant=variant.name,
        rows=len(told),
        largest=largest,
        tolerance=tolerance,
        finite=found.finite,
        provenance=target.name.info.figures[Figure.ANSWERS],
        against="rows compared with this machine's CPU",
        available=len(inputs.feeds),
        same=float(np.mean(same)) if same else None,
        score=scores[0] if scores else None,
        score_here=scores[1] if scores else None,
    )


def _real(name: str, value: NDArray[Any], real: NDArray[np.bool_]) -> NDArray[Any]:
    """The part of one row's output that is about its tokens: what stands at padding is arbitrary."""
    by_token = value.ndim == 3 or (value.ndim == 2 and name in _PLACES)
    return value[:, real] if by_token and value.shape[1] == len(real) else value


def _decisions(name: str, here: NDArray[Any], there: NDArray[Any]) -> Iterator[bool]:
    """Whether the largest logit is the same one, for every decision that an output holds."""
    if name not in (_CLASSES, *_PLACES) or here.shape[-1] < 2:
        return
    yield from (here.argmax(-1) == there.argmax(-1)).ravel().tolist()
