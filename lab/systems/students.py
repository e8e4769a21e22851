"""The table of docs/lab/families.md that says which students each system makes, and how."""

from __future__ import annotations

from collections.abc import Sequence

from pocketbert.core.families import Family, Objective
from pocketbert.core.types import Signal

HEAD = """
## Students

How a student is made from a teacher of each system. A narrower student of the same class (`student: {layers: ..., hidden: ..., heads: ...}`) starts from the teacher's embeddings, reduced to its width, and random layers, in any system that makes students by copy.
`student: {model: FOLDER}` goes on with a student of any class; with [another vocabulary](distillation.md#students-of-another-vocabulary) than the teacher's it learns outputs of whole texts only. [Pruning](distillation.md#pruning) leaves each layer fewer feed-forward neurons; where it is refused, the limits below say why.
A teacher of any system that pads on the right makes [students without layers](distillation.md#students-without-layers) (`student: {layers: 0}`, `model_type` `static_embeddings`); for pairs its tokenizer has to mark the second text.

| system | fewer layers, copied (`student.layers`) | fewer neurons (`student.init: pruned`) | another class (`student.family`, `student.size`) | general stages |
|---|---|---|---|---|"""


def students_section(rows: Sequence[Family]) -> list[str]:
    """Show it; every word follows from the rows."""
    return [
        HEAD,
        *(f"| {row.title} | {_copied(row)} | {_pruned(row)} | {_other(row, rows)} | {_general(row)} |" for row in rows),
    ]


def _copied(row: Family) -> str:
    if row.instead_of_export is not None:
        return f"no: {row.instead_of_export}"
    if row.stored_layers != "num_hidden_layers":
        return f"fewer repeats of the shared layers (`{row.stored_layers}` as far as there are layers)"
    kept = [*row.by_layer, *(["the kind of attention"] if row.rotary else [])]
    named = " and ".join(k if " " in k else f"`{k}`" for k in kept)
    return f"yes; each layer keeps its {named.removeprefix('the ')}" if kept else "yes"


def _pruned(row: Family) -> str:
    if row.instead_of_export is not None:
        return f"no: {row.instead_of_export}"
    return "yes" if row.feed_forward else "no"


def _other(row: Family, rows: Sequence[Family]) -> str:
    found = [f"{r.title} (`family: {r.name}`)" for r in rows if row.graph in r.students_of]
    if row.instead_of_export is not None:
        found.append("MobileBERT (`size: mobilebert`)")
    return ", ".join(found) or "none"


def _general(row: Family) -> str:
    if row.lm_head is None:
        return "none: it guesses no hidden words"
    found = ["guesses of words" if "fill-mask" not in row.invalid_tasks else ""]
    found += ["relations (MiniLM)"] if Signal.RELATIONS in row.signals else []
    found += ["attention and hidden states (TinyBERT)"] if {Signal.ATTENTION, Signal.HIDDEN} <= {*row.signals} else []
    found += ["ELECTRA-small (`replaced-tokens`)"] if Objective.REPLACED_TOKEN in row.objectives else []
    return ", ".join(f for f in found if f) or "none"
