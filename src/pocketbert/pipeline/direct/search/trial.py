"""A smaller file that may be made: a scheme, and the roles that stay as they were exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pocketbert.core.artefacts.search import named
from pocketbert.core.families.roles import WeightRole
from pocketbert.core.types import Role
from pocketbert.pipeline.formats.model_files import ModelFile

if TYPE_CHECKING:
    from pocketbert.quantize.table import SchemeRow


@dataclass(frozen=True)
class Trial:
    """A smaller file that may be made.

    Attributes:
        file: Format and scheme.
        left: Roles whose weights stay as they were exported, in the order of `Role`.
    """

    file: ModelFile
    left: tuple[Role, ...] = ()

    @property
    def name(self) -> str:
        """What figures are told of; the path in the artefact folder is the same for all choices of roles."""
        return named(self.file.path, self.left)

    @property
    def row(self) -> SchemeRow:
        """The row of the table of schemes that the file is of."""
        from pocketbert.quantize.table import row_of

        return row_of(self.file.format, self.file.scheme, self.file.runtime)

    @property
    def mixed(self) -> bool:
        """Whether some weights have another scheme than the file."""
        return bool(self.left or self.row.usual)

    def weights(self, weights: Sequence[WeightRole]) -> list[WeightRole]:
        """Resolve what the file makes of each weight.

        Args:
            weights: The weights of the exported file.
        """
        schemes = {role: None if role in self.left else self.row.scheme_of(role) for role in Role}
        return [w.model_copy(update={"scheme": schemes[w.role]}) for w in weights]
