"""What an app must do before and behind the files."""

from __future__ import annotations

import json

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.data.spans import has_prefixes
from pocketbert.core.predict.pooling import Pooling, PoolingKind
from pocketbert.core.predict.sentence_settings import Similarity
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.pipeline.formats.place import places
from pocketbert.pipeline.formats.snippets.extra import explained
from pocketbert.pipeline.formats.snippets.parts import applies_sigmoid, keeps_end, row_of, takes_prompts
from pocketbert.pipeline.phone.card.plain import plain

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
