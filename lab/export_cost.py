"""Measure what an export costs, step by step: wall and CPU seconds and peak memory, beside the bare converters.

Run: python lab/export_cost.py BERT-base [--format onnx --format tflite] [--beside] [-o runs/export-cost.json]

The model has a published shape (`lab/systems/shapes.py`, or ``student``: 3 layers of width 384, or ``BERT-large``), random
weights, three labels and all defaults of `pocketbert export`. ``--beside`` also converts it with optimum (ONNX, fp32) and
litert-torch (TFLite, fp32, one length), each in a process of its own. Memory is that of the process and its children.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "peers")]
from environments import environment
from systems.shapes import SHAPES, Shape
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from pocketbert.core.host.hardware import describe_machine, load_average
from pocketbert.core.host.system import installed_versions
from pocketbert.core.models.folder import open_model_folder

POLL_S = 0.2
LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
STUDENT = {"hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 12, "intermediate_size": 1536}
MODELS = {
    shape.name: shape
    for shape in (
        *SHAPES,
        Shape("BERT-large", "bert", {**LARGE, "vocab_size": 30522}),
        Shape("student", "bert", {**STUDENT, "vocab_size": 30522}),
        Shape("XLM-R-base", "xlm-roberta", {"vocab_size": 250002, "max_position_embeddings": 514, "pad_token_id": 1}),
    )
}
WITHOUT_WORDPIECE = (
    "albert",
    "deberta",
    "deberta-v2",
    "longformer",
    "modernbert",
    "roberta",
    "xlm",
    "xlm-roberta",
    "xlnet",
)
"""Families whose published models have SentencePiece or BPE tokenizers."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
OPTIMUM = "from optimum.exporters.onnx import main_export as e; import sys; e(sys.argv[1], sys.argv[2], task='text-classification', do_validation=False)"
LITERT = """
import sys, torch, transformers, litert_torch
model = transformers.AutoModelForSequenceClassification.from_pretrained(sys.argv[1]).eval()
class Logits(torch.nn.Module):
    def forward(self, input_ids, attention_mask):
        return model(input_ids=input_ids, attention_mask=attention_mask).logits
ids = torch.full((1, 128), 5, dtype=torch.int32)
litert_torch.convert(Logits().eval(), (ids, torch.ones_like(ids))).export(sys.argv[2] + "/model.tflite")
"""


@dataclass
class Cost:
    """What a step took.

    Attributes:
        step: Its name as the command prints it.
        wall_s: Seconds on the clock.
        cpu_s: Seconds of all threads and child processes.
        peak_gb: Largest resident memory, sampled five times a second.
    """

    step: str
    wall_s: float = 0.0
    cpu_s: float = 0.0
    peak_gb: float = 0.0


def make_model(shape: Shape, folder: Path) -> Path:
    """Write a model of a shape with random weights and a tokenizer with MiniLM's pieces, cut or filled to its vocabulary.

    The tokenizer is a WordPiece one; for the families `WITHOUT_WORDPIECE` it is a unigram one, for which no MediaPipe file is exported.
    """
    import torch
    import transformers

    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(shape.model_type, **shape.sizes, num_labels=3)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    special = [*SPECIAL]
    if config.pad_token_id == 1:
        special[:2] = reversed(special[:2])
    real = json.loads((open_model_folder("minilm-l6").path / "tokenizer.json").read_text())["model"]["vocab"]
    pieces = [*special, *(piece for piece in real if piece not in special)][: config.vocab_size]
    pieces += [f"piece{i}" for i in range(config.vocab_size - len(pieces))]
    tokenizer = (_make_unigram_tokenizer if shape.model_type in WITHOUT_WORDPIECE else _make_wordpiece_tokenizer)(
        pieces
    )
    ids = {piece: i for i, piece in enumerate(pieces)}
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", ids["[SEP]"]), ("[CLS]", ids["[CLS]"]))
    names = {f"{piece[1:-1].lower()}_token": piece for piece in SPECIAL}
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **names).save_pretrained(
        folder
    )
    return folder


def _make_wordpiece_tokenizer(pieces: list[str]) -> Tokenizer:
    """Return a WordPiece tokenizer, as BERT's."""
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return tokenizer


def _make_unigram_tokenizer(pieces: list[str]) -> Tokenizer:
    """Return a unigram tokenizer, as SentencePiece's: the first piece of a word has the mark ▁ of a space, earlier pieces are likelier."""
    marked = [p if p in SPECIAL else p[2:] if p.startswith("##") else f"▁{p}" for p in pieces]
    scored = [(piece, -math.log(2 + i)) for i, piece in enumerate(marked)]
    tokenizer = Tokenizer(models.Unigram(scored, unk_id=pieces.index("[UNK]")))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def measure_steps(command: list[str], log: Path, codes: Sequence[int] = (0,)) -> list[Cost]:
    """Run a command; return the cost of each step that it announces as ``[2/7] title``, and of all together.

    Raises:
        RuntimeError: With the end of its output, if it ends with none of `codes`.
    """
    environment_ = os.environ | {"PYTHONUNBUFFERED": "1"}
    with log.open("w") as out:
        process = psutil.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environment_)
        costs, total = [Cost("start")], Cost("all")
        began, spent = time.monotonic(), 0.0
        for now, cpu, memory in _sample(process):
            titles = re.findall(
                r"^\[\d+/\d+\] (.+?)(?:, about .+ left in all)?$", log.read_text(errors="replace"), re.MULTILINE
            )
            last = costs[-1]
            last.wall_s, last.cpu_s = now - began, cpu - spent
            last.peak_gb, total.peak_gb = max(last.peak_gb, memory), max(total.peak_gb, memory)
            total.cpu_s = cpu
            if len(titles) >= len(costs):
                began, spent = now, cpu
                costs.append(Cost(titles[-1]))
        total.wall_s = sum(c.wall_s for c in costs)
    if process.wait() not in codes:
        raise RuntimeError(log.read_text(errors="replace")[-2000:])
    return [*costs, total]


def _sample(process: psutil.Popen) -> Iterator[tuple[float, float, float]]:
    """Yield the time, the CPU seconds and the GB in memory of a process with its children until it ends."""
    cpu_of: dict[int, float] = {}
    while process.poll() is None:
        memory = 0
        try:
            for one in (process, *process.children(recursive=True)):
                times = one.cpu_times()
                cpu_of[one.pid] = times.user + times.system
                memory += one.memory_info().rss
        except psutil.Error:  # a child has ended
            pass
        yield time.monotonic(), sum(cpu_of.values()), memory / 1e9
        time.sleep(POLL_S)


def print_costs(title: str, costs: list[Cost]) -> None:
    """Print the costs of a command's steps as a table."""
    print(f"\n{title}\n{'':28}  wall s   CPU s  peak GB")
    for cost in costs:
        print(f"{cost.step[:28]:28} {cost.wall_s:7.1f} {cost.cpu_s:7.1f} {cost.peak_gb:8.2f}", flush=True)


def print_bound(folder: Path, costs: Sequence[Cost]) -> None:
    """Print the most memory that an export may take, 8 times its weights in fp32 and 1.5 GB, beside what was measured."""
    weights = open_model_folder(str(folder)).fp32_bytes / 1e9
    bound = 8 * weights + 1.5
    verdict = "within" if costs[-1].peak_gb <= bound else "ABOVE"
    print(
        f"{costs[-1].peak_gb:.2f} GB: {verdict} the bound of 8 times {weights:.2f} GB of weights + 1.5 GB = {bound:.2f} GB"
    )


def main() -> None:
    """Measure the exports that the command line names, and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", choices=sorted(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--format", action="append", default=[], help="onnx, tflite or coreml; default all three")
    parser.add_argument("--beside", action="store_true", help="optimum and litert-torch on the same model")
    parser.add_argument("-o", "--output", type=Path, help="JSON file for the costs")
    options = parser.parse_args()
    machine = describe_machine().summary
    print(f"{machine}; load {load_average():.1f}; random weights, 3 labels; provenance measured")
    found = []
    for name in options.models:
        with tempfile.TemporaryDirectory(prefix="pocketbert-export-cost-") as work:
            folder, log = make_model(MODELS[name], Path(work) / "model"), Path(work) / "log"
            commands = {
                "pocketbert export": [
                    sys.executable,
                    "-m",
                    "pocketbert",
                    "export",
                    "-m",
                    str(folder),
                    "-o",
                    f"{work}/phone",
                ]
                + [part for format in options.format for part in ("--format", format)]
            }
            if options.beside:
                python = str(environment("optimum"))
                commands["optimum, ONNX fp32"] = [python, "-c", OPTIMUM, str(folder), f"{work}/optimum"]
                commands["litert-torch, one length"] = [sys.executable, "-c", LITERT, str(folder), work]
            for title, command in commands.items():
                costs = measure_steps(command, log)
                print_costs(f"{name}: {title}", costs)
                if title == "pocketbert export":
                    print_bound(folder, costs)
                found.append({"model": name, "command": title, "steps": [asdict(c) for c in costs]})
    if options.output:
        versions = installed_versions(
            ("pocketbert", "torch", "transformers", "onnxruntime", "litert-torch", "coremltools")
        )
        content = {
            "machine": machine,
            "provenance": "measured",
            "weights": "random",
            "versions": versions,
            "costs": found,
        }
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
