"""Whether texts can be written in UTF-8: JSON and YAML can spell halves of surrogate pairs, which no encoding has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def is_unicode(text: str) -> bool:
    """Whether text can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def keys_without_encoding(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where nested dictionaries and lists hold texts that cannot be written in UTF-8, names of keys included."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not is_unicode(str(key)):
                yield (*keys, ascii(key))
            yield from keys_without_encoding(item, (*keys, key))
    elif isinstance(value, list):
        for i, item in enumerate(value):
            yield from keys_without_encoding(item, (*keys, i))
    elif isinstance(value, str) and not is_unicode(value):
        yield keys
