"""The table of entities that a model is given: the rows that somebody asks for, out of the millions that the authors release.

The released files are ``entity2vec.vec`` (one vector a line), ``entity2id.txt`` (a header, then an id of Wikidata and the number of
its line) and ``entity_map.txt`` (a title of Wikipedia and its id). They are read line by line.
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

# --- names ---
# Names of the released checkpoints of ERNIE (Tsinghua), and ours, the same but for what is listed here; their tokenizer.


_LEFTOVER = re.compile(r"(^|\.)intermediate\.dense_1(_ent)?\.")
"""Layers that the authors took out of the model; their training code still lists them, so that a file may hold them."""
_TYPING, _HEAD = "typing.weight", "classifier"


def renamed(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A released checkpoint under the names of the classes in `pocketbert.distill.students.ernie_thu`.

    Args:
        state: Weights by name. The authors' entity-typing head has no bias: it becomes a classifier whose bias is zero,
            which gives the same logits.

    Returns:
        The weights, without copies.
    """
    out = {name: value for name, value in state.items() if not _LEFTOVER.search(name)}
    if _TYPING in out and f"{_HEAD}.weight" not in out:
        weight = out.pop(_TYPING)
        out |= {f"{_HEAD}.weight": weight, f"{_HEAD}.bias": torch.zeros(len(weight), dtype=weight.dtype)}
    return out


def tokenizer_json(folder: Path) -> str:
    """Make tokenizer.json out of the vocab.txt of a released folder, BERT's, which has no config.json that names its class.

    Args:
        folder: The folder.

    Raises:
        InputError: If it has no vocabulary that can be read.
    """
    from transformers import BertTokenizer

    if not (folder / "vocab.txt").is_file():
        raise InputError(
            Problem(str(folder), "has neither tokenizer.json nor vocab.txt.", "Copy vocab.txt of BERT into it.")
        )
    with library_errors(str(folder), "no usable tokenizer"):
        tokenizer = BertTokenizer.from_pretrained(str(folder), local_files_only=True)
        return str(tokenizer.backend_tokenizer.to_str())


VECTORS, NUMBERS, TITLES = "entity2vec.vec", "entity2id.txt", "entity_map.txt"
MOST = 1 << 20
"""Most entities of a table: with 100 numbers each, 400 MiB in fp32."""
_FOLDER = "kg_embed"
"""Where the authors' archive has these files."""
_LINE = 1 << 16
_KEY = "export.entities"


def take_form(model: Any, form: ExportForm | None, folder: Path, entities: Path | None) -> list[dict[str, str]]:
    """Make a model take what a form gives it: a table of entities, or none.

    Args:
        model: One of the classes of ERNIE (Tsinghua); it is changed.
        form: The form; None for text only.
        folder: Where the model was loaded from.
        entities: File of the entities to keep, one id or title in each line, or .jsonl with a column ``entities``. Needed where
            the folder has no table that was made before.

    Returns:
        The entities of the table, number 1 first; empty without a table.

    Raises:
        InputError: If the model reads no entities, or one of them is not known.
    """
    base = model.base_model
    if form is not None and not any(hasattr(layer.intermediate, "dense_ent") for layer in base.encoder.layer):
        what = f"no layer of the model reads entities (layer_kinds), so that '{form.name}' has no use."
        raise InputError(Problem("export.form", what, "Leave it out."))
    if form is None or not form.table:
        base.entity_table, model.config.entity_rows = None, 0
        return []
    wanted = wanted_entities(entities) if entities is not None else None
    if base.entity_table is None:
        chosen, vectors = _released(folder, wanted, model.config.entity_size)
    else:
        chosen, vectors = _kept(folder, wanted, base.entity_table.weight.detach().numpy())
    table = nn.Embedding(len(chosen) + 1, model.config.entity_size, padding_idx=0)
    with torch.no_grad():
        table.weight[1:] = torch.from_numpy(vectors)
    base.entity_table, model.config.entity_rows = table.eval(), len(chosen)
    return chosen


def wanted_entities(path: Path) -> list[str]:
    """Read ids or titles, each once, in the order of the file.

    Raises:
        InputError: If there is no such file, or nothing in it.
    """
    names: dict[str, None] = {}
    for number, line in enumerate(_lines(path, _KEY), 1):
        if path.suffix == ".jsonl":
            names.update(dict.fromkeys(_mentioned(line, f"{path}:{number}")))
        elif line.strip():
            names[line.strip()] = None
        if len(names) > MOST:
            raise InputError(Problem(_KEY, f"{path} names more than {MOST:,} entities.", "Name fewer."))
    if not names:
        raise InputError(Problem(_KEY, f"{path} names no entity.", "Write one id, such as Q42, or title in each line."))
    return list(names)


def _mentioned(line: str, where: str) -> Iterator[str]:
    try:
        found = json.loads(line).get("entities") or []
        named = [m.get("id") or m.get("name") for m in found]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(Problem(where, "is no row with a list of mentions in the column 'entities'.")) from error
    return (n for n in named if isinstance(n, str))


def _kept(
    folder: Path, wanted: list[str] | None, table: NDArray[np.float32]
) -> tuple[list[dict[str, str]], NDArray[np.float32]]:
    """Rows of a table that the model has already."""
    there = read_entities(folder / ENTITIES_FILE)
    if len(there) != len(table) - 1:
        raise InputError(Problem(str(folder / ENTITIES_FILE), f"lists {len(there)} entities, not {len(table) - 1}."))
    if wanted is None:
        return there, table[1:]
    rows = {e["name"]: i for i, e in enumerate(there) if "name" in e} | {e["id"]: i for i, e in enumerate(there)}
    _refuse([n for n in wanted if n not in rows], ENTITIES_FILE)
    numbers = list(dict.fromkeys(rows[n] for n in wanted))
    return [there[i] for i in numbers], table[1:][numbers]


def _released(folder: Path, wanted: list[str] | None, width: int) -> tuple[list[dict[str, str]], NDArray[np.float32]]:
    """Rows of the released table."""
    home = next((p for p in (folder, folder / _FOLDER) if (p / VECTORS).is_file()), None)
    if home is None:
        fix = f"Copy {VECTORS}, {NUMBERS} and {TITLES} of the authors' archive {_FOLDER} into it, or export with --form entity-vectors."
        raise InputError(Problem(str(folder), f"has no table of entities ({VECTORS}).", fix))
    if wanted is None:
        what = f"{home / VECTORS} has the vectors of all entities, millions of them: too many for a file."
        raise InputError(Problem(_KEY, what, "Name those to keep in a file: --entities FILE, one id or title a line."))
    ids = _ids(home, wanted)
    lines = _pairs(home / NUMBERS, set(ids.values()))
    _refuse([name for name in wanted if ids[name] not in lines], NUMBERS)
    numbers, names = {}, {}
    for name in wanted:
        numbers[ids[name]] = _number(lines[ids[name]], home / NUMBERS)
        if name != ids[name]:
            names[ids[name]] = name
    found = _vectors(home / VECTORS, set(numbers.values()), width)
    _refuse([i for i, n in numbers.items() if n not in found], VECTORS)
    chosen = [{"id": i, **({"name": names[i]} if i in names else {})} for i in numbers]
    return chosen, np.stack([found[n] for n in numbers.values()])


def _ids(home: Path, wanted: list[str]) -> Mapping[str, str]:
    """The id of each entity that is named by id or title."""
    path = home / TITLES
    titles = _pairs(path, set(wanted)) if path.is_file() else {}
    return {name: titles.get(name, name) for name in wanted}


def _pairs(path: Path, wanted: set[str]) -> dict[str, str]:
    """Second columns of the lines whose first one is wanted."""
    out: dict[str, str] = {}
    for line in _lines(path, str(path)):
        first, _, second = line.rstrip("\r\n").partition("\t")
        if first in wanted and second:
            out.setdefault(first, second.strip())
    return out


def _vectors(path: Path, wanted: set[int], width: int) -> dict[int, NDArray[np.float32]]:
    out = {}
    for number, line in enumerate(_lines(path, str(path))):
        if number not in wanted:
            continue
        try:
            vector = np.array(line.split(), np.float32)
        except ValueError:
            vector = np.zeros(0, np.float32)
        if vector.shape != (width,) or not np.isfinite(vector).all():
            raise InputError(Problem(f"{path}:{number + 1}", f"is no vector of {width} finite numbers."))
        out[number] = vector
    return out


def _number(text: str, path: Path) -> int:
    if not text.isdecimal() or len(text) > 12:
        raise InputError(Problem(str(path), f"{text!r:.40} is no number of a line."))
    return int(text)


def _lines(path: Path, where: str) -> Iterator[str]:
    """Lines of a text file, each of at most `_LINE` characters, read one by one."""
    if not path.is_file():
        raise InputError(Problem(where, f"no file {path}.", "Check the path."))
    try:
        with path.open(encoding="utf-8") as stream:
            while line := stream.readline(_LINE):
                if len(line) == _LINE and not line.endswith("\n"):
                    raise InputError(Problem(str(path), f"has a line of more than {_LINE:,} characters, refused."))
                yield line
    except UnicodeDecodeError as error:
        raise InputError(Problem(str(path), f"is not UTF-8: {error}.")) from error


def _refuse(unknown: list[str], file: str) -> None:
    if unknown:
        more = f" and {len(unknown) - 5:,} more" if len(unknown) > 5 else ""
        shown = ", ".join(repr(n[:60]) for n in unknown[:5])
        raise InputError(Problem(_KEY, f"{shown}{more}: not in {file}.", "Give ids or titles that are in it."))
