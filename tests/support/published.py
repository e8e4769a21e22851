"""Tiny checkpoints in the shapes that people publish, for the gate from text to answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from support.tiny import tiny_classifier
from support.tiny_tokenizers import write_tokenizer

PROMPTS = {"query": "play music: ", "passage": "film ", "document": ""}


def edit_json(path: Path, **changes: Any) -> None:
    """Change entries of a JSON file; None removes one, and a missing file is made."""
    content = json.loads(path.read_text()) if path.is_file() else {}
    content |= changes
    path.write_text(json.dumps({k: v for k, v in content.items() if v is not None}))


def write_checkpoint(
    folder: Path, auto_class: str = "AutoModelForSequenceClassification", family: str = "bert", count: int = 3
) -> Path:
    """Write a tiny random model with the tokenizer of most tests; its labels are named."""
    folder.mkdir(parents=True)
    names = tuple(f"name {i}" for i in range(2 if auto_class.endswith("QuestionAnswering") else count))
    tiny_classifier(family, 2, names, 3, auto_class).save_pretrained(folder)
    write_tokenizer(folder, baked_in=False)
    return folder


def write_sentence_model(
    folder: Path,
    prompts: Mapping[str, str] | None = None,
    default: str | None = None,
    pooling: str = "mean",
    **sentence: Any,
) -> Path:
    """Write a tiny folder of sentence-transformers; `sentence` are entries of its sentence_bert_config.json."""
    write_checkpoint(folder, "AutoModel")
    kinds = ("Transformer", "Pooling")
    modules = [
        {"idx": i, "name": str(i), "path": "1_Pooling" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {f"pooling_mode_{mode}": mode.startswith(pooling) for mode in ("cls_token", "mean_tokens")}
    width = json.loads((folder / "config.json").read_text())["hidden_size"]
    edit_json(folder / "1_Pooling" / "config.json", word_embedding_dimension=width, **modes)
    edit_json(folder / "sentence_bert_config.json", **{"max_seq_length": 40, "do_lower_case": False, **sentence})
    edit_json(folder / "config_sentence_transformers.json", prompts=dict(prompts or {}), default_prompt_name=default)
    return folder


def write_cross_encoder(folder: Path, **config: Any) -> Path:
    """Write a tiny classifier with one output, as rerankers are; `config` are entries of its config.json."""
    write_checkpoint(folder, count=1)
    edit_json(folder / "config.json", id2label=None, label2id=None, num_labels=1, **config)
    return folder
