"""Inputs of models: tokenized texts, and data columns that travel with a text and become further inputs.

- `Encoded` is one tokenized text or pair; `truncate_row` shortens it without losing its special tokens.
- `with_columns` attaches data columns of a row to its text, such as its language or the entities that it mentions.
- `open_column_reader` reads from a model folder which columns its files need; the `ColumnReader` turns them into
  arrays.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem, suggest_allowed
from pocketbert.core.families import FORM_KEY, ExportForm, GraphInput, Meaning, family_of
from pocketbert.core.families.config import CONFIG_FILE, read_config

Text = str | tuple[str, str]
"""One text, or a pair of texts."""
ChoiceText = tuple[str, Sequence[str]]
"""A question with its choices, for multiple choice."""


@dataclass(frozen=True)
class Places:
    """Positions of a tokenized input's tokens in the text that they come from.

    Attributes:
        offsets: For each token the index of its first character and of the character after its last one, [L, 2] in code
            points, without the blank before a word; [0, 0] for special tokens.
        words: Number of the word that each token belongs to, [L]; -1 for special tokens. A word is what the tokenizer's
            pre-tokenizer splits off, divided at punctuation if it splits at blanks alone. Only valid for single texts: for pairs the tokenizers library numbers something
            else.
        parts: Which text each token comes from, [L]: 0, 1, or -1 for special tokens.
    """

    offsets: NDArray[np.int64]
    words: NDArray[np.int64]
    parts: NDArray[np.int64]


@dataclass(frozen=True)
class Encoded:
    """One tokenized text or pair of texts.

    Attributes:
        ids: Token ids with special tokens, length L, int64.
        type_ids: Segment ids, length L, int64.
        truncated: Whether tokens were cut off.
        places: Where the tokens are in the text, for tasks whose answers are positions; else None.
        tail: Number of special tokens after the text, or after the second text of a pair: 1 for BERT, 2 for XLNet.
        keeps_end: Whether a text that is too long loses its beginning instead of its end; `places` is set then.
        extra: Additional inputs made from other data columns, by name, [L] or [L, width]; empty if there are none.
    """

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]
    truncated: bool
    places: Places | None = None
    tail: int = 1
    keeps_end: bool = False
    extra: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Return the number of tokens."""
        return len(self.ids)


def truncate_row(row: Encoded, length: int) -> Encoded:
    """Cut a tokenized row to at most `length` tokens; the special tokens after the text remain at its end.

    If the row has `places`, tokens are removed from the end of the text, or of the longer text of a pair; from the
    beginning, if the row keeps its end. All special tokens then remain if there is room for them, since some models
    look for the separators.
    """
    if len(row) <= length:
        return row
    places = row.places
    tail = min(length, row.tail if places is None else max(1, count_final_special_tokens(places.parts)))
    keep = np.r_[0 : length - tail, len(row) - tail : len(row)]
    if places is not None and places.parts.max(initial=-1) >= 0:
        keep = _select_kept_tokens(places.parts, length, keep, row.keeps_end)
    return replace(
        row,
        ids=row.ids[keep],
        type_ids=row.type_ids[keep],
        truncated=True,
        places=None if places is None else Places(places.offsets[keep], places.words[keep], places.parts[keep]),
        extra={name: values[keep] for name, values in row.extra.items()},
    )


def _select_kept_tokens(
    parts: NDArray[np.int64], length: int, fallback: NDArray[np.int64], keeps_end: bool
) -> NDArray[np.int64]:
    """Choose which tokens of a row remain when it is cut to `length` tokens; return their indices in order.

    All special tokens remain. Of two texts, the longer one is cut until both are equally long, then both are
    cut.

    Args:
        parts: For each token 0 (first text), 1 (second text) or -1 (special token), [tokens].
        length: Number of tokens that remain; smaller than the number of tokens in the row.
        fallback: Indices that are returned if the special tokens leave no room for a token of each text.
        keeps_end: Whether texts lose tokens at their beginning instead of their end.
    """
    first, second = (np.flatnonzero(parts == part) for part in (0, 1))
    room = length - (len(parts) - first.size - second.size)
    if room < 1 + bool(second.size):
        return fallback
    shorter = min(first.size, second.size, room // 2)
    sizes = (room - shorter, shorter) if first.size > second.size else (shorter, room - shorter)
    if keeps_end:
        first, second = first[max(0, first.size - sizes[0]) :], second[max(0, second.size - sizes[1]) :]
    return np.sort(np.concatenate([np.flatnonzero(parts < 0), first[: sizes[0]], second[: sizes[1]]]))


def count_final_special_tokens(parts: NDArray[np.int64]) -> int:
    """Count the special tokens after the last token of a text, all if there is no such token; see `Places` for `parts`."""
    text = np.flatnonzero(parts >= 0)
    return len(parts) - 1 - int(text[-1]) if text.size else len(parts)


# --- data columns of a text ---

COLUMNS = tuple(m.value for m in (Meaning.LANGUAGE, Meaning.ENTITIES))
"""Names of all data columns that some form of export reads."""


class _TextWithColumns(str):
    """A text (a `str`) that carries the other data columns of its row."""

    __slots__ = ("columns",)
    columns: Mapping[str, Any]


class _PairWithColumns(tuple[str, str]):
    """A pair of texts (a tuple) that carries the other data columns of its row."""

    columns: Mapping[str, Any]


def with_columns(text: Text, columns: Mapping[str, Any] | None) -> Text:
    """Attach the other data columns of a row, such as ``{"language": "en"}``, to its text or pair.

    Args:
        text: One text or a pair.
        columns: Values by the names of the columns; None to return the text unchanged.
    """
    if columns is None:
        return text
    result = _TextWithColumns(text) if isinstance(text, str) else _PairWithColumns(text)
    result.columns = columns
    return result


def columns_of(text: object) -> Mapping[str, Any] | None:
    """Return the data columns that `with_columns` attached to a text; None if there are none."""
    return text.columns if isinstance(text, _TextWithColumns | _PairWithColumns) else None


def split_pair(text: Text) -> tuple[Text, ...]:
    """Split a text or pair into a tuple of its texts, each with the data columns that belong to it."""
    columns = columns_of(text)
    if isinstance(text, str) or columns is None:
        return (text,) if isinstance(text, str) else text
    return tuple(
        with_columns(one, {name: _column_of_part(value, part) for name, value in columns.items()})
        for part, one in enumerate(text)
    )


def _column_of_part(value: Any, part: int) -> Any:
    """Return a column's value for text number `part` of a pair; of a list of mentions, those in this text only."""
    listed = _parse_list(value)
    if listed is None:
        return value
    mentions = [m for m in listed if isinstance(m, Mapping) and m.get("part", 0) == part]
    return [{k: v for k, v in m.items() if k != "part"} for m in mentions]


# --- inputs made of columns ---

ENTITIES_FILE = "entities.json"
"""File of a model folder with the entities of its table, number 1 first: ``{"entities": [{"id": ..., "name": ...}]}``."""
_ENTITIES_MIB = 64
_WORD = re.compile(r"\w+")
_SAMPLE_STEP = 3
"""Every third word of a text without columns is taken for a mention."""
_COLUMN_FORMATS = {
    "language": "language is the name of a language in lang2id of config.json.",
    "entities": 'entities is a list of mentions by characters: [{"start": 0, "end": 5, "id": "Q1"}]; "name" may replace '
    '"id", "part": 1 is the second text; where vectors are the input, "vector" is a list of numbers.',
}


@dataclass(frozen=True)
class _Mention:
    """A mention of an entity: its place in a text, and the entity's number or vector.

    Attributes:
        start: Index of the first character in the text.
        end: Index of the character after the last one.
        part: 0 for the first text, 1 for the second of a pair.
        entity: Number of an entity, from 1, or a vector [width].
    """

    start: int
    end: int
    part: int
    entity: int | NDArray[np.float32]


def open_column_reader(folder: Path) -> ColumnReader | None:
    """Open the `ColumnReader` of a model folder; None if its model reads the text only.

    Raises:
        InputError: If config.json names an unknown family, a form that the family does not have or invalid language ids,
            or if the list of entities cannot be read or has another length than config.json states.
    """
    path = folder / CONFIG_FILE
    config = read_config(path) if path.is_file() else {}
    if FORM_KEY not in config:
        return None
    family = family_of(str(config.get("model_type")), str(path))
    config = read_config(path, family.bounds)
    form = family.as_configured(config).form
    if form is None:
        return None
    entities = read_entities(folder / ENTITIES_FILE) if form.table else []
    number_by_name = {e["name"]: i for i, e in reversed([*enumerate(entities, 1)]) if "name" in e}
    numbers = {**number_by_name, **{e["id"]: i for i, e in enumerate(entities, 1)}}
    for graph_input in form.extra:
        count = int(config.get(graph_input.count_key, 0)) if graph_input.count_key else 0
        if graph_input.meaning is Meaning.ENTITIES and count != len(entities):
            raise InputError(Problem(str(folder / ENTITIES_FILE), f"lists {len(entities)} entities, not {count}."))
    return ColumnReader(form, _read_languages(form, config, str(path)), numbers, [e["id"] for e in entities])


def read_entities(path: Path) -> list[dict[str, str]]:
    """Read the entities of a model folder, `{"id": ..., "name": ...}` in the order of their numbers; some have no name.

    Raises:
        InputError: If the file is missing, or holds no such list or an empty one.
    """
    content = read_json(path, _ENTITIES_MIB) if path.is_file() else None
    entities = content.get("entities") if isinstance(content, dict) else None
    is_list = isinstance(entities, list) and all(
        isinstance(e, dict) and isinstance(e.get("id"), str) and isinstance(e.get("name", ""), str) for e in entities
    )
    if not is_list or not entities:
        fix = "Export the model again, or copy the folder again."
        raise InputError(Problem(str(path), "is no list of entities.", fix))
    return list(entities)


def _read_languages(form: ExportForm, config: Mapping[str, Any], where: str) -> dict[str, int]:
    """Read from config.json which languages a model knows, as ids by name; empty for forms that read no language.

    If config.json has no names, the names are ``"0"``, ``"1"``, ... Ids that are too large raise InputError.
    """
    graph_input = next((i for i in form.extra if i.meaning is Meaning.LANGUAGE), None)
    if graph_input is None:
        return {}
    count = int(config.get(str(graph_input.count_key), 1))
    numbers = config.get(str(graph_input.names_key)) or {}
    if not numbers:
        return {str(i): i for i in range(count)}
    if not isinstance(numbers, dict) or not all(_is_whole_number(i) and i < count for i in numbers.values()):
        what = f"{graph_input.names_key} names numbers that are not 0 to {count - 1}."
        raise InputError(Problem(where, what))
    return dict(numbers)


@dataclass(frozen=True)
class ColumnReader:
    """Makes the additional inputs of an export form, such as language ids or entity vectors, from data columns.

    Attributes:
        form: The export form, which lists the inputs of the files besides the text.
        languages: Id of each language by its name.
        entities: Number of each entity, from 1, by its id and by its name; a name that is another entity's id is left
            out.
        names: Ids of the entities in the order of their numbers.
    """

    form: ExportForm
    languages: Mapping[str, int] = field(default_factory=dict)
    entities: Mapping[str, int] = field(default_factory=dict)
    names: Sequence[str] = ()

    def check(self, texts: Iterable[object], what: str = "text") -> None:
        """Raise InputError for texts that lack a data column that the export form reads, or have an invalid one.

        Args:
            texts: Texts or pairs.
            what: What a text is called in error messages, before its number, such as ``row``.

        Raises:
            InputError: Naming the first 20 of these texts.
        """
        problems: list[Problem] = []
        for number, text in enumerate(texts, 1):
            where, columns = f"{what} {number}", columns_of(text) or {}
            missing = [c for c in self.form.columns if columns.get(c) is None]
            if missing:
                reason = f"has no column '{missing[0]}', which files of the form '{self.form.name}' read."
                fix = "Give rows with the column, in a file: --file rows.jsonl (from Python: with_columns). "
                problems.append(Problem(where, reason, fix + _COLUMN_FORMATS[missing[0]]))
            else:
                try:
                    for graph_input in self.form.extra:
                        self._read_column(graph_input, columns, where)
                except InputError as error:
                    problems += error.problems
            if len(problems) >= 20:
                break
        if problems:
            raise InputError(problems)

    def with_sample_columns(self, text: Text) -> Text:
        """Return a text with its data columns; without any, with sample values that depend only on its characters."""
        return text if columns_of(text) is not None else with_columns(text, self._sample_columns(text))

    def make_inputs(self, text: object, places: Places, where: str) -> dict[str, NDArray[np.generic]]:
        """Make the model's additional inputs for one text from its data columns.

        An entity is an input at the first token of its mention only; a mention that was cut off is left out.

        Args:
            text: A text with columns.
            places: Character offsets of the text's L tokens.
            where: Name of the text in errors.

        Returns:
            Each input by name, [L] or [L, width].
        """
        columns = columns_of(text) or {}
        result: dict[str, NDArray[np.generic]] = {}
        for graph_input in self.form.extra:
            value = self._read_column(graph_input, columns, where)
            array = _empty_input(graph_input, len(places.parts))
            if graph_input.meaning is Meaning.LANGUAGE:
                array[:] = value
            else:
                for mention in value:
                    inside = (places.parts == mention.part) & (places.offsets[:, 1] > mention.start)
                    tokens = np.flatnonzero(inside & (places.offsets[:, 0] < mention.end))
                    if tokens.size:  # else the mention was cut off
                        array[tokens[0]] = mention.entity
            result[graph_input.name] = array
        return result

    def sample_inputs(self, ids: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
        """Make sample values of the additional inputs, [L] or [L, width], for L token ids whose text has no data columns."""
        result: dict[str, NDArray[np.generic]] = {}
        for graph_input in self.form.extra:
            array = _empty_input(graph_input, len(ids))
            tokens = np.flatnonzero(ids % _SAMPLE_STEP == 1)[1:]
            if graph_input.meaning is Meaning.LANGUAGE:
                array[:] = int(ids.sum()) % len(set(self.languages.values()))
            elif graph_input.meaning is Meaning.ENTITIES:
                array[tokens] = ids[tokens] // _SAMPLE_STEP % len(self.names) + 1
            else:
                array[tokens] = [_sample_vector(int(i), graph_input.width) for i in ids[tokens]]
            result[graph_input.name] = array
        return result

    def _sample_columns(self, text: Text) -> dict[str, Any]:
        """Make sample columns for a text: a language, or an entity for every third word (none for some texts)."""
        seed = zlib.crc32("\x1f".join([text] if isinstance(text, str) else text).encode())
        if self.form.columns == (Meaning.LANGUAGE.value,):
            return {Meaning.LANGUAGE.value: sorted(self.languages)[seed % len(self.languages)]}
        widths = [i.width for i in self.form.extra if i.meaning is Meaning.VECTORS]
        mentions = []
        for part, one in enumerate([text] if isinstance(text, str) else text):
            for i, word in enumerate(_WORD.finditer(one)):
                number = seed + i
                if number % _SAMPLE_STEP == 0 and seed % 5:
                    mention: dict[str, Any] = {"start": word.start(), "end": word.end()}
                    if widths:
                        mention["vector"] = [float(v) for v in _sample_vector(number, widths[0])]
                    else:
                        mention["id"] = self.names[number // _SAMPLE_STEP % len(self.names)]
                    mentions.append({**mention, **({"part": 1} if part else {})})
        return {Meaning.ENTITIES.value: mentions}

    def _read_column(self, graph_input: GraphInput, columns: Mapping[str, Any], where: str) -> Any:
        """Read the data column of one input: the id of a language, or a list of entity mentions."""
        value = columns.get(graph_input.column)
        where = f"{where}, column '{graph_input.column}'"
        if graph_input.meaning is Meaning.LANGUAGE:
            if not isinstance(value, str) or value not in self.languages:
                known = suggest_allowed(str(value), sorted(self.languages))
                raise InputError(Problem(where, f"{value!r:.40} is no language of the model; {known}."))
            return self.languages[value]
        mentions = _parse_list(value)
        if mentions is None:
            raise InputError(Problem(where, "is no list of mentions.", _COLUMN_FORMATS["entities"]))
        return [self._read_mention(graph_input, m, f"{where}, mention {i}") for i, m in enumerate(mentions, 1)]

    def _read_mention(self, graph_input: GraphInput, value: Any, where: str) -> _Mention:
        """Read one entity mention: its start and end in the text, and the entity's vector or number."""
        if not isinstance(value, Mapping):
            raise InputError(Problem(where, f"{value!r:.60} is no object.", _COLUMN_FORMATS[graph_input.column]))
        start: Any = value.get("start")
        end: Any = value.get("end")
        part: Any = value.get("part", 0)
        if not (_is_whole_number(start) and _is_whole_number(end) and start < end and part in (0, 1)):
            what = f"start {start!r:.20}, end {end!r:.20}, part {part!r:.20} is no piece of a text."
            raise InputError(Problem(where, what, _COLUMN_FORMATS[graph_input.column]))
        if graph_input.meaning is Meaning.VECTORS:
            return _Mention(start, end, part, _to_vector(value.get("vector"), graph_input.width, where))
        keys = [value[k] for k in ("id", "name") if isinstance(value.get(k), str)]
        number = next((self.entities[key] for key in keys if key in self.entities), None)
        if number is None:
            shown = f"{keys[0] if keys else value.get('id')!r:.60}"
            what = f"{shown} is not among the {len(self.names):,} entities in the files."
            fix = f"Leave the mention out, or export again with it in --entities; {ENTITIES_FILE} lists those that are there."
            raise InputError(Problem(where, what, fix))
        return _Mention(start, end, part, number)


def _empty_input(graph_input: GraphInput, length: int) -> NDArray[Any]:
    """Return an additional input for `length` tokens, filled with its padding value."""
    return np.full(graph_input.shape(length), graph_input.padding, graph_input.dtype)


def _parse_list(value: Any) -> list[Any] | None:
    """Return the list in a column's cell, None if it holds none; text is parsed as JSON, which CSV and TSV files hold."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return None
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return list(value) if isinstance(value, list | tuple) else None


def _to_vector(value: Any, width: int, where: str) -> NDArray[np.float32]:
    """Convert the vector of a mention to an array [width]; raise InputError unless it has `width` finite numbers."""
    try:
        vector = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        vector = np.zeros(0, np.float32)
    if vector.shape != (width,) or not np.isfinite(vector).all():
        raise InputError(Problem(where, f"vector is no list of {width} finite numbers.", _COLUMN_FORMATS["entities"]))
    return vector


def _sample_vector(number: int, width: int) -> NDArray[np.float32]:
    """Compute a deterministic sample vector: `width` numbers between -1 and 1 that depend on `number` only."""
    return np.asarray(np.round(np.sin(np.arange(1, width + 1) * (1.0 + number % 97)), 3), np.float32)


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
