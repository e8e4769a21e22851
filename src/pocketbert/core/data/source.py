"""Data sources as recipes and the command line name them, validated by pydantic.

`DataSource` is a file or a data set of the Hub with its columns and limits, `TeacherColumn` its column with the answers of a
teacher, `EvalSource` the rows that decide the score. `PlainNumbers` is the base of these and of all recipe sections: it refuses true, false and infinity where a
number belongs.
"""

from __future__ import annotations

import math
from types import UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from pocketbert.core.data.streams import DEFAULT_LINE_MB, DEFAULT_MAX_ROWS, MIB, Limits
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.types import AnswerKind


class PlainNumbers(BaseModel):
    """Base of models whose number fields refuse true, false, infinity and NaN; pydantic takes true as 1.

    Attributes:
        newer_keys: Keys that are stored only where they are set, so that runs from before the keys existed keep their digests.
    """

    newer_keys: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _serialize(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Serialize the section without unset `newer_keys`."""
        return {
            key: v
            for key, v in handler(self).items()
            if key not in self.newer_keys or (v is not None and v is not False)
        }

    @model_validator(mode="before")
    @classmethod
    def _refuse_other_values_as_numbers(cls, values: Any) -> Any:
        """Replace true, false, infinity and NaN in number fields by texts, so that pydantic rejects them clearly."""
        if not isinstance(values, dict):
            return values
        numbers = {field.alias or name for name, field in cls.model_fields.items() if _is_number(field.annotation)}
        return {key: _as_text(value) if key in numbers else value for key, value in values.items()}


def _is_number(annotation: Any) -> bool:
    """Return whether a type annotation (or the elements of its containers) allows numbers but not bool."""
    types = set(_element_types(annotation))
    return bool(types & {int, float}) and bool not in types


def _element_types(annotation: Any) -> list[Any]:
    """Return the types that an annotation allows, expanding unions, containers, literals and `Annotated`."""
    origin = get_origin(annotation)
    if origin is Literal:
        return [type(value) for value in get_args(annotation)]
    if origin in (Union, UnionType, list, tuple, dict) or hasattr(annotation, "__metadata__"):
        inner = (annotation.__origin__,) if hasattr(annotation, "__metadata__") else get_args(annotation)
        return [element for argument in inner for element in _element_types(argument)]
    return [annotation]


def _as_text(value: Any) -> Any:
    """Replace true, false, infinities and NaN in a nested value by texts that do not parse as numbers; return the new value."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return [_as_text(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _as_text(entry) for key, entry in value.items()}
    if isinstance(value, float | str):
        try:
            return value if math.isfinite(float(value)) else f"{value} (not finite)"
        except ValueError:
            return value  # pydantic reports what is wrong with it
    return value


def _check_encoding(name: str) -> None:
    """Raise ValueError if Python has no text encoding of this name."""
    try:
        if "a".encode(name).decode(name) == "a":
            return
    except (LookupError, ValueError):
        pass
    raise ValueError(
        f"'{name[:40]}' is no encoding of text; for example utf-8, cp1252, latin-1, utf-16, cp1251, shift_jis"
    )


class TeacherColumn(PlainNumbers):
    """The column with a teacher's answers, from which the student learns instead of from a model in the run."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    column: str = Field(
        min_length=1,
        description="Column of the answers, or several columns of numbers that are named after labels: neg,pos.",
    )
    kind: AnswerKind | None = Field(
        None, description="What its numbers are; default what all rows together allow, probabilities before logits."
    )
    confidence: str | None = Field(
        None, description="Column with the probability of the answer's label, where the answers are labels."
    )
    smoothing: float = Field(
        0.0, ge=0, lt=1, description="Share of each distribution that is spread evenly over all labels."
    )


def as_teacher_column(value: object) -> object:
    """Convert the short form of `TeacherColumn`, a name, to {column: name}."""
    return {"column": value} if isinstance(value, str) else value


AnswerColumn = Annotated[
    TeacherColumn | None,
    BeforeValidator(as_teacher_column, json_schema_input_type=str | TeacherColumn | None),
]
"""A `TeacherColumn` or its short form, the name of the column."""


class DataSource(PlainNumbers):
    """Where one split comes from: a file, or a data set.

    The fields say what they mean in their descriptions, which recipes' JSON Schema shares.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    newer_keys = ("teacher", "at_most")

    path: str | None = Field(
        None,
        description="Local file (table, JSON, Parquet, CoNLL, fastText, Rasa NLU) or folder of classes; docs/data.md has all forms.",
    )
    dataset: str | None = Field(None, description="Hub data set, or a folder that `datasets` loads, instead of path.")
    config: str | None = Field(None, description="Configuration of the data set.")
    split: str | None = Field(None, description="Split of the data set.")
    revision: str | None = Field(None, description="Revision of the data set; pin it for repeatable runs.")
    text: str = Field("text", description="Column of the text.")
    text_pair: str | None = Field(None, description="Column of the second text, for pairs.")
    label: str = Field(
        "label",
        description="Column of the label, or several columns of 0 and 1 that are named after labels: toxic,insult.",
    )
    teacher: AnswerColumn = Field(
        None,
        description="Column with the answers of a teacher (probabilities, logits, votes, scores, vectors); the column's name is the short "
        "form of {column: name}. The recipe then needs no section teacher.",
    )
    separator: str | None = Field(
        None, min_length=1, max_length=4, description="What parts several labels in one cell; default: a semicolon."
    )
    encoding: str | None = Field(None, description="Encoding of a text file, such as cp1252; default: detected.")
    choices: str | list[str] | None = Field(
        None,
        description="multiple-choice: the column with the list of choices, or the columns of the choices, e.g. [ending0, ending1]; each "
        "choice is the second text of a pair, behind the text of text_pair if that is given.",
    )
    header: bool | None = Field(
        None,
        description="Whether the first row of a .csv or .tsv file names its columns; default: detected. Columns of a file without a header "
        "are called 'column 1', 'column 2', ...",
    )
    max_line_mb: float = Field(
        DEFAULT_LINE_MB,
        gt=0,
        le=256,
        description="Longest line or row in MB; a longer one ends the command with exit code 2.",
    )
    max_rows: int = Field(
        DEFAULT_MAX_ROWS,
        gt=0,
        le=1 << 40,
        description="Most rows of a file, which may have 512 bytes for each of them in all; more end the command with exit code 2.",
    )

    @model_validator(mode="after")
    def _check(self) -> DataSource:
        """Raise ValueError for a wrong origin, a data set without a split, an unknown encoding, or a path with fields of a data set."""
        self._check_origin()
        if self.dataset is not None and self.split is None:
            raise ValueError("'dataset' needs a 'split'")
        if self.encoding is not None:
            _check_encoding(self.encoding)
        if self.path is not None:
            alone = [k for k in ("config", "split", "revision") if getattr(self, k) is not None]
            if alone:
                raise ValueError(f"{', '.join(alone)} belong to 'dataset', not to 'path'")
        return self

    def _check_origin(self) -> None:
        """Raise ValueError unless exactly one of `path` and `dataset` is given."""
        if (self.path is None) == (self.dataset is None):
            raise ValueError(
                "give exactly one of 'path' and 'dataset'; on the command line either one replaces the other, "
                "e.g. data.train.path=rows.csv data.train.label=intent"
            )

    @classmethod
    def at(
        cls,
        path: str,
        text: str | None = None,
        text_pair: str | None = None,
        label: str | None = None,
        header: bool | None = None,
        encoding: str | None = None,
        **limits: float,
    ) -> Self:
        """Build the source of a data file for which only some columns are named.

        A column that is None counts as not given: `guess_columns` looks for it.

        Args:
            path: The data file.
            text: Column of the text.
            text_pair: Column of the second text.
            label: Column of the label.
            header: Whether the first row of a table names the columns; None to detect it.
            encoding: Encoding of a text file; by default it is detected from the bytes.
            limits: `max_line_mb` and `max_rows`.

        Raises:
            InputError: If there is no encoding of that name.
            pydantic.ValidationError: If another value is refused, such as a limit of 0.
        """
        columns = {"text": text, "text_pair": text_pair, "label": label, "header": header}
        try:
            _check_encoding(encoding or "utf-8")
        except ValueError as error:
            raise InputError(Problem("--encoding", f"{error}.")) from error
        named = {k: value for k, value in {**columns, "encoding": encoding}.items() if value is not None}
        return cls.model_validate({"path": path, **named, **limits})

    @property
    def limits(self) -> Limits:
        """The limits on the size of the file, in bytes and rows."""
        return Limits(int(self.max_line_mb * MIB), self.max_rows)

    @property
    def title(self) -> str:
        """A short name for messages: the path of the file, or the data set with its configuration and split."""
        if self.path is not None:
            return self.path
        return "/".join(p for p in (self.dataset, self.config, self.split) if p)


class EvalSource(DataSource):
    """Where the rows for the deciding score come from: a separate source, or a share of the training rows."""

    fraction: float | None = Field(
        None,
        gt=0,
        le=0.5,
        description="Share of the training rows to score on instead of training on them, chosen by the hash of their text; "
        "instead of path and dataset.",
    )
    at_most: int | None = Field(
        None,
        ge=1,
        description="About the largest number of rows that `fraction` takes; a tenth of a large file is more than a score needs.",
    )

    def share_of(self, rows: int) -> float:
        """Return the share of so many training rows that the fraction takes, 0 without a fraction."""
        return min(self.fraction or 0.0, (self.at_most or rows) / max(rows, 1))

    def _check_origin(self) -> None:
        """Raise ValueError unless either a fraction (and its `at_most`), or exactly one of `path` and `dataset`, is given."""
        if self.fraction is None:
            if self.at_most is not None:
                raise ValueError("at_most: limits a fraction of the training rows, and there is none; leave it out")
            if self.path is None and self.dataset is None:
                raise ValueError("give 'path', 'dataset', or a 'fraction' of the training rows, e.g. fraction: 0.1")
            super()._check_origin()
            return
        fields = type(self).model_fields.items()  # by value: a resolved recipe names every key
        others = sorted(
            k for k, field in fields if k not in ("fraction", "at_most") and getattr(self, k) != field.default
        )
        if others:
            raise ValueError(f"{', '.join(others)}: a fraction of the training rows is read as they are; leave it out")
