"""Files of rows: every kind is read alike, and what is broken, hostile or too large ends early with its place."""

from __future__ import annotations

import csv
import gzip
import json
import os
import socket
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pocketbert.core.data import files as data_files
from pocketbert.core.data import streams
from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.files import check_source, read_class_names, read_rows
from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.streams import read_texts
from pocketbert.core.errors import InputError, MissingBackendError
from pocketbert.core.predict.examples import Example

KINDS = ("a.jsonl", "a.jsonl.gz", "a.csv", "a.tsv", "a.parquet")
TABLE = {"text": ["good", "bad", "so so"], "label": [1, 0, 1], "tags": [[0, 1], [], [1]]}
ROWS = [dict(zip(TABLE, values, strict=True)) for values in zip(*TABLE.values(), strict=True)]


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
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


def plain_rows(source: DataSource) -> list[tuple[int, dict[str, Any]]]:
    bad = BadRows(source.title)
    rows = list(read_rows(source, bad))
    assert not bad.count
    return rows


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_texts(path) if path.suffix == ".txt" else read(path, **settings)
    return str(caught.value)


WORDS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters='"'), min_size=1)


@settings(max_examples=25)
@given(labels=st.lists(st.integers(0, 30), min_size=1, max_size=5), text=WORDS.filter(lambda t: not t.isspace()))
def test_all_kinds_of_file_hold_the_same_rows(
    labels: list[int], text: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("same")
    rows = [{"text": f"{i} {text}", "label": label} for i, label in enumerate(labels)]
    for name in KINDS:
        assert [(e.text, e.label) for e in read(write(folder / name, rows))] == [(r["text"], r["label"]) for r in rows]


@pytest.mark.parametrize(
    ("name", "raw", "rows"),
    [
        ("a.jsonl", b'\n{"text": "a", "label": "x"}\n\n{"text": "b", "label": 2}\n\n', [("a", "x", 2), ("b", 2, 4)]),
        ("a.jsonl", b'\xef\xbb\xbf{"text": "a", "label": 1}\n', [("a", 1, 1)]),
        ("a.jsonl", b'{"text": "a", "label": true}\n', [("a", "true", 1)]),
        ("a.csv", b'\xef\xbb\xbftext,label\r\n"1, ""two""\n3",x\r\nb,y\r\n', [('1, "two"\n3', "x", 2), ("b", "y", 3)]),
        ("a.csv", b"text,label\ngood,1\n\nbad,0\n\n", [("good", 1, 2), ("bad", 0, 4)]),
        ("a.csv", b'text;label\n"well, ; yes";b\nno;a\n', [("well, ; yes", "b", 2), ("no", "a", 3)]),
        ("a.csv", b'text\tlabel\n"well, \t yes"\tb\nno\ta\n', [("well, \t yes", "b", 2), ("no", "a", 3)]),
        ("a.csv", b"text,label,label;x\nyes;no,a,b\n", [("yes;no", "a", 2)]),
        ("a.tsv", b"text\tlabel\ngood\t1\n\nbad\t0\n\n", [("good", 1, 2), ("bad", 0, 4)]),
        ("a.tsv", b'label\ttext\n1\t"quoted" and\n0\tan "open\n', [('"quoted" and', 1, 2), ('an "open', 0, 3)]),
    ],
)
def test_rows_of_text_files(tmp_path: Path, name: str, raw: bytes, rows: list[tuple[str, Any, int]]) -> None:
    (tmp_path / name).write_bytes(raw)
    assert [(e.text, e.label, e.row) for e in read(tmp_path / name)] == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "text,label\nfine,1\nwell, an open comma,0\n", ":3: 3 columns, the header has 2."),
        ("a.csv", 'text,label\na lamp,lamp\n{"text": "a", "label": 1}\n', ":3: this line is a line of JSON Lines"),
        ("a.csv", 'text,label\n"never closed,1\nmore,0\n', ":3: not valid CSV"),
        ("a.csv", "text,label\n", ": no rows."),
        ("a.csv", "text,label,text\na,b,c\n", ":1: two columns are called 'text'"),
        ("a.csv", ",".join(map(str, range(20_000))) + "\n", ":1: 20,000 columns; allowed: at most 10,000"),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": "", "text": ""}\n', ":2: the key 'text' occurs twice. Fix"),
        *[(name, "\n", ": no rows.") for name in KINDS[:4]],
        *[(name, "", ": no rows.") for name in KINDS[:4]],
    ],
)
def test_text_files_that_are_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    (tmp_path / name).write_bytes(gzip.compress(content.encode()) if name.endswith("gz") else content.encode())
    assert refusal(tmp_path / name).startswith(f"{tmp_path / name}{message}")


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "no gzip": lambda raw: b'{"text": "plain", "label": 1}\n',
    "cut": lambda raw: raw[: len(raw) // 2],
    "body": lambda raw: raw[: len(raw) // 2] + b"\xff" * (len(raw) // 2),
    "checksum": lambda raw: raw[:-8] + bytes([raw[-8] ^ 0xFF]) + raw[-7:],
    "zeros": lambda raw: raw + bytes(1 << 20),  # Python's reader takes them for padding, and reads gigabytes one by one
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_broken_gzip_file_is_refused(tmp_path: Path, damage: str) -> None:
    path = write(tmp_path / "a.jsonl.gz", [{"text": f"row {i} {i * 7919 % 1013}", "label": i % 2} for i in range(3000)])
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert "broken gzip file" in refusal(path)


@pytest.mark.parametrize("name", KINDS)
def test_limits_hold_for_every_kind(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path / name, [{"text": f"{i} " + "word " * (40 + 860 * i), "label": "a"} for i in range(2)])
    assert len(read(path, max_rows=2)) == 2
    assert "more than 1 " in refusal(path, max_rows=1)
    message = refusal(path, max_line_mb=0.001)
    assert "longer than 1,048 bytes" in message
    assert "raise max_line_mb" in message
    monkeypatch.setattr(streams, "DEFAULT_MAX_ROWS", 5)
    assert "of rows. Fix: Use fewer rows, or raise max_rows" in refusal(path, max_rows=5)


@pytest.mark.parametrize(("letters", "is_refused"), [("e", False), ("é", True)])  # of one byte, and of two
@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("a.json", lambda text: json.dumps([{"text": text, "label": 1}] * 2, ensure_ascii=False)),
        ("a.conll", lambda text: f"{text} O\n" * 2),
        ("a.csv", lambda text: f"sentence_id,word,tag\n1,{text},O\n1,{text},O\n"),
        ("b.csv", lambda text: f"text,label\n{text},a\n{text},b\n"),
        ("a.yml", lambda text: f'version: "3.1"\nnlu:\n- intent: a\n  examples: |\n    - {text}\n    - b\n'),
    ],
)
def test_limits_count_bytes(
    tmp_path: Path, name: str, make: Callable[[str], Any], letters: str, is_refused: bool
) -> None:
    text = letters * (450 if name in ("a.conll", "a.csv") else 900)
    (tmp_path / name).write_text(make(text), "utf-8")
    rows = read_rows(DataSource(path=str(tmp_path / name), max_line_mb=0.001), BadRows("a"))
    with pytest.raises(InputError, match="longer than 1,048 bytes") if is_refused else nullcontext():
        assert [*rows]


@pytest.mark.parametrize("fill", [b"a", b'{"text": "a"}\n'])
def test_a_file_that_grows_too_much_is_refused(tmp_path: Path, fill: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_RATIO_FROM", 1 << 20)
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(fill * ((2 << 20) // len(fill))))
    assert "grow to more than 1 MB; no text does" in refusal(path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.txt"])
def test_an_endless_line_ends_early(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_text({"a.tsv": "text\tlabel\n", "a.csv": "text,label\n"}.get(name, "{}\n"))
    os.truncate(path, 1 << 32)
    assert "null byte" in refusal(path)


def test_a_quoted_cell_over_many_lines_is_one_row(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text('text,label\n"' + "a b\n" * 70_000 + '",x\n')
    assert "a.csv:2: row longer than" in refusal(tmp_path / "a.csv", max_line_mb=0.001)
    assert [len(e.text) for e in read(tmp_path / "a.csv")] == [280_000]


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16", "utf-32", "latin-1", "cp1252", "utf-8-sig"])
@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.jsonl", '{"text": "nä", "label": 1}\n'),
        ("a.csv", "text,label\nnä,1\nno,0\n"),
        ("a.tsv", "text\tlabel\nnä\t1\n"),
        ("a.txt", '{"text": "nä", "label": 1}\n'),
    ],
)
def test_encodings_are_found(tmp_path: Path, name: str, text: str, encoding: str) -> None:
    (tmp_path / name).write_bytes(text.encode(encoding))
    if name == "a.txt":
        assert read_texts(tmp_path / name) == [text.strip()]
    else:
        assert read(tmp_path / name)[0].text == "nä"


RUSSIAN = "text,label\nхороший фильм,1\nплохой фильм,0\n"


def test_an_encoding_that_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(RUSSIAN.encode("cp1251"))
    assert "a.csv:2: not UTF-8" in refusal(path)
    assert "--encoding (in a recipe: encoding)" in refusal(path)
    assert [e.text for e in read(path, encoding="cp1251")] == ["хороший фильм", "плохой фильм"]
    assert "not utf-16" in refusal(path, encoding="utf-16")
    for name in ("klingon", "base64"):
        with pytest.raises(ValueError, match="is no encoding of text"):
            DataSource(path="a.csv", encoding=name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_a_damaged_line_is_named(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, [{"text": "gut", "label": i % 3} for i in range(3000)])
    last = path.read_bytes().splitlines(keepends=True)[-1]
    # one broken character among others of UTF-8 makes no other encoding
    path.write_bytes(path.read_bytes() + last.replace(b"gut", "äöü".encode() + b"\xe4rger"))
    message = refusal(path)
    assert message.startswith(f"{path}:{3001 + (name != 'a.jsonl')}: not UTF-8")
    assert "iconv -f WINDOWS-1252 -t UTF-8" in message
    path.write_bytes(path.read_bytes().replace("äöü".encode(), b""))
    assert read(path)[-1].text == "ärger"


def bind_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(path))  # names of sockets are short


@pytest.mark.parametrize("name", [*KINDS, "a.txt"])
def test_only_regular_files_are_opened(tmp_path: Path, name: str) -> None:
    for make, message in (
        (os.mkfifo, "is a pipe, not a file"),
        (lambda p: p.symlink_to("/dev/zero"), "is a device"),
        (lambda p: p.symlink_to("/proc/self/mem"), "is a file of the system"),
        (bind_socket, "is a socket"),
        (Path.mkdir, "is a folder, not a file"),
    ):
        path = tmp_path / f"{len([*tmp_path.iterdir()])}{name[1:]}"
        make(path)
        assert message in refusal(path)


@pytest.mark.parametrize(
    ("name", "fix"),
    [("a.xlsx", "Save the sheet as CSV"), ("a.pkl", "can run any code"), ("a.zip", "Unpack it")],
)
def test_other_kinds_of_files_are_refused_with_a_way(tmp_path: Path, name: str, fix: str) -> None:
    (tmp_path / name).write_text("[]")
    with pytest.raises(InputError, match="a kind of file that is not read; allowed: tables") as caught:
        check_source(DataSource(path=str(tmp_path / name)))
    assert fix in caught.value.problems[0].fix


# Parquet files


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    return write(tmp_path / "a.parquet", ROWS)


def test_rows_of_a_parquet_file_come_with_lists_and_go_on_over_row_groups(whole: Path) -> None:
    assert plain_rows(DataSource(path=str(whole))) == list(enumerate(ROWS, 1))
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), whole)
    assert plain_rows(DataSource(path=str(whole))) == []
    texts = [f"row {i}" for i in range(2055)]
    pq.write_table(pa.table({"text": texts}), whole, row_group_size=900)
    assert plain_rows(DataSource(path=str(whole))) == [(i, {"text": t}) for i, t in enumerate(texts, 1)]


def test_a_large_parquet_file_is_read_piece_by_piece(whole: Path) -> None:
    # the first rows come although the last ones are broken: nothing was read as a whole before
    texts = [f"{i * 7919 % 10007} " * 40 for i in range(40_000)]
    pq.write_table(pa.table({"text": texts}), whole, compression="none", use_dictionary=False)
    raw = bytearray(whole.read_bytes())
    middle = len(raw) * 3 // 4
    raw[middle : middle + 100_000] = b"\xff" * 100_000
    whole.write_bytes(raw)
    rows = read_rows(DataSource(path=str(whole)), BadRows("a"))
    assert next(rows)[1]["text"] == texts[0]
    with pytest.raises(InputError):
        list(rows)


@pytest.mark.parametrize("content", [None, b"", b"PAR1", b"text,label\ngood,1\n", b"PAR1" + b"\0" * 100 + b"PAR1"])
def test_what_is_no_parquet_file_is_one_input_error(whole: Path, content: bytes | None) -> None:
    whole.write_bytes(whole.read_bytes()[:-9] if content is None else content)  # cut within its end
    for reader in (plain_rows, read_class_names):
        with pytest.raises(InputError, match="cannot be read as a Parquet file") as caught:
            reader(DataSource(path=str(whole)))
        assert len(caught.value.problems) == 1


def test_parquet_files_that_are_refused(whole: Path) -> None:
    repeated = pa.DictionaryArray.from_arrays(pa.array([0] * 5000, pa.int32()), pa.array(["word " * 200_000]))
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["text", "label", "label"])
    cases = [
        (pa.table({"when": pa.array([10**7], pa.date32())}), "as a Parquet file: date value out of range"),
        (pa.table({"text": pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())}), "not UTF-8"),
        (pa.table({"text": repeated, "label": ["a"] * 5000}), "more than 512 MB"),
        (pa.table({"text": [["a"] * 3_000_000], "label": ["x"]}), "row longer than"),
        (twice, "two columns are called 'label'"),
    ]
    for table, message in cases:
        pq.write_table(table, whole)
        assert whole.stat().st_size < 10_000_000
        assert message in refusal(whole)


# Data sets, and the names of their labels


@pytest.fixture
def own_datasets_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "hf"))


def test_a_class_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("good", "bad"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.txt").write_text("a text")
    real = os.scandir

    def refuse(path: Any) -> Any:
        if str(path) == str(tmp_path / "good"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(InputError, match="good: cannot be read: Permission denied"):
        [*read_rows(DataSource(path=str(tmp_path)), BadRows("rows"))]


def test_a_missing_file_library_or_data_set_is_named(
    whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for reader in (plain_rows, read_class_names):
        with pytest.raises(InputError, match="file not found"):
            reader(DataSource(path=str(tmp_path / "none.parquet")))
    assert refusal(tmp_path / "none.jsonl") == f"{tmp_path / 'none.jsonl'}: file not found."
    with pytest.raises(InputError, match="could not be loaded.*give a local file with 'path'"):
        read_examples(DataSource(dataset=str(tmp_path / "none"), split="train"))
    monkeypatch.setattr(data_files, "version_of", lambda _: None)
    for reader in (plain_rows, read_class_names):
        with pytest.raises(MissingBackendError, match=r"'pyarrow'.*pip install 'pocketbert\[train\]'"):
            reader(DataSource(path=str(whole)))
        with pytest.raises(MissingBackendError, match=r"'datasets'.*pip install 'pocketbert\[train\]'"):
            reader(DataSource(dataset="a/b", split="train"))


def test_a_local_folder_is_loaded_by_datasets(tmp_path: Path, own_datasets_cache: None) -> None:
    folder = tmp_path / "films"
    folder.mkdir()
    (folder / "train.csv").write_text("sentence,label\ngood,1\nbad,0\n")
    (folder / "test.csv").write_text("sentence,label\nso so,1\n")
    source = DataSource(dataset=str(folder), split="train", text="sentence")
    assert [(e.text, e.label, e.row) for e in read_examples(source)] == [("good", 1, 1), ("bad", 0, 2)]
    assert source.title == f"{folder}/train"
    assert read_class_names(source) is None
    (folder / "train.csv").write_text(f"sentence,label\n{'e' * 900},1\n{'é' * 900},0\n")  # 900 and 1,800 bytes
    with pytest.raises(InputError, match="films/train:2: row longer than 1,048 bytes"):
        read_examples(source.model_copy(update={"max_line_mb": 0.001}))


def test_class_names_come_from_the_data_set_and_numbers_stay_numbers(tmp_path: Path, own_datasets_cache: None) -> None:
    import datasets

    features = datasets.Features(
        text=datasets.Value("string"),
        label=datasets.ClassLabel(names=["negative", "positive"]),
        tags=datasets.List(datasets.ClassLabel(names=["O", "B-film"])),
    )
    folder = tmp_path / "films"
    folder.mkdir()
    datasets.disable_progress_bars()
    datasets.Dataset.from_dict(TABLE, features=features).to_parquet(folder / "train.parquet")
    for origin in ({"path": str(folder / "train.parquet")}, {"dataset": str(folder), "split": "train"}):
        found = {n: read_class_names(DataSource(**origin, label=n)) for n in ("label", "tags", "text", "other")}
        assert found == {"label": ["negative", "positive"], "tags": ["O", "B-film"], "text": None, "other": None}
        assert [row for _, row in plain_rows(DataSource(**origin))] == ROWS


NO_CLASS = b'{"info": {"features": {"label": {"_type": "ClassLabel"}}}}'


@pytest.mark.parametrize("note", [None, b"no json", b"[]", b'{"info": 3}', b'{"info": {"features": [1]}}', NO_CLASS])
def test_a_file_without_a_note_of_datasets_names_no_classes(whole: Path, tmp_path: Path, note: bytes | None) -> None:
    pq.write_table(pa.table(TABLE).replace_schema_metadata({b"huggingface": note} if note else None), whole)
    assert read_class_names(DataSource(path=str(whole))) is None
    assert len(plain_rows(DataSource(path=str(whole)))) == 3
    assert read_class_names(DataSource(path=str(tmp_path / "rows.jsonl"))) is None
