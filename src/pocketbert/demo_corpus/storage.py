"""Writing the corpus to disk."""

from __future__ import annotations

import dataclasses
import gzip
import json
from pathlib import Path

from pocketbert.demo_corpus.rows import Corpus


def write(corpus: Corpus, folder: Path) -> dict[str, Path]:
    """Writes each split as gzip-compressed JSON lines.

    The lines are the same bytes everywhere. The gzip header holds neither a name nor a time, so the files
    are the same bytes too wherever Python is built with the same zlib.

    Args:
        corpus: The corpus.
        folder: Where `train.jsonl.gz`, `dev.jsonl.gz` and `test.jsonl.gz` go; made if it is absent.

    Returns:
        The paths by split name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    paths: dict[str, Path] = {}
    for split, rows in corpus.splits().items():
        lines = "".join(json.dumps(dataclasses.asdict(row), ensure_ascii=False) + "\n" for row in rows)
        paths[split] = folder / f"{split}.jsonl.gz"
        with (
            paths[split].open("wb") as raw,
            # An empty file name keeps GzipFile from copying the one of `raw` into the header.
            gzip.GzipFile(filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0) as packed,
        ):
            packed.write(lines.encode("utf-8"))
    return paths
