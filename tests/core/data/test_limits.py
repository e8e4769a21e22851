"""Files that are broken or hostile end early; all kinds of file hold the same rows."""

from __future__ import annotations

import csv
import gzip
import json
import os
import socket
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketbert.core.data import streams as data_limits
from pocketbert.core.data.examples import Example, read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.streams import Limits, read_texts
from pocketbert.core.errors import InputError, suggest_allowed

KINDS = ("a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv", "a.parquet")
Rows = list[dict[str, Any]]


def write(path: Path, rows: Rows) -> Path:
    """Write rows as a file of the kind that its name says."""
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    elif ".jsonl" in path.name:
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    else:
        with path.open("w", newline="") as stream:
            tab = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {}
            writer = csv.DictWriter(stream, list(rows[0]), **tab)  # type: ignore[arg-type]
            writer.writeheader()
            writer.writerows(rows)
    return path


def read(path: Path, **settings: Any) -> list[Example]:
    return read_examples(DataSource(path=str(path), **settings))


def refused(path: Path, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        read(path, **settings)
    return str(caught.value)


TEXTS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters='"'), min_size=1)


@given(labels=st.lists(st.integers(0, 30), min_size=1, max_size=5), text=TEXTS.filter(lambda t: not t.isspace()))
def test_all_kinds_of_file_hold_the_same_rows(
    labels: list[int], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("same")
    rows = [{"text": f"{i} {text}", "label": label} for i, label in enumerate(labels)]
    found = [[(e.text, e.label) for e in read(write(folder / name, rows))] for name in KINDS]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize("name", KINDS)
def test_limits_of_rows_and_lines_hold_for_every_kind(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [{"text": "word " * 40, "label": "a"}, {"text": "word " * 900, "label": "b"}])
    assert len(read(path, max_rows=2)) == 2
    assert "more than 1 " in refused(path, max_rows=1)
    assert "longer than 1,048 bytes" in refused(path, max_line_mb=0.001)
    assert "raise max_line_mb" in refused(path, max_line_mb=0.001)


@pytest.mark.parametrize("name", KINDS)
def test_a_limit_of_bytes_holds_for_every_kind(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / name, [{"text": f"{i} " + "word " * 900, "label": "a"} for i in range(5)])
    monkeypatch.setattr(data_limits, "DEFAULT_MAX_ROWS", 10)
    assert "of rows. Fix: Use fewer rows, or raise max_rows" in refused(path, max_rows=10)


@pytest.mark.parametrize("fill", [b"[0, 0]\n", b"a", b'{"text": "a"}\n'])
def test_a_file_that_grows_too_much_is_refused(tmp_path: Path, fill: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_limits, "_RATIO_FROM", 1 << 20)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(fill * ((4 << 20) // len(fill))))
    assert "grow to more than 1 MB; no text does" in refused(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.txt"])
def test_an_endless_line_ends_early(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text("text\tlabel\n" if name == "a.tsv" else "text,label\n" if name == "a.csv" else "{}\n")
    os.truncate(path, 1 << 32)
    with pytest.raises(InputError, match="null byte"):
        read_texts(path) if name == "a.txt" else read(path)


def test_a_quoted_cell_over_many_lines_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"' + "a b\n" * 1000 + '",x\n')
    assert "a.csv:2: row longer than" in refused(tmp_path / "a.csv", max_line_mb=0.001)
    assert len(read(tmp_path / "a.csv")) == 1


def test_a_cell_of_a_megabyte_is_read_from_every_kind(tmp_path: Path) -> None:
    rows = [{"text": "word " * 200_000, "label": "a"}]
    assert {len(read(write(tmp_path / name, rows))[0].text) for name in KINDS} == {1_000_000}


def test_a_parquet_dictionary_that_every_row_repeats_is_counted(tmp_path: Path) -> None:
    indices = pa.array([0] * 5000, pa.int32())
    text = pa.DictionaryArray.from_arrays(indices, pa.array(["word " * 200_000]))
    pq.write_table(pa.table({"text": text, "label": ["a"] * 5000}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    assert "more than 512 MB" in refused(tmp_path / "a.parquet")


def test_a_parquet_list_of_many_entries_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": [["a"] * 3_000_000], "label": ["x"]}), tmp_path / "a.parquet")
    assert "row longer than" in refused(tmp_path / "a.parquet")


def test_nested_columns_are_read(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "x", "answer_start": {"m": [{"k": ["1", None]}, None]}}, {"text": "b", "label": "y"}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert [e.text for e in read(tmp_path / "a.parquet")] == ["a", "b"]


def test_columns_of_one_name_and_too_many_columns_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["text", "label", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    assert "two columns are called 'label'" in refused(tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text("text,label,text\na,b,c\n")
    assert "a.csv:1: two columns are called 'text'" in refused(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text(",".join(map(str, range(300_000))) + "\n")
    assert "300,000 columns; allowed: at most 10,000" in refused(tmp_path / "a.csv")


def test_a_key_that_occurs_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a", "label": 1}\n{"text": "a", "label": 1, "label": 2}\n')
    assert refused(path) == f"{path}:2: the key 'label' occurs twice. Fix: Keep one of them."


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32-le", "latin-1"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.txt"])
def test_other_encodings_are_refused_alike(tmp_path: Path, name: str, encoding: str) -> None:
    path = tmp_path / name
    text = {"a.csv": "text,label\nn\u00e4,1\n"}.get(name, '{"text": "n\u00e4", "label": 1}\n')
    path.write_bytes(text.encode(encoding))
    with pytest.raises(InputError, match="UTF-8"):
        read_texts(path) if name == "a.txt" else read(path)


@pytest.mark.parametrize("text", ["\u200b", "\0", "\ufeff \u2060", "\u3164", "\x1b"])
def test_text_that_cannot_be_seen_is_no_text(tmp_path: Path, text: str) -> None:
    assert "holds no character that can be seen" in refused(write(tmp_path / "a.jsonl", [{"text": text, "label": 1}]))


@pytest.mark.parametrize("name", [*KINDS, "a.txt"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str) -> None:
    def refusal(path: Path) -> str:
        with pytest.raises(InputError) as caught:
            read_texts(path) if name == "a.txt" else read(path)
        return str(caught.value)

    path = tmp_path / name
    os.mkfifo(path)
    assert "is a pipe, not a file" in refusal(path)
    path.unlink()
    path.mkdir()
    assert "is a folder, not a file" in refusal(path)
    path.rmdir()
    for place, kind in (("/dev/zero", "is a device"), ("/proc/self/mem", "is a file of the system")):
        path.symlink_to(place)
        assert kind in refusal(path)
        path.unlink()
    with socket.socket(socket.AF_UNIX) as server:
        folder = os.open(tmp_path, os.O_RDONLY)  # names of sockets are short
        server.bind(f"/proc/self/fd/{folder}/{name}")
        os.close(folder)
        assert "is a socket" in refusal(path)


def test_hints_with_many_names_are_short() -> None:
    hint = suggest_allowed("nome 7", [f"name {i}" for i in range(65_000)])
    assert len(hint) < 1000
    assert "and 64,940 more" in hint
    assert len(suggest_allowed("x" * 100_000, ["y" * 100_000] * 3)) < 1000


def test_more_rows_allow_more_bytes() -> None:
    assert Limits(rows=5).total == Limits().total
    assert Limits(rows=10**7).total == 10 * Limits().total


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_another_encoding_is_found_in_its_line(tmp_path: Path, name: str) -> None:
    line = {"a.csv": "gut,{}\n", "a.tsv": "gut\t{}\n"}.get(name, '{{"text": "gut", "label": {}}}\n')
    head = {"a.csv": "text,label\n", "a.tsv": "text\tlabel\n"}.get(name, line.format(0))
    good = head + "".join(line.format(i) for i in range(3000))
    (tmp_path / name).write_bytes(good.encode() + line.format(1).replace("gut", "\u00e4rger").encode("latin-1"))
    message = refused(tmp_path / name)
    assert message.startswith(f"{tmp_path / name}:3002: not UTF-8")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in message
