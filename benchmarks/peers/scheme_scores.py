"""Score every file of an artefact folder on labelled rows, with intervals of what it loses against the fp32 file.

Run: python benchmarks/peers/scheme_scores.py FOLDER DATA.jsonl.gz --output SCORES.json
     (columns that are not found by their name: --text, --text-pair, --label; naive static int8: --naive TRAIN.jsonl.gz)

Files are run one unpadded row at a time. Each is compared with the fp32 (Core ML: fp16) file of its format on the same rows;
the interval holds 95 % of 10,000 paired bootstrap draws of rows. `rel` is the RMS difference of the outputs over their spread,
on at most 400 of the rows. What SCORES.json has of the same bytes and rows is not computed again. Latencies are those that
`pocketbert benchmark -m FOLDER --record` left in the folder. The folder is not changed.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from naive_static import write_naive
from numpy.typing import NDArray
from pydantic import BaseModel

from pocketbert.benchmarks.results import BenchmarkResult
from pocketbert.core.artefacts import Artefacts, ModelRecord, read_artefacts
from pocketbert.core.compare.evaluate import EvalSet, evaluate, rms_error
from pocketbert.core.data.source import DataSource
from pocketbert.core.data.spans import count_spans, spans_of
from pocketbert.core.disk.files import path_bytes, sha256_json, sha256_path, write_json
from pocketbert.core.heads import Prepared
from pocketbert.core.heads.token_classification import TokenClassificationHead, words_of
from pocketbert.core.host.hardware import machine
from pocketbert.core.predict.predictor import Predictor
from pocketbert.core.predict.readout import Matrix, run_rows, whole
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.make.labelled import labelled_rows
from pocketbert.runtime.engines import open_file

DRAWS = 10_000
COMPARED = 400
CALIBRATED = 300
SLOW = {"a16w8": 300}
"""Schemes that engines on a CPU compute dozens of times slower: run on so many rows, chosen by their hash."""


class FileScore(BaseModel):
    """What one file reaches.

    Attributes:
        path: Its path in the folder, or what it is.
        format: Its format.
        scheme: Its scheme and runtime, or fp32 or fp16.
        sha256: Its digest.
        bytes: Its size.
        rows_digest: Digest of the rows.
        rows: Number of them.
        value: The task's metric.
        against: The metric of the exported file of the format on the same rows.
        low: Lower end of the interval of their difference, as a fraction.
        high: Upper end.
        rel: RMS difference of the outputs over their spread.
        machine: Where it was computed.
    """

    path: str
    format: Format
    scheme: str
    sha256: str
    bytes: int
    rows_digest: str
    rows: int
    value: float
    against: float
    low: float
    high: float
    rel: float
    machine: str


def pieces(kept: Sequence[Matrix], rows: EvalSet) -> NDArray[np.float64]:
    """What each example adds to the metric, [examples, 2]: the metric is the first column's sum over the second one's."""
    if isinstance(rows.head, TokenClassificationHead):
        names, out = rows.head.labels.names, []
        for gold, encoded, best in zip(rows.rows.truth, rows.rows.encoded, kept, strict=True):
            first, places = words_of(encoded)
            counts = count_spans([gold], [spans_of([names[int(best[i, 0])] for i in first], places)])
            out.append((2 * counts.right, counts.found + counts.gold))
        return np.array(out, np.float64)
    one = [rows.head.score([kept[i] for i in own], example(rows.rows, e, own)).value for e, own in owned(rows.rows)]
    return np.stack([np.array(one, np.float64), np.ones(len(one))], -1)


def owned(rows: Prepared) -> list[tuple[int, list[int]]]:
    return list(enumerate(rows.rows_of()))


def example(rows: Prepared, number: int, own: Sequence[int]) -> Prepared:
    """One example with its rows."""
    return replace(
        rows,
        examples=[rows.examples[number]],
        encoded=[rows.encoded[i] for i in own],
        owner=np.zeros(len(own), np.int64),
        targets={},
        truth=rows.truth[number : number + 1],
    )


def fewer(rows: EvalSet, count: int) -> tuple[EvalSet, list[int]]:
    """The examples with the smallest hashes, and the numbers of the model's rows that belong to them."""
    prepared, by_example = rows.rows, rows.rows.rows_of()
    chosen = sorted(sorted(range(len(by_example)), key=lambda e: prepared.examples[e].digest)[:count])
    own = [i for e in chosen for i in by_example[e]]
    part = replace(
        prepared,
        examples=[prepared.examples[e] for e in chosen],
        encoded=[prepared.encoded[i] for i in own],
        owner=np.repeat(np.arange(len(chosen)), [len(by_example[e]) for e in chosen]),
        targets={},
        truth=[prepared.truth[e] for e in chosen],
    )
    return replace(rows, rows=part), own


def interval(file: NDArray[np.float64], base: NDArray[np.float64]) -> tuple[float, float]:
    """Where the difference of two metrics lies with 95 % confidence: rows are drawn with replacement, the same for both."""
    draw, rows = generator(0, "scheme-scores", len(file)), len(file)
    differences = []
    for _ in range(DRAWS // 100):
        counts = draw.multinomial(rows, np.full(rows, 1 / rows), 100).astype(np.float64)  # [100, rows]
        a, b = counts @ file, counts @ base
        differences.append(a[:, 0] / np.maximum(a[:, 1], 1) - b[:, 0] / np.maximum(b[:, 1], 1))
    low, high = np.quantile(np.concatenate(differences), [0.025, 0.975])
    return float(low), float(high)


def metric(part: NDArray[np.float64]) -> float:
    total = part.sum(0)
    return float(total[0] / max(total[1], 1))


class Scorer:
    """Scores files of one folder."""

    def __init__(self, folder: Path, rows: EvalSet, known: list[FileScore], output: Path) -> None:
        self.artefacts: Artefacts = read_artefacts(folder)
        self.tokenizer = TextTokenizer(folder, self.artefacts.processing.max_length)
        self.folder, self.rows, self.known, self.output = folder, rows, known, output
        self.digest = sha256_json([[r.ids.tolist() for r in rows.rows.encoded], [str(t) for t in rows.rows.truth]])
        self._base: dict[Format, tuple[Predictor, list[Matrix]]] = {}

    def base(self, format: Format) -> tuple[Predictor, list[Matrix]]:
        """The exported file of a format, and what it answers."""
        if format not in self._base:
            record = next(r for r in self.artefacts.models() if r.format is format and exported(r))
            opened = open_file(self.folder / record.path, format)
            self._base[format] = opened, self._kept(opened, self.rows)
        return self._base[format]

    def _kept(self, predictor: Predictor, rows: EvalSet) -> list[Matrix]:
        return evaluate(predictor, self.tokenizer, rows, label="rows")[1]

    def score(self, path: Path, name: str, record: ModelRecord) -> FileScore:
        """Score a file where its figures are not known."""
        digest = sha256_path(path)
        found = next((k for k in self.known if k.sha256 == digest and k.rows_digest == self.digest), None)
        if found is not None:
            return found
        few = SLOW.get(str(record.scheme))
        rows, own = fewer(self.rows, few) if few else (self.rows, list(range(len(self.rows.rows.encoded))))
        exact, kept = self.base(record.format)
        predictor = exact if exported(record) else open_file(path, record.format, runtime=record.runtime)
        before = pieces([kept[i] for i in own], rows)
        after = before if exported(record) else pieces(self._kept(predictor, rows), rows)
        low, high = interval(after, before)
        result = FileScore(
            path=name,
            format=record.format,
            scheme=f"{record.scheme}{f' for {record.runtime}' if record.runtime else ''}",
            sha256=digest,
            bytes=path_bytes(path),
            rows_digest=self.digest,
            rows=len(rows.rows.examples),
            value=metric(after),
            against=metric(before),
            low=low,
            high=high,
            rel=self._rel(predictor, exact),
            machine=machine().summary,
        )
        self.known.append(result)
        write_json(self.output, [k.model_dump(mode="json") for k in self.known])
        return result

    def _rel(self, predictor: Predictor, exact: Predictor) -> float:
        if predictor is exact:
            return 0.0
        rows = fewer(self.rows, min(COMPARED, len(self.rows.rows.examples)))[0].rows.encoded
        answers = [whole(run_rows(p, self.tokenizer, rows, self.rows.head.task)) for p in (predictor, exact)]
        return rms_error(*answers)


def exported(record: ModelRecord) -> bool:
    """Whether an exporter wrote it for any client: files are compared with it."""
    return record.plain and record.scheme in (Scheme.FP32, Scheme.FP16)


def latencies(folder: Path) -> dict[str, float]:
    """The median of each file on texts on one thread, in ms, where the folder records it."""
    path = folder / "benchmark.json"
    if not path.is_file():
        return {}
    result = BenchmarkResult.model_validate(json.loads(path.read_text(encoding="utf-8")))
    found = {name: result.find(name, 1, "text") for name in {m.variant for m in result.measurements}}
    return {name: m.wall.p50 for name, m in found.items() if m is not None and m.wall is not None}


def line(score: FileScore, latency: dict[str, float]) -> str:
    ms = f"{latency[score.path]:.2f}" if score.path in latency else "–"
    against = f"{100 * (score.value - score.against):+.2f} [{100 * score.low:+.2f}, {100 * score.high:+.2f}]"
    figures = f"{score.bytes / 1e6:.2f} | {score.rel:.4f} | {100 * score.value:.2f} | {against} | {score.rows:,} | {ms}"
    return f"| {score.format} | {score.scheme} | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Score every file of a folder, with intervals.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("data")
    parser.add_argument("--text")
    parser.add_argument("--text-pair")
    parser.add_argument("--label")
    parser.add_argument("--rows", type=int, help="only so many rows, chosen by their hash")
    parser.add_argument("--naive", type=Path, help="also score naive static int8 (ONNX), calibrated on these rows")
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    source = DataSource.at(asked.data, asked.text, asked.text_pair, asked.label)
    rows = labelled_rows(asked.folder, source)
    if asked.rows:
        rows = fewer(rows, asked.rows)[0]
    known = json.loads(asked.output.read_text()) if asked.output.is_file() else []
    scorer = Scorer(asked.folder, rows, [FileScore.model_validate(k) for k in known], asked.output)
    print(f"{asked.folder}, {len(rows.rows.examples):,} rows of {Path(asked.data).name}; {machine().summary}\n")
    print("| format | scheme | MB | rel | score | against the exported file, points | rows | p50, ms |")
    print("|---|---|---:|---:|---:|---|---:|---:|")
    ms = latencies(asked.folder)
    for record in scorer.artefacts.models():
        if record.for_toolkit:
            print(line(scorer.score(asked.folder / record.path, record.path, record), ms), flush=True)
    if asked.naive:
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "naive.onnx"
            training = labelled_rows(asked.folder, source.model_copy(update={"path": str(asked.naive)}))
            rows_read = fewer(training, CALIBRATED)[0].rows.encoded
            write_naive(asked.folder / "onnx/model.onnx", path, [scorer.tokenizer.pad([r]) for r in rows_read])
            record = next(r for r in scorer.artefacts.models() if r.format is Format.ONNX and not exported(r))
            score = scorer.score(path, "naive static", record)
            print(line(score.model_copy(update={"scheme": "naive static"}), ms))


if __name__ == "__main__":
    main()
