"""iOS: the Core ML package of the folder's scheme, with the tokenizer."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.artefacts.choice import best_of, wanted_scheme
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
        """Choose the package of the default file's scheme."""
        packages = [r for r in artefacts.models() if r.format is Format.COREML and r.plain]
        return Choice([best_of(packages, wanted_scheme(artefacts.default_model()))] if packages else [])
