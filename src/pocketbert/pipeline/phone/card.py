"""The model card: README.md of an artefact folder, every figure from the run that made it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.families import Family
from pocketbert.core.metrics import METRICS, Direction
from pocketbert.core.predict.pooling import Pooling, PoolingKind
from pocketbert.core.tasks import TASKS, LabelKind, TaskName
from pocketbert.core.types import Format, Provenance, Scheme
from pocketbert.pipeline.formats.place import FormatPlace, place_of, places
from pocketbert.pipeline.formats.snippets import python
from pocketbert.pipeline.formats.snippets.extra import explained
from pocketbert.pipeline.formats.snippets.parts import row_of, width

LABELS_SHOWN = 60
_PIPELINES = {TaskName.MULTI_LABEL: "text-classification", TaskName.REGRESSION: "text-classification"}
"""What the Hub calls tasks that have no name of their own there."""


@dataclass(frozen=True)
class CardFacts:
    """What the card tells in addition to `Artefacts`.

    Attributes:
        family: Row of the family table.
        licence: Licence of the weights, as far as known.
        latency: Rows of the latency table: file, threads, length, p50 and p90 in ms, ratio to the teacher.
        condition: How latency was measured.
        teacher_score: The teacher's score in words, if there is one.
        parity: Sentences on parity.
        notes: Limits and honest statements.
        unreached: Labels that the torch model answers to no golden row.
    """

    family: Family
    licence: str
    latency: list[tuple[str, str, str, str, str, str]] = field(default_factory=list)
    condition: str = ""
    teacher_score: str = ""
    parity: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unreached: list[str] = field(default_factory=list)


def render_card(artefacts: Artefacts, facts: CardFacts) -> str:
    """The card as Markdown.

    Args:
        artefacts: The folder's list.
        facts: Measured figures and lineage.
    """
    parts = [
        _head(artefacts, facts),
        _files(artefacts, facts),
        _latency(artefacts, facts),
        _snippets(artefacts),
        _processing(artefacts),
        _lineage(artefacts, facts),
    ]
    return "\n\n".join(p for p in parts if p) + "\n"


def _head(artefacts: Artefacts, facts: CardFacts) -> str:
    schemes = ", int8" if any(r.scheme is Scheme.INT8 for r in artefacts.models()) else ""
    formats = list(map(str, _formats(artefacts)))
    tags = (
        f"---\npipeline_tag: {_PIPELINES.get(artefacts.task, artefacts.task)}\nlibrary_name: {formats[0]}\n"
        f"tags: [pocketbert, {artefacts.family}, {', '.join(formats)}{schemes}]\n---"
    )
    return (
        f"{tags}\n\n# {_plain(artefacts.name)}\n\n{facts.family.title} for {artefacts.task}, converted for phones by PocketBERT. "
        f"{_answers(artefacts)}"
    )


def _formats(artefacts: Artefacts) -> list[Format]:
    """The formats of the folder's files, in their order."""
    return list(dict.fromkeys(r.format for r in artefacts.models()))


def _snippets(artefacts: Artefacts) -> str:
    """The section on use: code for each client that opens a file which this folder really has."""
    own = [code for place in places() for code in place.snippets(artefacts)]
    return "\n\n".join(["## Use", python.pocketbert(artefacts), *own])


def _answers(artefacts: Artefacts) -> str:
    """What comes out, in one sentence."""
    match artefacts.task:
        case TaskName.REGRESSION:
            return "It answers with one number, in the units of the training data."
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
    names = ", ".join(f"`{_plain(n)}`" for n in artefacts.labels[:LABELS_SHOWN])
    more = f", and {count - LABELS_SHOWN} more in `config.json`" if count > LABELS_SHOWN else ""
    return f"{count} {what}: {names}{more}."


def _files(artefacts: Artefacts, facts: CardFacts) -> str:
    found = [s.metric for r in artefacts.models() for s in r.scores.values()]
    # of feature-extraction the data decide which metric it is
    metric = METRICS[found[0]] if found else TASKS[artefacts.task].metric
    better = ", lower is better" if metric.direction is Direction.LOWER else ""
    rows = [
        f"| file | scheme | bytes | {metric.name} (eval{better}) | {metric.name} (holdout{better}) |",
        "|---|---|---:|---:|---:|",
    ]
    for record in artefacts.models():
        scores = [
            METRICS[s.metric].format(s.value) if (s := record.scores.get(k)) else "not measured"
            for k in ("eval", "holdout")
        ]
        purpose = " (default)" if record.default else f" (for {x})" if (x := record.client or record.runtime) else ""
        rows.append(f"| `{record.path}`{purpose} | {record.scheme} | {record.bytes:,} | {scores[0]} | {scores[1]} |")
    aliases = [f"`{r.path}` has the same content as `{r.alias_of}`." for r in artefacts.aliases()]
    text = ["## Files", "", *rows, ""]
    if facts.teacher_score:
        text.append(facts.teacher_score)
    text.append(
        f"Scores: provenance measured, on the file itself, one row at a time without padding. Machine: {artefacts.machine}."
    )
    if emulated := [f"`{r.path}`" for r in artefacts.models() if _emulated(r)]:
        text.append(
            f"Scores of {', '.join(emulated)}: provenance emulated; the project's evaluator computed them, not Core ML."
        )
    absent = [f"No `{path}`: {reason}" for path, reason in artefacts.absent.items()]
    return "\n".join([*text, *facts.parity, *aliases, *absent])


def _emulated(record: ModelRecord) -> bool:
    return any(s.provenance is Provenance.EMULATED for s in record.seen_right)


def _latency(artefacts: Artefacts, facts: CardFacts) -> str:
    if not facts.latency:
        ways = [place_of(format).timing for format in _formats(artefacts)]
        return f"## Latency\n\nNot measured. {FormatPlace.timing if FormatPlace.timing in ways else ways[0]}."
    rows = [
        "| file | threads | length | p50 ms | p90 ms | time relative to the first |",
        "|---|---:|---|---:|---:|---:|",
    ]
    rows += ["| " + " | ".join(r) + " |" for r in facts.latency]
    return "\n".join(["## Latency", "", *rows, "", facts.condition])


def _processing(artefacts: Artefacts) -> str:
    p = artefacts.processing
    cut = (
        "longer texts are read in windows"
        if row_of(artefacts).labels is LabelKind.ANSWERS
        else "the end of longer texts is cut off"
    )
    pair = f" Inputs are pairs, in the order {', '.join(p.pair_order)}." if artefacts.pair else ""
    lines = [
        f"At most {p.max_length} tokens, including special tokens; {cut}. Padding is on the {p.padding_side}, with attention mask 0.{pair}",
        _decision(artefacts),
        "`golden.jsonl` holds texts with the answers that each file must give (with the tolerance), "
        "`golden_tokens.jsonl` the token ids that a tokenizer must give. `pocketbert verify -m .` checks both; it needs no labelled data.",
    ]
    lines += [*explained(artefacts), *(line for place in places() for line in place.processing(artefacts))]
    return "\n".join(["## Processing", "", *lines])


def _decision(artefacts: Artefacts) -> str:
    """From the outputs to an answer."""
    p = artefacts.processing
    match artefacts.task:
        case TaskName.MULTI_LABEL:
            limits = list(zip(artefacts.labels, p.thresholds or [], strict=False))
            shown = ", ".join(f"`{_plain(n)}` {t:g}" for n, t in limits[:LABELS_SHOWN])
            return (
                "Sigmoid over the logits gives each label's probability; a label is an answer if its probability reaches its threshold: "
                f"{shown}{', and so on' if len(limits) > LABELS_SHOWN else ''} (`processing.thresholds` of `artifacts.json`, in the "
                "order of `id2label`)."
            )
        case TaskName.REGRESSION:
            return "The one logit is the predicted number: apply no sigmoid or softmax, and switch off those of a client library."
        case TaskName.TOKEN_CLASSIFICATION:
            return (
                "Softmax over each token's logits gives its tags' probabilities. A word is what the tokenizer splits off (its "
                "pre-tokenizer, so `it's` is three words of most tokenizers); the tag of its first token is the word's tag, its other "
                "tokens are ignored. `B-` starts a span, `I-` of the same kind continues it, an `I-` without a start belongs to no span. Offsets count Unicode code points; "
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
            )
    return f"{p.score.capitalize()} over the logits gives probabilities."


def _lineage(artefacts: Artefacts, facts: CardFacts) -> str:
    lines = ["## Lineage and limits", "", f"- Licence of the weights: {facts.licence}."]
    lines += [f"- {key}: {_plain(value)}" for key, value in artefacts.lineage.items()]
    lines += [f"- {facts.family.title}: {limit}." for limit in facts.family.limits]
    lines += [f"- {note}" for note in facts.notes]
    if facts.unreached:
        shown = ", ".join(f"`{_plain(name)}`" for name in facts.unreached[:LABELS_SHOWN])
        more = ", and so on" if len(facts.unreached) > LABELS_SHOWN else ""
        lines.append(f"- Labels that no golden row reaches, since no text was found for them: {shown}{more}.")
    versions = ", ".join(f"{k} {v}" for k, v in artefacts.versions.items())
    return "\n".join([*lines, f"- Made with {versions}."])


def _plain(text: str) -> str:
    """Text that cannot break out of its place in the card."""
    return " ".join(text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;").split())
