"""What the comparisons share: real text and the header every figure carries."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from pocketbert.core.data.reading import read_examples
from pocketbert.core.data.source import DataSource
from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.host.system import installed_versions

SST2 = Path(__file__).resolve().parents[3] / "shared" / "data" / "sst2"
"""A copy of SST-2 beside the checkout, where there is one; its licence keeps it out of the repository."""


def add_texts_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--texts",
        type=Path,
        help=".jsonl[.gz] with a column 'text'; default SST-2 beside the checkout, else the demo corpus",
    )


def add_file_options(parser: argparse.ArgumentParser) -> None:
    """Add the artefact folder, its file, the texts and the rounds, as comparisons of one file with other tools take them."""
    parser.add_argument("--model", type=Path, required=True, help="artefact folder of a classifier with ONNX files")
    parser.add_argument("--file", default="onnx/model_int8.onnx", help="file of the folder")
    add_texts_option(parser)
    parser.add_argument("--rounds", type=int, default=5)


def real_texts(path: Path | None, split: str) -> tuple[list[str], str]:
    """Texts, and what to call them."""
    if path is None and (SST2 / f"{split}.jsonl.gz").is_file():
        path = SST2 / f"{split}.jsonl.gz"
    if path is not None:
        return [
            e.text for e in read_examples(DataSource(path=str(path)), labelled=False)
        ], f"SST-2 {split}" if SST2 in path.parents else path.name
    from pocketbert import demo_corpus

    with tempfile.TemporaryDirectory() as folder:
        written = demo_corpus.write(demo_corpus.generate(), Path(folder))
        rows = read_examples(DataSource(path=str(written[split])))
    return [e.text for e in rows], f"demo corpus, {split}"


def print_header(title: str, texts: str) -> None:
    """Print a title, and under which texts, machine, load and versions the figures below it were measured."""
    versions = ", ".join(
        f"{k} {v}" for k, v in installed_versions(("pocketbert", "torch", "transformers", "onnxruntime")).items()
    )
    print(
        f"\n{title}\n  text: {texts}; provenance measured; {describe_machine().summary}; load {load_average():.1f}; {versions}"
    )
