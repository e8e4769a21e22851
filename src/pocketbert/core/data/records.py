"""Records of other programs inside JSON files and tables: one record becomes rows with a text and a label.

`RECORD_SHAPES` is the table of them, each with an example. `find_record_shape` recognizes a shape by the first rows of a file,
`expand_records` turns all rows into rows of plain columns. Rows with the columns that the user names may be kept as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any

from pocketbert.core.data.cells import number_of, parse_list, parse_literal
from pocketbert.core.data.column_names import LABEL_NAMES, TEXT_NAMES, BadRows, plain_name
from pocketbert.core.data.json_files import Row
from pocketbert.core.tasks import LabelKind

_Record = Mapping[str, Any]
_SAMPLED_ROWS, _SAMPLED_CHARACTERS = 1000, 1 << 20
"""Rows, and characters in them, that show whether a file has records of another program."""
_BROKEN = (TypeError, ValueError, KeyError, AttributeError)
"""What a record that its program did not finish raises."""


@dataclass(frozen=True)
class RecordShape:
    """How the records of a program are recognized, and what rows they become.

    Attributes:
        title: Name of the program or format, for notes and docs.
        reads: What becomes of a record, in words, for docs.
        example: A record as the program writes it.
        matches: Function that returns whether the first rows of a file are such records.
        expand: Function that returns the rows of a record.
        columns: The columns of text, second text and label in these rows, if their names or contents do not show them.
        kind: Kind of label, if the content does not show it.
    """

    title: str
    reads: str
    example: _Record
    matches: Callable[[Sequence[_Record]], bool]
    expand: Callable[[_Record], Iterable[dict[str, Any]]]
    columns: Mapping[str, str] = field(default_factory=dict)
    kind: LabelKind | None = None


def find_record_shape(rows: Sequence[_Record], named: Iterable[str] = ()) -> RecordShape | None:
    """Return the shape of the records in the first rows of a file; None if these are rows of plain columns, or no rows.

    Args:
        rows: The first rows of the file; see `take_sample`.
        named: Columns that the user names. If the first row has one of them, and the rows made of it have not, the result
            is None. A broken first row, or one of which no row is made, does not count.
    """
    shape = next((shape for shape in RECORD_SHAPES if rows and shape.matches(rows)), None)
    if shape is not None and (kept := {name for name in named if name in rows[0]}):
        with suppress(*_BROKEN):
            made = {name for expanded in shape.expand(rows[0]) for name in expanded}
            return shape if not made or kept <= made else None
    return shape


def take_sample(rows: Iterator[Row]) -> list[Row]:
    """Return the first rows of a file, up to a thousand and about a million characters."""
    sample, size = list[Row](), 0
    for row in islice(rows, _SAMPLED_ROWS):
        sample.append(row)
        size += len(str(row[1]))
        if size > _SAMPLED_CHARACTERS:
            break
    return sample


def expand_records(rows: Iterator[Row], bad: BadRows, named: Iterable[str] = ()) -> Iterator[Row]:
    """Convert records of other programs, such as SQuAD, Label Studio or Prodigy, to rows with plain columns.

    The first rows decide for the whole file: without a known shape, all rows are yielded unchanged. If a record becomes
    several rows, all of them have the record's number; it may also become none.

    Args:
        rows: The rows as they stand in the file.
        bad: Collects broken records.
        named: Columns that the user named; see `find_record_shape`.
    """
    sample = take_sample(rows)
    shape = find_record_shape([row for _, row in sample], named)
    for number, row in chain(sample, rows):
        try:
            made = [row] if shape is None else [*shape.expand(row)]
        except _BROKEN as error:
            reason = f": {error}" if isinstance(error, ValueError) else ""
            bad.add(number, f"is a broken record of {shape.title if shape else ''}{reason}.")
        else:
            yield from ((number, expanded) for expanded in made)


# --- questions ---


def _expand_article(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield a row for each question of an article in SQuAD's JSON; malformed paragraphs are skipped."""
    for paragraph in record["paragraphs"]:
        if isinstance(paragraph, dict) and _is_paragraph(paragraph):
            yield from _expand_paragraph({**paragraph, "title": record.get("title")})


def _is_article(record: _Record) -> bool:
    paragraphs = record.get("paragraphs")
    has_questions = isinstance(paragraphs, list) and any(isinstance(p, dict) and "qas" in p for p in paragraphs)
    return has_questions or (paragraphs == [] and {*record} <= {"title", "paragraphs"})


def _is_paragraph(record: _Record) -> bool:
    return isinstance(record.get("qas"), list) and isinstance(record.get("context"), str)


def _expand_paragraph(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield a row for each question of a SQuAD paragraph; unanswerable questions (SQuAD 2.0) get an empty list of answers."""
    for question in record["qas"]:
        if not isinstance(question, dict):
            continue
        answers = [] if question.get("is_impossible") else question.get("answers") or []
        row = {"id": question.get("id") or question.get("qid"), "question": question.get("question")}
        yield {**row, "context": record["context"], "answers": answers}


_NEARLY_ALL = 0.9
"""Share of a file's first rows beside which others may be mistakes."""
_ASKED, _ANSWERED, _YES_NO = ("question", "query"), ("answer", "answers", "answertext"), ("yes", "no", "true", "false")


def _stands_in(answer: str, text: str) -> bool:
    """Return whether an answer stands in a text more than twice as long, and not inside a longer word of Latin letters or digits."""
    return 2 * len(answer) < len(text) and bool(re.search(rf"(?<![a-zA-Z\d]){re.escape(answer)}(?![a-zA-Z\d])", text))


def _answered_columns(record: _Record) -> tuple[str, str, str, int | None] | None:
    """Return the columns of a question, its text and its answer; None without these columns, or with a column `context` or `label`.

    The text is the only one that has all answers in it, else the longest one. The fourth value counts the texts that have them; None without a written answer.
    """
    plain = {plain_name(str(name)): str(name) for name in record}
    asked, answer = (next((plain[n] for n in names if n in plain), None) for names in (_ASKED, _ANSWERED))
    texts = [
        str(name) for name, cell in record.items() if isinstance(cell, str) and " " in cell and cell[0] not in "[{"
    ]
    others = [name for name in texts if name not in (asked, answer)]
    if asked is None or answer is None or {"context", *LABEL_NAMES[0]} & {*plain} or not others:
        return None
    found = parse_literal(record[answer])
    found = found.get("text") if isinstance(found, dict) else found
    answers = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    are_texts = bool(answers) and all(isinstance(t, str) and len(t) > 1 and t.lower() not in _YES_NO for t in answers)
    around = [n for n in others if are_texts and all(_stands_in(t, record[n]) for t in answers)]
    longest = max(others, key=lambda name: len(record[name]))
    return asked, around[0] if len(around) == 1 else longest, answer, len(around) if any(answers) else None


def _are_answered(records: Sequence[_Record]) -> bool:
    """Return whether at least 90 % of the given answers stand in a text beside their question, at least one of them in one text only."""
    counts = [0 if (found := _answered_columns(record)) is None else found[3] for record in records]
    given = [count for count in counts if count is not None]
    return 1 in given and sum(count > 0 for count in given) >= _NEARLY_ALL * len(given)


def _expand_answered(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield a record with its columns renamed to `question`, `context` and `answers`, and a start of the answer to `answer_start`."""
    columns = _answered_columns(record)
    if columns is None:
        raise ValueError("no question with a text and an answer")
    row = {str(name): cell for name, cell in record.items() if str(name) not in columns[:3]}
    row |= dict(zip(("question", "context", "answers"), map(record.get, columns[:3]), strict=True))
    start = next((cell for name, cell in record.items() if plain_name(str(name)) in ("answerstart", "start")), None)
    yield {**row, **({"answer_start": start} if start is not None else {})}


def _is_examination(record: _Record) -> bool:
    """Return whether a record is a passage of RACE with several questions, each with its options and its answer."""
    lists = [record.get(name) for name in ("questions", "options", "answers")]
    return isinstance(record.get("article"), str) and all(isinstance(v, list) and len(v) > 0 for v in lists)


def _expand_examination(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield a row for each question of a passage of RACE; raise ValueError if the options or answers are more or fewer."""
    if len({len(record[name]) for name in ("questions", "options", "answers")}) > 1:
        raise ValueError("give as many options and answers as questions")
    for question, options, answer in zip(record["questions"], record["options"], record["answers"], strict=True):
        yield {"article": record["article"], "question": question, "options": options, "answer": answer}


# --- annotations ---


def _falling_scores(record: _Record) -> list[float]:
    """Return the scores of a record that transformers' zero-shot pipeline wrote: falling probabilities, one for each label; else an empty list."""
    labels, scores = (parse_list(record.get(name)) for name in ("labels", "scores"))
    is_parallel = isinstance(labels, list) and isinstance(scores, list) and len({*map(str, labels)}) == len(scores) > 1
    are_shares = is_parallel and all(type(v) in (int, float) and 0 <= v <= 1 for v in scores)
    return scores if "sequence" in record and are_shares and scores == sorted(scores, reverse=True) else []


def _are_zero_shot(records: Sequence[_Record]) -> bool:
    """Return whether at least 90 % of the records have falling scores, with a fraction somewhere (JavaScript writes 1.0 as 1)."""
    scored = [scores for record in records if (scores := _falling_scores(record))]
    has_fractions = any(isinstance(score, float) for scores in scored for score in scores)
    return has_fractions and len(scored) >= _NEARLY_ALL * len(records)


def _expand_zero_shot(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the record with {label: probability} as `scores`, in place of the lists of labels and scores."""
    labels, scores = (parse_list(record[name]) for name in ("labels", "scores"))
    row = {name: cell for name, cell in record.items() if name != "labels"}
    yield {**row, "scores": dict(zip(map(str, labels), scores, strict=True))}


def _is_label_studio(record: _Record) -> bool:
    return isinstance(record.get("data"), dict) and any(
        isinstance(record.get(key), list) for key in ("annotations", "completions")
    )


def _expand_label_studio(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the row of a Label Studio task: the texts and numbers of its data, with `spans` and `label` (choices, ratings) of its first annotation.

    Cancelled annotations are skipped. Data columns named `spans` or `label` are renamed to `data.spans` and `data.label`.
    """
    cells = {name: value for name, value in record["data"].items() if isinstance(value, str | int | float)}
    # a column of the same name as one that is made here stays, with another name
    row: dict[str, Any] = {f"data.{n}" if n in ("spans", "label") else n: value for n, value in cells.items()}
    annotations = record.get("annotations") or record.get("completions") or []
    valid = [a for a in annotations if isinstance(a, dict) and not a.get("was_cancelled")]
    spans, labels, is_spans = list[dict[str, Any]](), list[Any](), False
    for result in valid[0].get("result") or [] if valid else []:
        value = result.get("value") if isinstance(result, dict) else None
        if not isinstance(value, dict):
            continue
        if "start" in value and "end" in value:
            names = value.get("labels") or value.get("hypertextlabels") or []
            spans += [{"start": value["start"], "end": value["end"], "label": name} for name in names]
        labels += value.get("choices") or ([value["rating"]] if "rating" in value else [])
        is_spans = is_spans or result.get("type") in ("labels", "hypertextlabels")
    # a task without spans is one whose text has none, if it was annotated
    if spans or is_spans or (valid and not labels):
        row["spans"] = spans
    if labels or not valid:
        row["label"] = (labels[0] if len(labels) == 1 else labels) if labels else None
    yield row


def _is_prodigy(record: _Record) -> bool:
    return {"text", "answer"} <= {*record} and bool({"_input_hash", "_task_hash", "accept"} & {*record})


def _expand_prodigy(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the row of a Prodigy example if the annotator accepted it: its text, with its chosen labels and spans if it has them."""
    if record.get("answer", "accept") != "accept":
        return
    row = {"text": record["text"]}
    if isinstance(record.get("accept"), list):
        chosen = record["accept"]
        row["label"] = chosen[0] if len(chosen) == 1 else chosen
    elif "label" in record:
        row["label"] = record["label"]
    if "spans" in record:
        row["spans"] = record["spans"]
    yield row


def _is_spacy(record: _Record) -> bool:
    marks = record.get("column 2")
    return isinstance(marks, dict) and isinstance(record.get("column 1"), str) and bool({"entities", "cats"} & {*marks})


def _expand_spacy(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the row of a spaCy training pair: the text, its entities as `spans`, and its categories of at least 0.5 as `label`."""
    marks = record["column 2"]
    row: dict[str, Any] = {"text": record["column 1"]}
    if marks.get("entities") is not None:
        row["spans"] = marks["entities"]
    if isinstance(marks.get("cats"), dict):
        names = [name for name, value in marks["cats"].items() if value >= 0.5]
        row["label"] = names[0] if len(names) == 1 else names
    yield row


def _is_rasa(record: _Record) -> bool:
    return {"text", "intent", "entities"} <= {*record} and isinstance(record["entities"], list)


def _is_snips(record: _Record) -> bool:
    chunks = record.get("data")
    are_texts = isinstance(chunks, list) and all(isinstance(chunk, dict) and "text" in chunk for chunk in chunks)
    return {*record} == {"data"} and are_texts


def _expand_snips(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the row of a SNIPS utterance: its pieces joined to a text, and those that name an entity as spans."""
    text, spans = "", list[dict[str, Any]]()
    for piece in record["data"]:
        if piece.get("entity"):
            spans.append({"start": len(text), "end": len(text + piece["text"]), "label": piece["entity"]})
        text += piece["text"]
    yield {"text": text, "spans": spans}


# --- chats ---

_TURNS = ("messages", "conversations", "conversation")


def _list_turns(record: _Record) -> list[tuple[str, str]]:
    """Return the (speaker, text) pairs of a chat record's messages; an empty list if the record is no chat."""
    messages: list[Any] = next((record[key] for key in _TURNS if isinstance(record.get(key), list)), [])
    turns = []
    for message in messages:
        if not isinstance(message, dict):
            return []
        speaker, content = message.get("role", message.get("from")), message.get("content", message.get("value"))
        if isinstance(content, list):  # parts of a message, of which some are text
            content = "\n".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
        if not isinstance(speaker, str) or not isinstance(content, str):
            return []
        turns.append((speaker, content))
    return turns


def _expand_chat(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the row of a chat: the user's messages are the text, the assistant's last message is the label.

    Columns of the record that are named text or label are taken instead; all others are dropped.
    """
    turns = _list_turns(record)
    if not turns:
        raise ValueError("no chat")
    said = [text for speaker, text in turns if speaker in ("user", "human")]
    answers = [text.strip() for speaker, text in turns if speaker in ("assistant", "gpt", "model", "bot")]
    made = {"text": "\n".join(said), "label": answers[-1] if answers else None}
    yield {name: record.get(name, value) for name, value in made.items()}


# --- triplets ---

_ANCHORS = ("query", "anchor", "question", "sentence", "text", "premise")
_POSITIVES, _NEGATIVES = (
    ("pos", "positive", "positives", "positivepassages"),
    ("neg", "negative", "negatives", "negativepassages"),
)


def _triplet_columns(record: _Record) -> list[str]:
    """Return the columns of a record's anchor, positive and negative text, as many of the three as it has."""
    plain = {plain_name(str(name)): str(name) for name in record}
    kinds = [(name,) for name in _UNNAMED] if {*plain} == {*_UNNAMED} else [_ANCHORS, _POSITIVES, _NEGATIVES]
    found = [next((plain[n] for n in names if n in plain), None) for names in kinds]
    return [name for name in found if name is not None and isinstance(record[name], str | list)]


_UNNAMED = ("column1", "column2", "column3")
_SIDE_SCORES = tuple(
    tuple(f"{name}{end}" for name in names for end in ("score", "scores")) for names in (_POSITIVES, _NEGATIVES)
)
_MARGINS = ("margin", "margins", "score", "scores", "label", "labels")


def _list_margins(record: _Record) -> list[list[float]]:
    """Return the scores of a triplet's positive texts and of its negative texts; an empty list if the record has none.

    They are the scores in two columns, such as ``pos_scores`` and ``neg_scores``. Or a column such as ``margin`` has the difference of the two,
    one number for each negative text: then the positive text gets the first one, and each negative text the first one minus its own.
    """
    plain = {plain_name(str(name)): str(name) for name in record}
    columns = [next((plain[n] for n in names if n in plain), None) for names in (*_SIDE_SCORES, _MARGINS)]
    cells = [None if name is None else record[name] for name in columns]
    numbers = [[number_of(v) for v in (cell if isinstance(cell, list) else [cell])] for cell in cells]
    positive, negative, margins = ([float(v) for v in own if v is not None] for own in numbers)
    if positive and negative:
        return [positive, negative]
    return [[margins[0]], [margins[0] - margin for margin in margins]] if margins else []


def _is_triplet(record: _Record) -> bool:
    """Return whether a record has an anchor, positive texts and negative texts, without a label or scores."""
    columns = _triplet_columns(record)
    has_label = any(plain_name(str(name)) in names for name in record for names in LABEL_NAMES[:2])
    is_plain = not has_label and not _list_margins(record)
    return len(columns) == 3 and is_plain and all(_are_texts(record[name]) for name in columns[1:])


def _are_triplets(records: Sequence[_Record]) -> bool:
    """Return whether records are triplets without scores: by the first one, or without names of columns by the texts of all.

    Without names three things must hold:

    1. At least 90 % of the third texts are second texts of other rows, and there are at least half as many different second texts as first ones.
    2. Few first texts occur as second or third ones: at most a tenth as many as there are different second texts.
    3. In at least 90 % of the rows the second text shares more words with the first than the third does; rows with a tie do not count, and at least 20 must.
    """
    if {*map(plain_name, map(str, records[0]))} != {*_UNNAMED}:
        return _is_triplet(records[0])
    rows = [[str(text).lower() for text in record.values()] for record in records]
    if not all(len(row) == len(_UNNAMED) and all(map(_are_texts, row)) for row in rows):
        return False
    anchors, positives, negatives = map(set, zip(*rows, strict=True))
    borrowed = sum(third in positives and third != second for _, second, third in rows)
    is_chain = len(anchors & (positives | negatives)) > len(positives) / 10
    parts = [[{*text.split()} for text in row] for row in rows]
    nearer = [len(first & second) - len(first & third) for first, second, third in parts]
    is_pool = borrowed >= _NEARLY_ALL * len(rows) and 2 * len(positives) >= len(anchors) and not is_chain
    decided = [difference > 0 for difference in nearer if difference]
    return is_pool and len(decided) >= 20 and sum(decided) >= _NEARLY_ALL * len(decided)


def _is_scored_triplet(record: _Record) -> bool:
    """Return whether a record has an anchor, positive texts and negative texts, and their scores or margins."""
    columns = _triplet_columns(record)
    return len(columns) == 3 and bool(_list_margins(record)) and all(_are_texts(record[name]) for name in columns[1:])


def _are_texts(cell: str | list[Any]) -> bool:
    """Return whether a cell is a list of texts (or of objects with one), a text of several words, or one in a script such as Chinese, without blanks."""
    if isinstance(cell, list):
        return all(isinstance(text.get("text") if isinstance(text, dict) else text, str) for text in cell)
    return len(cell.split()) > 1 or any(character >= "\u2e80" for character in cell)


def _expand_triplet(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the pairs of a triplet record: the anchor with each positive text (score 1) and with each negative text (score 0)."""
    anchor, positive, negative = _triplet_columns(record)
    for column, score in ((positive, 1.0), (negative, 0.0)):
        for text in _list_texts(record[column]):
            yield {"first": record[anchor], "second": text, "score": score}


def _list_texts(cell: str | list[Any]) -> list[Any]:
    """Return the texts of a cell, which is one text, or a list of texts or of objects with a text."""
    texts = [cell] if isinstance(cell, str) else cell
    return [text.get("text") if isinstance(text, dict) else text for text in texts]


def _expand_scored_triplet(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the pairs of a triplet record with scores: the anchor with each positive and each negative text.

    Raises ValueError if a column has more or fewer scores than texts.
    """
    anchor, *columns = _triplet_columns(record)
    for column, scores in zip(columns, _list_margins(record) or [[], []], strict=True):
        texts = _list_texts(record[column])
        if len(texts) != len(scores):
            raise ValueError(f"{len(texts):,} texts in '{column}', {len(scores):,} scores; give one for each text")
        for text, score in zip(texts, scores, strict=True):
            yield {"first": record[anchor], "second": text, "score": score}


# --- rows inside an object ---

_ENVELOPES = ("row", "data", "_source", "fields", "record", "doc", "example")
_TEXTS = frozenset(name for tier in TEXT_NAMES for name in tier)


def _envelope(record: _Record) -> str | None:
    """Return the key, such as `row`, of the object that holds a record's columns; None without one, or with a column of texts beside it."""
    if any(isinstance(c, str) and (len(c.split()) > 2 or plain_name(str(n)) in _TEXTS) for n, c in record.items()):
        return None
    return next((k for k in _ENVELOPES if isinstance(record.get(k), dict) and len(record[k]) > 1), None)


def _open_envelope(record: _Record) -> Iterator[dict[str, Any]]:
    """Yield the columns beside a record's object and those inside it; an inner name that is taken gets the object's key: `data.label`."""
    key = _envelope(record)
    if key is None:
        raise ValueError("no object with columns")
    row = {name: cell for name, cell in record.items() if name != key}
    yield {**row, **{f"{key}.{name}" if name in row else name: cell for name, cell in record[key].items()}}


def _first(is_record: Callable[[_Record], bool]) -> Callable[[Sequence[_Record]], bool]:
    return lambda rows: is_record(rows[0])


RECORD_SHAPES = (
    RecordShape(
        "SQuAD",
        "a row for each question, with its context and answers; unanswerable questions of 2.0 have none",
        {"title": "x", "paragraphs": [{"context": "Ann lives in Rome", "qas": [
            {"id": "1", "question": "who lives there?", "answers": [{"text": "Ann", "answer_start": 0}]},
            {"id": "2", "question": "who works there?", "answers": [], "is_impossible": True}]}]},
        _first(_is_article),
        _expand_article,
        {"text": "question", "text_pair": "context", "label": "answers"},
        LabelKind.ANSWERS,
    ),
    RecordShape(
        "SQuAD paragraphs",
        "the same, with the paragraphs as rows (MRQA)",
        {"context": "Ann lives in Rome", "qas": [{"qid": "1", "question": "who?", "answers": ["Ann"]}]},
        _first(_is_paragraph),
        _expand_paragraph,
        {"text": "question", "text_pair": "context", "label": "answers"},
        LabelKind.ANSWERS,
    ),
    RecordShape(
        "questions on a text",
        "a question, its answer and the only text in which that stands, whatever the column of the text is called",
        {"paragraph": "Ann lives in Rome", "question": "who lives there?", "answer": "Ann"},
        _are_answered,
        _expand_answered,
        {"text": "question", "text_pair": "context", "label": "answers"},
        LabelKind.ANSWERS,
    ),
    RecordShape(
        "RACE",
        "a row for each question of a passage, with its options",
        {"article": "Ann lives in Rome", "questions": ["who?"], "options": [["Ann", "Bob"]], "answers": ["A"]},
        _first(_is_examination),
        _expand_examination,
        {"text": "article", "text_pair": "question", "label": "answer"},
        LabelKind.CHOICE,
    ),
    RecordShape(
        "Label Studio",
        "the data of a task, with the spans (`spans`) or choices (`label`) of its first annotation; a `label` of the data is `data.label`",
        {"data": {"text": "Ann lives in Rome"}, "annotations": [{"result": [
            {"type": "labels", "value": {"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}}]}]},
        _first(_is_label_studio),
        _expand_label_studio,
    ),
    RecordShape(
        "Prodigy",
        "what was accepted: its `spans`, or the chosen labels; other answers are left out",
        {"text": "a fine film", "accept": ["good"], "answer": "accept", "_task_hash": 1},
        _first(_is_prodigy),
        _expand_prodigy,
    ),
    RecordShape(
        "spaCy",
        "pairs of a text and its `entities` (spans) or `cats` (labels)",
        {"column 1": "Ann lives in Rome", "column 2": {"entities": [[0, 3, "PER"]]}},
        _first(_is_spacy),
        _expand_spacy,
    ),
    RecordShape(
        "Rasa NLU",
        "the examples of its JSON; the intent is the label, `--label entities` takes the entities instead",
        {"text": "hello Ann", "intent": "greet", "entities": [{"start": 6, "end": 9, "entity": "PER"}]},
        _first(_is_rasa),
        lambda record: [dict(record)],
        {"text": "text", "label": "intent"},
    ),
    RecordShape(
        "zero-shot classification",
        "what transformers' pipeline writes: the scores of the labels are a teacher's answers",
        {"sequence": "a fine film", "labels": ["good", "bad"], "scores": [0.9, 0.1]},
        _are_zero_shot,
        _expand_zero_shot,
    ),
    RecordShape(
        "SNIPS",
        "the text of the pieces, and those with an `entity` as `spans`",
        {"data": [{"text": "play "}, {"text": "Ann", "entity": "artist"}]},
        _first(_is_snips),
        _expand_snips,
    ),
    RecordShape(
        "chats",
        "what the user says is the text, the last message of the assistant the label, unless there is a column `label`",
        {"messages": [{"role": "user", "content": "a fine film"}, {"role": "assistant", "content": "positive"}]},
        _first(lambda record: bool(_list_turns(record))),
        _expand_chat,
        {"text": "text", "label": "label"},
    ),
    RecordShape(
        "triplets",
        "the pairs (query, similar text) with score 1 and (query, other text) with score 0, for feature-extraction; without names of columns only if the third texts are the second ones of other rows, with fewer words of the first",
        {"query": "how far is it", "pos": "the distance", "neg": ["a red coat"]},
        _are_triplets,
        _expand_triplet,
        {"text": "first", "text_pair": "second", "label": "score"},
        LabelKind.SCORE_OR_NONE,
    ),
    RecordShape(
        "rows inside an object",
        "the columns in `row`, `data`, `_source` or `fields`, with those beside it, as viewers and search engines export them",
        {"row_idx": 0, "row": {"text": "a fine film", "label": "good"}},
        _first(lambda record: _envelope(record) is not None),
        _open_envelope,
    ),
    RecordShape(
        "scored triplets",
        "the same pairs with a reranker's scores (`pos_score` and `neg_score`), or with the margin (`margin`, `score`, `label`) and 0",
        {"query": "how far is it", "pos": ["the distance"], "neg": ["a red coat"], "pos_scores": [8.5], "neg_scores": [-4.0]},
        _first(_is_scored_triplet),
        _expand_scored_triplet,
        {"text": "first", "text_pair": "second", "label": "score"},
        LabelKind.SCORE_OR_NONE,
    ),
)  # fmt: skip
