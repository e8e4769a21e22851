"""Data of docs/lab/results.md out of the project's shared data sets: a multi-label set, and parts of SQuAD and SST-2.

Multi-label: two CLINC150 utterances of different intents as one text, with both intents as its labels, from the 20
intents that the names below list; every utterance is used in two texts. SQuAD: the first 400 dev rows by the hash of their
ids, since every file answers every window of every question alone. SST-2: the training rows as the recipe divides them, into
those that it trains on and 5,000 that it holds out.

Run: python lab/results_data.py SHARED_DATA FOLDER
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
from pathlib import Path
from typing import Any

from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.predict.examples import Example, hold_out

INTENTS = (
    "alarm", "book_flight", "book_hotel", "calendar", "car_rental", "exchange_rate", "find_phone", "flight_status",
    "make_call", "next_song", "play_music", "recipe", "reminder", "restaurant_reservation", "shopping_list_update",
    "spelling", "timer", "traffic", "translate", "weather",
)  # fmt: skip
QUESTIONS = 400
HELD_OUT = 5000


def read(path: Path) -> list[dict[str, Any]]:
    """Rows of a .jsonl.gz file."""
    with gzip.open(path, "rt", encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as .jsonl.gz, the same bytes every time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path.write_bytes(gzip.compress(lines.encode(), 9, mtime=0))
    print(f"{path}: {len(rows):,} rows")


def joined(rows: list[dict[str, Any]], seed: str) -> list[dict[str, Any]]:
    """Pairs of utterances of different intents."""
    known = [r for r in rows if r["intent"] in INTENTS]
    draw = random.Random(seed)
    out = []
    for _ in range(2):
        order = draw.sample(known, len(known))
        for first, second in zip(order[::2], order[1::2], strict=False):
            labels = sorted({first["intent"], second["intent"]})
            out.append({"text": f"{first['text']} and {second['text']}", "labels": labels})
    return out


def plain(examples: list[Example]) -> list[dict[str, Any]]:
    """Rows of a text and a label."""
    return [{"text": e.text, "label": e.label} for e in examples]


def main() -> None:
    """Write everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shared", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    clinc = options.shared / "clinc150"
    for split in ("train", "dev"):
        write(options.folder / f"multi-label-{split}.jsonl.gz", joined(read(clinc / f"{split}.jsonl.gz"), split))
    rows = read(options.shared / "squad" / "dev.jsonl.gz")
    chosen = sorted(rows, key=lambda r: hashlib.sha256(r["id"].encode()).hexdigest())[:QUESTIONS]
    write(options.folder / "squad-dev.jsonl.gz", chosen)
    kept, held = hold_out(read_examples(DataSource(path=str(options.shared / "sst2" / "train.jsonl.gz"))), HELD_OUT)
    write(options.folder / "sst2-train.jsonl.gz", plain(kept))
    write(options.folder / "sst2-holdout.jsonl.gz", plain(held))


if __name__ == "__main__":
    main()
