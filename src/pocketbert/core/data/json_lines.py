"""Rows out of JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pocketbert.core.data.bad_rows import BadRows
from pocketbert.core.data.limits import Limits
from pocketbert.core.data.streams import lines, opened
from pocketbert.core.errors import shown


class _TwiceError(ValueError):
    """An object that gives one key two values."""


def json_rows(path: Path, title: str, limits: Limits, bad: BadRows) -> Iterator[tuple[int, dict[str, Any]]]:
    """Rows of a ``.jsonl`` or ``.jsonl.gz`` file with their line numbers; what is no row is added to `bad`.

    Raises:
        InputError: If the file cannot be read, or is larger than `limits` allow.
    """
    with opened(path, title, limits) as stream:
        for number, line in lines(stream, title, limits):
            if not line.strip():
                continue
            try:
                row = json.loads(line, object_pairs_hook=_object)
            except _TwiceError as error:
                bad.add(number, f"the key {error} occurs twice.", "Keep one of them.")
            except (ValueError, RecursionError) as error:
                bad.add(number, f"not valid JSON: {error}.")
            else:
                if isinstance(row, dict):
                    yield number, row
                else:
                    bad.add(number, f"a row is a JSON object, this is {type(row).__name__}.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(shown(key))
            seen.add(key)
    return out
