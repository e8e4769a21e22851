"""Static students: the table that the teacher makes, and what an answer must not depend on."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.core.data.labels import Labels
from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.models.checkpoints import load_model, save_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.students.static import build_static_student, embed_pieces, reduce_vectors

CLASSIFY, EMBED = TASKS[TaskName.TEXT_CLASSIFICATION], TASKS[TaskName.FEATURE_EXTRACTION]
TAG = TASKS[TaskName.TOKEN_CLASSIFICATION]
CLS, SEP, PAD = 2, 3, 0
TEXT = [7, 9, 30, 12]


@pytest.fixture
def teacher(open_tiny) -> Any:
    return open_tiny("bert", 2)


@pytest.fixture
def student(teacher) -> Any:
    model, folder, tokenizer = teacher
    return build_static_student(model, folder.family, tokenizer, CLASSIFY, 16, pairs=False, seed=1).eval()


@pytest.fixture
def pair_student(teacher) -> Any:
    model, folder, tokenizer = teacher
    return build_static_student(model, folder.family, tokenizer, CLASSIFY, 16, pairs=True, seed=1).eval()


@pytest.fixture
def tagger(teacher) -> Any:
    model, folder, tokenizer = teacher
    return build_static_student(model, folder.family, tokenizer, TAG, 16, seed=1).eval()


@torch.no_grad()
def answer(model: Any, *ids: list[int], second: int = 0, padding: int = 0) -> Tensor:
    """The logits of one row; its last `second` tokens are of the second text."""
    row = [i for part in ids for i in part]
    types = [0] * (len(row) - second) + [1] * second
    mask = [1] * len(row) + [0] * padding
    feed = {"input_ids": row + [PAD] * padding, "attention_mask": mask, "token_type_ids": types + [0] * padding}
    made: Tensor = model(**{name: torch.tensor([values]) for name, values in feed.items()}).logits
    return made


# --- the table --------------------------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "error"), [(torch.float32, 1e-5), (torch.bfloat16, 0.03)], ids=str)
def test_a_row_is_the_teachers_mean_state_of_its_piece(teacher, dtype, error):
    model, folder, tokenizer = teacher
    vectors = embed_pieces(model, folder.family, tokenizer, dtype)
    for piece in (4, 11, 40):
        ids = torch.tensor([[CLS, piece, SEP]])
        states = model.bert(ids, torch.ones_like(ids), torch.zeros_like(ids)).last_hidden_state
        torch.testing.assert_close(vectors[piece], states[0].mean(0), rtol=1e-4, atol=error)
    assert len(vectors) == model.config.vocab_size


def test_all_components_give_the_centred_states_again_with_less_weight_for_frequent_tokens():
    vectors = torch.randn(200, 12, generator=torch.Generator().manual_seed(0))
    table, components = reduce_vectors(vectors, [0, 2], 12)
    ordinary = [i for i in range(200) if i not in (0, 2)]
    centred = vectors - vectors[ordinary].mean(0)
    given = table @ components.T
    weights = (given * centred).sum(-1) / centred.pow(2).sum(-1)
    torch.testing.assert_close(given[ordinary], (centred * weights[:, None])[ordinary], rtol=1e-4, atol=1e-5)
    assert not table[[0, 2]].any()
    assert (weights[ordinary].diff() > 0).all(), "vocabularies begin with frequent pieces"
    kept = reduce_vectors(vectors, [0, 2], 5)[0]
    torch.testing.assert_close(kept / kept.norm(), table[:, :5] / table[:, :5].norm(), rtol=1e-4, atol=1e-5)


def test_the_same_seed_builds_the_same_student(teacher):
    model, folder, tokenizer = teacher
    first, again, other = (
        build_static_student(model, folder.family, tokenizer, CLASSIFY, seed=seed).state_dict() for seed in (1, 1, 2)
    )
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["dense.weight"], other["dense.weight"])


# --- laws -------------------------------------------------------------------------------------------------------------


def test_neither_padding_nor_special_tokens_nor_order_move_an_answer(student):
    plain = answer(student, TEXT)
    for row, padding in (([CLS, *TEXT, SEP], 0), ([CLS, *TEXT, SEP], 9), ([CLS, SEP, *TEXT[::-1], SEP, PAD], 0)):
        torch.testing.assert_close(answer(student, row, padding=padding), plain)
    assert not torch.allclose(answer(student, TEXT[1:]), plain)


def test_an_empty_text_has_a_finite_answer_that_padding_does_not_move(student, pair_student):
    for model in (student, pair_student):
        empty = answer(model, [CLS, SEP])
        assert empty.isfinite().all()
        torch.testing.assert_close(answer(model, [CLS, SEP], padding=5), empty)


def test_pairs_are_told_apart_by_their_segments(pair_student):
    first, second = [CLS, 7, 9, SEP], [30, 12, 8, SEP]
    pair = answer(pair_student, first, second, second=4)
    torch.testing.assert_close(answer(pair_student, first, second, second=4, padding=6), pair)
    torch.testing.assert_close(answer(pair_student, [7, 9], [30, 12, 8], second=3), pair)
    assert not torch.allclose(answer(pair_student, second, first, second=4), pair)
    assert not torch.allclose(answer(pair_student, first, second), pair)


def test_a_tag_depends_on_the_tokens_inside_its_windows_and_on_no_padding(tagger):
    reach, text = len(tagger.static.windows), [7, 9, 30, 12, 8, 11, 14, 21, 33, 25, 17, 19]
    plain = answer(tagger, [CLS, *text, SEP])
    with torch.no_grad():  # as in a file whose table does not hold exact zeros
        tagger.get_input_embeddings().weight[PAD] = 0.5
    torch.testing.assert_close(answer(tagger, [CLS, *text, SEP], padding=5)[:, : len(text) + 2], plain)
    changed = answer(tagger, [CLS, 40, *text[1:], SEP])
    moved = (changed - plain).abs().amax(-1)[0] > 1e-6
    assert moved.tolist() == [True] * (2 + reach) + [False] * (len(text) - reach)
    swapped = answer(tagger, [CLS, text[1], text[0], *text[2:], SEP])
    assert not torch.allclose(swapped[0, 3], plain[0, 3]), "the order of the neighbours counts"


@torch.no_grad()
def test_a_window_is_a_product_with_the_token_and_the_two_beside_it(tagger):
    model = tagger
    del model.static.windows[1:]
    row = [CLS, 7, 9, 30, SEP]
    table = model.get_input_embeddings().weight[row]
    left, right = torch.cat([torch.zeros(1, 16), table[:-1]]), torch.cat([table[1:], torch.zeros(1, 16)])
    read = torch.relu(model.static.windows[0](torch.cat([left, table, right], -1)))
    expected = model.classifier(torch.relu(model.dense(table + read)))
    torch.testing.assert_close(answer(model, row)[0], expected)


@torch.no_grad()
def test_a_pairs_features_are_both_means_their_distance_and_their_product(pair_student):
    table = pair_student.get_input_embeddings().weight
    u, v = (rows / rows.pow(2).mean().sqrt() for rows in (table[[7, 9]].sum(0), table[[30, 12, 8]].sum(0)))
    features = torch.cat([u, v, (u - v).abs(), u * v])
    expected = pair_student.classifier(torch.relu(pair_student.dense(features)))
    torch.testing.assert_close(answer(pair_student, [CLS, 7, 9, SEP], [30, 12, 8, SEP], second=4)[0], expected)


@pytest.mark.parametrize("kind", ["student", "tagger"])  # a tagger reads the rows of special tokens, too
def test_training_moves_the_table_but_never_the_rows_of_special_tokens(kind, request):
    model, row = request.getfixturevalue(kind).train(), torch.tensor([[CLS, *TEXT, SEP]])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    before = model.get_input_embeddings().weight.detach().clone()
    for _ in range(2):
        model(row, torch.ones_like(row)).logits.square().mean().backward()
        optimizer.step()
    table = model.get_input_embeddings().weight
    assert not table[model.config.special_ids].any()
    assert not torch.equal(table[TEXT], before[TEXT])


def test_a_folder_whose_special_tokens_have_vectors_is_opened_without_them(student, teacher, tmp_path):
    expected = answer(student, [CLS, *TEXT, SEP])
    with torch.no_grad():
        student.get_input_embeddings().weight[[PAD, CLS, SEP]] = 3.0
    _, folder, _ = teacher
    save_model(student, folder, Labels(tuple(folder.labels)), 40, tmp_path)
    opened = open_model_folder(str(tmp_path))
    assert (opened.family.name, opened.family.inputs) == ("static-embeddings", ("input_ids", "attention_mask"))
    torch.testing.assert_close(answer(load_model(opened, CLASSIFY), [CLS, *TEXT, SEP]), expected)


def test_a_new_head_keeps_the_windows(tagger, teacher, tmp_path):
    save_model(tagger, teacher[1], Labels(("a", "b", "c")), 40, tmp_path)
    opened = load_model(open_model_folder(str(tmp_path)), TAG, Labels(("x", "y")), new_head=True)
    own, kept = tagger.static.state_dict(), opened.static.state_dict()
    assert sum("windows" in name for name in kept) == 2 * 4 and all(torch.equal(own[k], kept[k]) for k in kept)


# --- embeddings -------------------------------------------------------------------------------------------------------


def test_embeddings_are_as_wide_as_the_teachers_and_begin_near_them(teacher):
    model, folder, tokenizer = teacher
    student = build_static_student(model.bert, folder.family, tokenizer, EMBED, pairs=True).eval()
    assert (student.config.embedding_size, student.config.hidden_size) == (21, 32)
    vectors = embed_pieces(model, folder.family, tokenizer)
    with torch.no_grad():
        states = student(torch.tensor([[CLS, *TEXT, SEP]])).last_hidden_state[0]
    assert not states[[0, -1]].any()
    centred = (vectors - vectors.mean(0))[TEXT]
    assert (torch.cosine_similarity(states[1:-1], centred) > 0.7).all()


# --- what cannot be ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "task", "settings", "problem"),
    [
        ("bert", TaskName.QUESTION_ANSWERING, {}, "student.layers: 0 is no student for question-answering"),
        ("bert", TaskName.TEXT_CLASSIFICATION, {"dimensions": 33}, "student.dimensions: 33 is more than the 32"),
        ("bert", TaskName.FEATURE_EXTRACTION, {"dimensions": 32}, "student.dimensions: 32 is more than the 31"),
        ("xlnet", TaskName.TEXT_CLASSIFICATION, {}, "XLNet pads on the left"),
        ("roberta", TaskName.TEXT_CLASSIFICATION, {"pairs": True}, "RoBERTa does not mark the second text of a pair"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(family, task, settings, problem, teacher, make_classifier):
    tokenizer: TextTokenizer = teacher[2]
    model, row = make_classifier(family, 1, ("a", "b")), find_family(family)
    with pytest.raises(InputError, match=problem):
        build_static_student(model, row, tokenizer, TASKS[task], **settings)
