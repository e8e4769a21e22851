"""The step that records golden rows: what the torch model and every file answer, and the tokenizer's own rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pocketbert.core.compare.evaluate import yardstick
from pocketbert.core.compare.golden import FILE_NAME, TOKENS_FILE_NAME, GoldenRow, write_golden
from pocketbert.core.compare.parity import padded_answers
from pocketbert.core.compare.sample_texts import sample_pairs
from pocketbert.core.host.progress import say
from pocketbert.core.models.folder import ModelFolder
from pocketbert.core.predict.columns import columns_of
from pocketbert.core.predict.predictor import PROBABILITIES, Predictor
from pocketbert.core.predict.readout import Matrix, per_token, run_rows, whole
from pocketbert.core.predict.score import probabilities
from pocketbert.core.predict.tokenization import Text, TextTokenizer
from pocketbert.core.predict.torch_predictor import TorchPredictor
from pocketbert.core.tasks import Task
from pocketbert.pipeline.formats.model_files import ModelFile
from pocketbert.pipeline.formats.place import bounds_of, place_of
from pocketbert.pipeline.formats.run_model import RunModel
from pocketbert.pipeline.make.reaching import SECONDS, Search
from pocketbert.pipeline.reference import (
    answered,
    decided,
    drawn_questions,
    own_texts,
    shown_labels,
    takes_both,
)
from pocketbert.runtime.engines import open_file

ROWS = 40
SEARCHED = 512
"""Texts of the data that are looked at for labels that the first `ROWS` do not reach."""
PLACES = 12
"""Most tokens of a text whose answers are recorded."""
COLUMNS = 256
"""Most columns of an answer that are recorded: vocabularies and vectors are wider."""


def make_golden(
    model: RunModel, torch_model: TorchPredictor, texts: Sequence[Text], destination: Path, files: Sequence[ModelFile]
) -> Sequence[str]:
    """Write golden rows.

    A text that is longer than a file takes (MediaPipe's has one length) gets no row for that file.

    Args:
        model: The exported model.
        torch_model: The same in torch.
        texts: Texts of the data, `SEARCHED` of them; empty without data.
        destination: Folder to write into.
        files: Files in the run folder.

    Returns:
        One line for each file that answers NaN or infinity.
    """
    tokenizer, task = model.tokenizer, model.task
    real = golden_texts(model.folder, task, texts, tokenizer)
    drawn = _drawn_texts(model, torch_model, files)
    have = tokenizer.noted([*real, *drawn])
    known = run_rows(torch_model, tokenizer, tokenizer.encode(have), task)
    rows = [*have, *tokenizer.noted(_reaching_texts(model, torch_model, have, known, texts))]
    encoded = tokenizer.encode(rows)

    def answers(predictor: Predictor, numbers: Sequence[int]) -> list[Matrix]:
        return run_rows(predictor, tokenizer, [encoded[i] for i in numbers], task)

    every = range(len(rows))
    reference = [*known, *answers(torch_model, every[len(have) :])]
    padded = padded_answers(torch_model, tokenizer, encoded, task)
    labels = model.folder.labels or []
    blank = [blank_row(text, matrix, task, labels) for text, matrix in zip(rows, reference, strict=True)]
    found: dict[str, dict[int, Matrix]] = {}
    allowed: dict[str, float] = {}
    for file in files:
        predictor = open_file(model.source(file), file.format, runtime=file.runtime)
        longest = max(predictor.lengths, default=model.length)
        numbers = [i for i in every if len(encoded[i]) <= longest]
        values = answers(predictor, numbers)
        if not all(np.isfinite(v).all() for v in values):
            return [f"{file.path}: NaN or infinite logits on golden rows."]
        inside = PROBABILITIES in predictor.outputs
        like = [probabilities(m, task.score).astype(np.float32) for m in reference] if inside else reference
        picked = [row.pick(m) for row, m in zip(blank, like, strict=True)]
        allowed[file.path] = bounds_of(file).golden * yardstick(whole(picked))
        found[file.path] = dict(zip(numbers, values, strict=True))
    golden = [
        row.model_copy(
            update={
                "reference": _plain(row.pick(reference[i])),
                "padded": _plain(row.pick(padded[i])),
                "outputs": {p: _plain(row.pick(v[i])) for p, v in found.items() if i in v},
                "tolerance": {p: allowed[p] for p, v in found.items() if i in v},
                "drawn": len(real) <= i < len(real) + len(drawn),
            }
        )
        for i, row in enumerate(blank)
    ]
    write_golden(destination / FILE_NAME, golden)
    token_rows = [json.dumps(tokenizer.golden(t), ensure_ascii=False) for t in tokenizer.prompts.put_before(rows)]
    (destination / TOKENS_FILE_NAME).write_text("\n".join(token_rows) + "\n", encoding="utf-8")
    return ()


def blank_row(text: Text, matrix: Matrix, task: Task, labels: Sequence[str]) -> GoldenRow:
    """Make a row that knows what it records: all of a small answer, tokens spread over a long one, columns of a wide one."""
    places = _spread(len(matrix), PLACES) if per_token(task) else []
    columns: list[int] = []
    if matrix.shape[1] > COLUMNS:
        best = np.argsort(-matrix[places or [0]].max(0), kind="stable")[: COLUMNS // 4].tolist()
        # as many in every row, so that rows can be put below each other
        others = np.setdiff1d(np.arange(matrix.shape[1]), best)
        columns = sorted({*best, *others[_spread(len(others), COLUMNS - len(best))].tolist()})
    row = GoldenRow(
        text=text,
        label="",
        reference=[],
        outputs={},
        tolerance={},
        places=places,
        columns=columns,
        data=dict(columns_of(text) or {}),
    )
    return row.model_copy(update={"label": decided(row.pick(matrix), task, row.names(labels))})


def _spread(count: int, most: int) -> list[int]:
    """Up to `most` numbers below `count`, evenly spread, the first and the last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def golden_texts(folder: ModelFolder, task: Task, texts: Sequence[Text], tokenizer: TextTokenizer) -> list[Text]:
    """Rows from the data where there is any, filled up with the project's own, and four pairs."""
    own = own_texts(task, tokenizer)
    mixed = [*texts[: ROWS - 12], *own[-12:]] if texts else own
    pairs = folder.family.uses_segments and takes_both(task)
    return mixed + (list(sample_pairs()[:4]) if pairs else [])


def _drawn_texts(model: RunModel, reference: TorchPredictor, files: Sequence[ModelFile]) -> list[Text]:
    """Texts of drawn words that fill the longest input of every file."""
    longest = {max(place_of(f.format).lengths(model.recipe, f, model.length)) for f in files}
    segments = model.folder.family.uses_segments
    return [
        text
        for length in sorted(longest, reverse=True)
        for text in drawn_questions(reference, model.tokenizer, segments, model.task, length)
    ]


def _reaching_texts(
    model: RunModel,
    reference: TorchPredictor,
    have: Sequence[Text],
    answers: Sequence[Matrix],
    data: Sequence[Text],
) -> list[Text]:
    """Texts that reach labels which those at hand do not: of the data, else composed."""
    labels, task, tokenizer = model.folder.labels or [], model.task, model.tokenizer
    if not labels or not task.names_labels:
        return []

    def recorded(matrix: Matrix) -> Matrix:
        return matrix[_spread(len(matrix), PLACES)] if per_token(task) else matrix

    seen = {i for m in map(recorded, answers) if np.isfinite(m).all() for i in answered(m, task)}
    search = Search(reference, tokenizer, recorded, [i for i in range(len(labels)) if i not in seen])
    search.try_texts([*texts_not_in(data, have), *texts_not_in(own_texts(task, tokenizer), have)])
    search.compose()
    found = search.result()
    if found.missing:
        cut = f" (the search ended after {SECONDS:.0f} s)" if found.ended else ""
        say(
            f"  golden rows reach {len(labels) - len(found.missing)} of {len(labels)} labels; not reached: {shown_labels([labels[i] for i in found.missing])}{cut}"
        )
    return found.texts


def texts_not_in(texts: Sequence[Text], others: Sequence[Text]) -> list[Text]:
    """Those of some texts that are not among others."""
    known = set(others)
    return [t for t in texts if t not in known]


def _plain(values: Matrix) -> list[float]:
    return [float(v) for v in values.ravel()]
