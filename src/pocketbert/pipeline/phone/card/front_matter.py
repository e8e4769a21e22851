"""The block of YAML that begins the card: what the Hugging Face Hub reads of it."""

from __future__ import annotations

import re

import yaml

from pocketbert.core.artefacts import Artefacts
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Scheme
from pocketbert.pipeline.phone.card.facts import CardFacts
from pocketbert.pipeline.phone.card.figures import formats_of

_PIPELINES = {TaskName.MULTI_LABEL: "text-classification", TaskName.REGRESSION: "text-classification"}
"""What the Hub calls tasks that have no name of their own there."""
LICENCES = tuple(
    "apache-2.0 mit afl-3.0 agpl-3.0 artistic-2.0 bigcode-openrail-m bigscience-openrail-m bsd-2-clause bsd-3-clause "
    "bsd-3-clause-clear bsl-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 "
    "cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 "
    "cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 gpl-2.0 gpl-3.0 isc "
    "lgpl-2.1 lgpl-3.0 mpl-2.0 ms-pl ncsa odc-by ofl-1.1 openrail osl-3.0 pddl postgresql unlicense wtfpl zlib".split()
)
"""Identifiers of licences that the Hub accepts (huggingface.co/docs/hub/repositories-licenses)."""


def render_front_matter(artefacts: Artefacts, facts: CardFacts) -> str:
    """Write what the Hub shows and searches: licence, base model, language, data sets, task, library, tags."""
    formats = [str(format) for format in formats_of(artefacts)]
    schemes = ["int8"] if any(r.scheme is Scheme.INT8 for r in artefacts.models()) else []
    entries = {
        **licence_entries(facts.licence),
        "base_model": facts.base_model,
        "language": list(facts.languages),
        "datasets": list(facts.datasets),
        "pipeline_tag": str(_PIPELINES.get(artefacts.task, artefacts.task)),
        "library_name": str(artefacts.default_model().format),
        "tags": ["pocketbert", artefacts.family, *formats, *schemes],
    }
    known = {key: value for key, value in entries.items() if value}
    return f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=200)}---"


def licence_entries(licence: str) -> dict[str, str]:
    """Find what the Hub calls a licence.

    Args:
        licence: As the folder's lineage words it, e.g. ``Apache-2.0 (model card of X)``.

    Returns:
        ``license`` for a licence that the Hub knows; ``license: other`` with a name for another one; nothing where it is unknown.
    """
    words = licence.strip().lower().split()
    first = words[0].strip("(),;:.") if words else "unknown"
    if first in LICENCES:
        return {"license": first}
    if first == "unknown":
        return {}
    name = re.sub(r"[^a-z0-9.]+", "-", licence.partition("(")[0].strip().lower()).strip("-")[:60]
    return {"license": "other", "license_name": name} if name else {}
