"""Time the steps before and after an inference: from text to ids, and from the engine's outputs to the answer.

`time_tokenizers` and `time_post_processing` run in this process; `PostProcessing` describes how a file's outputs become answers.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pocketbert.benchmarks.inputs import Feed, choose_texts
from pocketbert.benchmarks.measurement import Variant
from pocketbert.benchmarks.records import PostProcessingTime, TokenizerTime
from pocketbert.benchmarks.statistics import Statistics
from pocketbert.core.disk.files import sha256_file
from pocketbert.core.heads import Head, Prepared
from pocketbert.core.predict.answers import Answer
from pocketbert.core.predict.examples import unlabelled_example
from pocketbert.core.predict.inputs import Text
from pocketbert.core.predict.predictor import PROBABILITIES, Arrays, answer_outputs, feed, split_by_text
from pocketbert.core.predict.scores import apply_temperature
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import Task, TaskName
from pocketbert.core.types import Provenance

_POST_TEXTS = 50
"""Texts whose answers are timed: each costs an inference that is not timed."""
_POST_S = 5.0
"""Seconds after which the rest of them is left out, but never the first ones."""
_POST_LEAST, _POST_WARMUP = 10, 3
"""Least texts, and texts whose answers are made before anything is timed."""


@dataclass(frozen=True)
class PostProcessing:
    """How a file's outputs become answers: the task's head and the temperature of its logits.

    Attributes:
        head: The head of the task, which turns outputs into answers.
        temperature: The number that the file's logits are divided by.
    """

    head: Head
    temperature: float = 1.0

    def answers(
        self, outputs: Sequence[Arrays], inputs: Sequence[Feed], prepared: Prepared, inside: bool
    ) -> list[Answer]:
        """Turn outputs into answers as `pocketbert.load(folder).predict` does, but mark none as unknown.

        Args:
            outputs: The model's outputs for each input row: arrays by output name.
            inputs: The model's inputs for each row: arrays [1, L] by input name.
            prepared: The tokenized rows.
            inside: Whether the file computes the score function (softmax or sigmoid) itself.
        """
        task = self.head.task
        names = (PROBABILITIES,) if inside else task.answer
        mask_id = prepared.tokenizer.mask_id if prepared.tokenizer is not None else None
        scores = [
            apply_temperature(matrix, self.temperature, inside)
            for row_outputs, row_inputs in zip(outputs, inputs, strict=True)
            for matrix in split_by_text(row_outputs, row_inputs, names, task, mask_id)
        ]
        return self.head.answers(scores, prepared, inside)


def time_tokenizers(
    variants: Sequence[Variant], tokenizers: Mapping[str, TextTokenizer], texts: Sequence[Text], repeats: int
) -> list[TokenizerTime]:
    """Time the tokenization of each text in this process; files with equal tokenizer and longest input share times."""
    users: dict[tuple[str, int], list[str]] = {}
    for v in variants:
        file = v.tokenizer / "tokenizer.json" if v.tokenizer.is_dir() else v.tokenizer
        users.setdefault((sha256_file(file), v.max_length), []).append(v.name)
    times = []
    for (digest, _), names in users.items():
        tokenizer = tokenizers[names[0]]
        rows = tokenizer.encode(list(texts))  # warm-up as well: the tokenizer caches words
        samples = []
        for _ in range(repeats):
            for text in texts:
                begin = time.perf_counter_ns()
                tokenizer.encode([text])
                samples.append((time.perf_counter_ns() - begin) / 1e6)
        times.append(
            TokenizerTime(
                variants=names,
                sha256=digest,
                texts=len(texts),
                tokens_mean=float(np.mean([len(r) for r in rows])),
                per_text=Statistics.of(samples),
                wall_ms=samples,
                provenance=Provenance.MEASURED,
            )
        )
    return times


def time_post_processing(
    variants: Sequence[Variant],
    tokenizers: Mapping[str, TextTokenizer],
    texts: Sequence[Text],
    by_path: Mapping[Path, PostProcessing],
    notes: list[str],
) -> list[PostProcessingTime]:
    """Time the step from a file's outputs to answers; files with the same head and longest input share times.

    Args:
        variants: The model files.
        tokenizers: The tokenizer of each file, by the file's name.
        texts: Real texts.
        by_path: By a file's path, how its outputs become answers. Files that are not in it are not timed.
        notes: Collects a note on each file whose outputs do not fit.
    """
    groups: dict[tuple[int, int], list[Variant]] = {}
    for v in variants:
        if v.path in by_path:
            groups.setdefault((id(by_path[v.path].head), v.max_length), []).append(v)
    times = list[PostProcessingTime]()
    for group in groups.values():
        step = by_path[group[0].path]
        try:
            times.append(_time_post_processing(group, step, tokenizers[group[0].name], texts))
        except (ValueError, KeyError):  # a file of another task or with other labels, which `predict` refuses
            names = ", ".join(v.name for v in group)
            notes.append(
                f"No post-processing time of {names}: the outputs are not those of {step.head.task.name} here."
            )
    return times


def _time_post_processing(
    group: Sequence[Variant], step: PostProcessing, tokenizer: TextTokenizer, texts: Sequence[Text]
) -> PostProcessingTime:
    """Run the first file of a group on up to 50 texts, and time only the step from the outputs to an answer.

    After 5 s the remaining texts are left out, but at least the first 10 are timed.
    """
    predictor, task = group[0].file.open(1), step.head.task
    inside = PROBABILITIES in answer_outputs(task, predictor)
    chosen = choose_texts(_fit_task(texts, task, tokenizer.mask_token), _POST_TEXTS)
    walls, tokens, began = list[float](), list[int](), time.monotonic()
    for number, text in enumerate([*chosen[:_POST_WARMUP], *chosen]):
        if len(walls) >= _POST_LEAST and time.monotonic() - began > _POST_S:
            break
        rows = step.head.prepare([unlabelled_example(text)], tokenizer, "texts", labelled=False)
        inputs = [feed(predictor, tokenizer, [row]) for row in rows.encoded]
        outputs = [predictor.run(row_inputs) for row_inputs in inputs]
        begin = time.perf_counter_ns()
        step.answers(outputs, inputs, rows, inside)
        took = (time.perf_counter_ns() - begin) / 1e6
        if number >= min(_POST_WARMUP, len(chosen)):
            walls.append(took)
            tokens.append(sum(len(row) for row in rows.encoded))
    return PostProcessingTime(
        variants=[v.name for v in group],
        task=task.name,
        outputs_of=group[0].name,
        texts=len(walls),
        tokens_mean=float(np.mean(tokens)),
        per_text=Statistics.of(walls),
        wall_ms=walls,
        provenance=Provenance.MEASURED,
    )


def _fit_task(texts: Sequence[Text], task: Task, mask: str | None) -> list[Text]:
    """Return the texts as single texts or pairs, whichever the task takes.

    For a task on pairs, the next text becomes the second text of each single one. For a task on single texts, the first
    text of a pair is used. For fill-mask, the last word is replaced by `mask` if the text has no mask.
    """
    if task.pairs_only:
        following = [*texts[1:], texts[0]]
        return [
            (t, n) if isinstance(t, str) and isinstance(n, str) else t for t, n in zip(texts, following, strict=True)
        ]
    if task.name is TaskName.FILL_MASK and mask is not None:
        single = [t if isinstance(t, str) else t[0] for t in texts]
        return [t if mask in t else " ".join([*t.split()[:-1], mask]) for t in single]
    if task.single_only:
        return [t if isinstance(t, str) else t[0] for t in texts]
    return list(texts)
