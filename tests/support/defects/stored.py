"""Numbers of a file changed by hand, tensor by tensor, in every format: `DAMAGES` lists what is broken, `damage` breaks it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.golden import GOLDEN_FILE, read_golden, read_simulated, write_golden
from pocketbert.pipeline.formats.constants import ConstantRole
from pocketbert.pipeline.gates.stored import ReferenceConstants
from pocketbert.pipeline.gates.verify import open_artefact_file, read_checked_config
from pocketbert.pipeline.results import Subject
from support.defects import format_of, relist
from support.defects.editors import EDITORS, Array, Editor


@dataclass(frozen=True)
class Damage:
    """One way to break a file: its name in tables, what it breaks, and how."""

    name: str
    title: str
    apply: Callable[[Editor], None]
    compressed: bool = False  # whether it needs scales


WORDS, POSITIONS, SEGMENTS = "word_embeddings.weight", "position_embeddings.weight", "token_type_embeddings.weight"


def rows_lost(end: str, rows: slice | Sequence[int]) -> Callable[[Editor], None]:
    """Zero rows of a table, looked up or added."""

    def lost(value: Array) -> Array:
        value[rows] = 0
        return value

    def apply(editor: Editor) -> None:
        role = next(r for r in (ConstantRole.TABLE, ConstantRole.ARRAY) if editor.has(end, r))
        editor.change(end, role, lost)

    return apply


def _segment_lost(editor: Editor) -> None:
    if editor.has(SEGMENTS, ConstantRole.TABLE):
        rows_lost(SEGMENTS, [1])(editor)
    else:  # a line through both segments
        editor.change("token_type_embeddings.difference", ConstantRole.FACTOR, np.zeros_like)


def _times(channel: int, factor: float) -> Callable[[Array], Array]:
    def change(value: Array) -> Array:
        value = value.copy()
        if value.ndim == 2 and value.shape[1] == 1:  # scales [out, 1]
            value[channel] *= factor
        else:
            value[..., min(channel, value.shape[-1] - 1)] *= factor  # one scale per matrix: all of them
        return value

    return change


def _heads(value: Array) -> Array:
    half = len(value) // 2
    return np.concatenate([value[half:], value[:half]])


def _norm(value: Array) -> Array:
    value[3] = value[3] / 1.5
    return value


def _first(value: Array) -> Array:
    value[0] = 0
    return value


def _another_number(value: Array) -> Array:
    """One number moves by two steps, or by the spread of all of them where it is a float."""
    value = value.copy()
    step = value.std() if value.dtype.kind == "f" else 2
    place = (1, 2)
    value[place] += -step if value[place] > value.mean() else step
    return value


def _tables_swapped(editor: Editor) -> None:
    """Words and positions change places, as many rows as the smaller table has, in the range and type of the other one."""
    role = next(r for r in (ConstantRole.TABLE, ConstantRole.ARRAY) if editor.has(POSITIONS, r))
    words, positions = editor.stored(WORDS, ConstantRole.TABLE), editor.stored(POSITIONS, role)
    rows = min(len(words), len(positions))

    def become(other: Array) -> Callable[[Array], Array]:
        def change(own: Array) -> Array:
            spread = (other[:rows] - other.mean()) / other.std() * own.std() + own.mean()
            spread = np.clip(spread if own.dtype.kind == "f" else np.rint(spread), own.min(), own.max())
            own = own.copy()
            own[:rows] = spread
            return own

        return change

    editor.change(WORDS, ConstantRole.TABLE, become(positions))
    editor.change(POSITIONS, role, become(words))


def changed(end: str, role: ConstantRole, change: Callable[[Array], Array]) -> Callable[[Editor], None]:
    return lambda editor: editor.change(end, role, change)


def swapped(one: str, other: str, role: ConstantRole) -> Callable[[Editor], None]:
    return lambda editor: editor.swap(one, other, role)


def scaled(end: str, channel: int, factor: float) -> Callable[[Editor], None]:
    return lambda editor: editor.scale(end, _times(channel, factor))


MATRIX, OFFSET, FACTOR = ConstantRole.MATRIX, ConstantRole.OFFSET, ConstantRole.FACTOR
QUERY, KEY, VALUE = (f"layer.0.attention.{name}" for name in ("query", "key", "value"))
UP, DOWN, NORM = "layer.0.up", "layer.0.down", "layer.0.attention_norm"
DAMAGES = [
    Damage("one-number", "one number of a matrix is another one", changed(f"{KEY}.weight", MATRIX, _another_number)),
    Damage("tables-swapped", "tables of words and positions change places", _tables_swapped),
    Damage("word-rows", "the last 50 words are zeroed", rows_lost(WORDS, slice(-50, None))),
    Damage("word-row", "one word is zeroed", rows_lost(WORDS, [7])),
    Damage("position-row", "one position is zeroed", rows_lost(POSITIONS, [9])),
    Damage("position-tail", "positions from 16 are zeroed", rows_lost(POSITIONS, slice(16, None))),
    Damage("segment", "segment 1 is lost", _segment_lost),
    Damage(
        "feed-forward", "the feed-forward part of layer 0 is lost", changed(f"{DOWN}.weight", MATRIX, np.zeros_like)
    ),
    Damage(
        "layers-swapped",
        "a matrix of layer 0 and one of layer 1 change places",
        swapped(f"{UP}.weight", "layer.1.up.weight", MATRIX),
    ),
    Damage(
        "biases-swapped",
        "the biases of queries and keys change places",
        swapped(f"{QUERY}.bias", f"{KEY}.bias", OFFSET),
    ),
    Damage("class-x4", "a class has 4 times its scale", scaled("classifier.weight", 1, 4)),
    Damage("channel-x8", "a channel is 8 times as large", scaled(f"{UP}.weight", 5, 8)),
    Damage("scale", "one scale is a tenth too large", scaled(f"{KEY}.weight", 2, 1.1), compressed=True),
    Damage("turned", "a square matrix is transposed", changed(f"{QUERY}.weight", MATRIX, lambda v: v.T)),
    Damage("heads", "the two halves of the heads change places", changed(f"{VALUE}.weight", MATRIX, _heads)),
    Damage("norm", "a factor of a normalization is a third smaller", changed(f"{NORM}.weight", FACTOR, _norm)),
    Damage("bias", "a bias is zeroed", changed(f"{UP}.bias", OFFSET, np.zeros_like)),
    Damage("class-bias", "the bias of a class is zeroed", changed("classifier.bias", OFFSET, _first)),
]
"""Files broken on purpose that the gate `stored` must find, in every format and scheme."""


def damage(path: Path, reference: ReferenceConstants, how: Damage) -> None:
    """Break a file in place."""
    editor = EDITORS[format_of(path)](path, reference)
    how.apply(editor)
    editor.write()


def opened(folder: Path, file: str) -> Subject:
    """Open a file of an artefact folder as verification does."""
    artefacts = read_artefacts(folder)
    [record] = [r for r in artefacts.models() if r.path == file]
    return open_artefact_file(folder, artefacts, record, read_checked_config(folder, artefacts), read_simulated(folder))


def record_again(folder: Path, file: str) -> None:
    """Record what a broken file of an artefact folder answers as its golden rows, and list both as they are now."""
    subject, rows = opened(folder, file), read_golden(folder / GOLDEN_FILE)
    answers = iter(subject.answers([r for r in rows if file in r.outputs]))
    for i, row in enumerate(rows):
        if file in row.outputs:
            answer = [float(v) for v in next(answers).ravel()]
            rows[i] = row.model_copy(update={"outputs": {**row.outputs, file: answer}})
    write_golden(folder / GOLDEN_FILE, rows)
    for name in (file, GOLDEN_FILE):
        relist(folder, name)
