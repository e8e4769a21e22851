"""What the snippets of all clients share: which file, which inputs, which texts."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.artefacts.choice import best_of, wanted_scheme
from pocketbert.core.tasks import TASKS, LabelKind, Level, ScoreFunction, Task, TaskName
from pocketbert.core.types import Client, Format, Scheme

TEXT, SECOND = "your text", "the second text"
QUESTION, CONTEXT = "your question", "the text that holds the answer"
NO_TELEMETRY = "before the first use: otherwise ONNX Runtime sends telemetry to its vendor"


def row_of(artefacts: Artefacts) -> Task:
    """The folder's row of the task table."""
    return TASKS[artefacts.task]


CHECKED = (Scheme.FP32, Scheme.INT8)
"""Schemes whose files this project has opened in MediaPipe and in transformers.js."""


def offered(
    artefacts: Artefacts, format: Format, client: Client | None = None, schemes: Sequence[Scheme] = tuple(Scheme)
) -> ModelRecord | None:
    """The file of a format that users are pointed to: of the default file's scheme, where there is one.

    Args:
        artefacts: The folder's list.
        format: The format.
        client: The client that the file is made for; None for files for any.
        schemes: Only files of these.
    """
    of_client = [
        r
        for r in artefacts.models()
        if r.format is format and (r.plain if client is None else r.client is client) and r.scheme in schemes
    ]
    return best_of(of_client, wanted_scheme(artefacts.default_model())) if of_client else None


def inputs(record: ModelRecord) -> list[str]:
    """Names of the graph's inputs, in order."""
    return [t.name for t in record.signature.inputs] if record.signature else ["input_ids", "attention_mask"]


def lengths(record: ModelRecord) -> list[int]:
    """The only lengths the file takes; empty where it takes any."""
    return record.signature.lengths if record.signature else []


def width(record: ModelRecord) -> int | None:
    """Numbers that the answer's output has per text or token; None where the file does not tell."""
    last = record.signature.outputs[-1].shape[-1] if record.signature else None
    return last if isinstance(last, int) else None


def asks_questions(artefacts: Artefacts) -> bool:
    """Whether inputs are a question and a context."""
    return row_of(artefacts).labels is LabelKind.ANSWERS


def per_token(artefacts: Artefacts) -> bool:
    """Whether outputs have a row per token."""
    return row_of(artefacts).level is Level.TOKEN


def given(artefacts: Artefacts) -> tuple[str, ...]:
    """The texts of the example: one, a pair, or question and context."""
    if asks_questions(artefacts):
        return QUESTION, CONTEXT
    return (TEXT, SECOND) if artefacts.pair else (TEXT,)


def quoted(texts: tuple[str, ...]) -> str:
    """Texts as arguments, in Python and in JavaScript."""
    return ", ".join(json.dumps(t) for t in texts)


def camel(name: str) -> str:
    """``input_ids`` as Kotlin and Swift write it."""
    first, *rest = name.split("_")
    return first + "".join(w.capitalize() for w in rest)


def takes_pairs(artefacts: Artefacts) -> bool:
    """Whether an input is two texts."""
    return artefacts.pair or asks_questions(artefacts)


def is_tempered(record: ModelRecord) -> bool:
    """Whether the code of a file has to divide its logits by a temperature."""
    return record.temperature != 1


TEMPERED = "the temperature of this file"
"""Comment on a number in the code; another file has another one."""


def least_probability(artefacts: Artefacts, record: ModelRecord) -> str:
    """The probability below which an answer of a file is unknown, as code has it; empty where none is."""
    least = artefacts.unknown_below(record)
    return "" if least is None else f"{least:g}"


UNKNOWN = "below this file's threshold: unknown"
"""Comment on a comparison in the code, behind what the code gives instead of a label."""


def takes_prompts(artefacts: Artefacts) -> bool:
    """Whether the folder has prompts to put in front of a text; a question gets none."""
    return bool(artefacts.processing.prompts) and not asks_questions(artefacts)


def default_prompt(artefacts: Artefacts) -> str:
    """The text that the folder puts in front of a text where no prompt is named; empty where it puts none."""
    return artefacts.processing.named_prompts.text_of(None)


def keeps_end(artefacts: Artefacts) -> bool:
    """Whether the beginning of a text that is too long is cut off, and not its end; a long context is read in windows."""
    return artefacts.processing.truncation_side == "left" and not asks_questions(artefacts)


def applies_sigmoid(artefacts: Artefacts) -> bool:
    """Whether the one number of a folder is the sigmoid of its logit (rerankers)."""
    return artefacts.task is TaskName.REGRESSION and artefacts.processing.score is ScoreFunction.SIGMOID


def quote_for_java(text: str) -> str:
    """Return a text as a Java string literal in ASCII, whatever encoding the compiler reads."""
    own = {"\f": "\\u000c", "\x7f": "\\u007f"}
    return f'"{"".join(own.get(c) or json.dumps(c)[1:-1] for c in text)}"'


def quote_for_kotlin(text: str) -> str:
    """Return a text as a Kotlin string literal in ASCII, in which no dollar sign begins a template."""
    return quote_for_java(text).replace("$", "\\$")


def quote_for_swift(text: str) -> str:
    """Return a text as a Swift string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in escaped) + '"'
