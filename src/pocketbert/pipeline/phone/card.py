"""The model card: README.md of an artefact folder, every figure from the run that made it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from pocketbert.core.artefacts import Artefacts, ModelRecord, RoleRow, in_one_line
from pocketbert.core.compare.parity import Parity
from pocketbert.core.data.cells import has_prefixes
from pocketbert.core.families import Family
from pocketbert.core.formats import FORMATS
from pocketbert.core.metrics import METRICS, Direction
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind, Similarity
from pocketbert.core.tasks import TASKS, LabelKind, TaskName
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.formats.base import FormatPlace, place_of, places
from pocketbert.pipeline.formats.snippets import python
from pocketbert.pipeline.formats.snippets.parts import (
    Offer,
    Platform,
    applies_sigmoid,
    explained,
    keeps_end,
    row_of,
    takes_prompts,
    width,
)
from pocketbert.pipeline.make.model_files import read_parity

if TYPE_CHECKING:
    from pocketbert.benchmarks.measurement import BenchmarkResult


# --- plain ---
# Text of a user as a cell or a list item of the card.


def plain(text: str) -> str:
    """Text that cannot break out of its place in the card."""
    return " ".join(text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;").split())


# --- figures ---
# The part of the card that measurements change: sizes, scores and latencies, between two comment lines.


BEGIN = "<!-- pocketbert figures: begin -->"
END = "<!-- pocketbert figures: end -->"
REAL_TEXT = "real text"
"""Name of the length of texts as they are."""


@dataclass(frozen=True)
class LatencyRow:
    """One row of the latency table.

    Attributes:
        file: Path of the file, or the name of a model that is not in the folder.
        threads: Threads that computed.
        length: Tokens of the inputs, or `REAL_TEXT`, with the idle time where inferences came after one.
        p50: Median in ms.
        p90: 90th percentile in ms.
        ratio: Time relative to the first file, in words.
    """

    file: str
    threads: int
    length: str
    p50: float
    p90: float
    ratio: str


@dataclass(frozen=True)
class CardFigures:
    """What was measured, in addition to the scores of `Artefacts`.

    Attributes:
        latency: Rows of the latency table.
        condition: How latency was measured, in one sentence.
        teacher_score: The teacher's score in words; empty where there is none.
        parity: Comparisons of the files with the original model.
    """

    latency: Sequence[LatencyRow] = ()
    condition: str = ""
    teacher_score: str = ""
    parity: Sequence[Parity] = ()


def render_figures(artefacts: Artefacts, figures: CardFigures) -> str:
    """Write the sections on files and latency, framed by the two comment lines.

    Args:
        artefacts: The folder's list.
        figures: What was measured.
    """
    return "\n\n".join([BEGIN, _files(artefacts, figures), _latency(artefacts, figures), END])


def replace_figures(card: str, figures: str) -> str | None:
    """Replace the figures of a card.

    Args:
        card: The card, which a user may have edited.
        figures: What `render_figures` returned.

    Returns:
        The card with the new figures; None where the two comment lines are gone.
    """
    before, begin, rest = card.partition(BEGIN)
    _, end, after = rest.partition(END)
    return f"{before}{figures}{after}" if begin and end else None


def formats_of(artefacts: Artefacts) -> list[Format]:
    """List the formats of a folder's files, in the order in which formats are registered."""
    there = {r.format for r in artefacts.models()}
    return [format for format in FORMATS if format in there]


def _in_order(artefacts: Artefacts) -> list[ModelRecord]:
    """The model files by format, those for one client last; a list that was read from a folder is sorted by path."""
    order = formats_of(artefacts)
    return sorted(artefacts.models(), key=lambda r: (order.index(r.format), r.client or "", r.path))


def _files(artefacts: Artefacts, figures: CardFigures) -> str:
    found = [s.metric for r in artefacts.models() for s in r.scores.values()]
    # of feature-extraction the data decide which metric it is
    metric = METRICS[found[0]] if found else TASKS[artefacts.task].metric
    better = ", lower is better" if metric.direction is Direction.LOWER else ""
    sets = list(dict.fromkeys(["eval", *(name for r in artefacts.models() for name in r.scores)]))
    columns = "".join(f" {metric.name} ({plain(name)}{better}) |" for name in sets)
    rows = [f"| file | scheme | bytes |{columns}", f"|---|---|---:|{'---:|' * len(sets)}"]
    for record in _in_order(artefacts):
        scores = "".join(
            f" {METRICS[s.metric].format(s.value) if (s := record.scores.get(name)) else 'not measured'} |"
            for name in sets
        )
        rows.append(f"| `{record.path}`{_purpose(record)} | {record.scheme} | {record.bytes:,} |{scores}")
    text = ["## Files", "", *rows, ""]
    if figures.teacher_score:
        text.append(figures.teacher_score)
    text.append(
        f"Scores: provenance measured, on the file itself, one row at a time without padding. Machine: {artefacts.machine}."
    )
    if emulated := [f"`{r.path}`" for r in artefacts.models() if r.emulated]:
        text.append(
            f"Scores of {', '.join(emulated)}: provenance emulated; the project's evaluator computed them, not Core ML."
        )
    text += _parity(figures.parity)
    text += [f"`{r.path}` has the same content as `{r.alias_of}`." for r in artefacts.aliases()]
    return "\n".join([*text, *(f"No `{path}`: {reason}" for path, reason in artefacts.absent.items())])


def _purpose(record: ModelRecord) -> str:
    if record.default:
        return " (default of `pocketbert.load`)"
    only = record.client or record.runtime
    return f" (for {only})" if only else ""


def _parity(parity: Sequence[Parity]) -> list[str]:
    """One sentence on all files."""
    if not parity:
        return []
    each = ", ".join(f"`{p.subject}` {p.worst:.0e} (allowed {p.bound:.0e})" for p in parity)
    return [
        f"Largest difference from the original model, as a share of the outputs' spread: {each}; up to "
        f"{max(len(p.shapes) for p in parity)} input shapes, padded and unpadded."
    ]


def _latency(artefacts: Artefacts, figures: CardFigures) -> str:
    if not figures.latency:
        ways = [place_of(format).timing for format in formats_of(artefacts)]
        return f"## Latency\n\nNot measured. {FormatPlace.timing if FormatPlace.timing in ways else ways[0]}."
    shown = _first_look(figures.latency)
    parts = ["## Latency", _table(shown)]
    if len(shown) < len(figures.latency):
        every = f"<summary>All {len(figures.latency)} latencies</summary>"
        parts.append(f"<details>{every}\n\n{_table(figures.latency)}\n\n</details>")
    return "\n\n".join([*parts, figures.condition])


def _first_look(rows: Sequence[LatencyRow]) -> list[LatencyRow]:
    """The rows at the smallest number of threads, of real text and of the middle one of the other lengths."""
    threads = min(row.threads for row in rows)
    fixed = sorted({row.length for row in rows if row.length.isdecimal()}, key=int)
    middle = fixed[len(fixed) // 2] if fixed else ""
    return [
        row for row in rows if row.threads == threads and (row.length == middle or row.length.startswith(REAL_TEXT))
    ]


def _table(rows: Sequence[LatencyRow]) -> str:
    head = [
        "| file | threads | length | p50 ms | p90 ms | time relative to the first |",
        "|---|---:|---|---:|---:|---:|",
    ]
    body = [f"| {r.file} | {r.threads} | {r.length} | {r.p50:.2f} | {r.p90:.2f} | {r.ratio} |" for r in rows]
    return "\n".join([*head, *body])


# --- facts ---
# What the card tells in addition to the folder's list.


@dataclass(frozen=True)
class CardFacts:
    """What the card tells in addition to `Artefacts`.

    Attributes:
        family: Row of the family table.
        licence: Licence of the weights, as far as known.
        figures: What was measured.
        base_model: Name of the teacher on the Hub; empty where it has none.
        languages: Codes of the languages, as far as the teacher's card names them.
        datasets: Names of data sets on the Hub: those of the recipe, and those that the teacher's card names.
        notes: Limits and honest statements.
        file_notes: A sentence on a file that its reader must know, by path.
        unreached: Labels that the torch model answers to no golden row.
        roles: What became of the weights of each role, by path of the file.
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


# --- front_matter ---
# The block of YAML that begins the card: what the Hugging Face Hub reads of it.


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


# --- processing ---
# What an app must do before and behind the files.


LABELS_SHOWN = 60
PROMPTS_SHOWN = 20
_CHARACTERS_SHOWN = 200
_COMPARED = {
    Similarity.COSINE: "the cosine of the angle between them",
    Similarity.DOT: "their dot product",
    Similarity.EUCLIDEAN: "their negative Euclidean distance",
    Similarity.MANHATTAN: "the negative sum of the absolute differences",
}


def render_processing(artefacts: Artefacts) -> str:
    """Write how texts become inputs, and outputs become answers."""
    p = artefacts.processing
    cut = (
        "longer texts are read in windows"
        if row_of(artefacts).labels is LabelKind.ANSWERS
        else f"the {'beginning' if keeps_end(artefacts) else 'end'} of longer texts is cut off"
    )
    pair = f" Inputs are pairs, in the order {', '.join(p.pair_order)}." if artefacts.pair else ""
    lines = [
        f"At most {p.max_length} tokens, including special tokens; {cut}. Padding is on the {p.padding_side}, with attention mask 0.{pair}",
        *_prompts(artefacts),
        _decision(artefacts),
        "`golden.jsonl` holds texts with the answers that each file must give (with the tolerance), "
        "`golden_tokens.jsonl` the token ids that a tokenizer must give. `pocketbert verify -m .` checks both; it needs no labelled data.",
    ]
    lines += [*explained(artefacts), *(line for place in places() for line in place.processing(artefacts))]
    return "\n".join(["## Processing", "", *lines])


def _prompts(artefacts: Artefacts) -> list[str]:
    """One line on the texts that are put in front of a text; none where the folder has none."""
    p = artefacts.processing
    if not takes_prompts(artefacts):
        return []
    named = list(p.prompts.items())
    shown = ", ".join(
        f"`{plain(n)}` (`{plain(json.dumps(t[:_CHARACTERS_SHOWN], ensure_ascii=False))}`)"
        for n, t in named[:PROMPTS_SHOWN]
    )
    rest = ", and so on" if len(named) > PROMPTS_SHOWN or any(len(t) > _CHARACTERS_SHOWN for _, t in named) else ""
    default = "no prompt" if p.default_prompt is None else f"`{plain(p.default_prompt)}`"
    return [
        f"Prompts are put in front of a text before it is tokenized, of a pair in front of the first: {shown}{rest} "
        f"(`processing.prompts` of `artifacts.json`); by default {default}. Texts in `golden_tokens.jsonl` begin with the default "
        "one, those in `golden.jsonl` do not."
    ]


def _decision(artefacts: Artefacts) -> str:
    """From the outputs to an answer."""
    p = artefacts.processing
    match artefacts.task:
        case TaskName.MULTI_LABEL:
            limits = list(zip(artefacts.labels, p.thresholds or [], strict=False))
            shown = ", ".join(f"`{plain(n)}` {t:g}" for n, t in limits[:LABELS_SHOWN])
            return (
                "Sigmoid over the logits gives each label's probability; a label is an answer if its probability reaches its threshold: "
                f"{shown}{', and so on' if len(limits) > LABELS_SHOWN else ''} (`processing.thresholds` of `artifacts.json`, in the "
                "order of `id2label`)."
            )
        case TaskName.REGRESSION if applies_sigmoid(artefacts):
            return "The sigmoid of the one logit is the answer, a number from 0 to 1; the files give the logit."
        case TaskName.REGRESSION:
            return "The one logit is the predicted number: apply no sigmoid or softmax, and switch off those of a client library."
        case TaskName.TOKEN_CLASSIFICATION:
            marks = (
                "`B-` starts a span, `I-` of the same kind continues it, an `I-` without a start belongs to no span."
                if has_prefixes(artefacts.labels)
                else "No tag has a prefix such as `B-`: each word whose tag is not `O` is a span, also next to a word with the same tag."
            )
            return (
                "Softmax over each token's logits gives its tags' probabilities. A word is what the tokenizer splits off (its "
                "pre-tokenizer, so `it's` is three words of most tokenizers); the tag of its first token is the word's tag, its other "
                f"tokens are ignored. {marks} Offsets count Unicode code points; "
                "strings of Java, Kotlin, JavaScript and Swift's NSString count UTF-16 units, and an emoji is two of them."
            )
        case TaskName.QUESTION_ANSWERING:
            none = (
                "A question has no answer if the sum of the first token's two logits is higher than the best answer's in every window."
                if p.null_answers
                else "Every question gets an answer."
            )
            return (
                f"Question first, then context. A context that does not fit is read in windows that share {p.stride} tokens (fewer if "
                f"that leaves no room). The answer is the start and end inside the context with the highest sum of `start_logits` and "
                f"`end_logits`, at most {p.answer_length} tokens long, the best of all windows. {none} Offsets count Unicode code points."
            )
        case TaskName.FILL_MASK:
            return "Softmax over the logits of a masked token gives each vocabulary entry's probability there."
        case TaskName.FEATURE_EXTRACTION:
            pooling = Pooling(PoolingKind(p.pooling or PoolingKind.MEAN), bool(p.normalize))
            return (
                f"`sentence_embedding` is the {pooling.title}, padding left out, computed inside the files; `last_hidden_state` has the "
                "token states, for clients that pool themselves."
                f"{f' Two vectors are compared by {_COMPARED[p.similarity]}.' if p.similarity else ''}"
            )
    return f"{_confidence(artefacts)}{_unknown(artefacts)}"


_WHO = "`pocketbert.load` and the app core mark it, the code in this card gives no label then; other clients have to compare."


def _unknown(artefacts: Artefacts) -> str:
    """Below which probability an answer is unknown, with a blank before; empty where none is."""
    p = artefacts.processing
    if p.unknown_accuracy is None:
        told = f"{p.unknown:g} (`processing.unknown` of `artifacts.json`)" if p.unknown is not None else ""
    else:
        each = ", ".join(
            f"`{r.path}` {least:g}{_answered(r)}" for r in artefacts.models() if (least := artefacts.unknown_below(r))
        )
        told = (
            f"the threshold of the file, fitted so that at least {p.unknown_accuracy * 100:g} % of the others are right: {each} "
            "(`confidence.unknown` of each file in `artifacts.json`)"
        )
    return f" An answer whose largest probability is below {told} is unknown: {_WHO}" if told else ""


def _answered(record: ModelRecord) -> str:
    """What a threshold does on the rows that decide the score, in brackets; empty where nobody measured it."""
    sure = record.confidence
    if sure is None or sure.answered is None or sure.answered_accuracy is None:
        return ""
    return f" ({sure.measured_on}: answers {sure.answered * 100:.1f} %, {sure.answered_accuracy * 100:.1f} % of them right)"


def _confidence(artefacts: Artefacts) -> str:
    """From the logits of a classifier to probabilities, with the temperature of each file."""
    warm = [r for r in artefacts.models() if r.temperature != 1]
    if not warm:
        return "Softmax over the logits gives probabilities."
    told = ", ".join(f"`{r.path}` {r.temperature:g}{_fitted(r)}" for r in warm)
    plain_ones = [f"`{r.path}`" for r in artefacts.models() if r.temperature == 1]
    others = f" The softmax of {', '.join(plain_ones)} is not divided." if plain_ones else ""
    return (
        f"Softmax over the logits, divided by the temperature of the file, gives probabilities: {told}.{others} The label is the same "
        "with and without it. `pocketbert.load`, the app core and the code in this card divide; clients that compute a plain softmax do "
        "not, and their probabilities p differ: transformers, optimum, transformers.js pipelines, MediaPipe and the class probabilities "
        "of Core ML. p^(1/T), divided by the sum over all labels, corrects these (`confidence` of each file in `artifacts.json`)."
    )


def _fitted(record: ModelRecord) -> str:
    """How much right the temperature makes the probabilities, in brackets; empty where nobody measured it."""
    sure = record.confidence
    if sure is None or sure.error is None or sure.error_before is None:
        return ""
    rows = f"fitted on {sure.fitted_rows:,} held-out rows; " if sure.fitted_rows else ""
    before, after = f"{sure.error_before * 100:.2f}", f"{sure.error * 100:.2f}"
    return f" ({rows}expected calibration error on {sure.measured_on} {before} points without, {after} with it)"


# --- lineage ---
# Where the weights come from, and what the files cannot do.


def render_lineage(artefacts: Artefacts, facts: CardFacts) -> str:
    """Write lineage, limits and the libraries that made the files."""
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


# --- platforms ---
# The card's first table, which file for which platform, and one complete piece of code for each row.


def offers_of(artefacts: Artefacts) -> tuple[list[Offer], list[Offer]]:
    """Choose a file for each platform.

    Returns:
        The first file that a format offers for each platform, in the table's order; and the other offers.
    """
    offers = [offer for place in places() for offer in place.offers(artefacts)]
    chosen = [next((o for o in offers if o.platform is platform), None) for platform in Platform]
    rows = [offer for offer in chosen if offer is not None]
    return rows, [offer for offer in offers if offer not in rows]


def render_platforms(artefacts: Artefacts, facts: CardFacts) -> str:
    """Write the table and what its reader must know of single files."""
    rows, _ = offers_of(artefacts)
    if not rows:
        return ""
    lines = [
        "## Which file",
        "",
        "| platform | file to take | MB in the app | needs at least | tokenizer | dependency |",
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
        if notes := [*_measured(offer, facts), *offer.notes]:
            lines.append(f"- {offer.platform}, `{offer.record.path}`: {' '.join(notes)}")
    return "\n".join(lines)


def _measured(offer: Offer, facts: CardFacts) -> list[str]:
    return [note for path, note in facts.file_notes.items() if path == offer.record.path]


def render_code(artefacts: Artefacts) -> str:
    """Write the code of each row, and folded that of further clients."""
    rows, others = offers_of(artefacts)
    more = [offer.snippet for offer in others] + [code for place in places() for code in place.snippets(artefacts)]
    toolkit = python.pocketbert(artefacts)
    if not rows:
        return "\n\n".join(["## Use", toolkit, *more])
    folded = ["<details><summary>Code for more clients</summary>", *more, "</details>"] if more else []
    return "\n\n".join(["## Use", *(offer.snippet for offer in rows), toolkit, *folded])


# --- roles ---
# What became of the weights of each role in the smaller files.


def render_roles(tables: Mapping[str, Sequence[RoleRow]]) -> str:
    """Write a table of each smaller file, folded where the recipe chose no roles in it.

    Args:
        tables: Rows by path of the file; nothing is written without any.
    """
    if not tables:
        return ""
    parts = ["## Weights by role"]
    for path, rows in tables.items():
        table = _roles_table(rows)
        if any(r.chosen for r in rows):
            parts.append(f"`{path}`:\n\n{table}")
        else:
            parts.append(f"<details><summary>{path}: {in_one_line(rows)}</summary>\n\n{table}\n\n</details>")
    return "\n\n".join(parts)


def _roles_table(rows: Sequence[RoleRow]) -> str:
    head = ["| role | scheme | stored as | weights | bytes | |", "|---|---|---|---:|---:|---|"]
    return "\n".join([*head, *map(_row, rows)])


def _row(row: RoleRow) -> str:
    if not row.weights:
        return f"| {row.role} | – | – | – | – | {plain(row.note)} |"
    title, note = plain(row.title), plain(row.note)
    return f"| {title} | {row.made} | {row.stored} | {row.weights} | {row.bytes:,} | {note} |"


# --- card ---
# The whole card, in the order in which an app developer asks: what it is, which file, code, then figures and limits.


def render_card(artefacts: Artefacts, facts: CardFacts) -> str:
    """Write the card as Markdown.

    Args:
        artefacts: The folder's list.
        facts: Measured figures and lineage.
    """
    parts = [
        render_front_matter(artefacts, facts),
        f"# {plain(artefacts.name)}",
        f"{facts.family.title} for {artefacts.task}, converted for phones by PocketBERT. {_answers(artefacts)}",
        render_platforms(artefacts, facts),
        render_code(artefacts),
        render_figures(artefacts, facts.figures),
        render_roles(facts.roles),
        render_processing(artefacts),
        render_lineage(artefacts, facts),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _answers(artefacts: Artefacts) -> str:
    """What comes out, in one sentence."""
    match artefacts.task:
        case TaskName.REGRESSION:
            units = " from 0 to 1" if applies_sigmoid(artefacts) else ", in the units of the training data"
            return f"It answers with one number{units}."
        case TaskName.QUESTION_ANSWERING:
            return "It answers with a piece of the text that a question is asked about" + (
                ", or with none." if artefacts.processing.null_answers else "."
            )
        case TaskName.FILL_MASK:
            return "It answers with tokens for the masked places of a text."
        case TaskName.FEATURE_EXTRACTION:
            numbers = width(artefacts.models()[0])
            return f"It answers with one vector{f' of {numbers} numbers' if numbers else ''} per text."
    count, what = (
        len(artefacts.labels),
        "tags" if artefacts.task is TaskName.TOKEN_CLASSIFICATION else "labels",
    )
    names = ", ".join(f"`{plain(n)}`" for n in artefacts.labels[:LABELS_SHOWN])
    more = f", and {count - LABELS_SHOWN} more in `config.json`" if count > LABELS_SHOWN else ""
    return f"{count} {what}: {names}{more}."


# --- measured ---
# The figures of an artefact folder, read from nothing but the folder.


TEACHER_SCORE = "teacher score"
"""Entry of `Artefacts.lineage` with the teacher's score in words."""
BENCHMARK_FILE = "benchmark.json"


def measured_figures(folder: Path, artefacts: Artefacts) -> CardFigures:
    """Read what was measured of a folder's files from ``benchmark.json`` and ``parity.json``, where they are there.

    Args:
        folder: The artefact folder.
        artefacts: Its list.
    """
    from pocketbert.benchmarks.measurement import BenchmarkResult

    benchmark = folder / BENCHMARK_FILE
    session = BenchmarkResult.read(benchmark).headline if benchmark.is_file() else None
    timed = session if session is not None and session.timed else None
    paths = {r.path for r in artefacts.models()}
    score = artefacts.lineage.get(TEACHER_SCORE)
    return CardFigures(
        latency=latency_rows(artefacts, timed) if timed else (),
        condition=_condition(timed) if timed else "",
        teacher_score=f"Teacher: {score}." if score else "",
        parity=[p for p in read_parity(folder) if p.subject in paths],
    )


def latency_rows(artefacts: Artefacts, session: BenchmarkResult) -> Sequence[LatencyRow]:
    """List the latencies of one session; files of the folder are known by their digest, others keep their name.

    Args:
        artefacts: The folder's list.
        session: What one device measured.
    """
    from pocketbert.benchmarks.wording import idle, time_ratio

    paths = {r.sha256: r.path for r in artefacts.models()}
    names = {v.name: paths.get(v.sha256, v.name) for v in session.variants}
    out = []
    for m in session.measurements:
        if m.wall is None or (m.gap_ms and m.length != session.protocol.lengths[0]):
            continue  # the report has single calls at every length, too
        compared = session.compare(m.variant, m.threads, m.length, m.gap_ms)
        length = (REAL_TEXT if m.length == "text" else str(m.length)) + idle(m.gap_ms)
        ratio = time_ratio(compared.wall if compared else None)
        out.append(LatencyRow(names.get(m.variant, m.variant), m.threads, length, m.wall.p50, m.wall.p90, ratio))
    return out


def _condition(session: BenchmarkResult) -> str:
    engines = ", ".join(dict.fromkeys(f"{m.engine} {m.engine_version}" for m in session.measurements))
    return (
        f"Provenance {session.measurements[0].provenance}, batch 1, {engines} on {session.machine.summary}; "
        f"the files took turns, {session.protocol.runs_made[0]} or more runs in each of {session.protocol.repeats} repeats. "
        f"Figures on a phone differ. Raw samples: `{BENCHMARK_FILE}`."
    )
