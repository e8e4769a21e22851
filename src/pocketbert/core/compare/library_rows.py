"""``library.json``: what the library that a checkpoint was published for answers to texts, from the text on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pocketbert.core.disk.files import read_json
from pocketbert.core.errors import InputError, Problem

FILE_NAME = "library.json"
TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
_MAX_MIB = 32
_MOST_ROWS = 4096


class LibraryRow(BaseModel):
    """One text, and what the library makes of it.

    Attributes:
        text: The text, or the two texts of a pair, without a prompt.
        prompt: Name of the prompt that was put in front; None for the model's default.
        ids: Token ids that the library feeds.
        type_ids: Segment ids that it feeds; zeros where it feeds none.
        names: What each value is of: a label; of tokens ``place:label``, of masked words ``mask:id``; empty where the values
            are one number or a vector.
        values: Scores as the library gives them; of question answering the scores of each token as first, then as last.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str | tuple[str, str]
    prompt: str | None = None
    ids: list[TokenId]
    type_ids: list[TokenId]
    names: list[str] = []
    values: list[float] = []

    @property
    def called(self) -> str:
        """The text and its prompt, short, for messages."""
        behind = f" with prompt '{self.prompt}'" if self.prompt is not None else ""
        return f"{str(self.text)[:60]!r}{behind}"


class LibraryAnswers(BaseModel):
    """The whole file.

    Attributes:
        schema_version: Major part equal means readable.
        library: Who answered, with version, e.g. ``transformers 5.23.0, pipeline text-classification``.
        missing: Why no library answered; empty where one did.
        rows: The texts.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: str = "1.0"
    library: str = ""
    missing: str = ""
    rows: list[LibraryRow] = Field(default=[], max_length=_MOST_ROWS)


def read_library(folder: Path) -> LibraryAnswers | None:
    """Read a folder's ``library.json``; None where it has none, as folders of earlier versions.

    Raises:
        InputError: If the file is too long, no JSON, or no such list.
    """
    path = folder / FILE_NAME
    if not path.is_file():
        return None
    try:
        return LibraryAnswers.model_validate(read_json(path, _MAX_MIB))
    except ValidationError as error:
        found = error.errors()[0]
        place = ".".join(map(str, found["loc"]))
        raise InputError(Problem(f"{path} {place}".rstrip(), f"{found['msg']}.", "Copy the folder again.")) from error
