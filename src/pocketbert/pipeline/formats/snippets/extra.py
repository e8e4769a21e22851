"""What the code for a file depends on by its family: inputs beyond those of every text, and settings of the engine."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.families import GraphInput, Meaning, all_families
from pocketbert.core.predict.column_reader import ENTITIES_FILE

_MEANT = {
    Meaning.LANGUAGE: "the number of the text's language in config.json at each token",
    Meaning.ENTITIES: f"the entity's number in {ENTITIES_FILE} at the first token of each mention, 0 elsewhere",
    Meaning.VECTORS: "the entity's vector at the first token of each mention, zeros elsewhere",
}
COLUMNS = {
    Meaning.LANGUAGE: '{"language": "the name of a language in config.json"}',
    Meaning.ENTITIES: f'{{"entities": [{{"start": 0, "end": 4, "id": "an id in {ENTITIES_FILE}"}}]}}',
    Meaning.VECTORS: '{"entities": [{"start": 0, "end": 4, "vector": [0.0] * WIDTH}]}',
}
"""Columns of an example, in Python."""


def extra_inputs(artefacts: Artefacts) -> tuple[GraphInput, ...]:
    """The inputs of the folder's form; none where its files take text only."""
    forms = [f for row in all_families() if row.name == artefacts.family for f in row.forms]
    return next((f.extra for f in forms if f.name == artefacts.form), ())


def can_be_precise(artefacts: Artefacts) -> bool:
    """Whether ONNX Runtime's setting against saturation may be in code: 1.31 opens no file with it in which layers share weights."""
    return not any(row.shares_layers for row in all_families() if row.name == artefacts.family)


def width_of(record: ModelRecord, name: str) -> int:
    """Numbers that an input has at each token."""
    shapes = [t.shape for t in record.signature.inputs if t.name == name] if record.signature else []
    return next((n for s in shapes for n in s[2:] if isinstance(n, int)), 1)


def is_float(artefacts: Artefacts, name: str) -> bool:
    """Whether an input holds vectors."""
    return any(i.name == name and i.is_float for i in extra_inputs(artefacts))


def python_values(artefacts: Artefacts, record: ModelRecord) -> dict[str, str]:
    """Sample values of the inputs for `e`, a tokenized text, in Python."""
    return {
        i.name: f"[[0.0] * {width_of(record, i.name)}] * len(e.ids)" if i.is_float else "[0] * len(e.ids)"
        for i in extra_inputs(artefacts)
    }


def comment(artefacts: Artefacts, mark: str) -> str:
    """A comment on what belongs there instead of the sample values, with two blanks before; empty where there are none."""
    own = "; ".join(f"{i.name}: {_MEANT[i.meaning]}" for i in extra_inputs(artefacts))
    return f"   {mark} {own}" if own else ""


def example_columns(artefacts: Artefacts) -> str:
    """Columns of the example text, in Python; empty where files take text only."""
    own = extra_inputs(artefacts)
    if not own:
        return ""
    return COLUMNS[own[0].meaning].replace("WIDTH", str(width_of(artefacts.default_model(), own[0].name)))


def explained(artefacts: Artefacts) -> list[str]:
    """One sentence on each input, for the card."""
    return [
        f"`{i.name}`, {'float32 [1, length, width]' if i.is_float else 'whole numbers [1, length]'}, from the data column "
        f"`{i.column}`: {_MEANT[i.meaning]}. Padding: {i.padding}. `golden.jsonl` has the column of each golden text as "
        f"`data`, `golden_tokens.jsonl` what is made of it as `inputs`."
        for i in extra_inputs(artefacts)
    ]
