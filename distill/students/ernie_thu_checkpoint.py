"""Released checkpoints of ERNIE (Tsinghua): weights, tokenizer, and the table of entities of an export form.

`rename_weights` and `build_tokenizer_json` are used when a checkpoint is loaded, `set_export_form` when it is exported.
The latter gives the model a table with the entities that the user lists, out of the millions that the authors released
in three text files, which are read line by line:

* ``entity2vec.vec`` has one vector a line,
* ``entity2id.txt`` has a header, then in each line an id of Wikidata and the line number of its vector,
* ``entity_map.txt`` has in each line a title of Wikipedia and its id.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import ExportForm
from pocketbert.core.predict.inputs import ENTITIES_FILE, read_entities
from pocketbert.core.predict.tokenizer_file import library_errors

_REMOVED_LAYER = re.compile(r"(^|\.)intermediate\.dense_1(_ent)?\.")
"""Layers that the authors removed from the model; a file may have them, as their training code still lists them."""
_TYPING_HEAD, _CLASSIFIER = "typing.weight", "classifier"

_VECTORS_FILE, _NUMBERS_FILE, _TITLES_FILE = "entity2vec.vec", "entity2id.txt", "entity_map.txt"
_ARCHIVE_FOLDER = "kg_embed"
"""Folder of these files in the authors' archive."""
_MAX_ENTITIES = 1 << 20
"""Most entities of a table: with 100 numbers each, 400 MiB in fp32."""
_MAX_LINE = 1 << 16
_KEY = "export.entities"


def rename_weights(state: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the weights of a released checkpoint to the parameters of the classes in `ernie_thu`.

    The authors' entity-typing head has no bias: it becomes a classifier whose bias is zero, which gives the same
    logits. Weights of layers that the authors have removed from the model are dropped.

    Args:
        state: Weights by their names in the checkpoint.

    Returns:
        The weights by their new names, without copies.
    """
    weights = {name: value for name, value in state.items() if not _REMOVED_LAYER.search(name)}
    if _TYPING_HEAD in weights and f"{_CLASSIFIER}.weight" not in weights:
        weight: Tensor = weights.pop(_TYPING_HEAD)
        bias = torch.zeros(len(weight), dtype=weight.dtype)
        weights |= {f"{_CLASSIFIER}.weight": weight, f"{_CLASSIFIER}.bias": bias}
    return weights


def build_tokenizer_json(folder: Path) -> str:
    """Build the content of tokenizer.json from the vocab.txt (BERT's) of a released folder.

    Args:
        folder: Folder with vocab.txt.

    Raises:
        InputError: If the folder has no vocabulary that can be read.
    """
    from transformers import BertTokenizer

    if not (folder / "vocab.txt").is_file():
        raise InputError(
            Problem(str(folder), "has neither tokenizer.json nor vocab.txt.", "Copy vocab.txt of BERT into it.")
        )
    with library_errors(str(folder), "no usable tokenizer"):
        tokenizer = BertTokenizer.from_pretrained(str(folder), local_files_only=True)
        return str(tokenizer.backend_tokenizer.to_str())


def set_export_form(model: Any, form: ExportForm | None, folder: Path, entities: Path | None) -> list[dict[str, str]]:
    """Set how an ERNIE (Tsinghua) reads entities in its exported file: from a table, as vectors, or not at all.

    The model gets the table of entity vectors that the export form needs, or loses its table.

    Args:
        model: One of the classes of ERNIE (Tsinghua); changed in place.
        form: The export form, which names the additional inputs of the file; None for a file that reads text only.
        folder: Folder that the model was loaded from.
        entities: File of the entities to keep, one id or title in each line, or .jsonl with a column ``entities``.
            Needed if the model has no table yet.

    Returns:
        The entities of the table, number 1 first; empty if there is no table.

    Raises:
        InputError: If `form` is given and the model reads no entities; for a form with a table also if the files of
            the entities are missing or broken, or an entity of the list is unknown.
    """
    base = model.base_model
    if form is not None and not any(hasattr(layer.intermediate, "dense_ent") for layer in base.encoder.layer):
        what = f"no layer of the model reads entities (layer_kinds), so that '{form.name}' has no use."
        raise InputError(Problem("export.form", what, "Leave it out."))
    if form is None or not form.table:
        base.entity_table, model.config.entity_rows = None, 0
        return []
    names = _read_entity_names(entities) if entities is not None else None
    if base.entity_table is None:
        chosen, vectors = _select_released_rows(folder, names, model.config.entity_size)
    else:
        chosen, vectors = _select_table_rows(folder, names, base.entity_table.weight.detach().numpy())
    table = nn.Embedding(len(chosen) + 1, model.config.entity_size, padding_idx=0)
    with torch.no_grad():
        table.weight[1:] = torch.from_numpy(vectors)
    base.entity_table, model.config.entity_rows = table.eval(), len(chosen)
    return chosen


def _read_entity_names(path: Path) -> list[str]:
    """Read the entity ids or titles that a file lists, each once, in the file's order.

    Raises:
        InputError: If the file is missing or broken, or names no entity or too many.
    """
    names: dict[str, None] = {}
    for number, line in enumerate(_read_lines(path, _KEY), 1):
        if path.suffix == ".jsonl":
            names.update(dict.fromkeys(_mentioned_entities(line, f"{path}:{number}")))
        elif line.strip():
            names[line.strip()] = None
        if len(names) > _MAX_ENTITIES:
            raise InputError(Problem(_KEY, f"{path} names more than {_MAX_ENTITIES:,} entities.", "Name fewer."))
    if not names:
        raise InputError(Problem(_KEY, f"{path} names no entity.", "Write one id, such as Q42, or title in each line."))
    return list(names)


def _mentioned_entities(line: str, where: str) -> list[str]:
    """Return the id, or the name if there is no id, of each entity in the column ``entities`` of a .jsonl row.

    `where` is the file and line that the InputError for a broken row names.
    """
    try:
        mentions = json.loads(line).get("entities") or []
        names = [mention.get("id") or mention.get("name") for mention in mentions]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(Problem(where, "is no row with a list of mentions in the column 'entities'.")) from error
    return [name for name in names if isinstance(name, str)]


def _select_table_rows(
    folder: Path, names: list[str] | None, table: NDArray[np.float32]
) -> tuple[list[dict[str, str]], NDArray[np.float32]]:
    """Return the named entities and their vectors from the model's own table, or the whole table if `names` is None.

    Raises InputError if the folder's list of entities does not fit the table, or lacks one of the names.
    """
    entities = read_entities(folder / ENTITIES_FILE)
    if len(entities) != len(table) - 1:
        raise InputError(Problem(str(folder / ENTITIES_FILE), f"lists {len(entities)} entities, not {len(table) - 1}."))
    if names is None:
        return entities, table[1:]
    row_of_title = {e["name"]: i for i, e in enumerate(entities) if "name" in e}
    rows = row_of_title | {e["id"]: i for i, e in enumerate(entities)}
    _refuse_unknown([name for name in names if name not in rows], ENTITIES_FILE)
    numbers = list(dict.fromkeys(rows[name] for name in names))
    return [entities[i] for i in numbers], table[1:][numbers]


def _select_released_rows(
    folder: Path, names: list[str] | None, width: int
) -> tuple[list[dict[str, str]], NDArray[np.float32]]:
    """Return the named entities and their vectors, read from the authors' three files.

    `width` is the length that each vector must have. Raises InputError if the files are missing or broken, if `names`
    is None, or if one of the names is not in the files.
    """
    home = next((p for p in (folder, folder / _ARCHIVE_FOLDER) if (p / _VECTORS_FILE).is_file()), None)
    if home is None:
        fix = (
            f"Copy {_VECTORS_FILE}, {_NUMBERS_FILE} and {_TITLES_FILE} of the authors' archive {_ARCHIVE_FOLDER} "
            "into it, or export with --form entity-vectors."
        )
        raise InputError(Problem(str(folder), f"has no table of entities ({_VECTORS_FILE}).", fix))
    if names is None:
        what = f"{home / _VECTORS_FILE} has the vectors of all entities, millions of them: too many for a file."
        raise InputError(Problem(_KEY, what, "Name those to keep in a file: --entities FILE, one id or title a line."))
    titles_file = home / _TITLES_FILE
    id_of_title = _read_second_columns(titles_file, set(names)) if titles_file.is_file() else {}
    ids = {name: id_of_title.get(name, name) for name in names}
    number_texts = _read_second_columns(home / _NUMBERS_FILE, set(ids.values()))
    _refuse_unknown([name for name in names if ids[name] not in number_texts], _NUMBERS_FILE)
    numbers, titles = {}, {}
    for name in names:
        text = number_texts[ids[name]]
        if not text.isdecimal() or len(text) > 12:
            raise InputError(Problem(str(home / _NUMBERS_FILE), f"{text!r:.40} is no number of a line."))
        numbers[ids[name]] = int(text)
        if name != ids[name]:
            titles[ids[name]] = name
    vectors = _read_vectors(home / _VECTORS_FILE, set(numbers.values()), width)
    _refuse_unknown([i for i, number in numbers.items() if number not in vectors], _VECTORS_FILE)
    chosen = [{"id": i, **({"name": titles[i]} if i in titles else {})} for i in numbers]
    return chosen, np.stack([vectors[number] for number in numbers.values()])


def _read_second_columns(path: Path, keys: set[str]) -> dict[str, str]:
    """Read a file of two columns, and return the second column by the first.

    Only rows whose first column is in `keys` are returned.
    """
    values: dict[str, str] = {}
    for line in _read_lines(path, str(path)):
        key, _, value = line.rstrip("\r\n").partition("\t")
        if key in keys and value:
            values.setdefault(key, value.strip())
    return values


def _read_vectors(path: Path, numbers: set[int], width: int) -> dict[int, NDArray[np.float32]]:
    """Read the vectors in the lines with the given numbers (from 0); raise InputError for a broken one.

    Each must have `width` finite numbers. A line that the file does not have is missing in the result.
    """
    vectors = {}
    for number, line in enumerate(_read_lines(path, str(path))):
        if number not in numbers:
            continue
        try:
            vector = np.array(line.split(), np.float32)
        except ValueError:
            vector = np.zeros(0, np.float32)
        if vector.shape != (width,) or not np.isfinite(vector).all():
            raise InputError(Problem(f"{path}:{number + 1}", f"is no vector of {width} finite numbers."))
        vectors[number] = vector
    return vectors


def _read_lines(path: Path, where: str) -> Iterator[str]:
    """Yield the lines of a text file; raise InputError if it is missing, not UTF-8, or a line is too long."""
    if not path.is_file():
        raise InputError(Problem(where, f"no file {path}.", "Check the path."))
    try:
        with path.open(encoding="utf-8") as stream:
            while line := stream.readline(_MAX_LINE):
                if len(line) == _MAX_LINE and not line.endswith("\n"):
                    raise InputError(Problem(str(path), f"has a line of more than {_MAX_LINE:,} characters, refused."))
                yield line
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"is not UTF-8: {error}.")) from error


def _refuse_unknown(unknown: list[str], file: str) -> None:
    """Raise InputError that shows the first five of the unknown entities, if there are any."""
    if unknown:
        more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
        shown = ", ".join(repr(name[:60]) for name in unknown[:5])
        raise InputError(Problem(_KEY, f"{shown}{more}: not in {file}.", "Give ids or titles that are in it."))
