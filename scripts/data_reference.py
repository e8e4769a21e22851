"""Write docs/data-files.md from the tables of forms and records, and from what the guess of columns says of examples.

Run: python scripts/data_reference.py > docs/data-files.md
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pocketbert.core.data.columns import Columns, guess_columns
from pocketbert.core.data.forms import FILE_FORMS
from pocketbert.core.data.records import RECORD_SHAPES
from pocketbert.core.data.source import DataSource
from pocketbert.core.errors import InputError
from pocketbert.pipeline.recipes import choose_task

HEAD = """# Data files

What `pocketbert run --data`, `data check` and every `--data` read, generated from the code by `scripts/data_reference.py`. The form of a file is found by its content; its name is a hint. One line says what was
found before anything is trained. `pocketbert data check FILE` prints the columns, the task, some rows as they are read, and what looks wrong.

## Files

All of them may be packed as `.gz`, apart from Parquet and folders, and are read within the same [limits](data.md#limits). Text is UTF-8, UTF-16, UTF-32 with a mark, or Windows' cp1252, which is found and said; `--encoding` (in a
recipe `encoding`) names any other.

| form | files | a row is |
|---|---|---|"""
SHAPES = """
Spreadsheets, archives, pickles, saved `datasets`, web pages and XML are refused with the way to convert them, whatever their name is. Lists and objects in the cells of a table are read as JSON, or as Python and numpy print them.

## Records of other programs

Inside JSON, JSON Lines and tables. Columns that you name yourself (`--text query`) are read as they stand.

| program | what is read | for example |
|---|---|---|"""
LABELS = """
## Labels

The task follows from the labels; `--task` decides otherwise. A row without a label has no part in fine-tuning and scoring and is counted; the student learns the teacher's answer for it ([transfer rows](lab/distillation.md#transfer-rows)). A file in which most rows have none is refused.

| the label is | for example | task |
|---|---|---|"""
ANSWERS = """
## Answers of a teacher

A column that another model, an ensemble or people filled teaches the student instead of a model in the run ([how](lab/distillation.md#a-teacher-in-a-column)). It is found by its content where the table says so, and `teacher: NAME` in the source of a recipe
names any other, as `--teacher NAME` does with `run --data` and `data check` (`{column: NAME, kind: logits}` also says what the numbers are). Rows without a label get the one that the answer amounts to; `--label NAME` takes the column for labels only.
Answers that name none of the labels in a column of labels, such as `language` beside `verdict`, are left out, and the note says so; where the names of the two columns do not show which is meant, such as `probs` beside `source`, the file
is refused until `--label` or `--teacher` names one.

| the answer is | for example | found | task |
|---|---|---|---|"""
FOOT = """
The text of a span decides on its places, which may count characters, UTF-16 units or bytes, with the last character or without it; a span whose text is elsewhere is refused.
Tags may be IOB1, IOB2, IOBES or BILOU, with `-` or `_` behind the letter; of a CoNLL file,
the first column of tags with prefixes is taken that holds more than phrases of the syntax (`B-NP`), else parts of speech. `--label "column 2"` takes another one.
"""
TEXTS = [f"this is the text number {i} of them" for i in range(24)]


def _each(*values: Any) -> list[Any]:
    return [values[i % len(values)] for i in range(len(TEXTS))]


EXAMPLES: tuple[tuple[str, str, Mapping[str, list[Any]]], ...] = (
    ("a name", '`"good"`', {"label": _each("good", "bad")}),
    ("an object with a name", '`{"id": 3, "name": "good"}`', {"label": _each({"id": 3, "name": "good"}, {"id": 4, "name": "bad"})}),
    ("few whole numbers", "`1` to `5`", {"label": _each(1, 2, 3, 4, 5)}),
    ("many numbers with fractions", "`2.4`", {"label": [i / 7 for i in range(24)]}),
    ("numbers with a percent sign in all rows, or, in `score`, `similarity` and `rating`, with one kind of comma", "`85%`, `0,85`, `1,234.5`", {"score": [f"{i * 3 + 1}%" for i in range(24)]}),
    ("a list of names", '`["a", "b"]`', {"label": _each(["a", "b"], ["b"])}),
    ("names between semicolons, bars or commas, if they recur", '`"a,b"`', {"label": _each("a,b", "b")}),
    ("several columns of 0 and 1, true and false, yes and no", "`toxic`, `insult`", {"toxic": _each(0, 1), "insult": _each(0, 1, 1)}),
    ("spans", "`{start, end, label}`", {"label": _each([{"start": 0, "end": 4, "label": "A"}])}),
    ("spans as lists", '`[0, 4, "A"]`', {"label": _each([[0, 4, "A"]])}),
    ("spans by their text: each mention in the text", '`{"text": "this", "label": "A"}`, `{"A": ["this"]}`', {"label": _each([{"text": "this", "label": "A"}])}),
    ("tags in a text", '`"B-A O O"`, `"B-A,O,O"`', {"labels": _each("B-A O O O O O O O")}),
    ("a tag for each word", '`["B-A", "O", ...]`', {"tags": _each(["B-A", *["O"] * 7])}),
    ("answers, beside `question` and `context`", "`{text, answer_start}`", {"answers": _each({"text": ["text"], "answer_start": [12]})}),
)  # fmt: skip


ANSWER_EXAMPLES: tuple[tuple[str, str, Mapping[str, list[Any]]], ...] = (
    ("a probability for each label", '`{"good": 0.9, "bad": 0.1}`', {"p": _each({"a": 0.9, "b": 0.1})}),
    ("those of the most likely labels; what is left is spread over the others", '`{"good": 0.7}`', {"probs": _each({"a": 0.6, "b": 0.1})}),
    ("what pipelines of transformers write", '`[{"label": "good", "score": 0.9}]`', {"prediction": _each([{"label": "a", "score": 0.9}])}),
    ("a list in the order of `data.labels`", "`[0.9, 0.1]`", {"p": _each([0.9, 0.1])}),
    ("logits or log-probabilities", '`{"good": 2.1, "bad": -0.4}`', {"logits": _each({"a": 2.1, "b": -0.4})}),
    ("votes", '`{"good": 3, "bad": 1}`', {"votes": _each({"a": 3, "b": 1})}),
    ("votes as a list of labels", '`["good", "good", "bad"]`', {"by": _each(["a", "a", "b"])}),
    ("a column for each of several people, with labels that are no numbers: `teacher: ann,ben`", "`good`, `bad`", {"ann": _each("a", "b"), "ben": _each("a", "a", "b")}),
    ("a label, with its probability in a column `confidence`, or `smoothing`", '`"good"`', {"by": _each("a", "b")}),
    ("one column of numbers for each label: `teacher: good,bad`", "`0.9`, `0.1`", {"good": _each(0.9), "bad": _each(0.1)}),
    ("a probability of each label by itself", '`{"toxic": 0.9, "insult": 0.8}`', {"probs": _each({"a": 0.9, "b": 0.8})}),
    ("a score of a text or a pair", "`2.4`", {"score": [i / 7 for i in range(24)]}),
    ("a vector, of any width", "`[0.12, -0.5, ...]`", {"v": _each([0.1 * i + 0.01 for i in range(16)])}),
    ("the tags of each word", '`[{"O": 0.9, "B-A": 0.1}, ...]`', {"t": _each([{"O": 0.9, "B-A": 0.1}] * 8)}),
    ("tags with their places", "`[{start, end, probs}, ...]`", {"t": _each([{"start": 0, "end": 4, "probs": {"O": 0.1, "B-A": 0.9}}])}),
    ("the start and the end of answers", "`{start: [[12, 0.9]], end: [[16, 0.9]], null: 0.1}`", {"answers": _each({"start": [[12, 0.9]], "end": [[16, 0.9]], "null": 0.1})}),
)  # fmt: skip


def answer_row(what: str, cell: str, columns: Mapping[str, list[Any]]) -> str:
    """Return a row of the table of answers, with whether the column is found by itself and the task that follows."""
    found = guess_rows(columns)
    is_found = found is not None and found.source.teacher is not None
    task = choose_task(found).value if found is not None and is_found else ""
    return f"| {what} | {cell} | {'yes' if is_found else 'no'} | {f'`{task}`' if task else 'as you name it'} |"


def guess_rows(columns: Mapping[str, list[Any]]) -> Columns | None:
    """Write texts with the given columns to a file, and return the columns that are guessed; None if it is refused."""
    texts = {"question": TEXTS, "context": TEXTS} if "answers" in columns else {"text": TEXTS}
    rows = [
        dict(zip([*texts, *columns], cells, strict=True))
        for cells in zip(*texts.values(), *columns.values(), strict=True)
    ]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        try:
            return guess_columns(DataSource(path=str(path)))
        except InputError:
            return None


def task_of(columns: Mapping[str, list[Any]]) -> str:
    """Return the task that is found for texts with the given columns."""
    found = guess_rows(columns)
    assert found is not None
    return choose_task(found).value


def page() -> str:
    """Return the whole page."""
    lines = [HEAD, *(f"| {form.title} | {form.files} | {form.reads} |" for form in FILE_FORMS), SHAPES]
    for shape in RECORD_SHAPES:
        example = json.dumps(list(shape.example.values()) if "column 1" in shape.example else shape.example)
        lines.append(f"| {shape.title} | {shape.reads} | `{example}` |")
    lines += [LABELS, *(f"| {what} | {cell} | `{task_of(columns)}` |" for what, cell, columns in EXAMPLES)]
    lines += [ANSWERS, *(answer_row(what, cell, columns) for what, cell, columns in ANSWER_EXAMPLES)]
    return "\n".join([*lines, FOOT])


if __name__ == "__main__":
    print(page(), end="")
