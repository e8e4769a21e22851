"""A reranker teaches a sentence encoder: `teach` writes its scores beside pairs or triplets, and the student learns margins or their order."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from pocketbert.pipeline.learn.finishing import read_training
from support.tiny import tiny_classifier, write_bert, write_own_tokenizer
from support.tiny_task import Task
from support.tiny_texts import task_rows, vocabulary, write_lines

Run = Callable[..., Any]
QUERIES, PASSAGES = 12, 3
STAGE = {"method": "task", "steps": 1, "batch": 999, "lr": 1e-3, "dropout": 0.0, "precision": "fp32"}


@pytest.fixture
def reranker(tmp_path: Path) -> Path:
    """A random cross-encoder: one logit for a query and a passage, with a vocabulary of its own."""
    folder = tmp_path / "reranker"
    folder.mkdir()
    sizes = write_own_tokenizer(folder, "roberta")
    tiny_classifier("roberta", 2, ("score",), 4, **sizes).save_pretrained(folder)
    return folder


def score_with_transformers(folder: Path, pairs: list[tuple[str, str]]) -> NDArray[np.float64]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        logits = [
            model(**tokenizer(*pair, truncation=True, max_length=64, return_tensors="pt")).logits.item()
            for pair in pairs
        ]
    return np.array(logits)


def mean_vectors(folder: Path, texts: list[str]) -> NDArray[np.float64]:
    tokenizer, model = (kind.from_pretrained(folder) for kind in (transformers.AutoTokenizer, transformers.AutoModel))
    with torch.inference_mode():
        states = [model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in texts]
    vectors = torch.stack(states).double().numpy()
    return np.asarray(vectors / np.linalg.norm(vectors, axis=-1, keepdims=True))


def texts_of(seed: int) -> list[tuple[str, list[str]]]:
    """Queries, each with its passages."""
    texts = [row["text"] for row in task_rows(QUERIES * (1 + PASSAGES), seed)]
    return [(q, texts[QUERIES + i :: QUERIES]) for i, q in enumerate(texts[:QUERIES])]


def write_recipe(task: Task, folder: Path, named: dict[str, Any], signals: dict[str, float]) -> Path:
    """A recipe of vectors that learns the scores in ``train.jsonl``; its student starts from an encoder of the same width."""
    sizes = {"vocab_size": len(vocabulary()), "num_attention_heads": 2}
    for name, seed in (("encoder", 1), ("start", 2)):
        write_bert(folder / name, ())
        tiny_classifier("bert", 2, (), seed, "AutoModel", **sizes).save_pretrained(folder / name)
    data = {split: {"path": str(folder / f"{split}.jsonl"), **named} for split in ("train", "eval")}
    return task.variant(
        folder / "recipe.yaml",
        task="feature-extraction",
        data={"labels": None, **data},
        teacher={"model": str(folder / "encoder"), "finetune": None},
        student={"model": str(folder / "start"), "layers": None},
        answer={"normalize": True},
        distill=[{**STAGE, "signals": {"logits": 0, "hidden": 0, "attention": 0, **signals}}],
    )


@pytest.mark.parametrize("form", ["pairs", "triplets"])
@pytest.mark.parametrize("term", ["margins", "labels"])
def test_a_student_learns_the_scores_that_a_reranker_wrote(
    form: str, term: str, reranker: Path, task: Task, succeed: Run, tmp_path: Path
) -> None:
    for split, seed in (("train", 1), ("eval", 2)):
        asked = tmp_path / f"{split}-asked.jsonl"
        if form == "pairs":
            rows = [{"query": q, "passage": p} for q, passages in texts_of(seed) for p in passages]
            commands = [("passage", "score")]
        else:
            rows = [{"query": q, "positive": a, "negative": b} for q, (a, b, _) in texts_of(seed)]
            commands = [("positive", "pos_score"), ("negative", "neg_score")]
        write_lines(asked, rows)
        for number, (column, score) in enumerate(commands):
            last = number == len(commands) - 1
            written = tmp_path / (f"{split}.jsonl" if last else f"{split}-{number}.jsonl")
            named = ("--text", "query", "--text-pair", column, "--column", score)
            succeed("teach", "-m", reranker, "--data", asked, *named, "-o", written)
            asked = written
    taught = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    if form == "pairs":
        scored = [(row["query"], row["passage"], row["score"]) for row in taught]
        named = {"text": "query", "text_pair": "passage", "label": "score"}
    else:
        scored = [
            (row["query"], row[kind], row[f"{kind[:3]}_score"]) for row in taught for kind in ("positive", "negative")
        ]
        named = {"text": "first", "text_pair": "second", "label": "score"}
    queries, passages, scores = zip(*scored, strict=True)
    direct = score_with_transformers(reranker, [*zip(queries, passages, strict=True)])
    np.testing.assert_allclose(scores, direct, atol=1e-5)
    assert np.ptp(direct) > 0.1, "scores that hardly differ would teach nothing"
    succeed("distill", write_recipe(task, tmp_path, named, {term: 1}), "-o", tmp_path / "run")
    training = read_training(tmp_path / "run/student")
    assert "spearman" in {training.score.metric, *training.score.others}
    (curve,) = training.curves
    own, other = (mean_vectors(tmp_path / "start", [*texts]) for texts in (queries, passages))
    cosines = (own * other).sum(-1)
    if term == "labels":  # CoSENT over the batch
        wrong = 20 * (cosines[None, :] - cosines[:, None])[direct[:, None] > direct[None, :]]
        expected = np.log1p(np.exp(wrong).sum())
    else:
        group = PASSAGES if form == "pairs" else 2
        errors, margins = list[float](), list[float]()
        for start in range(0, len(direct), group):
            best = start + int(direct[start : start + group].argmax())
            for i in range(start, start + group):
                if i != best:
                    margins.append(direct[best] - direct[i])
                    errors.append(cosines[best] - cosines[i])
        scale = max(1.0, float(np.quantile(margins, 0.99, method="higher")))
        expected = np.mean((np.array(errors) - np.array(margins) / scale) ** 2)
        assert any(f"{len(margins)} margins of {QUERIES} queries" in note for note in training.notes)
    assert curve.terms[term][0] == pytest.approx(expected, rel=1e-4)
