"""Copies the sources of a tokenizer in the language of a platform into an artefact folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from pocketbert.core.artefacts import Kind, Processing
from pocketbert.core.disk.files import read_json
from pocketbert.core.predict.tokenizer_file import MAX_MIB
from pocketbert.pipeline.formats.snippets.parts import quote_for_java, quote_for_swift
from pocketbert.pipeline.phone.tokenizers.reader import JAVA, SWIFT, Reader

PACKAGE = "pocketbert.pipeline.phone.tokenizers"
README = "README.md"


@dataclass(frozen=True)
class Sources:
    """The sources for one platform.

    Attributes:
        folder: Their folder in the artefact folder.
        page: File next to this module that says what they need and how to call them.
        reader: What they read.
        origins: Installed files, and folders with everything in them, by their path below `folder`; relative to this module.
    """

    folder: str
    page: str
    reader: Reader
    origins: Mapping[str, str]

    def copied(self) -> dict[str, bytes]:
        """Content of the files, by their path in the artefact folder."""
        root = files(PACKAGE)
        found = (f for name, origin in self.origins.items() for f in _below(root.joinpath(*origin.split("/")), name))
        return {f"{self.folder}/{name}": content for name, content in sorted(found)}

    def readme(self, processing: Processing, pad_id: int) -> str:
        """The page with an artefact folder's own values."""
        text = (files(PACKAGE) / self.page).read_text(encoding="utf-8")
        left = str(processing.padding_side == "left").lower()
        values = {
            "max_length": processing.max_length,
            "pad_id": pad_id,
            "left": left,
            "keeps_end": str(processing.truncation_side == "left").lower(),
            "swift_prompt": quote_for_swift(processing.named_prompts.text_of(None)),
        }
        return Template(text).substitute(values | _prompts_in_java(processing))


_TABLES = "java/resources/org/pocketbert/tokenizers"
ANDROID = Sources(
    folder="android",
    page="java.md",
    reader=JAVA,
    origins={
        "java/org/pocketbert/tokenizers": "java/java/org/pocketbert/tokenizers",
        "java/org/pocketbert/text/Batch.java": "java/java/org/pocketbert/text/Batch.java",
        "resources/org/pocketbert/tokenizers": _TABLES,
    },
)
IOS = Sources(
    folder="ios",
    page="swift.md",
    reader=SWIFT,
    origins={"Tokenizer": "swift", "unicode.bin": f"{_TABLES}/unicode.bin"},
)
PLATFORMS = (ANDROID, IOS)


@dataclass(frozen=True)
class PackedSources:
    """What was copied, and what was not.

    Attributes:
        kinds: Kind of every file, by its path in the artefact folder.
        absent: Folders without sources, and why.
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)


def pack_sources(destination: Path, processing: Processing, pad_id: int) -> PackedSources:
    """Write the sources that read the tokenizer of an artefact folder.

    Args:
        destination: The folder while it is made; has tokenizer.json already.
        processing: How its inputs are made.
        pad_id: Id of the token that pads.

    Returns:
        What was written, and the reason for what was not.
    """
    content = read_json(destination / "tokenizer.json", MAX_MIB)
    kinds, absent = dict[str, Kind](), dict[str, str]()
    for platform in PLATFORMS:
        why = platform.reader.refusal(content)
        if why is not None:
            absent[f"{platform.folder}/"] = why
            continue
        page = platform.readme(processing, pad_id).encode()
        for name, written in {**platform.copied(), f"{platform.folder}/{README}": page}.items():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            (destination / name).write_bytes(written)
            kinds[name] = Kind.TOOL
    return PackedSources(kinds, absent)


def _prompts_in_java(processing: Processing) -> dict[str, str]:
    """What is written into java.md for a folder's prompts and for the end at which it cuts texts; empty where it has no prompts."""
    out = dict.fromkeys(("imports", "prompts", "default_prompt", "parameter", "prompt", "prompt_note"), "")
    out["limits"] = "keepingEnd" if processing.truncation_side == "left" else "of"
    if not processing.prompts:
        return out
    each = ",\n".join(
        f"            Map.entry({quote_for_java(name)}, {quote_for_java(text)})"
        for name, text in processing.prompts.items()
    )
    return out | {
        "imports": "\nimport java.util.Map;",
        "prompts": _PROMPTS.substitute(each=each, default=quote_for_java(processing.named_prompts.text_of(None))),
        "default_prompt": _BEHIND_DEFAULT_PROMPT,
        "parameter": ", String prompt",
        "prompt": "prompt + ",
        "prompt_note": "\nThe prompt of a pair is put in front of its first text.",
    }


_PROMPTS = Template("""
    /** The texts that the model was trained to see in front of a text, by name. */
    public static final Map<String, String> PROMPTS = Map.ofEntries(
$each);

    /** The one in front of a text for which none is named; empty for none. */
    public static final String DEFAULT_PROMPT = $default;
""")
_BEHIND_DEFAULT_PROMPT = """    /** Returns the inputs of a text behind the default prompt. */
    public Batch of(String text) {
        return of(text, DEFAULT_PROMPT);
    }

"""


def _below(entry: Traversable, name: str) -> list[tuple[str, bytes]]:
    """A file, or all files of a folder, with their paths."""
    if entry.is_file():
        return [(name, entry.read_bytes())]
    return [found for inner in entry.iterdir() for found in _below(inner, f"{name}/{inner.name}")]
