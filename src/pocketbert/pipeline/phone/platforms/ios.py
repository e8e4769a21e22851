"""iOS: the smallest Core ML package, with the tokenizer."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.types import Format
from pocketbert.pipeline.phone.platforms.platform import AppPlatform, Choice


class Ios(AppPlatform):
    """One Core ML package, the tokenizer's files and its sources in Swift where the folder has them."""

    name = "ios"
    title = "an iOS app"
    lacks = (
        "has no Core ML package that passed its gates; iOS apps run these.",
        "Export again with --format coreml.",
    )
    folders = ("ios",)
    takes_forms = True

    def models(self, artefacts: Artefacts) -> Choice:
        """Choose the smallest package."""
        packages = [r for r in artefacts.models() if r.format is Format.COREML and r.plain]
        return Choice(sorted(packages, key=lambda r: r.bytes)[:1])
