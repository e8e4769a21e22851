"""A row of the card's first table: one file for one platform, with everything that an app developer asks about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pocketbert.core.artefacts import Artefacts, ModelRecord

TOKENIZER = "tokenizer.json"
SOURCES = {"Kotlin": "android", "Swift": "ios"}
"""Folder with the sources of a tokenizer, by the language of the app."""


class Platform(StrEnum):
    """Where an app runs, in the order of the table."""

    ANDROID_SIMPLE = "Android, simplest"
    ANDROID_ONNX = "Android, ONNX Runtime"
    ANDROID_LITERT = "Android, LiteRT"
    IOS = "iOS"
    IOS_ONNX = "iOS, ONNX Runtime"
    WEB = "Web, Node.js"
    PYTHON = "Python"


@dataclass(frozen=True)
class Offer:
    """The file that a format has for a platform.

    Attributes:
        platform: Where it runs.
        record: The file.
        beside: Paths of the folder that the app carries in addition.
        needs: Oldest system and libraries, in a few words.
        tokenizer: Where token ids come from.
        dependencies: Lines for Gradle, SwiftPM, npm or pip; empty where the system has all.
        snippet: Complete code: a sentence that ends with a colon, then the code.
        notes: Sentences on this file that its reader must know.
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
        """Size of the file and of what the app carries with it, in bytes; the library that runs it is not counted."""
        sizes = {r.path: r.bytes for r in artefacts.files}
        return self.record.bytes + sum(sizes.get(path, 0) for path in self.beside)


def pinned(artefacts: Artefacts, distribution: str) -> str:
    """A requirement for pip, with the version that made and checked the folder's files where it is known."""
    version = artefacts.versions.get(distribution)
    return f"{distribution}=={version}" if version else distribution


def has_sources(artefacts: Artefacts, language: str) -> bool:
    """Whether the folder has the sources of a tokenizer in a language of `SOURCES`."""
    return any(r.path.startswith(f"{SOURCES[language]}/") for r in artefacts.files)


def tokenizer_of(artefacts: Artefacts, language: str) -> str:
    """Where an app that gives token ids to a file gets them from, for the table."""
    if has_sources(artefacts, language):
        return f"sources in `{SOURCES[language]}/`, read `{TOKENIZER}`"
    return "your own: it must give the ids of `golden_tokens.jsonl`"
