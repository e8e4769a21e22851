"""The methods that an entry of `distill` may name: an open registry, and what each section answers about itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar, Union, get_args

from pydantic import Field, GetCoreSchemaHandler
from pydantic_core import CoreSchema

from pocketbert.core.loading.plugins import announce, load_plugins
from pocketbert.core.recipe.updates import Updates
from pocketbert.core.types import Format, Runtime, Scheme

WrittenFile = tuple[Format, Scheme, Runtime | None]
"""What a quantized file is: its format, its scheme, and the one runtime that it is made for."""


@dataclass(frozen=True)
class StagePlace:
    """Where a stage is in a recipe.

    Attributes:
        number: Its place in `distill`, from 0.
        stages: All entries of `distill`.
        depth: Layers of the student, where the recipe names them.
        files: The quantized files that are written; None where they are not chosen yet.
    """

    number: int
    stages: Sequence[Stage]
    depth: int | None
    files: frozenset[WrittenFile] | None = None

    @property
    def where(self) -> str:
        """The recipe key."""
        return f"distill.{self.number}"


class Stage(Updates):
    """Base of all sections that an entry of `distill` may be; a subclass has a field `method` with its name as Literal.

    Attributes:
        general: Whether it learns from a pre-trained teacher on plain text; else it learns on the task's own text.
        teaches_words: Whether it teaches the head of fill-mask, which guesses hidden words.
    """

    general: ClassVar[bool] = False
    teaches_words: ClassVar[bool] = False

    if TYPE_CHECKING:
        method: str

    @classmethod
    def method_name(cls) -> str:
        """The name that recipes use."""
        return str(get_args(cls.model_fields["method"].annotation)[0])

    @property
    def on_augmented(self) -> bool:
        """Whether it learns on the augmented rows."""
        return bool(getattr(self, "augmented", False))

    @property
    def by_text(self) -> bool:
        """Whether it compares teacher and student by their answers to whole texts only, and not by single tokens."""
        return False

    @property
    def exported_format(self) -> Format | None:
        """The format whose files it trains for, so that the settings of their export decide its result; None for any."""
        return None

    def problems(self, place: StagePlace) -> list[str]:
        """Tell what does not go together with the rest of a recipe.

        Args:
            place: Where the stage is.

        Returns:
            One sentence each; where one key is to blame, it begins with it and a colon.
        """
        return []


S = TypeVar("S", bound=type[Stage])

_SECTIONS: dict[str, type[Stage]] = {}
_LISTENERS: list[Callable[[], object]] = []


def register_stage(section: S) -> S:
    """Make a method's section known to recipes; usable as a decorator.

    Args:
        section: The section, whose field `method` holds the name.

    Raises:
        ValueError: If another section has the name.
    """
    name = section.method_name()
    if _SECTIONS.get(name, section) is not section:
        raise ValueError(f"method '{name}' is registered already, as {_SECTIONS[name].__qualname__}")
    if name not in _SECTIONS:
        if not section.__module__.startswith("pocketbert."):  # the package's own, imported because a plug-in needs it
            announce("method", name)
        _SECTIONS[name] = section
        for listener in _LISTENERS:
            listener()
    return section


def on_registration(listener: Callable[[], object]) -> None:
    """Call a function after every further registration: a model with a field of stages must be built again.

    Args:
        listener: What to call.
    """
    _LISTENERS.append(listener)


def stage_sections() -> dict[str, type[Stage]]:
    """Sections by the name of their method, in the order of registration."""
    load_plugins()
    return dict(_SECTIONS)


def method_names(wanted: Callable[[type[Stage]], bool] = lambda _: True) -> list[str]:
    """Names of methods, in the order of registration.

    Args:
        wanted: Which sections; all by default.
    """
    load_plugins()
    return [name for name, section in _SECTIONS.items() if wanted(section)]


class _Registered:
    """Validates an entry of `distill` as the section that its `method` names."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        sections: Any = Union[tuple(_SECTIONS.values())]  # noqa: UP007  # what is registered, not what is written
        return handler.generate_schema(Annotated[sections, Field(discriminator="method")])


AnyStage = Annotated[Stage, _Registered()]
"""An entry of `distill`, of any registered method."""
