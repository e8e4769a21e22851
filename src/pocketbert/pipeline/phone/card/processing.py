"""What an app must do before and behind the files."""

from __future__ import annotations

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.predict.pooling import Pooling, PoolingKind
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.pipeline.formats.place import places
from pocketbert.pipeline.formats.snippets.extra import explained
from pocketbert.pipeline.formats.snippets.parts import row_of
from pocketbert.pipeline.phone.card.plain import plain

LABELS_SHOWN = 60


def render_processing(artefacts: Artefacts) -> str:
    """Write how texts become inputs, and outputs become answers."""
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
            shown = ", ".join(f"`{plain(n)}` {t:g}" for n, t in limits[:LABELS_SHOWN])
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
