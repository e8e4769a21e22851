"""The makers of damage that the tests use (`support.mutations`), with other random choices."""

from __future__ import annotations

import random

from fuzz.mutation import MUTATORS, Mutator, Place, Verdict
from support.mutations import mutations

KINDS = {"recipe": "recipe", "data": "rows", "folder": "artefact", "model": "artefact", "source": "model"}
"""Kind of a maker, and the target that it damages."""
READ_BY = {"rows": frozenset({"check"}), "artefact": frozenset({"verify"})}
"""Commands that always see the damage; of other targets all do."""


def _register(kind: str, target: str) -> None:
    for name, made in {m.name.split("-", 1)[1]: m.maker for m in mutations(kind, 100)}.items():

        def change(draw: random.Random, place: Place, made=made) -> None:  # type: ignore[no-untyped-def]
            part = {"recipe": place.recipe, "data": place.rows, "source": place.model}.get(kind, place.phone)
            made.damage(draw, part)

        sees = frozenset({"none"}) if made.harmless and kind != "folder" else READ_BY.get(target, frozenset())
        MUTATORS[f"{target}.{name}"] = Mutator(f"{target}.{name}", target, change, Verdict.BAD, sees)


for _kind, _target in KINDS.items():
    _register(_kind, _target)
