"""What the files around tokenizer.json change about it: the same ids as transformers and sentence-transformers give."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.models.tokenizers import apply_settings
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TaskName
from support.published import edit_json, write_checkpoint, write_sentence_model
from support.tiny_tokenizers import vocabulary

COUNT = len(vocabulary(0))
"""Tokens of the tokenizer of these tests; the next number is that of the first added token."""
PAIR = ("The film was GOOD", "play Müsic now")
LONG = "play music and stop the light " * 20


def keep_case(folder: Path) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    content["normalizer"]["lowercase"] = False
    (folder / "tokenizer.json").write_text(json.dumps(content))


def bert_processing(folder: Path) -> None:
    """Write the frame as older files have it: BertProcessing, whose second text has segment 1."""
    content = json.loads((folder / "tokenizer.json").read_text())
    special = content["post_processor"]["special_tokens"]
    named = {name: [f"[{name}]", special[f"[{name}]"]["ids"][0]] for name in ("SEP", "CLS")}
    content["post_processor"] = {"type": "BertProcessing", "sep": named["SEP"], "cls": named["CLS"]}
    (folder / "tokenizer.json").write_text(json.dumps(content))


def settings(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "tokenizer_config.json", **changes)


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


NO_SEGMENTS = settings(model_input_names=["input_ids", "attention_mask"])
CASES: dict[str, Callable[[Path], None]] = {
    "as it is": lambda folder: None,
    "no segments": NO_SEGMENTS,
    "no segments, BertProcessing": both(bert_processing, NO_SEGMENTS),
    "segments named": settings(model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
    "case as the settings say": both(keep_case, settings(do_lower_case=True)),
    "upper case as the settings say": settings(do_lower_case=False),
    "accents stay": settings(strip_accents=False),
    "settings of another class are not read": settings(
        tokenizer_class="PreTrainedTokenizerFast",
        do_lower_case=False,
        model_input_names=["input_ids", "token_type_ids"],
    ),
    "added tokens of the settings": settings(
        added_tokens_decoder={
            f"{COUNT}": {
                "content": "<url>",
                "lstrip": False,
                "rstrip": False,
                "single_word": False,
                "normalized": True,
                "special": False,
            },
            f"{COUNT + 1}": {
                "content": "[E1]",
                "lstrip": False,
                "rstrip": False,
                "single_word": False,
                "normalized": False,
                "special": True,
            },
        }
    ),
    "added_tokens.json": lambda folder: edit_json(folder / "added_tokens.json", **{"<url>": COUNT, "[E1]": COUNT + 1}),
    "the end stays": settings(truncation_side="left"),
}


@pytest.mark.parametrize("case", CASES)
def test_ids_are_those_of_transformers(tmp_path: Path, case: str) -> None:
    import transformers

    folder = write_checkpoint(tmp_path / "model")
    CASES[case](folder)
    edit_json(folder / "config.json", vocab_size=COUNT + 2)  # rows for the added tokens
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = TextTokenizer(open_model_folder(str(folder)).tokenizer_folder, 20)
    for text in (PAIR, PAIR[0], LONG, (LONG, PAIR[1]), "see <url> and [E1] now"):
        parts = (text,) if isinstance(text, str) else text
        wanted = theirs(*parts, truncation=True, max_length=20)
        made = ours.encode([text])[0]
        assert made.ids.tolist() == wanted["input_ids"]
        assert made.type_ids.tolist() == wanted.get("token_type_ids", [0] * len(made.ids))


@pytest.mark.parametrize("normalizer", [None, {"type": "NFC"}, {"type": "Lowercase"}])
def test_lower_case_of_sentence_transformers_comes_first(tmp_path: Path, normalizer: object) -> None:
    folder = write_sentence_model(tmp_path / "model", do_lower_case=True)
    content = json.loads((folder / "tokenizer.json").read_text()) | {"normalizer": normalizer}
    made, changes = apply_settings(json.dumps(content), folder)
    (folder / "tokenizer.json").write_text(made)
    upper, lower = TextTokenizer(folder, 20).encode(["PLAY Music", "play music"])
    assert upper.ids.tolist() == lower.ids.tolist()
    assert bool(changes) == (normalizer != {"type": "Lowercase"})


def test_a_longest_input_of_sentence_transformers_counts_for_vectors_only(tmp_path: Path) -> None:
    folder = write_sentence_model(tmp_path / "model", max_seq_length=12)
    opened = open_model_folder(str(folder))
    assert opened.tokenizer_length == 12
    assert replace(opened, used_for=TaskName.TEXT_CLASSIFICATION).tokenizer_length == 48


@pytest.mark.parametrize("side", ["middle", 3])
def test_an_unknown_side_is_refused(tmp_path: Path, side: object) -> None:
    folder = write_checkpoint(tmp_path / "model")
    edit_json(folder / "tokenizer_config.json", truncation_side=side)
    with pytest.raises(InputError, match=r"truncation_side is .* allowed: right or left"):
        TextTokenizer(folder, 20)
