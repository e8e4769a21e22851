"""Compile files for the devices on which nothing is timed, and compare emulated answers with those of this machine.

`compile_for` goes through targets, files and lengths. For each it chooses rows (labelled ones, else golden rows and real texts),
lets the compiler of the target compile the file and emulate as many rows as there is time for, compares the outputs with those of
this machine's CPU, and scores both on labelled rows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.benchmarks.devices.protocol import Compiler
from pocketbert.benchmarks.inputs import Differences, Feed, choose_fixed_lengths, join_to_length
from pocketbert.benchmarks.measurement import BenchmarkOptions, Variant
from pocketbert.benchmarks.records import Compilation, EmulatedAnswers
from pocketbert.core.compare.evaluate import EvalSet, evaluate
from pocketbert.core.compare.golden import GOLDEN_FILE, read_golden
from pocketbert.core.devices import DeviceName, Figure
from pocketbert.core.host.progress import Meter
from pocketbert.core.predict.examples import Example
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.scores import Score
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import Scheme
from pocketbert.runtime.engines import FilePredictor, add_missing_inputs

_SCALED = 16
"""Rows among which the largest answer on this machine is looked for, where fewer were emulated."""

_Outputs = Mapping[str, NDArray[Any]]
"""Outputs of one row by name."""
_FLOAT_SHARE = 0.05
"""How far answers of float files may differ, as a fraction of the largest answer here: an NPU computes them in fp16. The
demo's student differs by 0.004, tiny models with random weights by up to 0.04; wrong answers differ by 0.9 and more."""
_QUANTIZED_SHARE = 0.2
"""The same for other files: the demo's dynamic int8 file differs by up to 0.09 of a row's largest logit, with the same label."""
_SPAN_OUTPUTS = ("start_logits", "end_logits")


@dataclass(frozen=True)
class Target:
    """A device that model files are only compiled for, without being timed there.

    Attributes:
        name: Name of the device, with its argument.
        compiler: The compiler for the device.
        variants: The files to compile.
    """

    name: DeviceName
    compiler: Compiler
    variants: Sequence[Variant]


@dataclass(frozen=True)
class _Rows:
    """The input rows that the NPU's emulator computes for one file at one length.

    Attributes:
        feeds: Inputs of exactly `length` tokens, one row each.
        length: Number of tokens.
        tokenizer: The file's tokenizer.
        labelled: The labelled rows that the inputs were made from, in their order; None if they have no labels.
    """

    feeds: list[Feed]
    length: int
    tokenizer: TextTokenizer
    labelled: EvalSet | None = None


def compile_for(
    targets: Sequence[Target],
    texts: Sequence[Text],
    options: BenchmarkOptions,
    budget_s: float,
    labelled: EvalSet | None = None,
) -> list[Compilation]:
    """Compile each target's files at every length, and compare the emulator's outputs with this machine's.

    The input rows are those of ``golden.jsonl`` in the tokenizer's folder and then `texts`, each in a random order that
    the seed decides. For each length, the rows that fit are taken; if none fits, texts are joined to one row. If there
    are labelled rows, they are used instead, and longer ones are truncated, as on a phone with that file.

    Args:
        targets: The devices, each with the files to compile for it.
        texts: Real texts to emulate.
        options: Lengths and seed. ``"text"`` is left out, since an NPU takes fixed shapes only; without a number, the
            longest input of each file is taken.
        budget_s: Seconds for all emulated rows together; a compiler with an emulator computes at least one for each file
            and length.
        labelled: Rows to score the emulator's outputs on; None without any.

    Returns:
        One record for each target, file and length.
    """
    variants = {v.name: v for target in targets for v in target.variants}
    lengths = {n: choose_fixed_lengths(options.lengths, v.file.lengths, v.max_length) for n, v in variants.items()}
    work = [(t, v, x) for t in targets for v in t.variants for x in lengths[v.name]]
    end, compilations = time.monotonic() + budget_s, list[Compilation]()
    label = options.label and "compile and emulate"
    with Meter(label, len(work)) as meter:
        for number, (target, variant, length) in enumerate(work):
            seconds = max(0.0, end - time.monotonic()) / (len(work) - number)
            rows = (
                _labelled_rows(variant, labelled, length, options.seed)
                if labelled is not None
                else _text_rows(variant, texts, length, options.seed)
            )
            compilations.append(_compile(target, variant, rows, seconds))
            if label:
                meter.advance(note=f"{target.name}: {variant.name}, {length} tokens")
    return compilations


def _labelled_rows(variant: Variant, labelled: EvalSet, length: int, seed: int) -> _Rows:
    """Return the labelled rows as inputs of `length` tokens, in a seeded random order; longer ones are truncated."""
    examples, tokenizer = labelled.rows.examples, TextTokenizer(variant.tokenizer, variant.max_length)
    order = generator(seed, "emulated rows").permutation(len(examples))
    prepared = _prepare(labelled, [examples[i] for i in order], tokenizer, length)
    return _Rows([tokenizer.pad([row], length) for row in prepared.rows.encoded], length, tokenizer, prepared)


def _prepare(labelled: EvalSet, examples: list[Example], tokenizer: TextTokenizer, length: int) -> EvalSet:
    """Return an evaluation set of these examples, tokenized and truncated to `length` tokens."""
    head, name = labelled.head, labelled.name
    return EvalSet(name, head, head.prepare(examples, tokenizer, name)).within(length)


def _text_rows(variant: Variant, texts: Sequence[Text], length: int, seed: int) -> _Rows:
    """Return inputs of `length` tokens: golden rows and then real texts that fit, padded; if none fits, texts joined to one row."""
    golden = variant.tokenizer / GOLDEN_FILE
    recorded = [row.input for row in read_golden(golden)] if golden.is_file() else []
    tokenizer = TextTokenizer(variant.tokenizer, variant.max_length)
    feeds = []
    for some in (recorded, [t for t in texts if t not in recorded]):
        rows = tokenizer.encode(some) if some else []
        fitting = [row for row in rows if len(row) <= length and not row.truncated]
        order = generator(seed, "emulated rows").permutation(len(fitting))
        feeds += [tokenizer.pad([fitting[i]], length) for i in order]
    feeds = feeds or [tokenizer.pad([join_to_length(tokenizer.encode(list(texts)), length)], length)]
    return _Rows(feeds, length, tokenizer)


def _compile(target: Target, variant: Variant, rows: _Rows, budget_s: float) -> Compilation:
    """Compile a file for one length, compare the emulator's outputs with the CPU's, and return the record.

    Where the target has no emulator, the file is only compiled. A failure of the compiler is recorded, not raised.

    Args:
        target: The compiler, and the name of the device that it compiles for.
        variant: The model file.
        rows: The inputs, all of one length.
        budget_s: Seconds that the emulator may take; it computes at least one row.
    """
    predictor = variant.file.open(1)
    made = target.compiler.compile(predictor, Path(variant.path), rows.length, rows.feeds, budget_s)
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
        length=rows.length,
        op_types=made.op_types,
        partitions=made.partitions,
        left=made.left,
        compiled_bytes=made.bytes,
        compile_s=made.compile_s,
        answers=_compare(target, variant, predictor, rows, made.answers) if made.answers else None,
        failed=made.failed,
        stopped=made.stopped,
        estimate=made.estimate,
    )


def _compare(
    target: Target, variant: Variant, predictor: FilePredictor, rows: _Rows, emulated: Sequence[_Outputs]
) -> EmulatedAnswers:
    """Compare the emulator's outputs at real tokens with those of this machine's CPU, and build the record.

    It has the largest difference; if the outputs are logits of classes, the share of equal decisions; and for labelled
    rows both scores. If few rows were emulated, further rows run on the CPU only, for the size of its outputs.
    """
    differences, same = Differences(), list[bool]()
    for number, feed in enumerate(rows.feeds[: max(len(emulated), _SCALED)]):
        mask = np.asarray(feed["attention_mask"])[0] == 1
        for name, value in predictor.run(add_missing_inputs(predictor, feed)).items():
            here = _at_real_tokens(name, np.asarray(value, np.float64), mask)
            if number >= len(emulated):
                differences.scale(name, here)
                continue
            there = _at_real_tokens(name, np.asarray(emulated[number].get(name, np.nan), np.float64), mask)
            if differences.add(name, here, there) and name in ("logits", *_SPAN_OUTPUTS) and here.shape[-1] >= 2:
                same += (here.argmax(-1) == there.argmax(-1)).ravel().tolist()
    exact = variant.scheme in (Scheme.FP32, Scheme.FP16)
    largest, tolerance = differences.worst(_FLOAT_SHARE if exact else _QUANTIZED_SHARE)
    scores = _score_both(predictor, rows, emulated) if differences.finite else None
    return EmulatedAnswers(
        variant=variant.name,
        rows=len(emulated),
        largest=largest,
        tolerance=tolerance,
        finite=differences.finite,
        provenance=target.name.info.figures[Figure.ANSWERS],
        against="rows compared with this machine's CPU",
        available=len(rows.feeds),
        same=float(np.mean(same)) if same else None,
        score=scores[0] if scores else None,
        score_here=scores[1] if scores else None,
    )


def _at_real_tokens(name: str, value: NDArray[Any], mask: NDArray[np.bool_]) -> NDArray[Any]:
    """Remove the values of padding tokens from an output of one row; outputs without a token axis stay unchanged."""
    by_token = value.ndim == 3 or (value.ndim == 2 and name in _SPAN_OUTPUTS)
    return value[:, mask] if by_token and value.shape[1] == len(mask) else value


def _score_both(predictor: FilePredictor, rows: _Rows, emulated: Sequence[_Outputs]) -> tuple[Score, Score] | None:
    """Return the emulator's and this machine's score on the same labelled rows.

    A long example may be split into several rows. Examples with a row that was not emulated are left out. None if no
    example is left, or if the rows have no labels.
    """
    if rows.labelled is None:
        return None
    prepared = rows.labelled.rows
    whole = int(prepared.owner[len(emulated)]) if len(emulated) < len(prepared.owner) else len(prepared.examples)
    if not whole:
        return None
    chosen = _prepare(rows.labelled, prepared.examples[:whole], rows.tokenizer, rows.length)
    recorded = _RecordedPredictor(predictor, rows.length, rows.feeds, emulated)
    return evaluate(recorded, rows.tokenizer, chosen)[0], evaluate(predictor, rows.tokenizer, chosen)[0]


class _RecordedPredictor:
    """A predictor that returns recorded outputs instead of running a model.

    Args:
        file: The opened file, for the names of its inputs and outputs.
        length: The only length that the predictor takes.
        feeds: The inputs of all rows.
        recorded: The outputs of the first of these rows.
    """

    engine, engine_version = "emulator", ""

    def __init__(self, file: FilePredictor, length: int, feeds: Sequence[Feed], recorded: Sequence[_Outputs]) -> None:
        self.inputs, self.outputs = file.inputs, file.outputs
        self.lengths: tuple[int, ...] = (length,)
        self._outputs_by_key = {self._key(feed): outputs for feed, outputs in zip(feeds, recorded, strict=False)}

    def _key(self, feed: Mapping[str, NDArray[Any]]) -> tuple[bytes, ...]:
        return tuple(np.asarray(feed[name]).tobytes() for name in self.inputs if name in feed)

    def run(self, inputs: Mapping[str, NDArray[np.generic]]) -> dict[str, NDArray[Any]]:
        """Return the recorded outputs of this input row."""
        return dict(self._outputs_by_key[self._key(inputs)])
