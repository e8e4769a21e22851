"""The model card: README.md of an artefact folder, every figure from the run that made it."""

from __future__ import annotations

from dataclasses import dataclass, field

from pocketbert.core.artefacts import Artefacts, FileRecord
from pocketbert.core.families import Family
from pocketbert.core.tasks import TASKS
from pocketbert.core.types import Format, Provenance, Scheme
from pocketbert.pipeline.snippets import snippets


@dataclass(frozen=True)
class CardFacts:
    """What the card tells beside `Artefacts`.

    Attributes:
        family: Row of the family table.
        licence: Licence of the weights, as far as known.
        latency: Rows of the latency table: file, threads, length, p50 and p90 in ms, ratio to the teacher.
        condition: How latency was measured.
        teacher_score: The teacher's score in words, if there is one.
        parity: Sentences on parity.
        notes: Limits and honest statements.
    """

    family: Family
    licence: str
    latency: list[tuple[str, str, str, str, str, str]] = field(default_factory=list)
    condition: str = ""
    teacher_score: str = ""
    parity: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def render_card(artefacts: Artefacts, facts: CardFacts) -> str:
    """The card as Markdown.

    Args:
        artefacts: The folder's list.
        facts: Measured figures and lineage.
    """
    parts = [
        _head(artefacts, facts), _files(artefacts, facts), _latency(artefacts, facts), snippets(artefacts),
        _processing(artefacts),
        _lineage(artefacts, facts),
    ]  # fmt: skip
    return "\n\n".join(p for p in parts if p) + "\n"


def _head(artefacts: Artefacts, facts: CardFacts) -> str:
    schemes = ", int8" if any(r.scheme is Scheme.INT8 for r in artefacts.models()) else ""
    labels = ", ".join(f"`{_plain(n)}`" for n in artefacts.labels[:60])
    formats = list(dict.fromkeys(str(r.format) for r in artefacts.models()))
    tags = (
        f"---\npipeline_tag: {artefacts.task}\nlibrary_name: {formats[0]}\n"
        f"tags: [pocketbert, {artefacts.family}, {', '.join(formats)}{schemes}]\n---"
    )
    return (
        f"{tags}\n\n# {_plain(artefacts.name)}\n\n{facts.family.title} for {artefacts.task}, made for phones by PocketBERT. "
        f"{len(artefacts.labels)} labels: {labels}."
    )


def _files(artefacts: Artefacts, facts: CardFacts) -> str:
    metric = TASKS[artefacts.task].metric
    rows = [
        "| file | numbers | bytes | " + f"{metric.name} (eval) | {metric.name} (holdout) |",
        "|---|---|---:|---:|---:|",
    ]
    for record in artefacts.models():
        scores = [
            metric.format(s.value) if (s := record.scores.get(k)) else "not measured"
            for k in ("eval", "holdout")
        ]
        purpose = (
            " (default)"
            if record.default
            else f" (for {x})"
            if (x := record.client or record.runtime)
            else ""
        )
        rows.append(
            f"| `{record.path}`{purpose} | {record.scheme} | {record.bytes:,} | {scores[0]} | {scores[1]} |"
        )
    aliases = [f"`{r.path}` equals `{r.alias_of}`." for r in artefacts.files if r.alias_of]
    text = ["## Files", "", *rows, ""]
    if facts.teacher_score:
        text.append(facts.teacher_score)
    text.append("Scores: provenance measured, on the file itself, every row alone and unpadded. "
                f"Machine: {artefacts.machine}.")  # fmt: skip
    if emulated := [f"`{r.path}`" for r in artefacts.models() if _emulated(r)]:
        text.append(f"Those of {', '.join(emulated)}: provenance emulated, by the project's evaluator.")
    absent = [f"No `{path}`: {reason}" for path, reason in artefacts.absent.items()]
    return "\n".join([*text, *facts.parity, *aliases, *absent])


def _emulated(record: FileRecord) -> bool:
    return any(s.provenance is Provenance.EMULATED for s in record.seen_right)


def _latency(artefacts: Artefacts, facts: CardFacts) -> str:
    if not facts.latency:
        how = "`pocketbert benchmark -m .` measures it on your machine"
        if all(r.format is Format.COREML for r in artefacts.models()):
            how = "`python3 coreml/benchmark_on_mac.py` measures it on a Mac"
        return f"## Latency\n\nNot measured. {how}."
    rows = [
        "| file | threads | length | p50 ms | p90 ms | time relative to the first |",
        "|---|---:|---|---:|---:|---:|",
    ]
    rows += ["| " + " | ".join(r) + " |" for r in facts.latency]
    return "\n".join(["## Latency", "", *rows, "", facts.condition])


def _processing(artefacts: Artefacts) -> str:
    p = artefacts.processing
    lines = [
        f"At most {p.max_length} tokens, cut at the end; padding on the {p.padding_side}, masked; {p.score} over the logits "
        "gives probabilities. `golden.jsonl` holds texts with the answers that each file must give (tolerance beside them), "
        "`golden_tokens.jsonl` the ids a tokenizer must give: `pocketbert verify -m .` checks both without labels."
    ]
    formats = {r.format for r in artefacts.models()}
    if Format.ONNX in formats:
        lines.append("ONNX: int64 inputs, both axes free. Dynamic int8 depends a little on batch and padding: feed one unpadded "
                     "text at a time for the recorded figures.")  # fmt: skip
    tflite = [r for r in artefacts.models() if r.format is Format.TFLITE and r.signature]
    if tflite and tflite[0].signature:
        lengths = ", ".join(map(str, tflite[0].signature.lengths))
        lines.append(
            f"TFLite: int32 inputs [1, length], one signature `seq_LENGTH` each for {lengths} tokens; pad to the next one."
        )
        lines.append("An int8 file without a runtime in its name is for LiteRT (ai-edge-litert, seen right with the version in "
                     "`artifacts.json`): TFLite up to 2.16 opens it and answers wrongly without an error. PocketBERT checks golden rows "
                     "before first use; an app should run one as well.")  # fmt: skip
    coreml = [r for r in artefacts.models() if r.format is Format.COREML and r.signature]
    if coreml and coreml[0].signature:
        lengths = ", ".join(map(str, coreml[0].signature.lengths))
        lines.append(
            "Core ML: int32 inputs [1, length]; "
            + (f"lengths {lengths}: pad to the next one." if lengths else f"any length up to {p.max_length}.")
            + " A classifier answers with `classLabel`, `classLabel_probs` and `logits`."
        )
    return "\n".join(["## Processing", "", *lines])


def _lineage(artefacts: Artefacts, facts: CardFacts) -> str:
    lines = ["## Lineage and limits", "", f"- Licence of the weights: {facts.licence}."]
    lines += [f"- {key}: {_plain(value)}" for key, value in artefacts.lineage.items()]
    lines += [f"- {facts.family.title}: {limit}." for limit in facts.family.limits]
    lines += [f"- {note}" for note in facts.notes]
    versions = ", ".join(f"{k} {v}" for k, v in artefacts.versions.items())
    return "\n".join([*lines, f"- Made with {versions}."])


def _plain(text: str) -> str:
    """Text that cannot break out of its place in the card."""
    return " ".join(text.replace("|", "\\|").replace("`", "'").replace("<", "&lt;").split())
