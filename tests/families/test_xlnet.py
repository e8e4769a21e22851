"""XLNet: relative positions without gather, segments by difference, padding on the left, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.predictor import Batching, run_rows
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.capture import record_attention
from pocketbert.distill.capture.record import records_attention
from pocketbert.export.prepare import PreparedPredictor, prepare
from support.published import edit_json
from support.tiny import NAMES, noisy_model, tiny_classifier
from support.tiny_sentencepiece import write_sentencepiece
from support.tiny_texts import vocabulary

ROW = find_family("xlnet")
CLASSIFY, SPANS, EMBED, FILL = (
    TASKS[n]
    for n in (
        TaskName.TEXT_CLASSIFICATION,
        TaskName.QUESTION_ANSWERING,
        TaskName.FEATURE_EXTRACTION,
        TaskName.FILL_MASK,
    )
)


def batch(rows: int, length: int, side: str, pad_type: int = 3) -> dict[str, torch.Tensor]:
    """Texts as the tokenizer ends them, with a <cls> of segment 2; each row but the first is padded."""
    ids = torch.randint(6, 90, (rows, length), generator=torch.Generator().manual_seed(length))
    mask, types = torch.ones_like(ids), torch.zeros_like(ids)
    types[:, length // 2 :], types[:, -1] = 1, 2
    for i in range(1, rows):
        count = min(2 * i, length - 2)
        padded = slice(0, count) if side == "left" else slice(length - count, length)
        ids[i, padded], mask[i, padded], types[i, padded] = 5, 0, pad_type
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_the_encoder_gives_the_numbers_of_the_untouched_model_at_padded_tokens_too(side: str) -> None:
    for task, output in ((CLASSIFY, "logits"), (EMBED, "last_hidden_state")):
        model = noisy_model("xlnet", 2, task.auto_class, NAMES, clamp_len=6)
        module = prepare(model, ROW, task)
        for shape in ((3, 4), (4, 11), (2, 48)):
            inputs = batch(*shape, side)
            expected, (found, *_) = model(**inputs)[output], module(*inputs.values())
            assert float((found - expected).abs().max() / expected.std()) < 2e-4, (task.name, shape)


@torch.no_grad()
def test_what_positions_segments_and_padding_do_is_seen_and_segments_of_padding_move_nothing() -> None:
    model = tiny_classifier("xlnet", 2, NAMES, vocab_size=90)
    module, inputs = prepare(model, ROW, CLASSIFY), batch(4, 12, "left")
    whole = module(*inputs.values())[0]
    for name, other in (
        ("attention_mask", torch.ones_like(inputs["attention_mask"])),
        ("token_type_ids", torch.zeros_like(inputs["token_type_ids"])),
        ("input_ids", inputs["input_ids"][:, [*range(6, 11), *range(6), 11]]),
    ):
        assert float((module(*{**inputs, name: other}.values())[0] - whole).abs().max()) > 1e-3, name
    for kind in (0, 4):
        torch.testing.assert_close(module(*batch(4, 12, "left", kind).values())[0], whole)


@torch.no_grad()
def test_captured_relations_are_the_projected_states_and_a_copy_is_captured_anew() -> None:
    model, inputs = noisy_model("xlnet", 2, CLASSIFY.auto_class), batch(3, 9, "left")
    captured = copy.deepcopy(model)
    assert not records_attention(captured)
    with record_attention(captured, ROW, (), [0], stop=True) as recorder:
        captured(**inputs)
    assert records_attention(copy.deepcopy(captured))
    assert (list(recorder.relations), recorder.scores) == ([0], {})
    first = recorder.relations[0]
    states, own = model.transformer.word_embedding(inputs["input_ids"]), model.transformer.layer[0].rel_attn
    for name, weight in (("query", own.q), ("key", own.k), ("value", own.v)):
        torch.testing.assert_close(getattr(first, name), torch.einsum("bsh,hnd->bnsd", states, weight))


# What is refused.


def test_guessing_words_is_refused_with_the_reason(tmp_path: Path) -> None:
    from pocketbert import api

    (tmp_path / "model").mkdir()
    rows = write_sentencepiece(tmp_path / "model", "XLNetTokenizer", vocabulary())
    made = tiny_classifier("xlnet", 1, (), auto_class="AutoModelForPreTraining", vocab_size=rows)
    made.save_pretrained(tmp_path / "model")
    folder = open_model_folder(str(tmp_path / "model"))
    assert folder.task is None, "it was trained for no task of the table, nor for embeddings"
    reason = (
        "XLNetLMHeadModel, but no task. XLNet cannot do fill-mask: its language model(.|\n)*--task text-classification"
    )
    with pytest.raises(InputError, match=reason) as error:
        api.export(tmp_path / "model", tmp_path / "out")
    assert "| fill-mask" not in str(error.value)
    with pytest.raises(InputError, match="XLNet cannot do fill-mask: .* target_mapping"):
        load_model(folder, FILL)
    # the language model's checkpoint is where a classifier starts from
    assert load_model(folder, CLASSIFY, new_head=True).transformer.n_layer == 1
    with pytest.raises(InputError, match="no trained head for text-classification"):
        load_model(folder, CLASSIFY)


def test_the_class_of_a_folder_names_its_task(tmp_path: Path) -> None:
    tiny_classifier("xlnet", 1, NAMES[:2], auto_class=SPANS.auto_class).save_pretrained(tmp_path)
    folder = open_model_folder(str(tmp_path))
    assert (folder.task, folder.positions) == (TaskName.QUESTION_ANSWERING, 512)
    load_model(folder, SPANS)
    edit_json(tmp_path / "config.json", architectures=["XLNetForQuestionAnswering"])
    assert open_model_folder(str(tmp_path)).task is None, "the beam search is another head"


# Texts.


def tokenizer_of(folder: Path, length: int) -> tuple[TextTokenizer, int]:
    """A tokenizer, and the size of its vocabulary."""
    rows = write_sentencepiece(folder, "XLNetTokenizer", vocabulary())
    tiny_classifier("xlnet", 1, NAMES, vocab_size=rows).config.save_pretrained(folder)
    return TextTokenizer(folder, length), rows


def test_texts_are_padded_on_the_left_and_end_with_cls(tmp_path: Path) -> None:
    tokenizer, _ = tokenizer_of(tmp_path, 12)
    made = tokenizer.pad(tokenizer.encode(["lamp", ("bright lamp", "song")]))
    assert (tokenizer.padding_side, tokenizer.pad_id) == ("left", 5)
    assert made["attention_mask"].tolist() == [[0, 0, 0, 1, 1, 1], [1] * 6]
    assert made["token_type_ids"].tolist() == [[0, 0, 0, 0, 0, 2], [0, 0, 0, 1, 1, 2]]
    assert made["input_ids"][:, -2:].tolist() == [[4, 3]] * 2
    assert tokenizer.encode(["lamp " * 40])[0].ids[-2:].tolist() == [4, 3], "what is cut off is text"


@pytest.mark.parametrize("task", [CLASSIFY, SPANS], ids=str)
def test_rows_of_different_lengths_get_the_answers_that_each_gets_alone(task: Any, tmp_path: Path) -> None:
    tokenizer, rows = tokenizer_of(tmp_path, 24)
    encoded = tokenizer.encode(["lamp", "bright lamp song " * 4, ("bright lamp", "song"), "song " * 40])
    assert len({len(row) for row in encoded}) == 4
    model = tiny_classifier("xlnet", 2, NAMES[:2], 0, task.auto_class, vocab_size=rows)
    predictor = PreparedPredictor(prepare(model, ROW, task), ROW, task)
    alone = run_rows(predictor, tokenizer, encoded, task)
    together = run_rows(predictor, tokenizer, encoded, task, Batching(4, 1.0))
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
