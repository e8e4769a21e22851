"""Names that installed packages may add to: what an enum is for a closed list, for an open one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError, core_schema

from pocketbert.core.loading.plugins import load_plugins


class _Members(type):
    """Lets a class of names be iterated, counted and asked with `in`, as an enum is."""

    _known: dict[str, Any]

    def __iter__(cls) -> Iterator[Any]:
        return iter(list(cls._known.values()))

    def __len__(cls) -> int:
        return len(cls._known)

    def __contains__(cls, value: object) -> bool:
        return value in cls._known

    def __bool__(cls) -> bool:
        return True


class RegisteredName(str, metaclass=_Members):
    """A string of which only registered values exist, each exactly once: `is` compares as it does of enum members.

    A subclass is one list of names. `Subclass.register("name")` adds one; `Subclass("name")` finds it, and raises
    ValueError for any other string. Pydantic validates a field of such a type, and its JSON schema lists the names
    that are registered when the schema is made.
    """

    __slots__ = ()
    _known: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        cls._known = {}

    def __new__(cls, value: object) -> Self:
        """Find a registered name.

        Raises:
            ValueError: If it is not registered.
        """
        if isinstance(value, str) and value not in cls._known:
            load_plugins()  # one of them may bring it
        if not isinstance(value, str) or value not in cls._known:
            raise ValueError(f"{value!r} is not a valid {cls.__name__}; registered: {', '.join(cls._known)}")
        found: Self = cls._known[value]
        return found

    @classmethod
    def register(cls, value: str) -> Self:
        """Add a name; a name that is there already is returned as it is.

        Raises:
            ValueError: If it is no name: lower-case letters, digits and hyphens, a letter first.
        """
        allowed = value[:1].isalpha() and all(c.isalnum() or c == "-" for c in value)
        if not (allowed and value.isascii() and value == value.lower()):
            raise ValueError(f"{value!r} is no {cls.__name__}: lower-case letters, digits and hyphens, a letter first")
        made: Self = cls._known.setdefault(value, str.__new__(cls, value))
        return made

    @property
    def value(self) -> str:
        """The name as a plain string."""
        return str(self)

    def __str__(self) -> str:
        return str.__str__(self)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[type[Self], tuple[str]]:
        return type(self), (str(self),)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated,
            ref=f"{cls.__module__}.{cls.__qualname__}:{id(cls)}",
            serialization=core_schema.to_string_ser_schema(when_used="json"),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        words = (cls.__doc__ or "").strip()
        return {"description": words, "enum": list(cls._known), "title": cls.__name__, "type": "string"}

    @classmethod
    def _validated(cls, value: object) -> Self:
        if isinstance(value, str) and value not in cls._known:
            load_plugins()
        if isinstance(value, str) and value in cls._known:
            return cls(value)
        *first, last = [f"'{n}'" for n in cls._known]
        expected = f"{', '.join(first)} or {last}" if first else last
        raise PydanticKnownError("enum", {"expected": expected})
