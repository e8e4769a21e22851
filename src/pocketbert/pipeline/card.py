"""The model card: README.md of an artefact folder, every figure from the run that made it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pocketbert.core.artefacts import Artefacts, FileRecord
from pocketbert.core.families import Family
from pocketbert.core.tasks import TASKS
from pocketbert.core.types import Scheme


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
        _head(artefacts, facts), _files(artefacts, facts), _latency(facts), _use(artefacts), _processing(artefacts),
        _lineage(artefacts, facts),
    ]  # fmt: skip
    return "\n\n".join(p for p in parts if p) + "\n"


def _head(artefacts: Artefacts, facts: CardFacts) -> str:
    schemes = ", int8" if any(r.scheme is Scheme.INT8 for r in artefacts.models()) else ""
    labels = ", ".join(f"`{_plain(n)}`" for n in artefacts.labels[:60])
    tags = f"---\npipeline_tag: {artefacts.task}\nlibrary_name: onnx\ntags: [pocketbert, {artefacts.family}, onnx{schemes}]\n---"
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
        default = " (default)" if record.default else ""
        rows.append(
            f"| `{record.path}`{default} | {record.scheme} | {record.bytes:,} | {scores[0]} | {scores[1]} |"
        )
    aliases = [f"`{r.path}` equals `{r.alias_of}`." for r in artefacts.files if r.alias_of]
    text = ["## Files", "", *rows, ""]
    if facts.teacher_score:
        text.append(facts.teacher_score)
    text.append("Scores: provenance measured, on the file itself, every row alone and unpadded. "
                f"Machine: {artefacts.machine}.")  # fmt: skip
    return "\n".join([*text, *facts.parity, *aliases])


def _latency(facts: CardFacts) -> str:
    if not facts.latency:
        return "## Latency\n\nNot measured. `pocketbert benchmark -m .` measures it on your machine."
    rows = [
        "| file | threads | length | p50 ms | p90 ms | time relative to the first |",
        "|---|---:|---|---:|---:|---:|",
    ]
    rows += ["| " + " | ".join(r) + " |" for r in facts.latency]
    return "\n".join(["## Latency", "", *rows, "", facts.condition])


def _use(artefacts: Artefacts) -> str:
    by_scheme: Mapping[Scheme | None, FileRecord] = {r.scheme: r for r in artefacts.models()}
    chosen = artefacts.default_model()
    inputs = (
        [t.name for t in chosen.signature.inputs] if chosen.signature else ["input_ids", "attention_mask"]
    )
    dtype = "int8" if Scheme.INT8 in by_scheme else "fp32"
    length = artefacts.processing.max_length
    feeds = ", ".join(f'"{n}": ...' for n in inputs)
    kotlin = "\n".join(f'    "{n}" to OnnxTensor.createTensor(env, arrayOf({_camel(n)})),' for n in inputs)
    swift = "\n".join(f'    "{n}": try int64Tensor({_camel(n)}),' for n in inputs)
    return f"""## Use

Python, with PocketBERT (neither torch nor transformers needed):

```python
import pocketbert
model = pocketbert.load("path/to/this/folder")
print(model.predict(["your text"])[0].label)
```

Python, with ONNX Runtime and tokenizers alone:

```python
import numpy as np, onnxruntime, tokenizers
tokenizer = tokenizers.Tokenizer.from_file("tokenizer.json")
tokenizer.enable_truncation({length})
session = onnxruntime.InferenceSession("{chosen.path}")
e = tokenizer.encode("your text")
values = {{"input_ids": e.ids, "attention_mask": e.attention_mask, "token_type_ids": e.type_ids}}
feed = {{i.name: np.array([values[i.name]], np.int64) for i in session.get_inputs()}}  # {feeds}
logits = session.run(["logits"], feed)[0]
```

JavaScript, with transformers.js (the folder lies under `models/`):

```js
import {{ env, pipeline }} from "@huggingface/transformers";
env.allowRemoteModels = false; env.localModelPath = "models/";
const classify = await pipeline("text-classification", "FOLDER", {{ dtype: "{dtype}" }});
console.log(await classify("your text"));
```

Kotlin, with `com.microsoft.onnxruntime:onnxruntime-android` (ids from a tokenizer that reproduces `golden_tokens.jsonl`; not run by this project yet):

```kotlin
val env = OrtEnvironment.getEnvironment()
val session = env.createSession("{chosen.path}")
val logits = session.run(mapOf(   // LongArray each, equal lengths, at most {length}
{kotlin}
)).get("logits").get().value as Array<FloatArray>
```

Swift, with `onnxruntime-swift-package-manager` (not run by this project yet):

```swift
let session = try ORTSession(env: env, modelPath: "{chosen.path}", sessionOptions: nil)
let outputs = try session.run(withInputs: [   // int64, shape [1, length]
{swift}
], outputNames: ["logits"], runOptions: nil)
```"""


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(w.capitalize() for w in rest)


def _processing(artefacts: Artefacts) -> str:
    p = artefacts.processing
    return (
        "## Processing\n\n"
        f"At most {p.max_length} tokens, cut at the end; padding on the {p.padding_side}, masked; {p.score} over the logits "
        "gives probabilities. Inputs are int64, both axes free. `golden.jsonl` holds texts with the logits that each file must "
        "give (tolerance beside them), `golden_tokens.jsonl` the ids a tokenizer must give: "
        "`pocketbert verify -m .` checks both without labels. Dynamic int8 depends a little on batch and padding: feed one "
        "unpadded text at a time for the recorded figures."
    )


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
