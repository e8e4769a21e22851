"""Predict with an artefact folder of any task; this needs neither torch nor transformers.

Run: python examples/predict.py runs/demo/phone "turn the lights off please"
     python examples/predict.py PHONE "what is the question?" "the context"        # question-answering takes pairs
     python examples/predict.py PHONE "the question" "one choice" "another choice" # multiple choice takes all choices
"""

from __future__ import annotations

import sys

from pocketbert import Answer, Choice, Embedding, Excerpt, Filled, Labelling, Prediction, Spans, Value, load


def shown(answer: Answer) -> str:
    """Format each kind of answer as an app would show it."""
    match answer:
        case Prediction(label, score):  # text-classification
            return f"{label} ({score:.1%})"
        case Labelling(labels, scores):  # multi-label
            return ", ".join(f"{name} ({scores[name]:.1%})" for name in labels) or "no label"
        case Value(value):  # regression
            return f"{value:.2f}"
        case Spans(spans):  # token-classification; start and end count characters
            return ", ".join(f"{s.label} at {s.start}: {s.text!r}" for s in spans) or "nothing found"
        case Excerpt(text, start, _, score):  # question-answering
            return f"{text!r} at {start} ({score:.1%})" if text else "no answer"
        case Choice(index, text, score):  # multiple-choice
            return f"choice {index + 1}: {text!r} ({score:.1%})"
        case Filled(places):  # fill-mask: for each masked place the best tokens first
            return ", ".join(f"{place[0].text} ({place[0].score:.1%})" for place in places) or "no mask"
        case Embedding(vector):  # feature-extraction
            return f"a vector of {len(vector)} numbers"
    raise TypeError(type(answer).__name__)


def main(folder: str, texts: list[str]) -> None:
    """Print the answer to each text, to each pair where the folder's task takes pairs, or to a question with choices."""
    model = load(folder)
    if model.artefacts.task == "multiple-choice":
        print(f"{shown(model.predict([(texts[0], texts[1:])])[0])}\t{texts[0]}")
        return
    pairs = model.artefacts.pair or model.artefacts.task == "question-answering"
    rows = list(zip(texts[::2], texts[1::2], strict=True)) if pairs else list(texts)
    for row, answer in zip(rows, model.predict(rows), strict=True):
        print(f"{shown(answer)}\t{row if isinstance(row, str) else ' | '.join(row)}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["turn the lights off please"])
