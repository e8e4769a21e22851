"""Measure what a student that learned SNIPS' intents from zero-shot answers keeps of one that learned them from labels: docs/lab/results.md.

Run: python lab/zero_shot.py SHARED_DATA FOLDER [--seed 7]     # trains; a run that was stopped goes on

No model of natural-language inference can be had here, so a stand-in is trained: `minilm-l6` learns from CLINC150's texts whether "This text
is about ..." holds for the name of their own intent (entailment) and for those of two others (contradiction). It has seen none of SNIPS. Then
`teach --zero-shot` answers the training texts of SNIPS, without labels, for the descriptions below, and a student learns from these
answers; a student of the same shape, loss and schedule learns from SNIPS' labels, through a fine-tuned teacher. CLINC150 has intents close to some of SNIPS
(music, restaurants, weather, playlists), and none about books to rate or cinemas.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
from pathlib import Path
from typing import Any

from kept import FILE, PLAIN, WORDS_FOLDER, read_rows, run_pocketbert, write_if_changed, write_words

from pocketbert.core.disk.files import read_json
from pocketbert.core.host.hardware import describe_machine

DESCRIPTIONS = {
    "AddToPlaylist": "adding a song to a playlist",
    "BookRestaurant": "booking a table in a restaurant",
    "GetWeather": "the weather",
    "PlayMusic": "play a song",
    "RateBook": "rating a book",
    "SearchCreativeWork": "finding a book, show or game",
    "SearchScreeningEvent": "movie times",
}
"""What the stand-in is asked about each intent. The words were chosen, among two to five for an intent, on 280 training texts with
their labels; the first ones that came to mind were right for fewer."""
CONTRADICTIONS = 2
STAND_IN_TEXTS, TEXTS = 5000, 4000
"""Texts of CLINC150 and of SNIPS that are taken."""
TEMPLATE = "This text is about {}."


def write_pairs(data: Path, destination: Path, seed: int) -> None:
    """Write the stand-in's rows: each text of CLINC150 with its own intent and with some others."""
    draw = random.Random(seed)  # noqa: S311
    for name in ("train", "dev"):
        rows = read_rows(data / "clinc150" / f"{name}.jsonl.gz")
        intents = sorted({row["intent"] for row in rows})
        pairs = []
        for row in draw.sample(rows, min(STAND_IN_TEXTS, len(rows))):
            others = draw.sample([intent for intent in intents if intent != row["intent"]], CONTRADICTIONS)
            for intent in (row["intent"], *others):
                label = "entailment" if intent == row["intent"] else "contradiction"
                hypothesis = TEMPLATE.format(intent.replace("_", " "))
                pairs.append({"premise": row["text"], "hypothesis": hypothesis, "label": label})
        draw.shuffle(pairs)
        _write_rows(destination / f"{name}.jsonl", pairs)


def _write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows as JSON lines, unless the file holds them already."""
    write_if_changed(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode())


def train_student(folder: Path, settings: list[str], snips: Path, seed: int) -> None:
    """Train and export a student of three layers, scored on the dev rows of SNIPS."""
    shared = [
        f"seed={seed}",
        f"data.eval={json.dumps({'path': str(snips / 'dev.jsonl.gz'), 'text': 'text', 'label': 'intent'})}",
        f"data.labels={json.dumps(sorted(DESCRIPTIONS))}",
        "data.max_length=48",
        "student={layers: 3}",
        "distill=[{method: task, epochs: 4, batch: 32, lr: 3e-4, dropout: 0.0, temperature: 2.0, "
        "signals: {logits: 1, hidden: 0, attention: 0}}]",  # a column of answers has no others
        "export={formats: [onnx], lengths: [48], clients: []}",
        "verify={max_drop: 0.02, min_kept: 0.5}",
        "benchmark=null",
    ]
    run_pocketbert("run", PLAIN, "-o", str(folder), *shared, *settings)


def main() -> None:
    """Train the stand-in, let it answer, train both students, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="folder of the shared data sets")
    parser.add_argument("folder", type=Path, help="folder for the runs")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    data, work = options.data.resolve(), options.folder.resolve() / f"seed-{options.seed}"
    work.mkdir(parents=True, exist_ok=True)
    write_words(data, work)
    write_pairs(data, work / "pairs", options.seed)
    columns = {"text": "premise", "text_pair": "hypothesis"}
    pairs = {name: json.dumps({"path": str(work / "pairs" / f"{name}.jsonl"), **columns}) for name in ("train", "dev")}
    run_pocketbert(
        "finetune", PLAIN, "-o", str(work / "stand-in"), f"seed={options.seed}", f"data.train={pairs['train']}", f"data.eval={pairs['dev']}",
        "data.max_length=64", "teacher={model: minilm-l6, finetune: {epochs: 1, batch: 32, lr: 1e-4}}",
    )  # fmt: skip
    snips = work / WORDS_FOLDER / "snips"
    rows = read_rows(snips / "train.jsonl.gz")
    rows = random.Random(options.seed).sample(rows, TEXTS)  # noqa: S311
    _write_rows(work / "texts.jsonl", [{"text": row["text"]} for row in rows])
    _write_rows(work / "labelled.jsonl", [{"text": row["text"], "intent": row["intent"]} for row in rows])
    words = hashlib.sha256(json.dumps([TEMPLATE, DESCRIPTIONS]).encode()).hexdigest()[:8]
    folders = {"zero-shot": work / f"zero-shot-{words}", "supervised": work / "supervised"}
    taught = work / f"taught-{words}.jsonl"  # another file for other words
    if not taught.is_file():
        asked = [part for label, text in DESCRIPTIONS.items() for part in ("--zero-shot", f"{label}: {text}")]
        run_pocketbert(
            "teach", "-m", str(work / "stand-in" / "teacher"), "--data", str(work / "texts.jsonl"), "-o", str(taught),
            "--template", TEMPLATE, *asked,
        )  # fmt: skip
    answers = json.dumps({"path": str(taught), "text": "text", "teacher": "teacher"})
    train_student(folders["zero-shot"], [f"data.train={answers}", "teacher=null"], snips, options.seed)
    labelled = json.dumps({"path": str(work / "labelled.jsonl"), "text": "text", "label": "intent"})
    finetuned = "teacher={model: minilm-l6, finetune: {epochs: 2, batch: 32, lr: 3e-4}}"
    train_student(folders["supervised"], [f"data.train={labelled}", finetuned], snips, options.seed)
    scores = {
        name: 100 * read_json(own / "verify.json")["scores"][FILE]["eval"]["value"] for name, own in folders.items()
    }
    print(f"{describe_machine().summary}, seed {options.seed}, {len(rows):,} training texts")
    print("| student of 3 layers, int8 | accuracy on SNIPS dev | of the supervised student's |\n|---|---:|---:|")
    for name, score in scores.items():
        print(f"| {name} | {score:.1f} | {100 * score / scores['supervised']:.1f} % |")


if __name__ == "__main__":
    main()
