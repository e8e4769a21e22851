"""Parquet files, and what data sets say about their labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data import files as data_files
from pocketbert.core.data.files import check_source, read_class_names, read_rows
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.tables import BadRows
from pocketbert.core.errors import InputError, MissingBackendError

TABLE = {"text": ["good", "bad", "so so"], "label": [1, 0, 1], "tags": [[0, 1], [], [1]]}
ROWS = [dict(zip(TABLE, values, strict=True)) for values in zip(*TABLE.values(), strict=True)]


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table(TABLE), path)
    return path


@pytest.fixture
def own_datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hf"))


def read(path: Path | str) -> list[tuple[int, dict[str, Any]]]:
    bad = BadRows(str(path))
    rows = list(read_rows(DataSource(path=str(path)), bad))
    assert not bad.count
    return rows


def test_rows_of_a_parquet_file_come_with_lists_and_numbers(whole: Path) -> None:
    assert read(whole) == list(enumerate(ROWS, 1))


def test_rows_go_on_over_batches_and_row_groups(tmp_path: Path) -> None:
    texts = [f"row {i}" for i in range(2 * data_files._BATCH_ROWS + 7)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "a.parquet", row_group_size=900)
    rows = read(tmp_path / "a.parquet")
    assert [r["text"] for _, r in rows] == texts
    assert [n for n, _ in rows] == list(range(1, len(texts) + 1))


def test_a_large_parquet_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    # the first rows come although the last ones are broken: nothing was read as a whole before
    path = tmp_path / "a.parquet"
    texts = [f"{i * 7919 % 10007} " * 40 for i in range(40_000)]
    pq.write_table(pa.table({"text": texts}), path, compression="none", use_dictionary=False)
    raw = bytearray(path.read_bytes())
    middle = len(raw) * 3 // 4
    raw[middle : middle + 100_000] = b"\xff" * 100_000
    path.write_bytes(raw)
    rows = read_rows(DataSource(path=str(path)), BadRows("a"))
    assert next(rows)[1]["text"] == texts[0]
    with pytest.raises(InputError):
        list(rows)


def test_no_rows_are_no_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == []


@pytest.mark.parametrize("content", [b"", b"PAR1", b"text,label\ngood,1\n", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_what_is_no_parquet_file_is_one_input_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match="cannot be read as a Parquet file") as caught:
        read(path)
    assert len(caught.value.problems) == 1
    with pytest.raises(InputError, match="cannot be read as a Parquet file"):
        read_class_names(DataSource(path=str(path)))


@given(share=st.floats(0, 0.999))
def test_a_truncated_parquet_file_is_one_input_error(share: float, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("truncated")
    pq.write_table(pa.table(TABLE), folder / "a.parquet")
    raw = (folder / "a.parquet").read_bytes()
    (folder / "a.parquet").write_bytes(raw[: int(len(raw) * share)])
    with pytest.raises(InputError, match="cannot be read as a Parquet file") as caught:
        read(folder / "a.parquet")
    assert len(caught.value.problems) == 1


def test_a_date_that_python_has_no_type_for_is_an_input_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"when": pa.array([10**7], pa.date32())}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="cannot be read as a Parquet file: date value out of range"):
        read(tmp_path / "a.parquet")


def test_bytes_declared_as_text_are_not_utf8(tmp_path: Path) -> None:
    wrong = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    pq.write_table(pa.table({"text": wrong}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="not UTF-8"):
        read(tmp_path / "a.parquet")


def test_a_missing_file_and_a_missing_library_are_named(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in (read, lambda p: read_class_names(DataSource(path=str(p)))):
        with pytest.raises(InputError, match="file not found"):
            call(tmp_path / "none.parquet")
    monkeypatch.setattr(data_files, "version_of", lambda _: None)
    for call in (read, lambda p: read_class_names(DataSource(path=str(p)))):
        with pytest.raises(MissingBackendError, match=r"'pyarrow'.*pip install 'pocketbert\[train\]'"):
            call(whole)
    with pytest.raises(MissingBackendError, match="'datasets'"):
        read_class_names(DataSource(dataset="a/b", split="train"))


def labelled_folder(folder: Path) -> Path:
    """A folder with train.parquet, whose label and tags columns carry class names."""
    import datasets

    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["negative", "positive"]),
        tags=datasets.List(datasets.ClassLabel(names=["O", "B-film"])),
    )
    folder.mkdir()
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(TABLE, features=features).to_parquet(folder / "train.parquet")
    return folder


def test_class_names_come_from_the_data_set_and_numbers_stay_numbers(tmp_path: Path, own_datasets_cache: None) -> None:
    folder = labelled_folder(tmp_path / "films")
    sources = [
        DataSource(path=str(folder / "train.parquet")),
        DataSource(dataset=str(folder), split="train"),
    ]
    for source in sources:
        assert read_class_names(source) == ["negative", "positive"]
        assert read_class_names(source.model_copy(update={"label": "tags"})) == ["O", "B-film"]
        assert read_class_names(source.model_copy(update={"label": "text"})) is None
        assert read_class_names(source.model_copy(update={"label": "no such column"})) is None
        assert [row for _, row in read_rows(source, BadRows("films"))] == ROWS


def test_files_without_class_names_have_none(whole: Path, tmp_path: Path, own_datasets_cache: None) -> None:
    assert read_class_names(DataSource(path=str(whole))) is None
    assert read_class_names(DataSource(path=str(tmp_path / "rows.jsonl"))) is None
    folder = tmp_path / "plain"
    folder.mkdir()
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    source = DataSource(dataset=str(folder), split="train")
    assert read_class_names(source) is None
    assert [row for _, row in read_rows(source, BadRows("plain"))] == ROWS


@pytest.mark.parametrize(
    "note",
    [
        b"no json",
        b"[]",
        b'{"info": 3}',
        b'{"info": {"features": [1]}}',
        b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}',
    ],
)
def test_a_foreign_note_in_a_parquet_file_names_no_classes(tmp_path: Path, note: bytes) -> None:
    table = pa.table(TABLE).replace_schema_metadata({b"huggingface": note})
    pq.write_table(table, tmp_path / "a.parquet")
    assert read_class_names(DataSource(path=str(tmp_path / "a.parquet"))) is None
    assert len(read(tmp_path / "a.parquet")) == 3


@pytest.mark.parametrize(
    ("name", "fix"),
    [("a.json", "jq -c '.[]'"), ("a.xlsx", "Save the sheet as CSV"), ("a.csv.gz", "gunzip"), ("a.foo", "")],
)
def test_other_kinds_of_files_are_refused_with_a_way(tmp_path: Path, name: str, fix: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(InputError, match="unknown kind of file") as caught:
        check_source(DataSource(path=str(tmp_path / name)))
    assert fix in caught.value.problems[0].fix
