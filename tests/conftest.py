"""Builders shared by all tests: tiny random models as Hugging Face folders, exported files, data files."""

from __future__ import annotations

import atexit
import gzip
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

# before any library of Hugging Face is imported: no test may reach for the network or the user's caches
for _name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ[_name] = "1"
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="pocketbert-hf-")
atexit.register(shutil.rmtree, os.environ["HF_HOME"], ignore_errors=True)

# tests that import openvino themselves do not go through PocketBERT, which keeps this reporter away from it
sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]

from filelock import FileLock
from hypothesis import settings

from pocketbert.core import families
from pocketbert.core.models.folder import ModelFolder, open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from support import canaries

# the same examples in every run, and no timings: the machines are shared
settings.register_profile("pocketbert", deadline=None, derandomize=True, database=None)
settings.load_profile("pocketbert")

FAMILIES = ("bert", "roberta", "distilbert", "mobilebert")
MAX_LENGTH = 48
TFLITE_LENGTHS = {"bert": (16, 32, 40), **dict.fromkeys(("roberta", "distilbert", "mobilebert"), (16, 40))}
"""Signatures of `exported_tflite`: converting one takes seconds."""
LABELS = ("negative", "neutral", "positive")

WORDS = [
    "the",
    "a",
    "an",
    "is",
    "was",
    "it",
    "this",
    "that",
    "and",
    "or",
    "not",
    "no",
    "to",
    "of",
    "for",
    "in",
    "on",
    "at",
    "me",
    "my",
    "you",
    "your",
    "set",
    "an",
    "alarm",
    "half",
    "past",
    "six",
    "film",
    "far",
    "better",
    "than",
    "had",
    "expected",
    "would",
    "recommend",
    "restaurant",
    "what",
    "will",
    "weather",
    "be",
    "like",
    "please",
    "turn",
    "down",
    "little",
    "good",
    "bad",
    "never",
    "again",
    "happy",
    "sad",
    "music",
    "play",
    "stop",
    "light",
    "order",
    "number",
    "more",
    "less",
    "very",
    "too",
    "great",
    "poor",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "lazy",
    "dog",
    "she",
    "he",
    "they",
    "we",
    "day",
    "night",
    "morning",
    "evening",
    "month",
    "week",
    "year",
]


def vocabulary(pad_id: int) -> list[str]:
    """About 200 WordPiece tokens; every ASCII word can be spelt with them."""
    special = ["[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    special.insert(pad_id, "[PAD]")
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    tail = [f"##{c}" for c in letters] + ["##ing", "##ed", "##er", "##ly", "##s", "##th"]
    out = [*special, *dict.fromkeys([*letters, *".,!?'-:;&%/=+", *WORDS]), *tail]
    return list(dict.fromkeys(out))


def write_tokenizer(folder: Path, pad_id: int = 0, baked_in: bool = True) -> None:
    """tokenizer.json, tokenizer_config.json and vocab.txt of a lower-casing WordPiece tokenizer.

    `baked_in` adds padding and truncation to the file, as all-MiniLM-L6-v2 has them.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    tokens = vocabulary(pad_id)
    index = {t: i for i, t in enumerate(tokens)}
    made = Tokenizer(models.WordPiece(index, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", index["[CLS]"]), ("[SEP]", index["[SEP]"])],
    )
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    if baked_in:
        made.enable_padding(length=40, pad_id=pad_id, pad_token="[PAD]")
        made.enable_truncation(40)
    made.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "BertTokenizer",
        "do_lower_case": True,
        "model_max_length": MAX_LENGTH,
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "cls_token": "[CLS]",
        "sep_token": "[SEP]",
        "mask_token": "[MASK]",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "vocab.txt").write_text("\n".join(tokens) + "\n")


def tiny_config(family: str, layers: int, labels: Sequence[str], **changes: Any) -> Any:
    """Configuration of a tiny classifier: width 32 (of IB-BERT's blocks 48 inside), 4 heads."""
    import transformers

    names = {"id2label": dict(enumerate(labels)), "label2id": {n: i for i, n in enumerate(labels)}}
    pad_id = 1 if family == "roberta" else 0
    common: dict[str, Any] = {"vocab_size": len(vocabulary(pad_id)), "pad_token_id": pad_id, **names}
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
    }
    if family == "bert":
        return transformers.BertConfig(**{**common, **sizes, **changes})
    if family == "roberta":
        return transformers.RobertaConfig(
            **{**common, **sizes, "max_position_embeddings": 66, "type_vocab_size": 1, **changes}
        )
    if family == "distilbert":
        own = {"dim": 32, "n_layers": layers, "n_heads": 4, "hidden_dim": 64, "max_position_embeddings": 64}
        return transformers.DistilBertConfig(**{**common, **own, **changes})
    narrow = {
        "embedding_size": 16,
        "intra_bottleneck_size": 16,
        "intermediate_size": 32,
        "num_feedforward_networks": 2,
    }
    if family == "ib-bert":
        from pocketbert.distill.students.ib_bert.config import IbBertConfig

        families.family_of("ib_bert").make_known()
        widened = {"embedding_size": 16, "intra_bottleneck_size": 48}
        return IbBertConfig(**{**common, **sizes, **widened, **changes})
    return transformers.MobileBertConfig(**{**common, **sizes, **narrow, **changes})


def tiny_classifier(
    family: str,
    layers: int,
    labels: Sequence[str],
    seed: int = 0,
    auto_class: str = "AutoModelForSequenceClassification",
    **changes: Any,
) -> Any:
    """A random classifier (or what `auto_class` builds) whose matrices are drawn wide enough that input and mask really matter."""
    import torch
    import transformers

    config = tiny_config(family, layers, labels, **changes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = getattr(transformers, auto_class).from_config(config)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.normal_(std=0.15)
            for module in model.modules():
                if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
                    module.weight[module.padding_idx] = 0  # as the library starts it: MobileBERT looks at neighbours
    return model.eval()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of its own for every test."""
    folder = tmp_path / "pocketbert-cache"
    monkeypatch.setenv("POCKETBERT_CACHE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def guarded_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a stranger stand around every output, and the test fails if one does not survive."""
    canaries.guard(monkeypatch)


@pytest.fixture(scope="session")
def make_tokenizer() -> Callable[..., None]:
    """`write_tokenizer(folder, pad_id=0, baked_in=True)`."""
    return write_tokenizer


@pytest.fixture(scope="session")
def make_classifier() -> Callable[..., Any]:
    """`tiny_classifier(family, layers, labels, seed=0, **config changes)`: a torch module in eval mode."""
    return tiny_classifier


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`tiny_model(family, layers=3, labels=LABELS, auto_class=...)`: a Hugging Face folder, read-only by convention."""

    @cache
    def build(
        family: str,
        layers: int = 3,
        labels: tuple[str, ...] = LABELS,
        auto_class: str = "AutoModelForSequenceClassification",
    ) -> Path:
        folder = tmp_path_factory.mktemp(f"tiny-{family}-{layers}-")
        tiny_classifier(family, layers, labels, auto_class=auto_class).save_pretrained(folder)
        write_tokenizer(folder, pad_id=1 if family == "roberta" else 0)
        return folder

    return build


@pytest.fixture(scope="session")
def open_tiny(tiny_model: Callable[..., Path]) -> Callable[..., tuple[Any, ModelFolder, TextTokenizer]]:
    """`open_tiny(family, layers=3)`: a fresh torch module, its folder, its tokenizer."""

    def open_folder(family: str, layers: int = 3) -> tuple[Any, ModelFolder, TextTokenizer]:
        from pocketbert.core.models.checkpoints import load_model
        from pocketbert.core.tasks import TASKS, TaskName

        folder = open_model_folder(str(tiny_model(family, layers)))
        model = load_model(folder, TASKS[TaskName.TEXT_CLASSIFICATION])
        return model, folder, TextTokenizer(folder.path, MAX_LENGTH)

    return open_folder


def written_once(factory: pytest.TempPathFactory, name: str, write: Callable[[Path], None]) -> Path:
    """The file `name`, which the first of all test processes to come writes."""
    base = factory.getbasetemp()
    root = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    path = root / name
    path.parent.mkdir(exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if not path.is_file():
            part = path.with_suffix(".partial")
            write(part)
            part.rename(path)
    return path


@pytest.fixture(scope="session")
def exported(
    open_tiny: Callable[..., tuple[Any, ModelFolder, TextTokenizer]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`exported(family)`: the ONNX file of a tiny 2-layer classifier, written once for all test processes."""

    def export_once(family: str) -> Path:
        def write(path: Path) -> None:
            from pocketbert.core.compare.sample_texts import SENTENCES
            from pocketbert.core.tasks import TASKS, TaskName
            from pocketbert.export import onnx
            from pocketbert.export.prepare import prepare

            task = TASKS[TaskName.TEXT_CLASSIFICATION]
            model, folder, tokenizer = open_tiny(family, 2)
            example = tokenizer.pad(tokenizer.encode(list(SENTENCES[:2])), 32)
            onnx.export(prepare(model, folder.family, task), folder.family, task, example, path)

        return written_once(tmp_path_factory, f"exported-{family}/model.onnx", write)

    return export_once


@pytest.fixture(scope="session")
def exported_tflite(
    open_tiny: Callable[..., tuple[Any, ModelFolder, TextTokenizer]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """`exported_tflite(family)`: the TFLite file of the same classifier, with signatures for `TFLITE_LENGTHS`."""

    def export_once(family: str) -> Path:
        def write(path: Path) -> None:
            from pocketbert.core.tasks import TASKS, TaskName
            from pocketbert.core.types import Format
            from pocketbert.export import tflite
            from pocketbert.export.prepare import prepare

            task = TASKS[TaskName.TEXT_CLASSIFICATION]
            model, folder, _ = open_tiny(family, 2)
            module = prepare(model, folder.family, task, Format.TFLITE)
            tflite.export(module, folder.family, task, TFLITE_LENGTHS[family], path)

        return written_once(tmp_path_factory, f"exported-tflite-{family}/model.tflite", write)

    return export_once


@pytest.fixture(scope="session")
def write_rows() -> Callable[..., Path]:
    """`write_rows(path, rows)`: dictionaries as .jsonl[.gz]; returns the path."""

    def write(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
        raw = "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows).encode()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
        return path

    return write


@pytest.fixture(scope="session")
def labelled_rows() -> Callable[..., list[dict[str, Any]]]:
    """`labelled_rows(count, labels=LABELS)`: texts of different lengths that mostly tell their label."""

    def rows(count: int, labels: Sequence[str] = LABELS) -> list[dict[str, Any]]:
        import numpy as np

        draw = np.random.default_rng(count)
        hints = dict(zip(labels, ("bad", "day", "good"), strict=False))
        out = []
        for i in range(count):
            label = labels[i % len(labels)]
            words = list(draw.choice(WORDS, int(draw.integers(2, 20))))
            words.insert(int(draw.integers(0, len(words))), hints[label])
            out.append({"text": " ".join(words), "label": label})
        return out

    return rows
