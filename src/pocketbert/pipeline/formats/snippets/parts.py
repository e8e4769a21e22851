"""Shared parts of the code snippets in a model card, and `Offer`, a row of the card's first table.

A snippet depends on the folder (`Artefacts`) and on the file that it opens (`ModelRecord`). The functions here answer
the questions that all clients have about them: which file is offered, which texts and inputs the example has, what
happens to the outputs, and which settings the tokenizer needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from pocketbert.core.artefacts import Artefacts, ModelRecord, Processing
from pocketbert.core.artefacts.folder import choose_file, requested_scheme
from pocketbert.core.families import GraphInput, Meaning, all_families
from pocketbert.core.predict.inputs import ENTITIES_FILE
from pocketbert.core.tasks import LabelKind, Level, ScoreFunction, Task, TaskName
from pocketbert.core.types import Client, Format, Scheme

NO_TELEMETRY = "before the first use: otherwise ONNX Runtime sends telemetry to its vendor"
TEMPERED = "the temperature of this file"
"""Comment on a number in the code; another file has another one."""
UNKNOWN = "below this file's threshold: unknown"
"""Comment on a comparison in the code, after the value that replaces the label."""
CHECKED_SCHEMES = (Scheme.FP32, Scheme.INT8)
"""Schemes whose files this project has opened in MediaPipe and in transformers.js."""
TOKENIZER_FILE = "tokenizer.json"
_SOURCES = {"Kotlin": "android", "Swift": "ios"}
"""Folder with the sources of a tokenizer, by the language of the app."""
_TEXT, _SECOND = "your text", "the second text"
_QUESTION, _CONTEXT = "your question", "the text that holds the answer"
_CHOICES = ("one choice", "another choice")


# --- offers -----------------------------------------------------------------------------------------------------------


class Platform(StrEnum):
    """Platform and runtime of an app, in the order of the card's table."""

    ANDROID_SIMPLE = "Android, simplest"
    ANDROID_ONNX = "Android, ONNX Runtime"
    ANDROID_LITERT = "Android, LiteRT"
    IOS = "iOS"
    IOS_ONNX = "iOS, ONNX Runtime"
    WEB = "Web, Node.js"
    PYTHON = "Python"


@dataclass(frozen=True)
class Offer:
    """What an app on one platform needs to run a format's file. It becomes a row of the card's first table.

    Attributes:
        platform: Platform and runtime of the app.
        record: Entry of the model file in ``artifacts.json``.
        beside: Paths of other files of the folder that the app carries.
        needs: Oldest operating system and libraries, in a few words.
        tokenizer: Where token ids come from, in a few words.
        dependencies: Lines for Gradle, SwiftPM, npm or pip; empty if the operating system has all.
        snippet: Complete code: a sentence that ends with a colon, then the code.
        notes: Sentences on limits of this file.
    """

    platform: Platform
    record: ModelRecord
    beside: tuple[str, ...]
    needs: str
    tokenizer: str
    dependencies: tuple[str, ...]
    snippet: str
    notes: tuple[str, ...] = ()

    def bytes(self, artefacts: Artefacts) -> int:
        """Return the bytes that an app carries: the file and those beside it, without the library that runs it."""
        sizes = {r.path: r.bytes for r in artefacts.files}
        return self.record.bytes + sum(sizes.get(path, 0) for path in self.beside)


def offered_file(
    artefacts: Artefacts, format: Format, client: Client | None = None, schemes: Sequence[Scheme] = tuple(Scheme)
) -> ModelRecord | None:
    """Return the file of a format that the model card recommends; None if the format has no file to choose.

    It is the file with the scheme of the folder's default file, or what the format stores instead. If there is none, it
    is the first int8 file, else the last file.

    Args:
        artefacts: Content of the folder's ``artifacts.json``.
        format: The format.
        client: The client (such as MediaPipe) that the file must be made for; None for files that any client can read.
        schemes: Schemes to choose from.
    """
    files = [
        r
        for r in artefacts.models()
        if r.format is format and (r.plain if client is None else r.client is client) and r.scheme in schemes
    ]
    return choose_file(files, requested_scheme(artefacts.default_model())) if files else None


def pip_requirement(artefacts: Artefacts, distribution: str) -> str:
    """Return a requirement for pip: a distribution, with the version that made the folder's files if it is known."""
    version = artefacts.versions.get(distribution)
    return f"{distribution}=={version}" if version else distribution


def describe_tokenizer(artefacts: Artefacts, language: str) -> str:
    """Return a phrase for the card's table: where an app gets token ids from, sources in the folder or the app's own.

    `language` is the language of the app: Kotlin or Swift.
    """
    if has_tokenizer_sources(artefacts, language):
        return f"sources in `{_SOURCES[language]}/`, read `{TOKENIZER_FILE}`"
    return "your own: it must give the ids of `golden_tokens.jsonl`"


def has_tokenizer_sources(artefacts: Artefacts, language: str) -> bool:
    """Return whether the folder has the sources of a tokenizer in Kotlin or Swift."""
    return any(r.path.startswith(f"{_SOURCES[language]}/") for r in artefacts.files)


# --- questions about a folder -----------------------------------------------------------------------------------------


def task_row(artefacts: Artefacts) -> Task:
    """Return the entry of the table of tasks for the folder's task."""
    return artefacts.task_row


def takes_prompts(artefacts: Artefacts) -> bool:
    """Return whether the folder has prompts to put in front of a text. Question answering never uses them."""
    return bool(artefacts.processing.prompts) and task_row(artefacts).labels is not LabelKind.ANSWERS


def keeps_end(artefacts: Artefacts) -> bool:
    """Return whether too long texts are cut at their beginning.

    It is false for question answering, where a long context is read in windows.
    """
    return artefacts.processing.truncation_side == "left" and task_row(artefacts).labels is not LabelKind.ANSWERS


def applies_sigmoid(artefacts: Artefacts) -> bool:
    """Return whether the answer is the sigmoid of the single logit that a file computes, as for rerankers."""
    return artefacts.task is TaskName.REGRESSION and artefacts.processing.score is ScoreFunction.SIGMOID


def input_lengths(record: ModelRecord) -> list[int]:
    """Return the only input lengths in tokens that a file takes; empty if it takes any or none are recorded."""
    return record.signature.lengths if record.signature else []


def output_width(record: ModelRecord) -> int | None:
    """Return how many numbers the last output of a file has per text or token; None if that is not known."""
    last = record.signature.outputs[-1].shape[-1] if record.signature else None
    return last if isinstance(last, int) else None


_MEANINGS = {
    Meaning.LANGUAGE: "the number of the text's language in config.json at each token",
    Meaning.ENTITIES: f"the entity's number in {ENTITIES_FILE} at the first token of each mention, 0 elsewhere",
    Meaning.VECTORS: "the entity's vector at the first token of each mention, zeros elsewhere",
}
_COLUMNS = {
    Meaning.LANGUAGE: '{"language": "the name of a language in config.json"}',
    Meaning.ENTITIES: f'{{"entities": [{{"start": 0, "end": 4, "id": "an id in {ENTITIES_FILE}"}}]}}',
    Meaning.VECTORS: '{"entities": [{"start": 0, "end": 4, "vector": [0.0] * WIDTH}]}',
}
"""Columns of an example, in Python."""


def _extra_inputs(artefacts: Artefacts) -> tuple[GraphInput, ...]:
    """Return the graph inputs besides those of a text, such as entities; empty if the files take text only."""
    forms = [f for row in all_families() if row.name == artefacts.family for f in row.forms]
    return next((f.extra for f in forms if f.name == artefacts.form), ())


def explain_inputs(artefacts: Artefacts) -> list[str]:
    """Return one sentence for the model card on each additional graph input, such as entities."""
    return [
        f"`{i.name}`, {'float32 [1, length, width]' if i.is_float else 'whole numbers [1, length]'}, from the data column "
        f"`{i.column}`: {_MEANINGS[i.meaning]}. Padding: {i.padding}. `golden.jsonl` has the column of each golden text as "
        f"`data`, `golden_tokens.jsonl` what is made of it as `inputs`."
        for i in _extra_inputs(artefacts)
    ]


# --- the file of a snippet --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SnippetFile:
    """The model file that a code snippet opens, with the facts about it that the code depends on.

    Attributes:
        artefacts: Content of the folder's ``artifacts.json``.
        record: Entry of the model file in ``artifacts.json``.
    """

    artefacts: Artefacts
    record: ModelRecord

    @property
    def task(self) -> Task:
        """The entry of the table of tasks for the folder's task."""
        return task_row(self.artefacts)

    @property
    def processing(self) -> Processing:
        """How the folder makes token ids of texts and answers of outputs."""
        return self.artefacts.processing

    @property
    def asks_questions(self) -> bool:
        """Whether inputs are a question and a context."""
        return self.task.labels is LabelKind.ANSWERS

    @property
    def chooses(self) -> bool:
        """Whether inputs are a question with each of several choices, and the answer is one of them."""
        return self.task.labels is LabelKind.CHOICE

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices of the example."""
        return _CHOICES

    def output_size(self, name: str) -> int | None:
        """Return how many numbers an output of the file has per text or token; None if that is not known."""
        signature = self.record.signature
        sizes = [t.shape[-1] for t in signature.outputs if t.name == name] if signature else []
        return next((n for n in sizes if isinstance(n, int)), None)

    def is_of_texts(self, name: str) -> bool:
        """Return whether an output has one row for the whole text, not a row for each token.

        With several heads it is the head that computes the output which decides.
        """
        heads = [head for head in self.task.heads if head.output == name]
        return heads[0].task.level is Level.TEXT if heads else not self.has_token_outputs

    @property
    def has_token_outputs(self) -> bool:
        """Whether outputs have a row per token."""
        return self.task.level is Level.TOKEN

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of the example: one text, a pair, question and context, or question and choice."""
        if self.chooses:
            return _QUESTION, _CHOICES[0]
        if self.asks_questions:
            return _QUESTION, _CONTEXT
        return (_TEXT, _SECOND) if self.artefacts.pair else (_TEXT,)

    @property
    def takes_prompts(self) -> bool:
        """Whether code puts a prompt in front of a text."""
        return takes_prompts(self.artefacts)

    @property
    def default_prompt(self) -> str:
        """The prompt that is put in front of a text if the user names none; empty if there is no default prompt."""
        return self.processing.named_prompts.text_of(None)

    @property
    def keeps_end(self) -> bool:
        """Whether too long texts are cut at their beginning."""
        return keeps_end(self.artefacts)

    @property
    def lengths(self) -> list[int]:
        """The only lengths that the file takes; empty if it takes any."""
        return input_lengths(self.record)

    @property
    def longest(self) -> int:
        """Longest input in tokens."""
        return max(self.lengths, default=self.processing.max_length)

    @property
    def inputs(self) -> list[str]:
        """Names of the graph's inputs, in order; the two usual ones if none are recorded."""
        signature = self.record.signature
        return [t.name for t in signature.inputs] if signature else ["input_ids", "attention_mask"]

    def input_width(self, name: str) -> int:
        """Return how many numbers a graph input has at each token."""
        signature = self.record.signature
        shapes = [t.shape for t in signature.inputs if t.name == name] if signature else []
        return next((n for s in shapes for n in s[2:] if isinstance(n, int)), 1)

    def is_float(self, name: str) -> bool:
        """Return whether a graph input holds float vectors; the others hold whole numbers."""
        return any(i.name == name and i.is_float for i in _extra_inputs(self.artefacts))

    @property
    def has_float_inputs(self) -> bool:
        """Whether any graph input holds float vectors."""
        return any(self.is_float(name) for name in self.inputs)

    @property
    def sample_values(self) -> dict[str, str]:
        """Python code of sample values for the inputs besides those of a text, by input; `e` is the tokenized text."""
        return {
            i.name: f"[[0.0] * {self.input_width(i.name)}] * len(e.ids)" if i.is_float else "[0] * len(e.ids)"
            for i in _extra_inputs(self.artefacts)
        }

    @property
    def example_columns(self) -> str:
        """Python code of the data columns that the example has beside its text; empty if the model takes text only."""
        extra = _extra_inputs(self.artefacts)
        if not extra:
            return ""
        return _COLUMNS[extra[0].meaning].replace("WIDTH", str(self.input_width(extra[0].name)))

    def comment_on_inputs(self, mark: str) -> str:
        """Return a comment on what to put in place of the sample values; empty if there are none.

        Args:
            mark: The characters that begin a comment in the language of the code.
        """
        meanings = "; ".join(f"{i.name}: {_MEANINGS[i.meaning]}" for i in _extra_inputs(self.artefacts))
        return f"   {mark} {meanings}" if meanings else ""

    @property
    def is_tempered(self) -> bool:
        """Whether code has to divide the logits by a temperature."""
        return self.record.temperature != 1

    @property
    def unknown_threshold(self) -> str:
        """The probability below which an answer is unknown, as a literal; empty if there is none."""
        least = self.artefacts.unknown_below(self.record)
        return "" if least is None else f"{least:g}"

    @property
    def thresholds(self) -> list[str]:
        """The probability from which each label of a multi-label file is given, as literals."""
        return [f"{t:g}" for t in self.processing.thresholds or []]

    @property
    def applies_sigmoid(self) -> bool:
        """Whether the answer is the sigmoid of the single logit."""
        return applies_sigmoid(self.artefacts)

    @property
    def avoids_saturation(self) -> bool:
        """Whether code turns on ONNX Runtime's setting against saturation: for schemes other than fp32 and fp16.

        With this setting ONNX Runtime 1.31 cannot open files in which layers share weights, so families of this kind do
        without it.
        """
        is_float = self.record.scheme in (Scheme.FP32, Scheme.FP16)
        return not is_float and not any(r.shares_layers for r in all_families() if r.name == self.artefacts.family)


# --- literals ---------------------------------------------------------------------------------------------------------


def quote_texts(texts: tuple[str, ...]) -> str:
    """Return texts as string literals with commas between them, for Python and JavaScript."""
    return ", ".join(json.dumps(t) for t in texts)


def quote_for_java(text: str) -> str:
    """Return a text as a Java string literal in ASCII, so that the compiler's encoding does not matter."""
    own = {"\f": "\\u000c", "\x7f": "\\u007f"}
    return f'"{"".join(own.get(c) or json.dumps(c)[1:-1] for c in text)}"'


def quote_for_kotlin(text: str) -> str:
    """Return a text as a Kotlin string literal in ASCII, in which no dollar sign begins a template."""
    return quote_for_java(text).replace("$", "\\$")


def quote_for_swift(text: str) -> str:
    """Return a text as a Swift string literal."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{{{ord(c):x}}}" for c in escaped) + '"'
