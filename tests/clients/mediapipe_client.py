"""Runs inside MediaPipe's environment: `python mediapipe_client.py question.json answer.json`."""

import json
import sys
from pathlib import Path

from mediapipe.tasks.python import BaseOptions, text


def classify(model, texts):
    """Per text, the scores by category index and the names of the categories."""
    options = text.TextClassifierOptions(base_options=BaseOptions(model_asset_path=model))
    with text.TextClassifier.create_from_options(options) as client:
        out = []
        for entry in texts:
            categories = client.classify(entry).classifications[0].categories
            categories = sorted(categories, key=lambda c: c.index)
            out.append({"scores": [c.score for c in categories], "names": [c.category_name for c in categories]})
        return out


def embed(model, texts):
    """Per text, the embedding."""
    options = text.TextEmbedderOptions(base_options=BaseOptions(model_asset_path=model))
    with text.TextEmbedder.create_from_options(options) as client:
        return [[float(v) for v in client.embed(entry).embeddings[0].embedding] for entry in texts]


def ids(model, texts):
    """Per text, the ids of a model that gives its ids back, padding left out."""
    return [[int(v) for v in row[: max(i for i, v in enumerate(row) if v) + 1]] for row in embed(model, texts)]


def main():
    """Answer one question; an error of MediaPipe is an answer too."""
    question = json.loads(Path(sys.argv[1]).read_text())
    verb = {"classify": classify, "embed": embed, "ids": ids}[question["verb"]]
    try:
        answer = {"rows": verb(question["model"], question["texts"])}
    except (ValueError, RuntimeError, OSError) as error:
        answer = {"error": f"{type(error).__name__}: {error}"}
    Path(sys.argv[2]).write_text(json.dumps(answer))


main()
