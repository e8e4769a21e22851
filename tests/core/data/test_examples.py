from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pocketbert.core.data import files as data_files
from pocketbert.core.data.examples import Example, read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError, MissingBackendError

ROWS = [{"text": "a good film", "label": "positive"}, {"text": "a bad film, really", "label": "negative"}]
TEXTS = [r["text"] for r in ROWS]


def read(path: Path, **columns: Any) -> list[Example]:
    return read_examples(DataSource(path=str(path), **columns))


def refused(path: Path, **columns: Any) -> list[str]:
    with pytest.raises(InputError) as caught:
        read(path, **columns)
    return str(caught.value).splitlines()


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_json_lines(tmp_path: Path, write_rows: Callable[..., Path], name: str) -> None:
    examples = read(write_rows(tmp_path / name, ROWS))
    assert examples == [
        Example(ROWS[0]["text"], None, "positive", 1),
        Example(ROWS[1]["text"], None, "negative", 2),
    ]


def test_json_lines_skip_blank_lines_and_keep_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n" + json.dumps(ROWS[0]) + "\n\n" + json.dumps(ROWS[1]) + "\n\n")
    assert [(e.text, e.row) for e in read(path)] == [(TEXTS[0], 2), (TEXTS[1], 4)]


def test_json_lines_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(ROWS[0]).encode() + b"\n")
    assert [e.text for e in read(path)] == TEXTS[:1]


def test_csv_with_quotes_and_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbftext,label\r\n"one, ""two""\nthree",positive\r\nplain,negative\r\n')
    assert [(e.text, e.label) for e in read(path)] == [
        ('one, "two"\nthree', "positive"),
        ("plain", "negative"),
    ]


def test_tsv_takes_quotes_literally(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text('label\ttext\n1\t"quoted" and \'more\n0\tan "open one\n')
    assert [(e.text, e.label) for e in read(path)] == [('"quoted" and \'more', 1), ('an "open one', 0)]


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_tables_may_have_blank_lines(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    separator = "\t" if name.endswith("tsv") else ","
    path.write_text(f"text{separator}label\ngood{separator}1\n\nbad{separator}0\n\n")
    assert [e.text for e in read(path)] == ["good", "bad"]


def test_a_table_row_with_too_many_cells_is_bad(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\nfine,1\nwell, an open comma,0\n")
    assert refused(path) == [f"{path}:3: 3 columns, the header has 2."]


def test_json_lines_within_a_table_are_no_rows(tmp_path: Path) -> None:
    path = tmp_path / "joined.csv"
    path.write_text('text,label\na lamp,lamp\n{"text": "a song", "label": "music"}\n')
    assert refused(path) == [f"{path}:3: is a JSON object; cells that a separator parts are expected."]


def test_an_unclosed_quote_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('text,label\n"never closed,1\nmore,0\n')
    assert "not valid CSV" in refused(path)[0]


def test_other_columns_and_pairs(tmp_path: Path, write_rows: Callable[..., Path]) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"premise": "p", "hypothesis": "h", "gold": 2}])
    [example] = read(path, text="premise", text_pair="hypothesis", label="gold")
    assert example.input == ("p", "h")
    assert example.label == 2


def test_rows_without_labels_are_read_where_none_are_needed(tmp_path: Path, write_rows: Callable[..., Path]) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": "only text"}])
    [example] = read_examples(DataSource(path=str(path)), labelled=False)
    assert example.label is None
    assert "no column 'label'" in refused(path)[0]


def test_a_missing_column_is_named_with_the_nearest(tmp_path: Path, write_rows: Callable[..., Path]) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"texts": "x", "label": 1}])
    [line] = refused(path)
    assert line.startswith(
        f"{path}:1: no column 'text'; did you mean 'texts'? (allowed: label, texts). Fix: Name the col"
    )


def test_a_column_that_a_table_lacks_is_told_once_and_not_guessed_wrongly(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("sentence,intent\n" + "hello,a\n" * 700)
    first, more = refused(path)
    assert first.startswith(f"{path}:2: no column 'text'; allowed: intent, sentence. Fix: Name the columns with --text")
    assert more == f"{path}: and 699 more bad rows (700 in all)."


@pytest.mark.parametrize("sign", [";", "\t"])
def test_a_csv_file_may_have_another_delimiter(tmp_path: Path, sign: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f'text{sign}label\n"well, {sign} yes"{sign}b\nno{sign}a\n')
    assert [(e.text, e.label) for e in read(path)] == [(f"well, {sign} yes", "b"), ("no", "a")]


def test_a_comma_in_the_header_decides(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label;x\nyes;no,a\n")
    assert [(e.text, e.label) for e in read(path, label="label;x")] == [("yes;no", "a")]


def test_the_first_twenty_bad_rows_and_their_count_are_listed(tmp_path: Path, write_rows: Callable[..., Path]) -> None:
    rows = [{"text": "" if i % 2 else "fine", "label": 0} for i in range(100)]
    lines = refused(write_rows(tmp_path / "a.jsonl", rows))
    assert len(lines) == 21
    assert lines[0].endswith("a.jsonl:2: column 'text' is empty.")
    assert lines[-1].endswith("and 30 more bad rows (50 in all).")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not valid JSON"),
        ("[1]", "this is list"),
        ('{"text": 3, "label": 0}', "holds int, not text"),
        ('{"text": "a", "label": [0]}', "label is list"),
        ('{"text": "  ", "label": 0}', "is empty"),
        ('{"text": "a", "label": null}', "no column 'label'"),
        ('{"text": "a", "label": ""}', "'label': the label is empty"),
        ('{"text": "half \\ud83d", "label": 0}', "is not Unicode text"),
        ("{}", "the row is empty"),
        ('{"text": "a", "label": ' + "1" * 5000 + "}", "not valid JSON"),
        ('{"text":' + "[" * 99999, "not valid JSON"),
    ],
)
def test_bad_json_rows(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(ROWS[0]) + "\n" + line + "\n")
    [problem] = refused(path)
    assert problem.startswith(f"{path}:2: ")
    assert message in problem


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv"])
@pytest.mark.parametrize("raw", [b"", b"\n"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str, raw: bytes) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    assert refused(path) == [f"{path}: no rows."]


def test_a_header_alone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\n")
    assert "no rows" in refused(tmp_path / "a.csv")[0]


@pytest.mark.parametrize("damage", ["no gzip", "cut", "body", "checksum", "zeros"])
def test_a_broken_gzip_file_is_refused(tmp_path: Path, write_rows: Callable[..., Path], damage: str) -> None:
    rows = [{"text": f"row {i} {i * 7919 % 1013}", "label": i % 2} for i in range(3000)]
    path = write_rows(tmp_path / "a.jsonl.gz", rows)
    raw = bytearray(path.read_bytes())
    if damage == "no gzip":
        raw = bytearray(b'{"text": "plain", "label": 1}\n')
    elif damage == "cut":
        raw = raw[: len(raw) // 2]
    elif damage == "body":
        raw[len(raw) // 2 :] = b"\xff" * (len(raw) - len(raw) // 2)
    elif damage == "zeros":  # Python's reader takes them for padding, and reads gigabytes of them one by one
        raw += bytes(1 << 20)
    else:
        raw[-8] ^= 0xFF
    path.write_bytes(raw)
    assert any("broken gzip file" in line for line in refused(path))


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl"])
def test_another_encoding_is_refused(tmp_path: Path, name: str) -> None:
    text = {"a.csv": "text,label\nnaïve,1\n", "a.tsv": "text\tlabel\nnaïve\t1\n"}.get(
        name, '{"text": "naïve", "label": 1}\n'
    )
    (tmp_path / name).write_bytes(text.encode("latin-1"))
    assert "utf-8" in refused(tmp_path / name)[0].lower()


def test_a_missing_file_and_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    assert refused(tmp_path / "none.jsonl") == [f"{tmp_path / 'none.jsonl'}: file not found."]
    assert "allowed: .jsonl, .jsonl.gz, .csv, .tsv, .parquet" in refused(tmp_path / "a.xlsx")[0]


def test_true_and_false_are_names(tmp_path: Path, write_rows: Callable[..., Path]) -> None:
    path = write_rows(tmp_path / "a.jsonl", [{"text": "a", "label": True}, {"text": "b", "label": False}])
    assert [e.label for e in read(path)] == ["true", "false"]


def test_a_local_folder_is_loaded_by_datasets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hf"))
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "train.csv").write_text("sentence,label\ngood,1\nbad,0\n")
    (folder / "test.csv").write_text("sentence,label\nso so,1\n")
    source = DataSource(dataset=str(folder), split="train", text="sentence")
    assert [(e.text, e.label, e.row) for e in read_examples(source)] == [("good", 1, 1), ("bad", 0, 2)]
    assert source.title == f"{folder}/train"


def test_a_data_set_that_cannot_be_loaded_is_an_input_error(tmp_path: Path) -> None:
    source = DataSource(dataset=str(tmp_path / "none"), split="train")
    with pytest.raises(InputError, match="could not be loaded.*give a local file with 'path'"):
        read_examples(source)


def test_a_missing_datasets_library_is_named_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_files, "version_of", lambda _: None)
    with pytest.raises(MissingBackendError, match=r"pip install 'pocketbert\[train\]'"):
        read_examples(DataSource(dataset="a/b", split="train"))


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "exactly one"),
        ({"path": "a", "dataset": "b"}, "exactly one"),
        ({"dataset": "b"}, "needs a 'split'"),
        ({"path": "a", "split": "x", "config": "y"}, "config, split belong to 'dataset'"),
        ({"path": "a", "lable": "x"}, "Extra inputs"),
    ],
)
def test_a_source_has_one_origin(keys: dict[str, str], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        DataSource.model_validate(keys)


@given(st.text(), st.text())
def test_digests_ignore_case_and_outer_blanks(text: str, pair: str) -> None:
    assert Example(f" {text} ", None, 0, 1).digest == Example(text.strip().lower(), None, 1, 9).digest
    assert Example("q" + text, pair, 0, 1).digest == Example("q" + text, pair.strip(), 0, 1).digest


def test_digests_tell_pairs_from_single_texts() -> None:
    digests = {Example(*texts, 0, 1).digest for texts in (("a", "b"), ("ab", ""), ("ab", "b"), ("b", "a"))}
    assert len(digests) == 4
