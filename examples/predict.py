"""Predict with an artefact folder: neither torch nor transformers needed.

Run: python examples/predict.py runs/demo/phone "turn the lights off please"
"""

from __future__ import annotations

import sys

import pocketbert


def main(folder: str, texts: list[str]) -> None:
    """Print the label of each text."""
    model = pocketbert.load(folder)
    for text, answer in zip(texts, model.predict(texts), strict=True):
        print(f"{answer.label}  {answer.score:.1%}  {text}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["turn the lights off please"])
