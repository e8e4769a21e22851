"""Rows that the student reads in smaller pieces than its teacher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pocketbert.core.heads.head import Prepared
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.training.data import TEACHER_PREFIX, TrainSet, select_teacher_inputs
from pocketbert.distill.vocabulary import PrunedTokenizer, ResplitRows, sample_rows

from .conftest import TEXTS
from .test_laws import prune


@pytest.fixture(scope="module")
def rows(tokenizer_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> ResplitRows:
    folder = tokenizer_folder("WordPiece")
    tokenizer = TextTokenizer(folder, 64)
    encoded = tokenizer.encode(TEXTS)
    plain = TrainSet(Prepared([], encoded, np.arange(len(TEXTS)), {"labels": np.arange(len(TEXTS))}), tokenizer)
    readers = []
    for number in range(3):
        made = tmp_path_factory.mktemp("smaller")
        kept, _ = prune(folder, made, [TEXTS[i] for i in sample_rows(len(TEXTS), number, 3)])
        readers.append(PrunedTokenizer(TextTokenizer(made, 64), kept))
    return ResplitRows(plain, TEXTS, None, readers, 0.5, 3, "distill.0")


def test_the_teacher_reads_the_rows_as_they_were(rows: ResplitRows) -> None:
    some = range(20)
    batch, plain = rows.batch(some, 4), rows.rows.batch(some, 4)
    taught = select_teacher_inputs(batch)
    assert taught.keys() == plain.keys()
    assert all(torch.equal(taught[name], plain[name]) for name in plain)
    again = select_teacher_inputs(rows.batch(some, 9))
    assert all(torch.equal(again[name], plain[name]) for name in plain), "at every step"
    assert rows.lengths == rows.rows.lengths


def test_a_share_of_the_rows_is_split_into_pieces_of_smaller_vocabularies(rows: ResplitRows) -> None:
    allowed = [{*reader.selection.kept_ids} for reader in rows.smaller_tokenizers]
    changed = 0
    for step in range(20):
        batch = rows.batch(range(30), step)
        for i in range(30):
            own = batch["input_ids"][i][batch["attention_mask"][i] > 0].tolist()
            if own != rows.rows.rows.encoded[i].ids.tolist():
                changed += 1
                assert any({*own} <= pieces for pieces in allowed)
    assert 0.2 < changed / 600 < 0.6


def test_what_is_split_is_a_function_of_seed_purpose_step_and_row(rows: ResplitRows) -> None:
    from dataclasses import replace

    one, two = rows.batch([3, 4, 5, 6], 1), rows.batch([6, 5], 1)
    ids = [b["input_ids"][i][b["attention_mask"][i] > 0].tolist() for b, i in ((one, 3), (two, 0), (one, 2), (two, 1))]
    assert ids[0] == ids[1]
    assert ids[2] == ids[3]
    batches = [
        r.batch(range(30), 2)["input_ids"] for r in (rows, rows, replace(rows, seed=4), replace(rows, purpose="x"))
    ]
    assert torch.equal(batches[0], batches[1])
    assert not any(b.shape == batches[0].shape and torch.equal(b, batches[0]) for b in batches[2:])


def test_without_a_share_the_student_reads_its_own_pieces(rows: ResplitRows) -> None:
    from dataclasses import replace

    own = replace(rows, student_tokenizer=rows.smaller_tokenizers[2], smaller_tokenizers=(), share=0.0)
    batch = own.batch(range(30), 0)
    read = [batch["input_ids"][i][batch["attention_mask"][i] > 0].tolist() for i in range(30)]
    assert read == [rows.smaller_tokenizers[2].encode(text).ids.tolist() for text in TEXTS[:30]]
    assert TEACHER_PREFIX + "input_ids" in batch


def test_samples_have_the_sizes_that_are_documented() -> None:
    assert [len(sample_rows(640, number, 1)) for number in range(8)] == [160, 80, 40, 20, 160, 80, 40, 20]
    assert len(sample_rows(2, 3, 1)) == 1
    assert sample_rows(640, 0, 1).tolist() != sample_rows(640, 4, 1).tolist()
