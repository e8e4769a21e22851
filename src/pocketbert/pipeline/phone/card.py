"""The model card: README.md of an artefact folder, with every figure from the run that made the folder.

`render_card` writes it in the order in which an app developer asks: which file to take on which platform, what the model is, what an app
needs, the code, then figures, weights, processing, lineage and limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import yaml

from pocketbert.core.artefacts import Artefacts, RoleRow, summarize_roles
from pocketbert.core.families import Family
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Scheme
from pocketbert.pipeline.formats.base import format_places
from pocketbert.pipeline.formats.snippets import python
from pocketbert.pipeline.formats.snippets.parts import Offer, Platform, applies_sigmoid, output_width
from pocketbert.pipeline.phone.card_figures import CardFigures, formats_of, plain, render_figures, render_headline
from pocketbert.pipeline.phone.card_processing import LABELS_SHOWN, render_processing

_HUB_TASKS = {TaskName.MULTI_LABEL: "text-classification", TaskName.REGRESSION: "text-classification"}
"""What the Hub calls tasks that have no name of their own there."""
_HUB_LICENCES = tuple(
    "apache-2.0 mit afl-3.0 agpl-3.0 artistic-2.0 bigcode-openrail-m bigscience-openrail-m bsd-2-clause bsd-3-clause "
    "bsd-3-clause-clear bsl-1.0 cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 "
    "cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 "
    "cdla-permissive-1.0 cdla-permissive-2.0 cdla-sharing-1.0 ecl-2.0 epl-1.0 epl-2.0 eupl-1.1 eupl-1.2 gpl-2.0 gpl-3.0 isc "
    "lgpl-2.1 lgpl-3.0 mpl-2.0 ms-pl ncsa odc-by ofl-1.1 openrail osl-3.0 pddl postgresql unlicense wtfpl zlib".split()
)
"""Identifiers of licences that the Hub accepts (huggingface.co/docs/hub/repositories-licenses)."""


@dataclass(frozen=True)
class CardFacts:
    """What the model card shows beside the content of ``artifacts.json``.

    Attributes:
        family: Row of the family table.
        licence: Licence of the weights, as far as known.
        figures: Measured latencies, scores and differences from the original model.
        base_model: Name of the teacher on the Hub; empty where it has none.
        languages: Codes of the languages, as far as the teacher's card names them.
        datasets: Names of data sets on the Hub: those of the recipe, and those that the teacher's card names.
        notes: Sentences on limits of the files and of their figures.
        file_notes: A sentence on a file that its reader must know, by path.
        unreached: Labels that the torch model predicts for no golden row (recorded input with its answer).
        roles: Rows on how the weights of each role, such as query, are stored, by path of the file.
    """

    family: Family
    licence: str
    figures: CardFigures = field(default_factory=CardFigures)
    base_model: str = ""
    languages: Sequence[str] = ()
    datasets: Sequence[str] = ()
    notes: Sequence[str] = ()
    file_notes: Mapping[str, str] = field(default_factory=dict)
    unreached: Sequence[str] = ()
    roles: Mapping[str, Sequence[RoleRow]] = field(default_factory=dict)


def render_card(artefacts: Artefacts, facts: CardFacts) -> str:
    """Return the model card, README.md of an artefact folder, as Markdown.

    Args:
        artefacts: Content of the folder's ``artifacts.json``.
        facts: Measured figures and lineage.
    """
    what = str(artefacts.task) if artefacts.heads is None else f"{len(artefacts.heads)} heads on one encoder"
    parts = [
        _render_front_matter(artefacts, facts),
        f"# {plain(artefacts.name)}",
        render_headline(artefacts, facts.figures),
        f"{facts.family.title} for {what}, converted for phones by PocketBERT. {_describe_output(artefacts)}",
        _render_platforms(artefacts, facts),
        _render_code(artefacts),
        render_figures(artefacts, facts.figures),
        _render_roles(facts.roles),
        render_processing(artefacts),
        _render_lineage(artefacts, facts),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _render_front_matter(artefacts: Artefacts, facts: CardFacts) -> str:
    """Return the YAML block at the top of the model card, which the Hugging Face Hub reads: licence, task, tags and more."""
    formats = [str(format) for format in formats_of(artefacts)]
    schemes = ["int8"] if any(r.scheme is Scheme.INT8 for r in artefacts.models()) else []
    entries = {
        **_licence_entries(facts.licence),
        "base_model": facts.base_model,
        "language": list(facts.languages),
        "datasets": list(facts.datasets),
        # the Hub has no name for several heads, and its widget would show one of them
        "pipeline_tag": str(_HUB_TASKS.get(artefacts.task, artefacts.task)) if artefacts.heads is None else "",
        "library_name": str(artefacts.default_model().format),
        "tags": ["pocketbert", artefacts.family, *formats, *schemes],
    }
    known = {key: value for key, value in entries.items() if value}
    return f"---\n{yaml.safe_dump(known, sort_keys=False, allow_unicode=True, width=200)}---"


def _licence_entries(licence: str) -> dict[str, str]:
    """Return the entries of the model card's YAML block that state a licence.

    Args:
        licence: The licence as the folder's lineage words it, e.g. ``Apache-2.0 (model card of X)`` or ``mit (base X),
            cc-by-nc-4.0 (adapter Y)``.

    Returns:
        ``license`` with a licence that the Hub knows; ``license: other`` with a name for another licence, or for several; empty
        if the licence is unknown.
    """
    several = dict.fromkeys(re.findall(r"(?:^|\), )([^()]+?) \(", licence))
    if len(several) > 1:
        return {"license": "other", "license_name": _slug(" and ".join(several))}
    words = licence.strip().lower().split()
    first = words[0].strip("(),;:.") if words else "unknown"
    if first in _HUB_LICENCES:
        return {"license": first}
    if first == "unknown":
        return {}
    name = _slug(licence.partition("(")[0])
    return {"license": "other", "license_name": name} if name else {}


def _slug(text: str) -> str:
    """Return a name of at most 60 lower-case letters, digits, dots and hyphens for a text."""
    return re.sub(r"[^a-z0-9.]+", "-", text.strip().lower()).strip("-")[:60]


def _describe_output(artefacts: Artefacts) -> str:
    """Return one sentence for the model card on what the model answers."""
    match artefacts.task:
        case TaskName.REGRESSION:
            units = " from 0 to 1" if applies_sigmoid(artefacts) else ", in the units of the training data"
            return f"It answers with one number{units}."
        case TaskName.QUESTION_ANSWERING:
            return "It answers with a piece of the text that a question is asked about" + (
                ", or with none." if artefacts.processing.null_answers else "."
            )
        case TaskName.MULTIPLE_CHOICE:
            return "It answers with the most probable of several choices, each of which it reads by itself behind the question."
        case TaskName.FILL_MASK:
            return "It answers with tokens for the masked places of a text."
        case TaskName.FEATURE_EXTRACTION:
            numbers = output_width(artefacts.models()[0])
            return f"It answers with one vector{f' of {numbers} numbers' if numbers else ''} per text."
    if artefacts.heads is not None:
        row = artefacts.task_row
        own = [f"`{h.name}`: {h.task.name} (output `{h.output}`)" for h in row.heads]
        return f"All heads answer in one pass: {', '.join(own)}."
    count, what = (
        len(artefacts.labels),
        "tags" if artefacts.task is TaskName.TOKEN_CLASSIFICATION else "labels",
    )
    names = ", ".join(f"`{plain(n)}`" for n in artefacts.labels[:LABELS_SHOWN])
    more = f", and {count - LABELS_SHOWN} more in `config.json`" if count > LABELS_SHOWN else ""
    return f"{count} {what}: {names}{more}."


def _render_platforms(artefacts: Artefacts, facts: CardFacts) -> str:
    """Return the model card's table of what an app needs on each platform, with notes on the files, as Markdown."""
    rows, _ = _choose_offers(artefacts)
    if not rows:
        return ""
    lines = [
        "## What an app needs",
        "",
        "| platform | file in the code | MB in the app | needs at least | tokenizer | dependency |",
        "|---|---|---:|---|---|---|",
    ]
    for offer in rows:
        size = f"{offer.bytes(artefacts) / 1e6:.1f}"
        dependency = "<br>".join(f"`{line}`" for line in offer.dependencies) or "none"
        lines.append(
            f"| {offer.platform} | `{offer.record.path}` | {size} | {offer.needs} | {offer.tokenizer} | {dependency} |"
        )
    lines += ["", "MB in the app: the file, and `tokenizer.json` for apps that read it; not the library that runs it."]
    for offer in rows:
        measured = [note for path, note in facts.file_notes.items() if path == offer.record.path]
        if notes := [*measured, *offer.notes]:
            lines.append(f"- {offer.platform}, `{offer.record.path}`: {' '.join(notes)}")
    return "\n".join(lines)


def _render_code(artefacts: Artefacts) -> str:
    """Return the model card's example code as Markdown: for each platform of its table, for PocketBERT and for other clients."""
    rows, others = _choose_offers(artefacts)
    more = [offer.snippet for offer in others] + [
        code for place in format_places() for code in place.snippets(artefacts)
    ]
    toolkit = python.pocketbert(artefacts)
    if not rows:
        return "\n\n".join(["## Use", toolkit, *more])
    folded = ["<details><summary>Code for more clients</summary>", *more, "</details>"] if more else []
    return "\n\n".join(["## Use", *(offer.snippet for offer in rows), toolkit, *folded])


def _choose_offers(artefacts: Artefacts) -> tuple[list[Offer], list[Offer]]:
    """Choose the file to recommend for each platform among those that the formats offer for it.

    Returns:
        The first format's row for each platform, in the table's order; and the rows left over, for more code.
    """
    offers = [offer for place in format_places() for offer in place.offers(artefacts)]
    chosen = [next((o for o in offers if o.platform is platform), None) for platform in Platform]
    rows = [offer for offer in chosen if offer is not None]
    return rows, [offer for offer in offers if offer not in rows]


def _render_roles(tables: Mapping[str, Sequence[RoleRow]]) -> str:
    """Return a Markdown table for each quantized file: how it stores the weights of each role (place in a layer, such as query).

    Tables of files for which the recipe set no roles are folded away.

    Args:
        tables: Rows of each table, by path of the file; empty if there are none.
    """
    if not tables:
        return ""
    parts = ["## Weights by role"]
    for path, rows in tables.items():
        table = _role_table(rows)
        if any(r.chosen for r in rows):
            parts.append(f"`{path}`:\n\n{table}")
        else:
            parts.append(f"<details><summary>{path}: {summarize_roles(rows)}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts)


def _role_table(rows: Sequence[RoleRow]) -> str:
    """Return the rows of one file's table of weights by role as Markdown."""
    head = ["| role | scheme | stored as | weights | bytes | |", "|---|---|---|---:|---:|---|"]
    return "\n".join([*head, *map(_role_row, rows)])


def _role_row(row: RoleRow) -> str:
    """Return a row on the weights of one role as a line of Markdown; operators without weights have only a note."""
    if not row.weights:
        return f"| {row.role} | – | – | – | – | {plain(row.note)} |"
    title, note = plain(row.title), plain(row.note)
    return f"| {title} | {row.made} | {row.stored} | {row.weights} | {row.bytes:,} | {note} |"


def _render_lineage(artefacts: Artefacts, facts: CardFacts) -> str:
    """Return the model card's section on lineage, limits and library versions as Markdown."""
    lines = ["## Lineage and limits", "", f"- Licence of the weights: {facts.licence}."]
    lines += [f"- {key}: {plain(value)}" for key, value in artefacts.lineage.items() if key != "licence"]
    lines += [f"- {facts.family.title}: {limit}." for limit in facts.family.limits]
    lines += [f"- {note}" for note in facts.notes]
    if facts.unreached:
        shown = ", ".join(f"`{plain(name)}`" for name in facts.unreached[:LABELS_SHOWN])
        more = ", and so on" if len(facts.unreached) > LABELS_SHOWN else ""
        lines.append(f"- Labels that no golden row reaches, since no text was found for them: {shown}{more}.")
    versions = ", ".join(f"{k} {v}" for k, v in artefacts.versions.items())
    return "\n".join([*lines, f"- Made with {versions}."])
