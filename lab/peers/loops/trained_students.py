"""Compare quantized files of several folders with the fp32 answers of one student: what training for a scheme is worth.

Run: python lab/peers/loops/trained_students.py STUDENT DATA.jsonl.gz FOLDER [FOLDER ...] --scheme a8w8,w4 --rows 1192

STUDENT is the model folder before the training; each FOLDER is an artefact folder with files of its own or of the trained
student. Prints a table: `rel` is the RMS difference of the logits over the spread of STUDENT's fp32 logits, `agree` the share of
rows with the same first label; accuracy is that of the rows that were run.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import json
from pathlib import Path

import numpy as np

from pocketbert.core.artefacts import read_artefacts
from pocketbert.core.compare.evaluate import label_agreement, rms_error
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Matrix, join_texts, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS
from pocketbert.pipeline.reference import load_reference_model
from pocketbert.runtime.engines import open_file


def main() -> None:
    """Measure, and print a line for each file."""
    parser = argparse.ArgumentParser(description="Compare quantized files with the fp32 answers of one student.")
    parser.add_argument("student", type=Path)
    parser.add_argument("data")
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--scheme", required=True)
    parser.add_argument("--rows", type=int, default=400)
    asked = parser.parse_args()
    with gzip.open(asked.data, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in itertools.islice(lines, asked.rows)]
    artefacts = read_artefacts(asked.folders[0])
    tokenizer, task = TextTokenizer(asked.folders[0], artefacts.processing.max_length), TASKS[artefacts.task]
    encoded = tokenizer.encode([row["text"] for row in rows])
    exact = join_texts(
        run_rows(load_reference_model(open_model_folder(str(asked.student)), task), tokenizer, encoded, task)
    )

    def line(title: str, found: Matrix) -> None:
        right = np.mean([artefacts.labels[i] == row["label"] for i, row in zip(found.argmax(-1), rows, strict=True)])
        rel, agree = rms_error(found, exact), label_agreement(found, exact)
        print(f"| {title} | {rel:.4f} | {100 * agree:.1f} | {100 * right:.2f} |", flush=True)

    print(f"| {len(rows)} rows | rel | agree, % | accuracy, % |\n|---|---:|---:|---:|")
    line("the student, fp32", exact)
    for folder in asked.folders:
        for file in read_artefacts(folder).models():
            if file.scheme in asked.scheme.split(",") and file.client is None and file.runtime is None:
                predictor = open_file(folder / file.path, file.format)
                line(f"{folder.name} {file.path}", join_texts(run_rows(predictor, tokenizer, encoded, task)))


if __name__ == "__main__":
    main()
