"""What a reader of tokenizer.json in another language reads, and why it refuses a tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Content = Mapping[str, Any]
_STEPS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "post_processor": "processors"}
"""Key of the steps inside a Sequence of each part of tokenizer.json."""
_TITLES = {"normalizer": "normalizer", "pre_tokenizer": "pre-tokenizer", "post_processor": "post-processor"}
_SPECIAL_STEPS = ("BertProcessing", "RobertaProcessing", "TemplateProcessing")
"""Post-processors that add special tokens; none may follow one."""
_STRANGE_PATTERN = re.compile(r"\(\?(?![:=!>]|<[=!])|\\[1-9RXGkghHyY]")
"""Named groups, options in brackets, references to groups, and classes that the readers do not know."""


@dataclass(frozen=True)
class Reader:
    """What sources in one language read; everything else is refused, by them and before they are packed.

    Attributes:
        title: The sources, as the subject of a sentence.
        normalizers: Types of normalizers.
        pre_tokenizers: Types of pre-tokenizers.
        post_processors: Types of post-processors.
        models: Types of models.
        further: Finds what else is refused in a tokenizer.json.
    """

    title: str
    normalizers: tuple[str, ...]
    pre_tokenizers: tuple[str, ...]
    post_processors: tuple[str, ...]
    models: tuple[str, ...]
    further: Callable[[Content], Iterator[str]]

    def refusal(self, content: Content) -> str | None:
        """Tell in a few words why the sources do not read a tokenizer.

        Args:
            content: Content of tokenizer.json.

        Returns:
            The first reason; None where they read it.
        """
        return next(self._problems(content), None)

    def _problems(self, content: Content) -> Iterator[str]:
        known = {
            "normalizer": self.normalizers,
            "pre_tokenizer": self.pre_tokenizers,
            "post_processor": self.post_processors,
        }
        kind = model_type(content)
        if kind not in self.models:
            yield f"{self.title} do not read a model of type {kind}, only {', '.join(self.models)}"
        for part, types in known.items():
            for step in steps(content, part):
                if step.get("type") not in types:
                    yield f"{self.title} do not read the {_TITLES[part]} {step.get('type')}"
        yield from (f"{self.title} do not read {what}" for what in _refused_by_all(content))
        yield from (f"{self.title} do not read {what}" for what in self.further(content))


def model_type(content: Content) -> str:
    """Name the type of a tokenizer's model, which files of before 2021 leave out."""
    model = content["model"]
    if "type" in model:
        return str(model["type"])
    return "BPE" if "merges" in model else "Unigram" if isinstance(model["vocab"], list) else "WordPiece"


def steps(content: Content, part: str) -> Iterator[Content]:
    """List the steps of a part of tokenizer.json, those inside a Sequence one by one.

    Args:
        content: Content of tokenizer.json.
        part: ``normalizer``, ``pre_tokenizer`` or ``post_processor``.
    """
    waiting = [content.get(part)]
    while waiting:
        step = waiting.pop(0)
        if step is not None and step.get("type") == "Sequence":
            waiting = [*step[_STEPS[part]], *waiting]
        elif step is not None:
            yield step


def patterns(content: Content) -> Iterator[str]:
    """List the regular expressions of a tokenizer."""
    for part in ("normalizer", "pre_tokenizer"):
        for step in steps(content, part):
            pattern = step.get("pattern")
            if isinstance(pattern, Mapping) and "Regex" in pattern:
                yield str(pattern["Regex"])


def _refused_by_all(content: Content) -> Iterator[str]:
    """What no reader takes, whatever the types are."""
    model, kind = content["model"], model_type(content)
    if model.get("dropout"):
        yield "a BPE model with 'dropout', which gives other tokens each time"
    if model.get("byte_fallback") and (model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")):
        yield "a BPE model with 'byte_fallback' and a prefix or suffix of pieces"
    if kind == "Unigram" and model.get("unk_id") is None:
        yield "a model of type Unigram without 'unk_id'"
    framed = False
    for step in steps(content, "post_processor"):
        if framed:
            yield f"the post-processor {step['type']} behind one that adds special tokens"
        framed = framed or step["type"] in _SPECIAL_STEPS
        if step.get("trim_offsets") and kind == "Unigram":
            yield "a post-processor with 'trim_offsets' and a model of type Unigram"
    for pattern in patterns(content):
        if _STRANGE_PATTERN.search(pattern):
            yield f"the regular expression {pattern[:60]!r}"


def _nothing(content: Content) -> Iterator[str]:
    return iter(())


SWIFT_PATTERNS = (" {2,}", r"\s{2,}|[\n\r\t]")
"""The regular expressions that the Swift sources read: those of SentencePiece's tokenizers."""


def _not_in_swift(content: Content) -> Iterator[str]:
    """What the Swift sources do not read though they know its type."""
    yield from (f"the regular expression {p[:60]!r}" for p in patterns(content) if p not in SWIFT_PATTERNS)
    for step in steps(content, "pre_tokenizer"):
        if step["type"] == "Punctuation" and str(step.get("behavior")).startswith("MergedWith"):
            yield f"the pre-tokenizer Punctuation with the behavior {step['behavior']}"


_FRAMES = ("BertProcessing", "ByteLevel", "RobertaProcessing", "TemplateProcessing")
_NORMALIZERS = "BertNormalizer ByteLevel Lowercase NFC NFD NFKC NFKD Nmt Precompiled Prepend Replace Strip StripAccents"
_JAVA_PRE_TOKENIZERS = (
    "BertPreTokenizer ByteLevel CharDelimiterSplit Digits Metaspace Punctuation Split Whitespace WhitespaceSplit"
)

JAVA = Reader(
    title="the Java sources",
    normalizers=tuple(_NORMALIZERS.split()),
    pre_tokenizers=tuple(_JAVA_PRE_TOKENIZERS.split()),
    post_processors=_FRAMES,
    models=("BPE", "Unigram", "WordLevel", "WordPiece"),
    further=_nothing,
)
SWIFT = Reader(
    title="the Swift sources",
    normalizers=tuple(_NORMALIZERS.split()),
    pre_tokenizers=tuple("BertPreTokenizer ByteLevel Digits Metaspace Punctuation Whitespace WhitespaceSplit".split()),
    post_processors=_FRAMES,
    models=("BPE", "Unigram", "WordPiece"),
    further=_not_in_swift,
)
