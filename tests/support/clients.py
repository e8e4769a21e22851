"""What clients are asked, code of the card, and their answers against those of this toolkit."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pocketbert
from pocketbert.core.predict.answers import (
    Answer,
    Choice,
    Embedding,
    Excerpt,
    Filled,
    HeadAnswers,
    Labelling,
    Prediction,
    Spans,
    Value,
    answer_fields,
)
from pocketbert.core.predict.spans import spans_from_tags
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import HEADS_KEY, TASKS, Level, TaskName, several_task
from support.published import edit_json
from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer

LENGTH = 48
HEADS = {"slots": TaskName.TOKEN_CLASSIFICATION.value, "intent": TaskName.TEXT_CLASSIFICATION.value}
"""Of a model with several heads."""
LABELS = {
    TaskName.TEXT_CLASSIFICATION: ("negative", "not so sure", "très bien"),
    TaskName.MULTI_LABEL: ("music", "light", "food", "time"),
    TaskName.REGRESSION: ("LABEL_0",),
    TaskName.MULTIPLE_CHOICE: ("LABEL_0",),
    TaskName.TOKEN_CLASSIFICATION: ("O", "B-time", "I-time", "B-place", "I-place"),
}
LABELS[TaskName.SEVERAL] = tuple(f"{head}: {label}" for head, task in HEADS.items() for label in LABELS[TaskName(task)])
CLIENT_TASKS = [*TASKS, TaskName.SEVERAL]
"""What PocketBERT's own clients answer."""
TEXTS = (
    "set an alarm for half past six",
    "the film was far better than I had expected, would recommend it",
    "no",
    "what will the weather be like on monday morning in the restaurant",
    "please turn down the music a little: it's 7%",
    "a very quick brown fox jumps over the lazy dog, and they order more music for the happy day",
)
ODD_TEXTS = ("Café Ümlaut – naïve 😀 day", "", "  the\tlight \n 中文 fox", "word " * 90)
"""What tokenizers disagree on first, and one that is too long."""
QUESTIONS = (
    ("what is it", "the film was good and the restaurant was bad at night"),
    ("will it be a great day?", "No, said she. It was a poor morning, and then 12 lazy dogs turned the light down."),
    ("who", "a fox"),
)
LONG_QUESTION = (
    "what is it like",
    " ".join(f"{a} day {b} 😀" for a, b in zip(TEXTS[5].split() * 4, TEXTS[3].split() * 5, strict=False)),
)
"""Needs several windows."""
MASKED = ("play some [MASK] please", "[MASK] was a good film", "turn the light [MASK].")


def write_model(task: TaskName, folder: Path) -> None:
    """Write a random model of the task whose answers differ from text to text."""
    write_tokenizer(folder)
    row = several_task(HEADS, LABELS[task]) if task is TaskName.SEVERAL else TASKS[task]
    kind = {"problem_type": row.problem_type} if row.problem_type else {}
    model = tiny_classifier("bert", 2, LABELS.get(task, ("LABEL_0", "LABEL_1")), auto_class=row.auto_class, **kind)
    heads = {TaskName.FILL_MASK: "cls.predictions.decoder", TaskName.QUESTION_ANSWERING: "qa_outputs"}
    if task is not TaskName.FEATURE_EXTRACTION:
        head = model.get_submodule(heads.get(task, "classifier"))
        with torch.no_grad():
            if task is not TaskName.FILL_MASK:  # whose decoder is the embedding table
                head.weight *= 10
            logits = [_logits(model, ids) for ids in TextTokenizer(folder, LENGTH).encode(list(TEXTS))]
            means = torch.cat(logits).mean(0)
            for named in (named for named in row.heads if named.task.level is Level.TEXT):  # read at the first token
                means[named.columns] = torch.stack([of_text[0, named.columns] for of_text in logits]).mean(0)
            head.bias -= means
    model.save_pretrained(folder)
    if row.heads:
        edit_json(folder / "config.json", **{HEADS_KEY: HEADS})
    if task is TaskName.MULTIPLE_CHOICE:  # of BERT, the weights of this class have the same names
        edit_json(folder / "config.json", architectures=["BertForMultipleChoice"])


def _logits(model: Any, row: Any) -> Any:
    out = model(input_ids=torch.from_numpy(row.ids[None]))
    values = out.logits if "logits" in out else torch.stack([out.start_logits, out.end_logits], -1)
    return values.reshape(-1, values.shape[-1])


def texts_of(task: str, odd: bool = True) -> list[Any]:
    """What a model of the task is asked; `odd` with texts that clients may treat in their own way."""
    if task == TaskName.QUESTION_ANSWERING:
        return [*QUESTIONS, *([LONG_QUESTION] if odd else [])]
    if task == TaskName.MULTIPLE_CHOICE:
        return [(question, (context, "nothing of it")) for question, context in QUESTIONS]
    if task == TaskName.FILL_MASK:
        return list(MASKED)
    return [*TEXTS, *(ODD_TEXTS if odd else ())]


def plain(answer: Any) -> Any:
    """An answer of this toolkit as the card's snippets and other clients can give it."""
    match answer:
        case Prediction():
            return answer.scores
        case Labelling():
            return list(answer.labels)
        case Value():
            return answer.value
        case Spans():
            return [(s.start, s.end, s.label) for s in answer.spans]
        case Excerpt():
            return answer.text
        case Choice():
            return [answer.text, answer.score]
        case Filled():
            return [guess.text for guess in answer.places[0]]
        case Embedding():
            return answer.vector.tolist()
        case HeadAnswers():
            return {name: plain(own) for name, own in answer.answers.items()}
    raise TypeError(type(answer).__name__)


def answers(phone: Path, file: str, texts: Sequence[Any]) -> list[Answer]:
    """What this toolkit answers with one file, each text alone."""
    model = pocketbert.load(phone, file=file, threads=1)
    return [model.predict([text])[0] for text in texts]


def own(phone: Path, file: str, texts: Sequence[Any]) -> list[Any]:
    """The same as the card's snippets give it."""
    return [plain(answer) for answer in answers(phone, file, texts)]


def code_of(phone: Path, lead: str, language: str) -> str:
    """The code under the card's sentence that begins with `lead`."""
    return snippet((phone / "README.md").read_text(encoding="utf-8"), lead, language)


def snippet(card: str, lead: str, language: str) -> str:
    """The code under a card's sentence that begins with `lead`."""
    found = re.findall(rf"^{re.escape(lead)}[^\n]*:\n\n```{language}\n(.*?)\n```", card, re.S | re.M)
    assert len(found) == 1, f"{len(found)} snippets begin with {lead!r}"
    return str(found[0])


def with_texts(code: str, text: Any) -> str:
    """A snippet about another text than the card's."""
    texts = [text] if isinstance(text, str) else list(text)
    code, masks = re.subn(
        r"f?[\"`]your text with a \$?\{[^}]*\}[\"`]", lambda _: json.dumps(texts[0], ensure_ascii=False), code
    )
    if masks:
        return code
    if not isinstance(texts[-1], str):
        code = code.replace('["one choice", "another choice"]', json.dumps(texts.pop(), ensure_ascii=False))
    asks = "your question" in code
    examples = ("your question", "the text that holds the answer") if asks else ("your text", "the second text")
    for example, one in zip(examples, texts, strict=False):
        assert code.count(json.dumps(example)) == 1, code
        code = code.replace(json.dumps(example), json.dumps(one, ensure_ascii=False))
    return code


def largest(a: Any, b: Any) -> float:
    """Largest difference of two nested lists of numbers."""
    return float(np.abs(np.asarray(a, np.float64) - np.asarray(b, np.float64)).max())


def same_in_javascript(task: str, answer: Any, expected: Answer, close: float = 1e-3) -> float | None:
    """transformers.js's answer against this toolkit's, as far as that client goes; the largest difference of numbers."""
    apart: float | None = None
    match expected:
        case Prediction():
            scores = {a["label"]: a["score"] for a in answer}
            assert scores.keys() == expected.scores.keys()
            apart = max(abs(scores[n] - expected.scores[n]) for n in scores)
        case Labelling():
            assert [a["label"] for a in answer] == list(expected.labels)
            apart = max((abs(a["score"] - expected.scores[a["label"]]) for a in answer), default=None)
        case Value():
            apart = largest(answer, expected.value)
        case Embedding():
            apart = largest(answer, expected.vector)
        case Spans():  # tokens without places: the first one of each word decides
            tags = [a["entity"] for a in answer if not a["word"].startswith("##")]
            numbered = [(i, i + 1) for i in range(len(tags))]
            assert [s.label for s in expected.spans] == [kind for *_, kind in spans_of(tags, numbered)]
        case Excerpt():  # decoded tokens: lower case, other blanks
            assert _squeezed(answer["answer"]) == _squeezed(expected.text)
        case Choice():
            assert answer["choice"] == expected.text
            apart = largest(answer["score"], expected.score)
        case Filled():
            guesses = expected.places[0][: len(answer)]
            assert [a["token_str"] for a in answer] == [g.text for g in guesses]
            apart = largest([a["score"] for a in answer], [g.score for g in guesses])
        case _:
            raise TypeError(task)
    assert apart is None or apart < close
    return apart


def same_fields(made: Any, expected: Answer, close: float) -> None:
    """Every field of @pocketbert/runtime's answer as this toolkit has it; scores within the rounding of another engine."""

    def near(one: Any, other: Any) -> None:
        np.testing.assert_allclose(np.asarray(one, float), np.asarray(other, float), rtol=0, atol=close)

    assert made["truncated"] == expected.truncated
    if isinstance(expected, HeadAnswers):
        fields = answer_fields(expected)
        assert made.keys() == fields.keys(), "other names than those of `predict --json`"
        for name, own in expected.answers.items():
            assert fields[name].keys() <= made[name].keys()
            same_fields(made[name], own, close)
        return
    match expected:
        case Prediction():
            assert (made["label"], made["unknown"]) == (expected.label, expected.unknown)
            assert list(made["scores"]) == list(expected.scores)
            near(list(made["scores"].values()), list(expected.scores.values()))
        case Spans():
            assert [{**s, "score": 0} for s in made["spans"]] == [{**vars(s), "score": 0} for s in expected.spans]
            near([s["score"] for s in made["spans"]], [s.score for s in expected.spans])
        case Excerpt():
            assert (made["text"], made["start"], made["end"]) == (expected.text, expected.start, expected.end)
            near(made["score"], expected.score)
        case Filled():
            assert [[g["token"] for g in place[:3]] for place in made["places"]] == [
                [g.token for g in place[:3]] for place in expected.places
            ]
            near([g["score"] for p in made["places"] for g in p], [g.score for p in expected.places for g in p])
        case Embedding():
            near(made["vector"], expected.vector)
        case Choice():
            assert (made["index"], made["text"]) == (expected.index, expected.text)
            near(made["scores"], expected.scores)
        case Labelling():
            assert made["labels"] == list(expected.labels)
            near(list(made["scores"].values()), list(expected.scores.values()))
        case Value():
            near(made["value"], expected.value)
        case _:
            raise TypeError(type(expected).__name__)


def spans_of(tags: Sequence[str], places: Sequence[tuple[int, int]]) -> list[tuple[int, int, str]]:
    """Spans of IOB2 tags, as the toolkit reads them."""
    return [(s.start, s.end, s.label) for s in spans_from_tags(list(tags), list(places))]


def _squeezed(text: str) -> str:
    return "".join(text.lower().split())
