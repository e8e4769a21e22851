"""Makes the extra inputs of a graph out of data columns."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem, nearest
from pocketbert.core.families import FORM_KEY, ExportForm, GraphInput, Meaning, family_of
from pocketbert.core.families.config import FILE_NAME as CONFIG_FILE
from pocketbert.core.families.config import read_config

# --- encoded ---
# A tokenized input: its ids, the places of its tokens, and how it is cut.


Text = str | tuple[str, str]
"""One text, or a pair of texts."""


@dataclass(frozen=True)
class Places:
    """The positions of an input's tokens in its text.

    Attributes:
        offsets: First and behind-last character of each token in its text, [L, 2] code points; [0, 0] of special tokens.
        words: Number of the word that each token belongs to, [L]; -1 of special tokens. A word is what the tokenizer's
            own pre-tokenizer splits off. Of single texts only: of pairs the library numbers other things.
        parts: Which text each token comes from, [L]: 0, 1, or -1 for special tokens.
    """

    offsets: NDArray[np.int64]
    words: NDArray[np.int64]
    parts: NDArray[np.int64]

    def take(self, keep: NDArray[np.int64]) -> Places:
        """The places of some tokens."""
        return Places(self.offsets[keep], self.words[keep], self.parts[keep])


@dataclass(frozen=True)
class Encoded:
    """One tokenized input.

    Attributes:
        ids: Token ids with special tokens, length L, int64.
        type_ids: Segment ids, length L, int64.
        truncated: Whether tokens were cut off.
        places: Where the tokens stand in the text, for tasks whose answers are places; else None.
        tail: Special tokens behind the text, or behind the second one of a pair: 1 for BERT, 2 for XLNet.
        keeps_end: Whether the beginning of a text is what is cut off; its places are known then.
        extra: Inputs that are made of other data columns, by name, [L] or [L, width]; empty where there are none.
    """

    ids: NDArray[np.int64]
    type_ids: NDArray[np.int64]
    truncated: bool
    places: Places | None = None
    tail: int = 1
    keeps_end: bool = False
    extra: Mapping[str, NDArray[np.generic]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Number of tokens."""
        return len(self.ids)


def cut(row: Encoded, length: int) -> Encoded:
    """A row of at most `length` tokens that still ends with the special tokens behind its text.

    Where the places are known, the end of the text, or of the longer one of a pair, is left out (the beginning of a row that
    keeps its end), so that all special tokens stay where there is room for them: some models look for the separators.
    """
    if len(row) <= length:
        return row
    places = row.places
    tail = min(length, row.tail if places is None else max(1, tail_of(places.parts)))
    keep = np.r_[0 : length - tail, len(row) - tail : len(row)]
    if places is not None and places.parts.max(initial=-1) >= 0:
        keep = _shortened(places.parts, length, keep, row.keeps_end)
    extra = {name: values[keep] for name, values in row.extra.items()}
    return replace(
        row,
        ids=row.ids[keep],
        type_ids=row.type_ids[keep],
        truncated=True,
        places=None if places is None else places.take(keep),
        extra=extra,
    )


def _shortened(
    parts: NDArray[np.int64], length: int, otherwise: NDArray[np.int64], keeps_end: bool
) -> NDArray[np.int64]:
    """Places of the tokens that stay of a text or a pair; `otherwise` where not one token of each would."""
    first, second = (np.flatnonzero(parts == part) for part in (0, 1))
    room = length - (len(parts) - first.size - second.size)
    if room < 1 + bool(second.size):
        return otherwise
    short = min(first.size, second.size, room // 2)
    sizes = (room - short, short) if first.size > second.size else (short, room - short)
    if keeps_end:
        first, second = first[max(0, first.size - sizes[0]) :], second[max(0, second.size - sizes[1]) :]
    return np.sort(np.concatenate([np.flatnonzero(parts < 0), first[: sizes[0]], second[: sizes[1]]]))


def tail_of(parts: NDArray[np.int64]) -> int:
    """How many special tokens are last."""
    text = np.flatnonzero(parts >= 0)
    return len(parts) - 1 - int(text[-1]) if text.size else len(parts)


# --- columns ---
# Data columns that travel with a text: its language, the entities that it mentions.


COLUMNS = tuple(m.value for m in (Meaning.LANGUAGE, Meaning.ENTITIES))
"""All data columns that some form reads."""


class TextWithColumns(str):
    """A text that knows other data columns of its row."""

    __slots__ = ("columns",)
    columns: Mapping[str, Any]


class PairWithColumns(tuple[str, str]):
    """A pair of texts that knows other data columns of its row."""

    columns: Mapping[str, Any]


def with_columns(text: Text, columns: Mapping[str, Any] | None) -> Text:
    """Give a text, or a pair, other data columns of its row, such as ``{"language": "en"}``.

    Args:
        text: One text, or two.
        columns: Values by the columns' names; None for the text as it is.
    """
    if columns is None:
        return text
    made = TextWithColumns(text) if isinstance(text, str) else PairWithColumns(text)
    made.columns = columns
    return made


def columns_of(text: object) -> Mapping[str, Any] | None:
    """Return the data columns that a text was given; None where it was given none."""
    return text.columns if isinstance(text, TextWithColumns | PairWithColumns) else None


def parts_of(text: Text) -> tuple[Text, ...]:
    """The texts of a pair, or the only one, each with what its row's columns say of it."""
    columns = columns_of(text)
    if isinstance(text, str) or columns is None:
        return (text,) if isinstance(text, str) else text
    return tuple(with_columns(one, {k: _of_part(v, part) for k, v in columns.items()}) for part, one in enumerate(text))


def _of_part(value: Any, part: int) -> Any:
    """A column for one text of a pair: of mentions, those in it."""
    if not isinstance(value, list):
        return value
    own = [m for m in value if isinstance(m, Mapping) and m.get("part", 0) == part]
    return [{k: v for k, v in m.items() if k != "part"} for m in own]


ENTITIES_FILE = "entities.json"
"""File of a model folder that lists the entities of its table, number 1 first: ``{"entities": [{"id": ..., "name": ...}]}``."""
_WORD = re.compile(r"\w+")
_MENTIONS = 3
"""Every third word of a text without columns is taken for a mention."""
_ENTITIES_MIB = 64


@dataclass(frozen=True)
class Mention:
    """A mention of an entity.

    Attributes:
        start: Its first character.
        end: The character behind its last one.
        part: 0 for the first text, 1 for the second of a pair.
        entity: Number of an entity, from 1, or a vector [width].
    """

    start: int
    end: int
    part: int
    entity: int | NDArray[np.float32]


@dataclass(frozen=True)
class ColumnReader:
    """Makes the extra inputs of a form out of data columns.

    Attributes:
        form: The form.
        languages: Number of each language by its name.
        entities: Number of each entity, from 1, by its id, and by its name where that is no id.
        names: Ids of the entities in the order of their numbers.
    """

    form: ExportForm
    languages: Mapping[str, int] = field(default_factory=dict)
    entities: Mapping[str, int] = field(default_factory=dict)
    names: Sequence[str] = ()

    def check(self, texts: Sequence[object], what: str = "text") -> None:
        """Refuse texts that lack a column which the form reads, or whose column cannot be read.

        Args:
            texts: Texts or pairs.
            what: What each is called in errors, before its number.

        Raises:
            InputError: Naming the first 20.
        """
        problems = []
        for number, text in enumerate(texts, 1):
            where, columns = f"{what} {number}", columns_of(text) or {}
            lost = [c for c in self.form.columns if columns.get(c) is None]
            if lost:
                fix = f"Give rows with the column, in a file: --file rows.jsonl (from Python: with_columns). {_MEANT[lost[0]]}"
                said = f"has no column '{lost[0]}', which files of the form '{self.form.name}' read."
                problems.append(Problem(where, said, fix))
            else:
                try:
                    for one in self.form.extra:
                        self._read(one, columns, where)
                except InputError as error:
                    problems += error.problems
            if len(problems) >= 20:
                break
        if problems:
            raise InputError(problems)

    def noted(self, text: Text) -> Text:
        """Return a text with columns: its own, or sample values that depend on the text only."""
        return text if columns_of(text) is not None else with_columns(text, self._sampled(text))

    def values(self, text: object, places: Places, where: str) -> dict[str, NDArray[np.generic]]:
        """Make the inputs of a text.

        Args:
            text: A text with columns.
            places: Where its tokens stand, L of them.
            where: What to blame in errors.

        Returns:
            Each input, [L] or [L, width].
        """
        columns = columns_of(text) or {}
        return {i.name: self._placed(i, self._read(i, columns, where), places) for i in self.form.extra}

    def drawn(self, ids: NDArray[np.int64]) -> dict[str, NDArray[np.generic]]:
        """Make inputs for tokens without a text, [L] or [L, width] each: sample values that depend on the ids only."""
        out = {}
        for one in self.form.extra:
            values = self._empty(one, len(ids))
            spots = np.flatnonzero(ids % _MENTIONS == 1)[1:]
            if one.meaning is Meaning.LANGUAGE:
                values[:] = int(ids.sum()) % len(set(self.languages.values()))
            elif one.meaning is Meaning.ENTITIES:
                values[spots] = ids[spots] // _MENTIONS % len(self.names) + 1
            else:
                values[spots] = [_vector(int(i), one.width) for i in ids[spots]]
            out[one.name] = values
        return out

    def _sampled(self, text: Text) -> dict[str, Any]:
        seed = zlib.crc32("\x1f".join([text] if isinstance(text, str) else text).encode())
        if self.form.columns == (Meaning.LANGUAGE.value,):
            return {Meaning.LANGUAGE.value: sorted(self.languages)[seed % len(self.languages)]}
        found = []
        for part, own in enumerate([text] if isinstance(text, str) else text):
            for i, word in enumerate(_WORD.finditer(own)):
                number = seed + i
                if number % _MENTIONS == 0 and seed % 5:
                    entity: dict[str, Any] = {"start": word.start(), "end": word.end()}
                    vectors = [n.width for n in self.form.extra if n.meaning is Meaning.VECTORS]
                    if vectors:
                        entity["vector"] = [float(v) for v in _vector(number, vectors[0])]
                    else:
                        entity["id"] = self.names[number // _MENTIONS % len(self.names)]
                    found.append({**entity, **({"part": 1} if part else {})})
        return {Meaning.ENTITIES.value: found}

    def _read(self, one: GraphInput, columns: Mapping[str, Any], where: str) -> Any:
        """The value of a column: the number of a language, or mentions."""
        value = columns.get(one.column)
        at = f"{where}, column '{one.column}'"
        if one.meaning is Meaning.LANGUAGE:
            if not isinstance(value, str) or value not in self.languages:
                known = nearest(str(value), sorted(self.languages))
                raise InputError(Problem(at, f"{value!r:.40} is no language of the model; {known}."))
            return self.languages[value]
        return [self._mention(one, m, f"{at}, mention {i}") for i, m in enumerate(_listed(value, at), 1)]

    def _mention(self, one: GraphInput, value: Any, where: str) -> Mention:
        if not isinstance(value, Mapping):
            raise InputError(Problem(where, f"{value!r:.60} is no object.", _MEANT[one.column]))
        start: Any = value.get("start")
        end: Any = value.get("end")
        part: Any = value.get("part", 0)
        if not (_whole(start) and _whole(end) and start < end and part in (0, 1)):
            what = f"start {start!r:.20}, end {end!r:.20}, part {part!r:.20} is no piece of a text."
            raise InputError(Problem(where, what, _MEANT[one.column]))
        if one.meaning is Meaning.VECTORS:
            return Mention(start, end, part, _given_vector(value.get("vector"), one.width, where))
        named = [value[k] for k in ("id", "name") if isinstance(value.get(k), str)]
        row = next((self.entities[n] for n in named if n in self.entities), None)
        if row is None:
            what = f"{named[0] if named else value.get('id')!r:.60} is not among the {len(self.names):,} entities in the files."
            fix = f"Leave the mention out, or export again with it in --entities; {ENTITIES_FILE} lists those that are there."
            raise InputError(Problem(where, what, fix))
        return Mention(start, end, part, row)

    def _placed(self, one: GraphInput, value: Any, places: Places) -> NDArray[np.generic]:
        out = self._empty(one, len(places.parts))
        if one.meaning is Meaning.LANGUAGE:
            out[:] = value
            return out
        for mention in value:
            inside = (places.parts == mention.part) & (places.offsets[:, 1] > mention.start)
            found = np.flatnonzero(inside & (places.offsets[:, 0] < mention.end))
            if found.size:  # else it was cut off
                out[found[0]] = mention.entity
        return out

    def _empty(self, one: GraphInput, length: int) -> NDArray[Any]:
        """Values of tokens that are no mention."""
        return np.full(one.shape(length), one.padding, one.dtype)


_MEANT = {
    "language": "language is the name of a language in lang2id of config.json.",
    "entities": 'entities is a list of mentions by characters: [{"start": 0, "end": 5, "id": "Q1"}]; "name" may replace '
    '"id", "part": 1 is the second text; where vectors are the input, "vector" is a list of numbers.',
}


def reader_of(folder: Path) -> ColumnReader | None:
    """Return what reads the columns of a model folder's form; None where its files take text only.

    Raises:
        InputError: If config.json names a form that the family does not have, or the list of entities cannot be read.
    """
    path = folder / CONFIG_FILE
    config = read_config(path) if path.is_file() else {}
    if FORM_KEY not in config:
        return None
    row = family_of(str(config.get("model_type")), str(path))
    config = read_config(path, row.bounds)
    form = row.as_configured(config).form
    if form is None:
        return None
    entities = read_entities(folder / ENTITIES_FILE) if form.table else []
    by_name = {e["name"]: i for i, e in reversed([*enumerate(entities, 1)]) if "name" in e}
    rows = {**by_name, **{e["id"]: i for i, e in enumerate(entities, 1)}}
    for one in form.extra:
        counted = int(config.get(one.count_key, 0)) if one.count_key else 0
        if one.meaning is Meaning.ENTITIES and counted != len(entities):
            raise InputError(Problem(str(folder / ENTITIES_FILE), f"lists {len(entities)} entities, not {counted}."))
    return ColumnReader(form, _languages(form, config, str(path)), rows, [e["id"] for e in entities])


def read_entities(path: Path) -> list[dict[str, str]]:
    """Read the list of entities of a model folder: their ids, and names where these are known.

    Raises:
        InputError: If it is missing or no such list.
    """
    content = read_json(path, _ENTITIES_MIB) if path.is_file() else None
    found = content.get("entities") if isinstance(content, dict) else None
    good = isinstance(found, list) and all(
        isinstance(e, dict) and isinstance(e.get("id"), str) and isinstance(e.get("name", ""), str) for e in found
    )
    if not good or not found:
        raise InputError(
            Problem(str(path), "is no list of entities.", "Export the model again, or copy the folder again.")
        )
    return list(found)


def _languages(form: ExportForm, config: Mapping[str, Any], where: str) -> dict[str, int]:
    named = [i for i in form.extra if i.meaning is Meaning.LANGUAGE]
    if not named:
        return {}
    count, names = int(config.get(str(named[0].count_key), 1)), config.get(str(named[0].names_key)) or {}
    if not names:
        return {str(i): i for i in range(count)}
    if not isinstance(names, dict) or not all(_whole(i) and i < count for i in names.values()):
        raise InputError(Problem(where, f"{named[0].names_key} names numbers that are not 0 to {count - 1}."))
    return dict(names)


def _listed(value: Any, where: str) -> list[Any]:
    """Mentions as a list; tables hold them as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            value = None
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple):
        raise InputError(Problem(where, "is no list of mentions.", _MEANT["entities"]))
    return list(value)


def _given_vector(value: Any, width: int, where: str) -> NDArray[np.float32]:
    try:
        out = np.asarray(value, np.float32)
    except (TypeError, ValueError):
        out = np.zeros(0, np.float32)
    if out.shape != (width,) or not np.isfinite(out).all():
        raise InputError(Problem(where, f"vector is no list of {width} finite numbers.", _MEANT["entities"]))
    return out


def _vector(number: int, width: int) -> NDArray[np.float32]:
    """Some numbers between -1 and 1 that depend on a number."""
    return np.asarray(np.round(np.sin(np.arange(1, width + 1) * (1.0 + number % 97)), 3), np.float32)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 31
