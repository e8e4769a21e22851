"""The forms of data files: the form is found by the file's name where that decides (.csv, .parquet, .conll), else by its content.

`FILE_FORMS` is the table of them, each with an example; docs/data-files.md is made of it. `find_form` finds the form of a file,
`open_text` its encoding. fastText, Rasa NLU and plain lines are read here; CoNLL, JSON, tables and folders
have modules of their own, and `pocketbert.core.data.files` puts all together.
"""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from pocketbert.core.data.column_names import BadRows
from pocketbert.core.data.conll import looks_like_conll, read_conll
from pocketbert.core.data.folders import (
    BRAT_ENDING,
    list_class_folders,
    list_files,
    note_encoding,
    read_brat,
    read_class_folder,
)
from pocketbert.core.data.json_files import SPLITS, Row, read_json_document, read_json_lines
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.streams import UTF8, TextFile, count_bytes, find_encoding
from pocketbert.core.data.tables import choose_separator
from pocketbert.core.disk.files import check_regular, open_regular
from pocketbert.core.errors import InputError, Problem, shorten_list

_Reader = Callable[[TextFile, BadRows], Iterator[Row]]


@dataclass(frozen=True)
class FileForm:
    """A form of data file.

    Attributes:
        title: Name of the form, for notes and docs.
        files: Usual names of such files.
        reads: What becomes a row, in words, for docs.
        example: The content of a small file; for a folder, the contents of small files by name.
        read: Function that yields the rows; None for tables, whose layout is guessed first, and for binary files.
    """

    title: str
    files: str
    reads: str
    example: str | Mapping[str, str]
    read: _Reader | None = None


# --- texts whose labels stand in the text or in the name of a folder ---


def _read_plain_lines(file: TextFile, bad: BadRows) -> Iterator[Row]:
    """Yield (line number, {text}) for each line that is not empty."""
    yield from ((number, {"text": line.strip()}) for number, line in file.lines() if line.strip())


# --- fastText ---

_FASTTEXT = "__label__"


def _read_fasttext(file: TextFile, bad: BadRows) -> Iterator[Row]:
    """Yield (line number, {text, label}) for the lines of a fastText file that are not empty; several labels are a list, no label is None."""
    for number, line in file.lines():
        words = line.split()
        labels = [word.removeprefix(_FASTTEXT).strip(",") for word in words if word.startswith(_FASTTEXT)]
        if words:
            text = " ".join(word for word in words if not word.startswith(_FASTTEXT))
            label = labels[0] if len(labels) == 1 else labels or None
            yield number, {"text": text.removeprefix(", "), "label": label}


def _looks_like_fasttext(lines: list[str]) -> bool:
    """Return whether nearly all lines have a label of fastText (``__label__``), before or behind the text."""
    filled = [line for line in lines if line.strip()]
    return bool(filled) and sum(bool(re.search(rf"(^|\s){_FASTTEXT}", line)) for line in filled) >= 0.9 * len(filled)


# --- Rasa NLU ---

_HEADING = re.compile(r"##\s*(?P<key>\w+)\s*:\s*(?P<name>.*)")
_SECTION = re.compile(r"(?P<name>\w+)\s*:")
_INTENT = re.compile(r"\s*(?:-\s+)?intent\s*:\s*(?P<name>\S.*)")
_EXAMPLES = re.compile(r"\s*(?:-\s+)?(?P<key>examples)\s*:\s*(?P<is_block>[|>])?")
_EXAMPLE = re.compile(r"\s*[-*+]\s+(?P<text>\S.*)")
_TEXT = re.compile(r"\s*(?:-\s+)?(?P<key>text)\s*:\s*(?P<text>[^|>\s].*)?")
"""The text of an example that is an object, behind the key or in the lines below."""
_OBJECT = re.compile(r"-\s+\w+\s*:")
_ENTITY = re.compile(r"\[(?P<value>[^\[\]]+)\](?:\((?P<old>[^()]+)\)|(?P<new>\{[^{}]*\}))")


def _read_rasa(file: TextFile, bad: BadRows) -> Iterator[Row]:
    """Yield (line number, {text, intent, entities}) for the examples of Rasa's training data in YAML or Markdown.

    The lines are read as text, so that a file needs no more memory than its longest line.
    """
    for number, intent, marked in _list_examples(file):
        text, entities = _read_entities(marked.strip())
        yield number, {"text": text, "intent": intent, "entities": entities}


def _list_examples(file: TextFile) -> Iterator[tuple[int, str, str]]:
    """Yield (line number, intent, marked text) of each Rasa example.

    Examples stand below ``nlu:`` in YAML and below ``## intent:`` in Markdown.
    """
    section, intent, start, size, text = "", "", 0, 0, list[str]()
    # indentations: of the key examples, of its list's items, and of a key text whose lines follow
    parent = items = key = None
    is_list = False
    for number, line in chain(file.lines(), [(0, "end:")]):
        content = line.strip()
        indent = len(line) - len(line.lstrip())
        if not content:
            continue
        if key is not None and indent > key:
            text.append(content)
            size += count_bytes(line)
            if size > file.limits.line:
                raise file.limits.length_error(file.title, start, "text")
            continue
        if text:
            yield start, intent, " ".join(text)
        text, key, size = [], None, 0
        if section != "nlu" and (match := _HEADING.match(line)):
            intent, parent, is_list = match["name"] if match["key"] == "intent" else "", -1, False
        elif content.startswith("#"):
            continue
        elif parent is not None and (indent > parent or (is_list and indent == parent and content[0] == "-")):
            items = indent if items is None else items
            if is_list and (match := _TEXT.match(line)):
                start, key = number, None if match["text"] else match.start("key")
            elif not is_list or (indent == items and not _OBJECT.match(content)):
                match = _EXAMPLE.match(line)
            if intent and match and match["text"]:
                yield number, intent, match["text"]
        elif match := _SECTION.match(line):
            section, intent, parent = match["name"], "", None
        elif section == "nlu":
            parent = None
            if content[0] == "-":
                intent = ""
            if match := _INTENT.match(line):
                intent = match["name"].split(" #")[0].strip().strip("\"'")
            elif match := _EXAMPLES.match(line):
                parent, items, is_list = match.start("key"), None, not match["is_block"]


def _read_entities(marked: str) -> tuple[str, list[dict[str, Any]]]:
    """Split a Rasa example into its text without marks and the marked entities as {start, end, label}."""
    text, end, entities = "", 0, list[dict[str, Any]]()
    for match in _ENTITY.finditer(marked):
        text += marked[end : match.start()]
        label = (match["old"] or "").split(":")[0]
        if match["new"]:
            try:
                label = str(json.loads(match["new"]).get("entity") or "")
            except (ValueError, AttributeError):
                label = ""
        if label:
            entities.append({"start": len(text), "end": len(text) + len(match["value"]), "label": label})
        text, end = text + match["value"], match.end()
    return text + marked[end:], entities


def _looks_like_rasa(text: str) -> bool:
    """Return whether a text is training data of Rasa: YAML with ``nlu:`` and ``intent:``, or Markdown with ``## intent:``."""
    is_yaml = re.search(r"^nlu:", text, re.M) and re.search(r"^[ \t]*(-[ \t]+|[ \t])intent[ \t]*:", text, re.M)
    return bool(is_yaml or re.search(r"^##[ \t]*intent[ \t]*:", text, re.M))


# --- a folder for each class ---


def _check_class_folder(folder: Path, title: str) -> None:
    """Raise InputError unless a folder holds at least two folders of texts, one for each class.

    Raises:
        InputError: If there are fewer than two class folders, if some are splits such as ``train`` and ``test``, or if
            the folder is a model's or a data set that another program saved. The fix says what to give instead.
    """
    classes = list_class_folders(folder)
    splits = [name for name in classes if name.lower() in SPLITS]
    files = list_files(folder)
    for marks, what, fix in _OTHER_FOLDERS:
        if marks <= {*files, *classes}:
            raise InputError(Problem(title, what, fix.format(folder=title.rstrip("/"))))
    inner = [f"{s}/{name}" for s in splits for name in list_files(folder / s)]
    if any(is_data_file(name) and not name.endswith(".txt") for name in inner):
        files, splits, classes = [*files, *inner], [], []
    if splits:
        others = [name for name in splits if not name.lower().startswith("train")]
        first = next((name for name in splits if name.lower().startswith("train")), splits[0])
        fix = f"Name the folder of a split: {title}/{first}" + (f", with --eval {title}/{others[0]}" if others else "")
        raise InputError(Problem(title, f"is a folder of the splits {shorten_list(splits, 8)}.", fix))
    if len(classes) < 2 or (folder / "config.json").exists():
        what = "is a folder, not a file, and has no folder of text files for each class."
        raise InputError(Problem(title, what, _name_file(files, title)))


_OTHER_FOLDERS = (
    (
        {"state.json", "dataset_info.json"},
        "is a data set in the form of Dataset.save_to_disk.",
        "Save it as Parquet: python -c \"import datasets; datasets.load_from_disk('{folder}').to_parquet('rows.parquet')\"",
    ),
    (
        {"dataset_dict.json"},
        "is a data set in the form of DatasetDict.save_to_disk.",
        "Save a split as Parquet: python -c \"import datasets; datasets.load_from_disk('{folder}')['train'].to_parquet('train.parquet')\"",
    ),
    (
        {"seq.in", "seq.out"},
        "holds texts and tags in files of their own.",
        "Join them: paste {folder}/seq.in {folder}/seq.out > rows.tsv",
    ),
    (
        {"corpus.jsonl", "queries.jsonl", "qrels"},
        "is a retrieval data set in three parts (BEIR).",
        'Write a row for each query, with its passages: {{"query": "...", "pos": ["..."], "neg": ["..."]}}',
    ),
)
"""Folders of other programs by the names in them: what they are, and what to do."""
_LABEL_ENDINGS = (".label", ".labels", ".tgt", ".tags", ".lab")


def _name_file(files: list[str], title: str) -> str:
    """Return the advice for a folder of files: join texts and labels that stand in two files, or name a file (of training rows, if there is one)."""
    folder = title.rstrip("/")
    labels = next((name for name in files if name.endswith(_LABEL_ENDINGS)), "")
    stem = Path(labels).stem
    if texts := next((n for n in files if n != labels and labels and Path(n).stem == stem), ""):
        return f"Join the texts and their labels: paste {folder}/{labels} {folder}/{texts} > {stem}.tsv"
    rows = [name for name in files if is_data_file(name)] or files
    by_split = {part: name for name in reversed(rows) for part in re.split(r"[^a-z]+", name.lower()) if part in SPLITS}
    train = next((name for part, name in by_split.items() if part.startswith("train")), "")
    others = [name for part, name in sorted(by_split.items()) if name != train]
    if not files:
        return "Name a file."
    evaluation = f", with --eval {folder}/{others[0]}" if train and others else ""
    return f"Name a file, such as {folder}/{train or rows[0]}{evaluation}."


# --- the table ---

TABLE = FileForm(
    "table",
    "`.csv`, `.tsv`, `.txt`",
    "a row of cells between commas, semicolons, tabs or bars, with a header or without one; how it is quoted is found, comments and Excel's `sep=;` before it are left out",
    "text,label\na fine film,good\nan awful film,bad\n",
)
PARQUET = FileForm("Parquet", "`.parquet`", "a row, with lists and objects in its cells", "")
JSON_LINES = FileForm(
    "JSON Lines",
    "`.jsonl`, `.ndjson`, `.json`",
    "a line with an object",
    '{"text": "a fine film", "label": "good"}\n{"text": "an awful film", "label": "bad"}\n',
    read_json_lines,
)
JSON_DOCUMENT = FileForm(
    "JSON",
    "`.json`",
    "an object of the array, or of the array in an object (`data`, `examples`, `train`, ...; `test` and other splits only if they are alone); an object of columns, as pandas writes it",
    '{"version": 1, "data": [{"text": "a fine film", "label": "good"},\n {"text": "an awful film", "label": "bad"}]}\n',
    read_json_document,
)
CONLL = FileForm(
    "CoNLL",
    "`.conll`, `.conllu`, `.iob`, `.bio`, `.txt`, `.tsv`",
    "a sentence, one word in each line with its tags beside it; IOB1, IOB2, IOBES and BILOU",
    "-DOCSTART- -X- O O\n\nAnn NNP B-NP B-PER\nsings VBZ B-VP O\n\nIn IN B-PP O\nRome NNP B-NP B-LOC\n",
    read_conll,
)
FASTTEXT = FileForm(
    "fastText",
    "`.txt`, `.ft`",
    "a line, with the labels before or behind the text; a line with several labels is multi-label",
    "__label__good a fine film\n__label__bad an awful film\n",
    _read_fasttext,
)
RASA = FileForm(
    "Rasa NLU",
    "`.yml`, `.md`",
    "an example; the intent is the label, `--label entities` takes the entities instead",
    'version: "3.1"\nnlu:\n- intent: greet\n  examples: |\n    - hello [Ann](PER)\n- intent: leave\n  examples: |\n    - bye\n',
    _read_rasa,
)
PLAIN_LINES = FileForm(
    "lines of text",
    "`.txt`",
    "a line that is not empty, without a label",
    "a fine film was shown\nnobody came to see it, alas\n",
    _read_plain_lines,
)
CLASS_FOLDER = FileForm(
    "a folder for each class",
    "a folder",
    "a text file; the name of its folder is the label, none for `unsup`",
    {"good/1.txt": "a fine film", "bad/1.txt": "an awful film"},
    read_class_folder,
)
BRAT = FileForm(
    "brat",
    "a folder",
    "a line of a `.txt` file, with the spans of the `.ann` file of the same name",
    {"1.txt": "Ann sings.\nIn Rome, too.\n", "1.ann": "T1\tPER 0 3\tAnn\nT2\tLOC 14 18\tRome\n"},
    read_brat,
)
FILE_FORMS = (
    TABLE, JSON_LINES, JSON_DOCUMENT, PARQUET, CONLL, FASTTEXT, RASA, CLASS_FOLDER, BRAT, PLAIN_LINES,
)  # fmt: skip

# --- recognizing ---

_ENDINGS = tuple(
    ".jsonl .ndjson .json .csv .tsv .txt .parquet .conll .conllu .iob .iob2 .bio .bioes .conllup .ft".split()
)
_CONLL_ENDINGS = (".conll", ".conllu", ".iob", ".iob2", ".bio", ".bioes", ".conllup")
_PICKLE = "A pickle can run any code when it is read. Save the rows with df.to_parquet or df.to_csv."
_NOT_READ = {
    ".xlsx": "Save the sheet as CSV (UTF-8).",
    ".xls": "Save the sheet as CSV (UTF-8).",
    ".ods": "Save the sheet as CSV (UTF-8).",
    ".zip": "Unpack it, and name a file in it.",
    ".tar.gz": "Unpack it, and name a file in it.",
    ".tgz": "Unpack it, and name a file in it.",
    ".bz2": "Unpack it, or pack it with gzip.",
    ".xz": "Unpack it, or pack it with gzip.",
    ".zst": "Unpack it, or pack it with gzip.",
    ".pkl": _PICKLE,
    ".pickle": _PICKLE,
    ".arrow": "Save the data set with Dataset.to_parquet.",
    ".feather": "Save the rows with df.to_parquet.",
    ".spacy": "Convert it with spaCy to JSON Lines with text and spans.",
}
"""How to convert files of kinds that hold rows and are not read."""
_PACKED, _UNPACK = "is packed", "Unpack it, or pack it with gzip."
_SIGNATURES = (
    (b"BZh", _PACKED, _UNPACK),
    (b"\xfd7zXZ\0", _PACKED, _UNPACK),
    (b"\x28\xb5\x2f\xfd", _PACKED, _UNPACK),
    (b"7z\xbc\xaf", _PACKED, _UNPACK),
    (b"Rar!", _PACKED, _UNPACK),
    (b"PAR1", "is a Parquet file", "Give it the ending .parquet."),
    (b"ARROW1", "is an Arrow file", "Save the data set with Dataset.to_parquet."),
    (
        b"SQLite format 3\0",
        "is a data base",
        "Write a table of it as CSV: sqlite3 -header -csv FILE 'select * from TABLE'",
    ),
    (b"%PDF", "is a PDF", "Write its text to a file."),
    *((bytes([0x80, version]), "is a pickle", _PICKLE) for version in range(2, 6)),
    (b"<!doctype html", "is a web page", "It may be the page of an error or a login: download the file again."),
    (b"<html", "is a web page", "It may be the page of an error or a login: download the file again."),
    (b"<?xml", "is XML", "Write its rows as CSV or JSON Lines."),
    (b"version https://git-lfs", "is a pointer of Git LFS in place of the file", "Get the file: git lfs pull"),
    (b"#format=webanno", "is a table of WebAnno or INCEpTION", "Export the project as CoNLL 2002 or CoNLL-U."),
)
"""The first bytes of files whose name says something else, in lower case: what they are, and what to do."""
_ALLOWED = (
    "tables (.csv, .tsv), JSON and JSON Lines, Parquet, CoNLL, fastText, Rasa NLU, folders of classes; .gz of them"
)
_SAMPLE = 1 << 18
_LINES = 2000
_SIGNATURE_BYTES = 4096


def is_data_file(name: str) -> bool:
    """Return whether a file name has the ending of a data file, such as ``.jsonl`` or ``.csv.gz``."""
    return name.removesuffix(".gz").endswith(_ENDINGS)


def open_text(source: DataSource) -> TextFile:
    """Return a source's file, to be decoded with the encoding that the source names, else the detected one; for a folder without either it is empty."""
    path = Path(str(source.path))
    encoding = source.encoding
    if encoding is None and path.is_file() and not path.name.endswith(".parquet"):
        encoding = find_encoding(path, source.title, source.limits)
    # each text of a folder has its own
    return TextFile(path, source.title, source.limits, encoding or ("" if _is_folder(path) else UTF8))


def open_noted_text(source: DataSource) -> TextFile:
    """Return a source's text file as `open_text` does, and print its encoding if that was detected and is not UTF-8."""
    file = open_text(source)
    if source.encoding is None and file.encoding not in ("", UTF8):
        note_encoding(source.title, file.encoding)
    return file


def find_form(source: DataSource) -> FileForm:
    """Find the form of a data file or folder from its name or, if that is not enough, from its first bytes.

    Raises:
        InputError: If the path is neither a regular file nor a folder of classes or of brat, or its name or first bytes are
            those of a kind of file that is not read.
    """
    path, title = Path(str(source.path)), source.title
    if _is_folder(path) and not path.name.endswith(".parquet"):
        if any(name.endswith(BRAT_ENDING) for name in list_files(path)):
            return BRAT
        _check_class_folder(path, title)
        return CLASS_FOLDER
    check_regular(path, title)
    name = path.name.lower().removesuffix(".gz")
    refused = next((fix for end, fix in _NOT_READ.items() if path.name.lower().endswith(end)), None)
    if refused is not None:
        raise InputError(Problem(title, f"a kind of file that is not read; allowed: {_ALLOWED}.", refused))
    if name.endswith(".parquet"):
        return PARQUET
    _check_content(path, title)
    if name.endswith(_CONLL_ENDINGS):
        return CONLL
    text = open_text(source).sample(_SAMPLE)
    if name.endswith(".csv"):
        return TABLE
    form = _find_text_form(text, name)
    if form is None and "\0" in text[:_LINES]:
        what = f"is not text; allowed: {_ALLOWED}."
        raise InputError(Problem(title, what, "If it is text, give its encoding with --encoding."))
    return form or PLAIN_LINES


def _check_content(path: Path, title: str) -> None:
    """Raise InputError if the first bytes of a file are those of a kind that is not read under this name."""
    with open_regular(path, title) as stream:
        raw = stream.read(_SAMPLE) or b""
    start = raw.removeprefix(b"\xef\xbb\xbf").lstrip(b" \r\n")
    if raw.startswith(b"PK\3\4"):
        is_sheet = re.search(rb"\[Content_Types\]|xl/", raw[:_SIGNATURE_BYTES]) is not None
        what, fix = ("is a spreadsheet", "Save the sheet as CSV (UTF-8).") if is_sheet else (_PACKED, _NOT_READ[".zip"])
    else:
        found = (entry[1:] for entry in _SIGNATURES if raw.startswith(entry[0]) or start.lower().startswith(entry[0]))
        what, fix = next(found, ("", ""))
    if what and not (start.startswith(b"<") and _are_rows(raw)):
        raise InputError(Problem(title, f"{what}, not a file of rows that is read.", fix))


def _are_rows(raw: bytes) -> bool:
    """Return whether lines that begin with a tag of HTML or XML are rows of texts: all begin alike, or most have equally many cells."""
    lines = [line for line in raw.decode(UTF8, errors="replace").lstrip("\ufeff").splitlines() if line.strip()]
    return len(lines) > 1 and (len({line[:5] for line in lines}) == 1 or choose_separator("\n".join(lines), "") != "")


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except (OSError, ValueError):
        return False


def _find_text_form(text: str, name: str) -> FileForm | None:
    """Guess the form of a text file (JSON, tagged words, fastText, ...) from its beginning and its suffix; None for plain lines."""
    start = text.lstrip("\ufeff \t\r\n")
    lines = text.split("\n")[:_LINES]
    if start.startswith(("{", "[")) and not name.endswith(".tsv") and (form := _find_json_form(start, name)):
        return form
    if name.endswith((".jsonl", ".ndjson", ".json")):
        return JSON_LINES
    if name.endswith((".yml", ".yaml", ".md", ".txt")) and _looks_like_rasa(text):
        return RASA
    if _looks_like_fasttext(lines):
        return FASTTEXT
    if looks_like_conll(lines):
        return CONLL
    if name.endswith(".tsv") or choose_separator(text, usual=""):
        return TABLE
    return None


def _find_json_form(start: str, name: str) -> FileForm | None:
    """Return the form of a text that begins with a bracket: JSON Lines or one JSON document; None if it is neither."""
    first, _, rest = start.partition("\n")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        if not re.match(r"\{\s*[\"}]|\[\s*[\[{\"\]]", start):
            return None
        # an object that goes on in the next line is a document, one that is cut off a bad line
        is_open = bool(rest) and first.rstrip().endswith(("{", "[", ",", ":"))
        is_lines = name.endswith((".jsonl", ".ndjson")) and not is_open
        return JSON_LINES if is_lines else JSON_DOCUMENT
    if isinstance(value, list):
        return JSON_LINES if rest.lstrip().startswith("[") else JSON_DOCUMENT
    is_single = name.endswith(".json") and not rest.strip()
    return JSON_DOCUMENT if is_single and any(isinstance(v, list | dict) for v in value.values()) else JSON_LINES
