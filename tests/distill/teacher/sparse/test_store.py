from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.errors import InputError
from pocketbert.distill.losses.tokens import SparseLogits, draw_uniform_numbers, sparsify
from pocketbert.distill.teacher.sparse import _SparseStore, _StoreSettings

V, K, M = 50, 3, 4
MASKS = {0: [1, 4], 1: [2], 2: [], 3: [1, 2, 7], 4: [3]}


def settings_of(**changes: Any) -> _StoreSettings:
    plain = {
        "teacher": "t",
        "data": "d",
        "masks": "m",
        "seed": 1,
        "rows": 6,
        "vocabulary": V,
        "k": K,
        "samples": M,
        "temperature": 2.0,
        "half": False,
    }
    return _StoreSettings(**{**plain, **changes})


def logits_of(row: int, epoch: int) -> torch.Tensor:
    return torch.randn(len(MASKS[row]), V, generator=torch.Generator().manual_seed(100 * epoch + row))


def sparse_of(rows: list[int], epoch: int) -> SparseLogits:
    logits = torch.cat([logits_of(row, epoch) for row in rows])
    draws = torch.cat([draw_uniform_numbers(len(MASKS[row]), M, 1, row, epoch) for row in rows])
    return sparsify(logits, K, draws, 2.0)


def fill(store: _SparseStore, epoch: int) -> None:
    with store.writing(epoch) as writer:
        for rows in ([3, 0], [2], [4, 1]):
            writer.add(rows, [MASKS[row] for row in rows], sparse_of(rows, epoch))


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> _SparseStore:
    store = _SparseStore(tmp_path_factory.mktemp("store"), settings_of())
    fill(store, 0)
    fill(store, 3)
    return store


@given(st.lists(st.sampled_from(sorted(MASKS)), min_size=1, max_size=6), st.sampled_from([0, 3]))
def test_reading_gives_back_what_was_written_in_any_order(filled: _SparseStore, rows: list[int], epoch: int) -> None:
    found, wanted = filled.read(epoch, rows, [MASKS[r] for r in rows]), sparse_of(rows, epoch)
    assert torch.equal(found.ids, wanted.ids) and torch.equal(found.weights, wanted.weights)
    assert torch.equal(found.negative_entropy, wanted.negative_entropy)
    assert (found.vocabulary, found.temperature) == (V, 2.0)


def test_fp16_rounds_weights_alone_by_what_it_says(tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", settings_of(half=True))
    fill(store, 0)
    found, wanted = store.read(0, [3], [MASKS[3]]), sparse_of([3], 0)
    assert found.weights.dtype == torch.float32 and torch.equal(found.ids, wanted.ids)
    assert torch.equal(found.negative_entropy, wanted.negative_entropy)
    error = (found.weights - wanted.weights).abs()
    assert float(error.max()) > 0 and (error <= wanted.weights * 2**-11 + 2**-25).all()


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("vocabulary", [V, 1 << 16, (1 << 16) + 1])
def test_bytes_a_position(half: bool, vocabulary: int, tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", settings_of(half=half, vocabulary=vocabulary))
    logits = torch.zeros(2, vocabulary)
    logits[:, -1] = 5.0
    with store.writing(0) as writer:
        writer.add([0], [[1, 4]], sparsify(logits, K, torch.rand(2, M), 2.0))
    by_hand = 6 + (K + M) * ((2 if vocabulary <= 65536 else 4) + (2 if half else 4))
    assert store.settings.bytes_per_position == by_hand
    assert (store.path(0) / "records.bin").stat().st_size == 2 * by_hand
    assert int(store.read(0, [0], [[1, 4]]).ids.max()) == vocabulary - 1  # not wrapped round


def test_bert_with_64_ids_takes_262_bytes() -> None:
    assert settings_of(vocabulary=30522, k=32, samples=32, half=True).bytes_per_position == 262


def test_other_masks_or_a_row_that_is_not_there_are_noticed(filled: _SparseStore) -> None:
    with pytest.raises(RuntimeError, match=r"row 0 of epoch 0 is masked at \[1, 5\], in the store at \[1, 4\]"):
        filled.read(0, [1, 0], [[2], [1, 5]])
    for masked in ([], [1]):
        with pytest.raises(RuntimeError, match=r"row 5 of epoch 0 .* at no time"):
            filled.read(0, [5], [masked])


def test_a_missing_epoch_is_an_error(filled: _SparseStore) -> None:
    assert filled.has(0) and not filled.has(1)
    with pytest.raises(InputError, match="not found"):
        filled.read(1, [0], [MASKS[0]])


def test_a_store_of_something_else_is_refused_with_all_that_differs(filled: _SparseStore) -> None:
    other = _SparseStore(filled.folder, settings_of(teacher="other", masks="n", k=5))
    with pytest.raises(InputError) as caught:
        other.read(0, [0], [MASKS[0]])
    assert [p.where.split()[-1] for p in caught.value.problems] == ["teacher", "masks", "k"]
    assert "3 instead of 5" in str(caught.value)


def test_an_epoch_under_the_number_of_another_is_refused(filled: _SparseStore, tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", filled.settings)
    store.folder.mkdir()
    filled.path(3).copy(store.path(1)) if hasattr(Path, "copy") else _copy(filled.path(3), store.path(1))
    with pytest.raises(InputError, match="epoch: 3 instead of 1"):
        store.read(1, [0], [MASKS[0]])


def _copy(source: Path, destination: Path) -> None:
    import shutil

    shutil.copytree(source, destination)


def test_a_write_that_fails_leaves_the_old_epoch(tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", settings_of())
    fill(store, 0)
    before = {p.name: p.read_bytes() for p in store.path(0).iterdir()}
    with pytest.raises(OSError, match="No space"), store.writing(0) as writer:
        writer.add([1], [MASKS[1]], sparse_of([1], 0))
        raise OSError(28, "No space left on device")
    assert {p.name: p.read_bytes() for p in store.path(0).iterdir()} == before
    assert [p.name for p in store.folder.iterdir()] == ["epoch-00000"]


def test_a_rewritten_epoch_is_read_anew(tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", settings_of())
    fill(store, 0)
    store.read(0, [1], [MASKS[1]])
    with store.writing(0) as writer:
        writer.add([1], [MASKS[1]], sparse_of([1], 9))
    assert torch.equal(store.read(0, [1], [MASKS[1]]).weights, sparse_of([1], 9).weights)


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", settings_of())
    fill(store, 0)
    records = store.path(0) / "records.bin"
    records.write_bytes(records.read_bytes()[:-1])
    with pytest.raises(InputError, match="wrong size"):
        store.read(0, [0], [MASKS[0]])


def test_an_epoch_without_any_position_can_be_read(tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", settings_of())
    with store.writing(0) as writer:
        writer.add([2], [[]], sparse_of([2], 0))
    assert len(store.read(0, [2], [[]])) == 0


def test_logits_of_another_kind_or_a_row_twice_are_refused(tmp_path: Path) -> None:
    store = _SparseStore(tmp_path / "store", settings_of())
    with store.writing(0) as writer:
        writer.add([0], [MASKS[0]], sparse_of([0], 0))
        for rows in ([0], [1, 1]):
            with pytest.raises(ValueError, match="in this epoch already"):
                writer.add(rows, [MASKS[r] for r in rows], sparse_of(rows, 0))
        cooler = sparsify(logits_of(1, 0), K, torch.rand(1, M), 1.0)
        wider = sparsify(torch.zeros(1, V + 1), K, torch.rand(1, M), 2.0)
        for wrong, masked in ((cooler, [2]), (wider, [2]), (sparse_of([1], 0), [2, 3])):
            with pytest.raises(ValueError, match="for a store of"):
                writer.add([1], [masked], wrong)
    assert np.load(store.path(0) / "index.npy").tolist()[0] == [0, 2]
