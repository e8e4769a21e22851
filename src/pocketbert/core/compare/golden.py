"""Golden rows: texts with recorded answers, to check model files without labels, on any machine.

- golden.jsonl (`write_golden`, `read_golden`): the answers of the reference model and of each file.
- golden_tokens.jsonl (`read_golden_tokens`): token ids, to check a tokenizer.
- library.json (`read_library`): the answers of the library that a checkpoint was published for.
- simulated.json (`write_simulated`, `read_simulated`): errors and ranges of quantized files, measured in torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AllowInfNan, BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from pocketbert.core.compare import GOLDEN_FILE as GOLDEN_FILE
from pocketbert.core.compare import MAX_GOLDEN_MIB
from pocketbert.core.compare.evaluate import head_scales, logit_scale
from pocketbert.core.disk.files import check_size, read_json, write_json
from pocketbert.core.errors import InputError, Problem, first_line
from pocketbert.core.families.weight_records import ProductRanges
from pocketbert.core.predict.inputs import Text, with_columns
from pocketbert.core.predict.predictor import Matrix
from pocketbert.core.tasks import NamedTask

GOLDEN_TOKENS_FILE = "golden_tokens.jsonl"
LIBRARY_FILE = "library.json"
SIMULATED_FILE = "simulated.json"
LEAST_GOLDEN_ROWS = 4
"""Fewer rows prove nothing; PocketBERT writes about forty."""
_MAX_ROWS = 4096
_MAX_LINE_MIB = 4
_LIBRARY_MIB = 32
_SIMULATED_MIB = 1

_Finite = Annotated[float, AllowInfNan(False)]
_Index = Annotated[int, Field(ge=0, lt=1 << 32)]
_TokenId = Annotated[int, Field(ge=0, lt=1 << 31)]
_Row = TypeVar("_Row", bound=BaseModel)

# --- answers of the reference and of the files ---


class GoldenRow(BaseModel):
    """One golden row: a recorded text with the expected outputs of the reference model and of each file.

    Attributes:
        text: The text, or the two texts of a pair.
        label: The label, or the labels of the recorded tokens, that the reference model (torch, fp32) predicts; empty
            for tasks without labels.
        reference: Outputs of the reference model in the recorded rows and columns, row by row.
        outputs: Outputs of each model file in the same rows and columns, by path.
        tolerance: Largest absolute difference from `outputs` that a correct runtime may have, by path.
        padded: Output of the reference model when 19 padding tokens stand beside the text (fewer if that would be too
            long); empty if it was not recorded.
        places: Indices of the output's recorded rows: tokens, or for fill-mask masked tokens; empty for all.
        columns: Indices of the output's recorded columns; empty for all. For question answering, column 0 is the start
            and 1 the end.
        data: Other data columns of the text, which the files' further inputs are made of; empty if there are none.
        drawn: Whether the text was made from randomly drawn token ids, so that the whole vocabulary and the full length
            are tested.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str | tuple[str, str]
    label: str
    reference: list[_Finite]
    outputs: dict[str, list[_Finite]]
    tolerance: dict[str, Annotated[_Finite, Field(ge=0)]]
    padded: list[_Finite] = []
    places: list[_Index] = []
    columns: list[_Index] = []
    data: dict[str, JsonValue] = {}
    drawn: bool = False

    @property
    def input(self) -> Text:
        """The recorded text, with its further data columns attached, as the tokenizer takes it."""
        return with_columns(self.text, self.data or None)

    def shaped(self, values: list[float]) -> Matrix:
        """Reshape a flat list of recorded numbers to [recorded rows, recorded columns]."""
        rows = len(self.places) or 1
        return np.array(values, np.float32).reshape(rows, -1 if values else 0)

    def expected(self, path: str) -> Matrix:
        """Return the recorded outputs of the model file `path` as a matrix [recorded rows, recorded columns]."""
        return self.shaped(self.outputs[path])

    def names(self, labels: Sequence[str]) -> list[str]:
        """Return the labels of the recorded output columns."""
        return [labels[c] for c in self.columns if c < len(labels)] if self.columns else list(labels)

    def pick(self, matrix: Matrix) -> Matrix:
        """Select the recorded rows and columns of a model's output matrix; all NaN if the matrix is too small."""
        rows = self.places or list(range(len(matrix)))
        columns = self.columns or list(range(matrix.shape[1]))
        if matrix.size == 0 or max(rows) >= matrix.shape[0] or max(columns) >= matrix.shape[1]:
            return np.full((len(rows), len(columns)), np.nan, np.float32)
        return matrix[np.ix_(rows, columns)]


def write_golden(path: Path, rows: list[GoldenRow]) -> None:
    """Write golden rows (texts with the model's expected outputs) to a JSON Lines file."""
    path.write_text("".join(r.model_dump_json() + "\n" for r in rows), encoding="utf-8")


def read_golden(path: Path, least: int = 1) -> list[GoldenRow]:
    """Read golden rows (texts with the model's expected outputs), and check each row and all rows together.

    Args:
        path: The JSON Lines file.
        least: Smallest number of rows that is accepted.

    Raises:
        InputError: If the file is missing, too long or too short, or a row is wrong or unlike the others.
    """
    rows = _read_rows(path, GoldenRow, "golden row", least)
    problems = [
        Problem(f"{path}:{number}", f"not a golden row: {what}.")
        for number, row in enumerate(rows, 1)
        for what in _problems_of_row(row)
    ]
    if not problems:
        problems = [Problem(str(path), what) for what in _problems_of_rows(rows)]
    if problems:
        raise InputError(problems[:20])
    return rows


def _problems_of_row(row: GoldenRow) -> Iterator[str]:
    """Yield what is wrong with one golden row: numbers of values that do not fit, or outputs and tolerances of different files."""
    sizes = {len(row.reference), *map(len, row.outputs.values()), *([len(row.padded)] if row.padded else [])}
    if len(sizes) > 1 or not row.reference:
        yield f"answers of {', '.join(map(str, sorted(sizes)))} numbers; all have the same number, at least one"
    elif len(row.reference) % (len(row.places) or 1):
        yield f"{len(row.reference)} numbers for {len(row.places)} places"
    elif row.columns and len(row.reference) != len(row.columns) * (len(row.places) or 1):
        yield f"{len(row.reference)} numbers for {len(row.places) or 1} places and {len(row.columns)} columns"
    if set(row.outputs) != set(row.tolerance):
        yield "outputs and tolerance name different files"


def _problems_of_rows(rows: Sequence[GoldenRow]) -> Iterator[str]:
    """Yield what is wrong with the golden rows together: reference outputs of different widths, or else too large a tolerance.

    From `LEAST_GOLDEN_ROWS` rows on, no tolerance may exceed the spread of the reference outputs by more than 1.
    """
    widths = {len(r.reference) // (len(r.places) or 1) for r in rows}
    if len(widths) > 1:
        yield f"its rows record answers of different widths: {', '.join(map(str, sorted(widths)[:5]))}."
        return
    spread = logit_scale(np.concatenate([r.shaped(r.reference) for r in rows]))
    worst = max((t for r in rows for t in r.tolerance.values()), default=0.0)
    if len(rows) >= LEAST_GOLDEN_ROWS and worst > spread + 1:  # probabilities of MediaPipe have a spread of at most 1
        yield f"allows a difference of {worst:.3g}, more than the answers differ among themselves ({spread:.3g})."


def tolerance_shares(rows: Sequence[GoldenRow], heads: Sequence[NamedTask]) -> NDArray[np.float64]:
    """Return which share of a recorded tolerance is allowed in each column: 1, or with several heads the share of the column's head.

    A tolerance is recorded for the spread of all logits together. A head whose logits differ less has as much less of it.

    Args:
        rows: All golden rows of a folder.
        heads: The heads of the folder's task.

    Returns:
        A number for each column, or a single 1.
    """
    reference = np.concatenate([row.shaped(row.reference) for row in rows])
    return head_scales(reference, heads) / logit_scale(reference)


# --- token ids ---


class TokenRow(BaseModel):
    """One golden row of a tokenizer: a text with its expected token ids.

    Attributes:
        text: The text, or the two texts of a pair.
        ids: Token ids with special tokens.
    """

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    text: str | list[str]
    ids: list[_Index]

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Check that there are one or two texts, and ids."""
        if isinstance(self.text, list) and len(self.text) != 2:
            raise ValueError("text is neither one text nor two")
        if not self.ids:
            raise ValueError("ids is empty")
        return self

    @property
    def input(self) -> Text:
        """The text or pair of texts, as the tokenizer takes it."""
        return self.text if isinstance(self.text, str) else (self.text[0], self.text[1])


def read_golden_tokens(path: Path, least: int = LEAST_GOLDEN_ROWS) -> list[TokenRow]:
    """Read a tokenizer's golden rows: texts with their expected token ids.

    Args:
        path: The JSON Lines file.
        least: Smallest number of rows that is accepted.

    Raises:
        InputError: If the file is missing, too long or too short, or a row is wrong.
    """
    return _read_rows(path, TokenRow, "golden row of a tokenizer", least)


def _read_rows(path: Path, row_class: type[_Row], title: str, least: int) -> list[_Row]:
    """Read and validate a JSON Lines file line by line into pydantic models; raise InputError at the first bad line."""
    if not path.is_file():
        raise InputError(Problem(str(path), "file not found."))
    check_size(path, MAX_GOLDEN_MIB)
    rows: list[_Row] = []
    with path.open("rb") as stream:
        while line := stream.readline(_MAX_LINE_MIB << 20):
            where = f"{path}:{len(rows) + 1}"
            if len(rows) >= _MAX_ROWS:
                raise InputError(Problem(str(path), f"more than {_MAX_ROWS} rows, refused."))
            if len(line) == _MAX_LINE_MIB << 20:
                raise InputError(Problem(where, f"a line of more than {_MAX_LINE_MIB} MiB, refused."))
            try:
                content: Any = json.loads(line)
                # refuse halves of surrogate pairs, which JSON can spell and no tokenizer takes
                json.dumps(content, ensure_ascii=False).encode()
                rows.append(row_class.model_validate(content))
            except (ValueError, ValidationError, RecursionError) as error:
                raise InputError(Problem(where, f"not a {title}: {_reason(error)}.")) from error
    if not rows:
        raise InputError(Problem(str(path), "no rows."))
    if len(rows) < least:
        raise InputError(Problem(str(path), f"{len(rows)} rows; at least {least} are needed to check a file."))
    return rows


def _reason(error: Exception) -> str:
    """Return an exception's message on one line; of a pydantic error the first invalid field and its message."""
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"[:300]
    return first_line(error)[:300].rstrip(".")


# --- answers of the library ---


class LibraryRow(BaseModel):
    """One sample text, and the answer of the original library (transformers or sentence-transformers) to it.

    Attributes:
        text: The text, or the two texts of a pair, without a prompt.
        prompt: Name of the prompt that was put in front; None for the model's default.
        ids: Token ids that the library gives to its model.
        type_ids: Segment ids that the library gives to its model; zeros if it gives none.
        names: Name of each value: a label, ``place:label`` for a token's label, ``mask:id`` for a masked word; empty if
            the values are one number or a vector.
        values: Scores as the library returns them. For question answering, each token's score as the first token of the
            answer, then each token's score as the last.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    text: str | tuple[str, str]
    prompt: str | None = None
    ids: list[_TokenId]
    type_ids: list[_TokenId]
    names: list[str] = []
    values: list[float] = []

    @property
    def called(self) -> str:
        """The beginning of the text and the name of its prompt, for messages."""
        behind = f" with prompt '{self.prompt}'" if self.prompt is not None else ""
        return f"{str(self.text)[:60]!r}{behind}"


class LibraryAnswers(BaseModel):
    """The original library's answers to sample texts, the content of ``library.json``.

    Attributes:
        schema_version: Version of the format; versions with the same major part can be read.
        library: Name and version of the library, e.g. ``transformers 5.23.0, pipeline text-classification``.
        missing: Why no library computed answers; empty if one did.
        rows: The texts with the library's answers.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    schema_version: str = "1.0"
    library: str = ""
    missing: str = ""
    rows: list[LibraryRow] = Field(default=[], max_length=_MAX_ROWS)


def read_library(folder: Path) -> LibraryAnswers | None:
    """Read ``library.json``, the original library's answers to sample texts; None if the folder has no such file.

    Raises:
        InputError: If the file is too long, no JSON, or no such list.
    """
    path = folder / LIBRARY_FILE
    return _read_model(path, LibraryAnswers, _LIBRARY_MIB) if path.is_file() else None


# --- simulated errors and ranges ---


class SimulatedErrors(BaseModel):
    """Quantization errors and activation ranges from a simulation in torch, the content of ``simulated.json``.

    Attributes:
        texts: Number of texts that the errors were measured on.
        errors: RMS error of a file's scheme, simulated in torch, divided by the spread of the logits; by path in the
            artefact folder. Files whose allowed error does not depend on such a number are left out.
        ranges: For each static file, by the path of a weight in the torch module, the ranges on the calibration texts
            of the values that the weight is multiplied with and of the products; several if the file may store any of
            them.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    texts: Annotated[int, Field(ge=0)] = 0
    errors: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = {}
    ranges: dict[str, dict[str, list[ProductRanges]]] = {}


def write_simulated(folder: Path, simulated: SimulatedErrors) -> None:
    """Write the simulated quantization errors and the ranges into the folder of the golden rows."""
    write_json(folder / SIMULATED_FILE, simulated.model_dump(mode="json"))


def read_simulated(folder: Path) -> SimulatedErrors:
    """Read the simulated quantization errors and ranges (``simulated.json``); empty if the folder has no such file.

    Raises:
        InputError: If the file is too long or no JSON, or a number in it is not allowed.
    """
    path = folder / SIMULATED_FILE
    return _read_model(path, SimulatedErrors, _SIMULATED_MIB) if path.exists() else SimulatedErrors()


def _read_model(path: Path, model: type[_Row], limit_mib: int) -> _Row:
    """Read a JSON file and validate it as one pydantic model; raise InputError if it is invalid."""
    try:
        return model.model_validate(read_json(path, limit_mib))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(Problem(f"{path} {place}".rstrip(), f"{first['msg']}.", "Copy the folder again.")) from error
