"""Tokenizers: what the files around tokenizer.json change about it, what is saved, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.families import family_of
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.models.tokenizers import apply_settings, check_tokenizer, save_tokenizer
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from support.published import edit_json, write_checkpoint, write_sentence_model
from support.tiny_tokenizers import vocabulary

COUNT = len(vocabulary(0))
"""Tokens of the tokenizer of these tests; the next number is that of the first added token."""
PAIR = ("The film was GOOD", "play Müsic now")
LONG = "play music and stop the light " * 20


def edit_tokenizer(folder: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads((folder / "tokenizer.json").read_text())
    change(content)
    (folder / "tokenizer.json").write_text(json.dumps(content))


def keep_case(folder: Path) -> None:
    edit_tokenizer(folder, lambda content: content["normalizer"].update(lowercase=False))


def bert_processing(folder: Path) -> None:
    """Write the frame as older files have it: BertProcessing, whose second text has segment 1."""

    def change(content: Any) -> None:
        special = content["post_processor"]["special_tokens"]
        named = {name: [f"[{name}]", special[f"[{name}]"]["ids"][0]] for name in ("SEP", "CLS")}
        content["post_processor"] = {"type": "BertProcessing", "sep": named["SEP"], "cls": named["CLS"]}

    edit_tokenizer(folder, change)


def settings(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit_json(folder / "tokenizer_config.json", **changes)


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        for one in changes:
            one(folder)

    return change


AS_IT_IS = {"lstrip": False, "rstrip": False, "single_word": False}
NO_SEGMENTS = settings(model_input_names=["input_ids", "attention_mask"])
CASES: dict[str, Callable[[Path], None]] = {
    "as it is": lambda folder: None,
    "no segments": NO_SEGMENTS,
    "no segments, BertProcessing": both(bert_processing, NO_SEGMENTS),
    "segments named": settings(model_input_names=["input_ids", "token_type_ids", "attention_mask"]),
    "case as the settings say": both(keep_case, settings(do_lower_case=True)),
    "case by default": both(keep_case, settings(do_lower_case=None)),
    "accents by default": lambda folder: edit_tokenizer(folder, lambda c: c["normalizer"].update(strip_accents=False)),
    "upper case as the settings say": settings(do_lower_case=False),
    "accents stay": settings(strip_accents=False),
    "settings of another class are not read": settings(
        tokenizer_class="PreTrainedTokenizerFast",
        do_lower_case=False,
        model_input_names=["input_ids", "token_type_ids"],
    ),
    "added tokens of the settings": settings(
        added_tokens_decoder={
            f"{COUNT}": {**AS_IT_IS, "content": "<url>", "normalized": True, "special": False},
            f"{COUNT + 1}": {**AS_IT_IS, "content": "[E1]", "normalized": False, "special": True},
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
    path = write_sentence_model(tmp_path / "lower", max_seq_length=12, do_lower_case=True)
    edit_json(path / "tokenizer.json", normalizer=None)  # which is completed in another folder
    opened = open_model_folder(str(path))
    for used_for, length in ((None, 12), (TaskName.TEXT_CLASSIFICATION, 48)):
        folder = replace(opened, used_for=used_for).tokenizer_folder
        assert json.loads((folder / "tokenizer_config.json").read_text())["model_max_length"] == length


@pytest.mark.parametrize("side", ["middle", 3])
def test_an_unknown_side_is_refused(tmp_path: Path, side: object) -> None:
    folder = write_checkpoint(tmp_path / "model")
    edit_json(folder / "tokenizer_config.json", truncation_side=side)
    with pytest.raises(InputError, match=r"truncation_side is .* allowed: right or left"):
        TextTokenizer(folder, 20)


def test_the_saved_tokenizer_neither_pads_nor_cuts(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    source = tiny_model("bert", 2)
    assert json.loads((source / "tokenizer.json").read_text())["padding"] is not None
    save_tokenizer(source, 20, tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    assert content["padding"] is None
    assert content["truncation"] is None
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == 20
    assert (tmp_path / "vocab.txt").read_bytes() == (source / "vocab.txt").read_bytes()


def test_a_tokenizer_is_converted_from_its_vocabulary(tmp_path: Path) -> None:
    source, target = write_checkpoint(tmp_path / "model"), tmp_path / "converted"
    before = TextTokenizer(source, 32).encode(list(SENTENCES))
    (source / "tokenizer.json").unlink()
    target.mkdir()
    save_tokenizer(source, 32, target)
    after = TextTokenizer(target, 32).encode(list(SENTENCES))
    assert [e.ids.tolist() for e in after] == [e.ids.tolist() for e in before]
    for name in ("vocab.txt", "tokenizer_config.json"):
        (source / name).unlink()
    with pytest.raises(InputError, match="tokenizer"):
        save_tokenizer(source, 32, target)


def add_words(content: Any, **more: int) -> None:
    content["model"]["vocab"] |= more


TOKENIZERS: dict[str, tuple[Callable[[Any], Any], str]] = {
    "an id beyond the table": (lambda c: add_words(c, lamp=100_000), "largest token id is 100,000"),
    "an added id beyond it": (
        lambda c: c["added_tokens"].append({**c["added_tokens"][0], "id": 10**6, "content": "zzz"}),
        "belongs to another model|not a tokenizer",
    ),
    "no vocabulary": (lambda c: c["model"].update(vocab={}), "vocabulary is empty"),
    "no frame": (lambda c: c.update(post_processor=None), "puts no special tokens around a text"),
    "a frame of strangers": (
        lambda c: c["post_processor"]["special_tokens"]["[CLS]"].update(ids=[77]),
        "adds '.CLS.', which the vocabulary does not have under that number",
    ),
    "a frame that repeats": (
        lambda c: c["post_processor"]["single"].extend([{"Sequence": {"id": "A", "type_id": 0}}] * 20),
        "does not have each text once",
    ),
    "special tokens only": (
        lambda c: c["model"].update(vocab={t["content"]: t["id"] for t in c["added_tokens"]}),
        "special tokens only",
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers_that_are_refused(name: str, tmp_path: Path) -> None:
    change, said = TOKENIZERS[name]
    folder = write_checkpoint(tmp_path / "model")
    edit_tokenizer(folder, change)
    with pytest.raises(InputError, match=said):
        load_model(open_model_folder(str(folder)), TASKS[TaskName.TEXT_CLASSIFICATION])


def test_a_model_with_one_segment_does_not_take_a_frame_that_gives_a_second_one(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model")
    bert_processing(folder)
    config = json.loads((folder / "config.json").read_text())
    check_tokenizer(folder, config, family_of("bert"))
    with pytest.raises(InputError, match="gives tokens the segment 1, the model has 1 segments"):
        check_tokenizer(folder, {**config, "type_vocab_size": 1}, family_of("bert"))
