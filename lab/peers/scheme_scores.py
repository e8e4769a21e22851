"""Score every file of artefact folders on labelled rows, with intervals of what it loses against the fp32 file.

Run: python lab/peers/scheme_scores.py FOLDER [FOLDER ...] DATA.jsonl.gz --output SCORES.json
     (columns that are not found by their name: --text, --text-pair, --label; static int8 as the libraries write it by default:
     --naive TRAIN.jsonl.gz; files of the student after method `qat`: --qat FOLDER, compared with the fp32 files of the student before it)

Files are run one unpadded row at a time, on one thread. Each is compared with the fp32 (Core ML: fp16) file of its format on the
same rows; the interval holds 95 % of 10,000 paired bootstrap draws of rows. `rel` is the RMS difference of the outputs over their
spread, on at most 400 of the rows. On the same rows the CPU time of the process is measured, in blocks of 20 rows of the file and
of the fp32 file by turns: `ms` is the time of a row, `time` the median ratio of two blocks with its quartiles. Core ML is emulated
and has no time. What SCORES.json has of the same bytes and rows is not computed again, so that a run that was stopped goes on
where it was. All folders are of one model, such as those that `pocketbert quantize -o` adds; none is changed.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from naive.writers import WRITERS
from numpy.typing import NDArray
from pydantic import BaseModel

from pocketbert.core.artefacts import Artefacts, ModelRecord, read_artefacts
from pocketbert.core.compare.evaluate import EvalSet, evaluate, rms_error
from pocketbert.core.data.source import DataSource
from pocketbert.core.disk.files import path_bytes, sha256_json, sha256_path, write_json
from pocketbert.core.heads import Prepared
from pocketbert.core.heads.token_classification import TokenClassificationHead, find_words
from pocketbert.core.host.hardware import describe_machine
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.predictor import Arrays, Matrix, Predictor, feed, join_texts, run_rows
from pocketbert.core.predict.spans import count_spans, spans_from_tags
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.seeds import generator
from pocketbert.core.types import Format, Scheme
from pocketbert.pipeline.make.measuring import labelled_rows
from pocketbert.quantize import find_row
from pocketbert.runtime.engines import open_file

DRAWS = 10_000
COMPARED = 400
CALIBRATED = 300
BLOCK = 20
SLOW = {"a16w8": 300}
"""Schemes that engines on a CPU compute dozens of times slower: run on so many rows, chosen by their hash."""
COMPARED_SLOW = 60
"""Rows of `rel` and of the times of these."""


class Speed(BaseModel):
    """The CPU time of a file on real rows, one thread.

    Attributes:
        ms: Of a row, the median of blocks.
        ratio: To that of the exported file of the format, blocks taken by turns: lower quartile, median, upper quartile.
        load: Load average of the machine then.
    """

    ms: float
    ratio: tuple[float, float, float]
    load: float


class FileScore(BaseModel):
    """What one file reaches.

    Attributes:
        path: Its path in the folder, or what it is.
        format: Its format.
        scheme: Its scheme, runtime and what was chosen for single roles, or fp32 or fp16.
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
        speed: CPU time, next to that of the exported file.
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
    speed: Speed | None = None


def pieces(kept: Sequence[Matrix], rows: EvalSet) -> NDArray[np.float64]:
    """What each example adds to the metric, [examples, 2]: the metric is the first column's sum over the second one's."""
    if isinstance(rows.head, TokenClassificationHead):
        names, out = rows.head.labels.names, []
        for gold, encoded, best in zip(rows.rows.truth, rows.rows.encoded, kept, strict=True):
            first, places = find_words(encoded)
            counts = count_spans(
                [gold], [spans_from_tags([names[int(best[i, 0])] for i in first], places, rows.head.single)]
            )
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


def cpu_ms(predictor: Predictor, feeds: Sequence[Arrays]) -> float:
    """CPU time of the process for one of some rows, in ms."""
    start = time.process_time()
    for inputs in feeds:
        predictor.run(inputs)
    return (time.process_time() - start) / len(feeds) * 1e3


@dataclass(frozen=True)
class FileKey:
    """What figures belong to.

    Attributes:
        sha256: Digest of the file.
        rows_digest: Digest of the rows.
    """

    sha256: str
    rows_digest: str


class Scorer:
    """Scores files of one folder."""

    def __init__(
        self, folder: Path, rows: EvalSet, known: list[FileScore], output: Path, coreml_rows: int | None = None
    ) -> None:
        self.artefacts: Artefacts = read_artefacts(folder)
        self.tokenizer = TextTokenizer(folder, self.artefacts.processing.max_length)
        self.folder, self.rows, self.known, self.output = folder, rows, known, output
        self._fewer = {} if coreml_rows is None else {Format.COREML: fewer(rows, coreml_rows)[0]}
        self._base: dict[Format, tuple[Predictor, list[Matrix]]] = {}
        self._exact: dict[Format, Predictor] = {}
        self.compared = COMPARED

    def rows_of(self, format: Format) -> EvalSet:
        """The rows that files of a format are run on."""
        return self._fewer.get(format, self.rows)

    def exact(self, format: Format) -> Predictor:
        """The exported file of a format."""
        if format not in self._exact:
            record = next(r for r in self.artefacts.models() if r.format is format and exported(r))
            self._exact[format] = open_file(self.folder / record.path, format, threads=1)
        return self._exact[format]

    def base(self, format: Format) -> tuple[Predictor, list[Matrix]]:
        """The exported file of a format, and what it answers."""
        if format not in self._base:
            opened = self.exact(format)
            self._base[format] = opened, self._kept(opened, self.rows_of(format))
        return self._base[format]

    def _kept(self, predictor: Predictor, rows: EvalSet) -> list[Matrix]:
        return evaluate(predictor, self.tokenizer, rows, label="rows")[1]

    def score(self, path: Path, name: str, record: ModelRecord, after: str = "") -> FileScore:
        """Score a file where its figures are not known; `after` names what its student went through and this folder's did not."""
        digest, all_rows = sha256_path(path), self.rows_of(record.format)
        rows_digest = digest_of(all_rows)
        found = next((k for k in self.known if k.sha256 == digest and k.rows_digest == rows_digest), None)
        if found is None:
            found = self._scored(path, name, record, FileKey(digest, rows_digest))
            found = self._keep(found.model_copy(update={"scheme": found.scheme + after}))
        if found.speed is None and record.format is not Format.COREML:
            exact = self.exact(record.format)
            opened = exact if exported(record) else open_file(path, record.format, threads=1, runtime=record.runtime)
            found = self._keep(found.model_copy(update={"speed": self._speed(opened, exact, record)}))
        return found

    def _scored(self, path: Path, name: str, record: ModelRecord, key: FileKey) -> FileScore:
        few, rows = SLOW.get(str(record.scheme)), self.rows_of(record.format)
        rows, own = fewer(rows, few) if few else (rows, list(range(len(rows.rows.encoded))))
        exact, kept = self.base(record.format)
        predictor = exact if exported(record) else open_file(path, record.format, threads=1, runtime=record.runtime)
        before = pieces([kept[i] for i in own], rows)
        after = before if exported(record) else pieces(self._kept(predictor, rows), rows)
        low, high = interval(after, before)
        return FileScore(
            path=name,
            format=record.format,
            scheme=f"{record.scheme}{f' for {record.runtime}' if record.runtime else ''}{choices(record)}",
            sha256=key.sha256,
            bytes=path_bytes(path),
            rows_digest=key.rows_digest,
            rows=len(rows.rows.examples),
            value=metric(after),
            against=metric(before),
            low=low,
            high=high,
            rel=self._rel(predictor, exact, record),
            machine=describe_machine().summary,
        )

    def _keep(self, score: FileScore) -> FileScore:
        """Write what is known, this file's figures among it."""
        same = [i for i, k in enumerate(self.known) if (k.sha256, k.rows_digest) == (score.sha256, score.rows_digest)]
        self.known[same[0] if same else len(self.known) :] = [score, *(self.known[same[0] + 1 :] if same else ())]
        write_json(self.output, [k.model_dump(mode="json", exclude_none=True) for k in self.known])
        return score

    def _some(self, record: ModelRecord) -> list[Encoded]:
        most = COMPARED_SLOW if str(record.scheme) in SLOW else self.compared
        rows = self.rows_of(record.format)
        return fewer(rows, min(most, len(rows.rows.examples)))[0].rows.encoded

    def _rel(self, predictor: Predictor, exact: Predictor, record: ModelRecord) -> float:
        if predictor is exact:
            return 0.0
        rows = self._some(record)
        answers = [join_texts(run_rows(p, self.tokenizer, rows, self.rows.head.task)) for p in (predictor, exact)]
        return rms_error(*answers)

    def _speed(self, predictor: Predictor, exact: Predictor, record: ModelRecord) -> Speed:
        """The CPU time of blocks of rows, the file and the exported one by turns."""
        rows = self._some(record)
        starts = [0, *range(0, len(rows), BLOCK)]  # the first block twice: it warms up
        taken = []
        for start in starts:
            block = rows[start : start + BLOCK]
            taken.append([cpu_ms(p, [feed(p, self.tokenizer, [row]) for row in block]) for p in (predictor, exact)])
        own, base = np.array(taken[1:]).T
        low, middle, high = (float(q) for q in np.quantile(own / base, [0.25, 0.5, 0.75]))
        return Speed(ms=float(np.median(own)), ratio=(low, middle, high), load=os.getloadavg()[0])


def digest_of(rows: EvalSet) -> str:
    return sha256_json([[r.ids.tolist() for r in rows.rows.encoded], [str(t) for t in rows.rows.truth]])


def exported(record: ModelRecord) -> bool:
    """Whether an exporter wrote it for any client: files are compared with it."""
    return record.plain and record.scheme in (Scheme.FP32, Scheme.FP16)


def choices(record: ModelRecord) -> str:
    """The roles that have another scheme than by default."""
    row = find_row(record.format, record.scheme, record.runtime)
    odd = {w.role: w.scheme or "none" for w in record.weights if w.scheme is not row.scheme_of(w.role)}
    return "".join(f", {role}={scheme}" for role, scheme in odd.items())


def line(score: FileScore) -> str:
    speed = score.speed
    ms = f"{speed.ms:.2f}" if speed else "–"
    ratio = "–" if speed is None else f"{speed.ratio[1]:.2f} [{speed.ratio[0]:.2f}, {speed.ratio[2]:.2f}]"
    against = f"{100 * (score.value - score.against):+.2f} [{100 * score.low:+.2f}, {100 * score.high:+.2f}]"
    figures = f"{score.bytes / 1e6:.2f} | {score.rel:.4f} | {100 * score.value:.2f} | {against} | {score.rows:,}"
    return f"| {score.format} | {score.scheme} | {figures} | {ms} | {ratio} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Score every file of some folders of one model, with intervals.")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("data")
    parser.add_argument("--text")
    parser.add_argument("--text-pair")
    parser.add_argument("--label")
    parser.add_argument("--rows", type=int, help="only so many rows, chosen by their hash")
    parser.add_argument("--coreml-rows", type=int, help="of these only so many for Core ML, whose evaluator is slow")
    parser.add_argument("--format", type=Format, nargs="+", default=list(Format), help="only files of these formats")
    parser.add_argument(
        "--naive", type=Path, help="also score naive static int8 of each format, calibrated on these rows"
    )
    parser.add_argument(
        "--qat", type=Path, help="also score the smaller files of this folder, whose student went on with method qat"
    )
    parser.add_argument("--compared", type=int, default=COMPARED, help="most rows of `rel` and of the times")
    parser.add_argument("--output", type=Path, required=True)
    asked = parser.parse_args()
    source = DataSource.at(asked.data, asked.text, asked.text_pair, asked.label)
    rows = labelled_rows(asked.folders[0], source)
    if asked.rows:
        rows = fewer(rows, asked.rows)[0]
    print(
        f"{asked.folders[0]}, {len(rows.rows.examples):,} rows of {Path(asked.data).name}; {describe_machine().summary}\n"
    )
    print("| format | scheme | MB | rel | score | against the exported file, points | rows | ms | time |")
    print("|---|---|---:|---:|---:|---|---:|---:|---|")
    for folder in asked.folders:
        known = json.loads(asked.output.read_text()) if asked.output.is_file() else []
        scorer = Scorer(folder, rows, [FileScore.model_validate(k) for k in known], asked.output, asked.coreml_rows)
        scorer.compared = asked.compared
        for record in scorer.artefacts.models():
            if (record.for_toolkit or str(record.scheme) in SLOW) and record.format in asked.format:
                print(line(scorer.score(folder / record.path, record.path, record)), flush=True)
        if asked.naive and folder is asked.folders[0]:
            naive(scorer, source.model_copy(update={"path": str(asked.naive)}), asked.format)
        if asked.qat and folder is asked.folders[0]:
            trained(scorer, asked.qat)


def naive(scorer: Scorer, training: DataSource, formats: Sequence[Format]) -> None:
    """Score the files that the libraries' own quantizers write with their defaults."""
    rows = fewer(labelled_rows(scorer.folder, training), CALIBRATED)[0].rows.encoded
    for format, title, write in WRITERS:
        exact = next((r for r in scorer.artefacts.models() if r.format is format and exported(r)), None)
        if exact is None or format not in formats:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / Path(exact.path).name
            write(scorer.folder / exact.path, path, scorer.tokenizer, rows)
            score = scorer.score(path, title, exact.model_copy(update={"scheme": Scheme.A8W8}))
        print(line(score.model_copy(update={"scheme": title})), flush=True)


def trained(scorer: Scorer, folder: Path) -> None:
    """Score the files of the student after method `qat`, against the exported files of the student before it."""
    for record in read_artefacts(folder).models():
        if record.for_toolkit and not exported(record):
            print(
                line(scorer.score(folder / record.path, f"after qat: {record.path}", record, " after qat")), flush=True
            )


if __name__ == "__main__":
    main()
