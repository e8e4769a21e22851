"""The makers of damage that the tests use (`support.mutations`), with other random choices."""

from __future__ import annotations

import random

from fuzz.mutation import MUTATORS, Mutator, Place, Verdict
from support.mutations import mutations

KINDS = {"recipe": "recipe", "data": "rows", "folder": "artefact", "model": "artefact", "source": "model"}
"""Kind of a maker, and the target that it damages."""
PREDICT_READS_OTHERS = ("model",)
"""Kinds of which `predict` may open another file than the damaged one."""


def _register(kind: str, target: str) -> None:
    first = {m.name.split("-", 1)[1]: m.maker for m in mutations(kind, 100)}
    for name, made in first.items():

        def change(draw: random.Random, place: Place, made=made, kind=kind) -> None:  # type: ignore[no-untyped-def]
            path = {"recipe": place.recipe, "data": place.rows, "source": place.model}.get(kind, place.phone)
            made.damage(draw, path)

        everywhere = not made.harmless and kind not in PREDICT_READS_OTHERS
        verbs = frozenset() if everywhere else frozenset({"verify"} if target == "artefact" else {"none"})
        MUTATORS[f"{target}.{name}"] = Mutator(f"{target}.{name}", target, change, Verdict.BAD, verbs)


for _kind, _target in KINDS.items():
    _register(_kind, _target)
