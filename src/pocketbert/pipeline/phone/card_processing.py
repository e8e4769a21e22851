"""The section of a model card on processing: how texts become inputs, and outputs become answers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pocketbert.core.artefacts import Artefacts, ModelRecord
from pocketbert.core.data.labels import Labels
from pocketbert.core.metrics import METRICS
from pocketbert.core.predict.sentence_settings import Pooling, PoolingKind, Similarity
from pocketbert.core.predict.spans import have_iob_prefixes
from pocketbert.core.tasks import LabelKind, TaskName
from pocketbert.pipeline.formats.base import format_places
from pocketbert.pipeline.formats.snippets.parts import (
    applies_sigmoid,
    explain_inputs,
    keeps_end,
    takes_prompts,
    task_row,
)
from pocketbert.pipeline.phone.card_figures import plain

LABELS_SHOWN = 60
"""Most label names that a card lists."""
_PROMPTS_SHOWN = 20
_CHARACTERS_SHOWN = 200
_SIMILARITY_WORDS = {
    Similarity.COSINE: "the cosine of the angle between them",
    Similarity.DOT: "their dot product",
    Similarity.EUCLIDEAN: "their negative Euclidean distance",
    Similarity.MANHATTAN: "the negative sum of the absolute differences",
}


def render_processing(artefacts: Artefacts) -> str:
    """Return the model card's section on how texts become inputs and outputs become answers, as Markdown."""
    p = artefacts.processing
    cut = (
        "longer texts are read in windows"
        if task_row(artefacts).labels is LabelKind.ANSWERS
        else f"the {'beginning' if keeps_end(artefacts) else 'end'} of longer texts is cut off"
    )
    pair = f" Inputs are pairs, in the order {', '.join(p.pair_order)}." if artefacts.pair else ""
    lines = [
        f"At most {p.max_length} tokens, including special tokens; {cut}. Padding is on the {p.padding_side}, with attention mask 0.{pair}",
        *_prompt_lines(artefacts),
        _describe_answer(artefacts),
        "`golden.jsonl` holds texts with the answers that each file must give (with the tolerance), "
        "`golden_tokens.jsonl` the token ids that a tokenizer must give. `pocketbert verify -m .` checks both; it needs no labelled data.",
    ]
    lines += [*explain_inputs(artefacts), *(line for place in format_places() for line in place.processing(artefacts))]
    return "\n".join(["## Processing", "", *lines])


def _prompt_lines(artefacts: Artefacts) -> list[str]:
    """Return a list of one line on the prompts that are put in front of texts; empty if the folder has none."""
    p = artefacts.processing
    if not takes_prompts(artefacts):
        return []
    named = list(p.prompts.items())
    shown = ", ".join(
        f"`{plain(n)}` (`{plain(json.dumps(t[:_CHARACTERS_SHOWN], ensure_ascii=False))}`)"
        for n, t in named[:_PROMPTS_SHOWN]
    )
    rest = ", and so on" if len(named) > _PROMPTS_SHOWN or any(len(t) > _CHARACTERS_SHOWN for _, t in named) else ""
    default = "no prompt" if p.default_prompt is None else f"`{plain(p.default_prompt)}`"
    return [
        f"Prompts are put in front of a text before it is tokenized, of a pair in front of the first: {shown}{rest} "
        f"(`processing.prompts` of `artifacts.json`); by default {default}. Texts in `golden_tokens.jsonl` begin with the default "
        "one, those in `golden.jsonl` do not."
    ]


def _describe_tags(tags: Sequence[str], splits_punctuation: bool) -> str:
    """Return sentences on how the logits of tokens become labelled words; `splits_punctuation` as in `Processing`."""
    marks = (
        "`B-` starts a span, `I-` of the same kind continues it, an `I-` without a start belongs to no span."
        if have_iob_prefixes(tags)
        else "No tag has a prefix such as `B-`: each word whose tag is not `O` is a span, also next to a word with the same tag."
    )
    word = (
        "what the tokenizer splits off (its pre-tokenizer, so `it's` is three words of most tokenizers)"
        if not splits_punctuation
        else "what the tokenizer splits off at blanks, and within it one also begins at a token that begins with punctuation or follows it "
        "(`splits_punctuation` of `artifacts.json`)"
    )
    return (
        f"Softmax over each token's logits gives its tags' probabilities. A word is {word}; the tag of its first token is the word's tag, its other "
        f"tokens are ignored. {marks} Offsets count Unicode code points; "
        "strings of Java, Kotlin, JavaScript and Swift's NSString count UTF-16 units, and an emoji is two of them."
    )


def _describe_heads(artefacts: Artefacts) -> str:
    """Return sentences on how the outputs of several heads become an answer of each."""
    row, lines, apart = artefacts.task_row, list[str](), bool(artefacts.processing.splits_punctuation)
    for head, labels in zip(row.heads, Labels(tuple(artefacts.labels)).split(row), strict=True):
        names = ", ".join(f"`{plain(n)}`" for n in labels.names[:LABELS_SHOWN])
        more = f", and {len(labels) - LABELS_SHOWN} more in `config.json`" if len(labels) > LABELS_SHOWN else ""
        words = {
            LabelKind.NAME: f"softmax over the logits gives the probabilities of the labels {names}{more}.",
            LabelKind.NAMES: f"the sigmoid of each logit gives the probability of the labels {names}{more}; from 0.5 on it is an answer.",
            LabelKind.SCORE: "the one logit is the predicted number.",
            LabelKind.SPANS: f"a row of logits for each token, for the tags {names}{more}. {_describe_tags(labels.names, apart)}",
        }
        lines.append(f"- `{head.output}` ({head.task.name}): {words[head.task.labels]}")
    lead = "`id2label` in `config.json` lists the labels of all heads, in their order and with the head's name in front (`intent: NAME`)."
    return "\n".join([lead, "", *lines, ""])


def _describe_answer(artefacts: Artefacts) -> str:
    """Return sentences on how an app turns the files' outputs into an answer of the task."""
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
        case TaskName.SEVERAL:
            return _describe_heads(artefacts)
        case TaskName.REGRESSION:
            return "The one logit is the predicted number: apply no sigmoid or softmax, and switch off those of a client library."
        case TaskName.TOKEN_CLASSIFICATION:
            return _describe_tags(artefacts.labels, bool(p.splits_punctuation))
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
        case TaskName.MULTIPLE_CHOICE:
            return (
                "Each choice is a row of the input by itself: the question first, then the choice. `logits` is one number for each row; the "
                "softmax over the numbers of all choices of a question gives their probabilities, and the largest is the answer "
                "(`processing.score` of `artifacts.json`). Apply no softmax or sigmoid to a single row, and switch off those of a client library."
            )
        case TaskName.FILL_MASK:
            return "Softmax over the logits of a masked token gives each vocabulary entry's probability there."
        case TaskName.FEATURE_EXTRACTION:
            first, *further = (PoolingKind(kind) for kind in (p.pooling or PoolingKind.MEAN).split("+"))
            pooled = Pooling(first, bool(p.normalize and not p.vector_layers), tuple(further)).title
            layers = "".join(f", then {plain(layer)}" for layer in p.vector_layers)
            unit = ", of length 1" if p.normalize and p.vector_layers else ""
            return (
                f"`sentence_embedding` is the {pooled}{layers}{unit}, padding left out, computed inside the files; `last_hidden_state` has the "
                "token states, for clients that pool themselves."
                f"{f' Two vectors are compared by {_SIMILARITY_WORDS[p.similarity]}.' if p.similarity else ''}"
                f"{_describe_lengths(artefacts)}"
            )
    return f"{_describe_probabilities(artefacts)}{_describe_unknown(artefacts)}"


def _describe_lengths(artefacts: Artefacts) -> str:
    """Return sentences on the lengths to which vectors may be cut, with a leading space; empty if they may not."""
    lengths = artefacts.processing.dimensions
    if not lengths:
        return ""
    default = artefacts.default_model()
    measured = ""
    for name, score in default.scores.items():
        metric = METRICS[score.metric]
        cut = [
            f"{metric.format(score.others[key])} at {n}"
            for n in lengths
            if (key := f"{metric.name}@{n}") in score.others
        ]
        if cut:
            measured = f" `{default.path}` reaches {', '.join(cut)} and {metric.format(score.value)} with all ({metric.name} on {name})."
            break
    return (
        f" A vector may be cut to its first {' or '.join(map(str, lengths))} numbers (`processing.dimensions` of "
        f"`artifacts.json`), which are then divided by their length.{measured}"
    )


_WHO_MARKS_UNKNOWN = "`pocketbert.load` and the app core mark it, the code in this card gives no label then; other clients have to compare."


def _describe_unknown(artefacts: Artefacts) -> str:
    """Return the sentence on answers that count as unknown, with a leading space; empty if no file has a threshold."""
    p = artefacts.processing
    if p.unknown_accuracy is None:
        limit = f"{p.unknown:g} (`processing.unknown` of `artifacts.json`)" if p.unknown is not None else ""
    else:
        each = ", ".join(
            f"`{r.path}` {least:g}{_measured_coverage(r)}"
            for r in artefacts.models()
            if (least := artefacts.unknown_below(r))
        )
        limit = (
            f"the threshold of the file, fitted so that at least {p.unknown_accuracy * 100:g} % of the others are right: {each} "
            "(`confidence.unknown` of each file in `artifacts.json`)"
        )
    return f" An answer whose largest probability is below {limit} is unknown: {_WHO_MARKS_UNKNOWN}" if limit else ""


def _measured_coverage(record: ModelRecord) -> str:
    """Return in brackets which share of rows a threshold leaves answered and how many of these are right.

    Empty if that was not measured.
    """
    measured = record.confidence
    if measured is None or measured.answered is None or measured.answered_accuracy is None:
        return ""
    accuracy = measured.answered_accuracy * 100
    return f" ({measured.measured_on}: answers {measured.answered * 100:.1f} %, {accuracy:.1f} % of them right)"


def _describe_probabilities(artefacts: Artefacts) -> str:
    """Return sentences on how logits become probabilities, with the temperature of each file."""
    scaled = [r for r in artefacts.models() if r.temperature != 1]
    if not scaled:
        return "Softmax over the logits gives probabilities."
    temperatures = ", ".join(f"`{r.path}` {r.temperature:g}{_calibration_note(r)}" for r in scaled)
    unscaled = [f"`{r.path}`" for r in artefacts.models() if r.temperature == 1]
    others = f" The softmax of {', '.join(unscaled)} is not divided." if unscaled else ""
    return (
        f"Softmax over the logits, divided by the temperature of the file, gives probabilities: {temperatures}.{others} The label is the same "
        "with and without it. `pocketbert.load`, the app core and the code in this card divide; clients that compute a plain softmax do "
        "not, and their probabilities p differ: transformers, optimum, transformers.js pipelines, MediaPipe and the class probabilities "
        "of Core ML. p^(1/T), divided by the sum over all labels, corrects these (`confidence` of each file in `artifacts.json`)."
    )


def _calibration_note(record: ModelRecord) -> str:
    """Return the calibration error with and without a file's temperature, in brackets; empty if it was not measured."""
    measured = record.confidence
    if measured is None or measured.error is None or measured.error_before is None:
        return ""
    rows = f"fitted on {measured.fitted_rows:,} held-out rows; " if measured.fitted_rows else ""
    before, after = f"{measured.error_before * 100:.2f}", f"{measured.error * 100:.2f}"
    return f" ({rows}expected calibration error on {measured.measured_on} {before} points without, {after} with it)"
