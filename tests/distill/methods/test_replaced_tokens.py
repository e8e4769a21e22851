"""ELECTRA's objective: what is drawn, what is judged, and what learns from what."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import Family, Objective, TokenizerKind, find_family, register_family
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.sections import StagePlace
from pocketbert.core.recipe.stages import DistilBertStage, ReplacedTokensStage
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import MaskingKind
from pocketbert.distill.methods.method import Heads, StageJob, TeacherStudent
from pocketbert.distill.methods.replaced_tokens import ReplacedTokens, _draw_tokens, needs, train
from pocketbert.distill.text.masking import masking_of
from pocketbert.distill.text.pairs import GeneralSet
from support.plugins import fresh_tables
from support.tiny import tiny_classifier
from support.tiny_tokenizers import vocabulary, write_tokenizer

MASK, WHERE = vocabulary(0).index("[MASK]"), "distill.1"
ROW = Family(
    name="electra",
    title="ELECTRA",
    model_types=("electra",),
    classes="Electra",
    tokenizer=TokenizerKind.WORDPIECE,
    inputs=("input_ids", "attention_mask", "token_type_ids"),
    layer_path="electra.encoder.layer",
    lm_head="generator_predictions",
    objectives=(Objective.REPLACED_TOKEN,),
    tiny={
        "hidden_size": 32,
        "embedding_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "max_position_embeddings": 64,
        "pad_token_id": 0,
    },
)


@pytest.fixture(autouse=True)
def row(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with fresh_tables(monkeypatch):
        register_family(ROW)
        yield


def judge(layers: int, seed: int) -> Any:
    return tiny_classifier("electra", layers, (), seed, "AutoModelForPreTraining")


def guesser(seed: int = 5) -> Any:
    return tiny_classifier("electra", 1, (), seed, "AutoModelForMaskedLM")


def stage(**changes: Any) -> ReplacedTokensStage:
    named = {"method": "replaced-tokens", "generator": {"model": "generator"}, "steps": 4, "dropout": 0.0}
    return ReplacedTokensStage.model_validate(named | changes)


def objective(settings: ReplacedTokensStage | None = None, generator: Any = None) -> tuple[ReplacedTokens, Any]:
    teacher, student = judge(2, 1), judge(1, 2)
    pair = TeacherStudent(teacher, student, ROW, settings or stage(), WHERE)
    return ReplacedTokens(pair, generator or guesser(), MASK, 3), student


def batch_of(more: int = 0) -> dict[str, Tensor]:
    draw = np.random.default_rng(0)
    ids, labels = np.zeros((3, 14 + more), np.int64), np.full((3, 14 + more), -100)
    mask = np.zeros_like(ids)
    for i, size in enumerate((14, 9, 12)):
        ids[i, :size], mask[i, :size] = draw.integers(6, 90, size), 1
        for place in range(2, size, 4):
            labels[i, place], ids[i, place] = ids[i, place], draw.choice([MASK, ids[i, place], 50])
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0, "labels": labels}
    out = {name: torch.from_numpy(value) for name, value in made.items()}
    return out | {"rows": torch.tensor([7, 40, 3]), "steps": torch.full((3,), 11)}


def watched(model: Any) -> list[Tensor]:
    """The tokens that a model reads from now on."""
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda m, a, k: seen.append(k["input_ids"].clone()), with_kwargs=True)
    return seen


@torch.no_grad()
def test_terms_are_those_of_loops_over_tokens() -> None:
    settings = stage(temperature=2.0)
    made, student = objective(settings)
    batch, read, masked = batch_of(), watched(student), watched(made.generator)
    terms = made(student, batch)
    labels, real = batch["labels"], batch["attention_mask"].bool()
    original = torch.where(labels == -100, batch["input_ids"], labels)
    hidden = [(b, t) for b in range(3) for t in range(14) if labels[b, t] != -100]
    assert masked[0].tolist() == original.masked_fill(labels != -100, MASK).tolist()
    assert [(b, t) for b in range(3) for t in range(14) if read[0][b, t] != original[b, t]] <= hidden
    inputs = {n: batch[n] for n in ("attention_mask", "token_type_ids")}
    guessed = made.generator(input_ids=masked[0], **inputs).logits.log_softmax(-1)
    expected = -sum(float(guessed[b, t, labels[b, t]]) for b, t in hidden) / len(hidden)
    assert float(terms["generator"].mean) == pytest.approx(expected, rel=1e-5)
    said, taught = (m(input_ids=read[0], **inputs).logits for m in (student, made.teacher))
    loss = divergence = 0.0
    for b, t in [(b, t) for b in range(3) for t in range(14) if real[b, t]]:
        yes = 1 / (1 + math.exp(-float(said[b, t])))
        loss -= math.log(yes if read[0][b, t] != original[b, t] else 1 - yes)
        p, q = (1 / (1 + math.exp(-float(z[b, t]) / 2)) for z in (taught, said))
        divergence += 4 * (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))
    assert float(terms["replaced"].mean) == pytest.approx(loss / int(real.sum()), rel=1e-4)
    assert float(terms["logits"].mean) == pytest.approx(divergence / int(real.sum()), rel=1e-3)
    assert made.weights == {"generator": 1.0, "replaced": 50.0, "logits": 50.0}
    assert {n: int(t.count) for n, t in terms.items()} == {n: int(c) for n, c in made.counts(batch).items()}


@torch.no_grad()
def test_a_drawn_token_that_is_the_original_one_counts_as_original() -> None:
    generator = guesser()
    batch = batch_of()
    (word,) = batch["labels"][0, 2:3].tolist()
    batch["labels"] = torch.where(batch["labels"] == -100, -100, word)
    generator.generator_lm_head.bias[word] = 1e4
    made, student = objective(stage(weights={"replaced": 50, "logits": 0}), generator)
    read = watched(student)
    loss = made(student, batch)["replaced"].mean
    original = torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])
    assert torch.equal(read[0], original)
    inputs = {n: batch[n] for n in ROW.inputs} | {"input_ids": original}
    zeros = torch.nn.functional.softplus(student(**inputs).logits)[batch["attention_mask"].bool()].mean()
    assert float(loss) == pytest.approx(float(zeros), rel=1e-5)


def test_draws_follow_the_guesses() -> None:
    logits = torch.tensor([0.2, 0.5, 1e-9, 0.3]).log().expand(5000, 4)
    noise = torch.from_numpy(np.random.default_rng(0).random(5000)).float()
    shares = torch.bincount(_draw_tokens(logits, noise), minlength=4) / 5000
    torch.testing.assert_close(shares, torch.tensor([0.2, 0.5, 0.0, 0.3]), atol=0.025, rtol=0)
    ends = _draw_tokens(logits[:2], torch.tensor([0.0, 1 - 2**-24]))
    assert ends.tolist() == [0, 3]


@torch.no_grad()
def test_neither_padding_nor_parts_nor_their_order_change_what_is_drawn() -> None:
    made, student = objective()
    read = watched(student)
    made(student, batch_of())
    made(student, batch_of(more=5))
    assert torch.equal(read[0], read[1][:, :14])
    turned = {n: v.flip(0) for n, v in batch_of().items()}
    made(student, turned)
    assert torch.equal(read[0], read[2].flip(0))
    made(student, {n: v[1:2] for n, v in batch_of().items()})
    assert torch.equal(read[0][1:2], read[3])
    made(student, batch_of() | {"steps": torch.full((3,), 12)})
    assert not torch.equal(read[0], read[4])


def test_the_generator_learns_from_its_guesses_alone() -> None:
    made, student = objective()
    terms = made(student, batch_of())
    (terms["replaced"].mean + terms["logits"].mean).backward(retain_graph=True)
    assert all(p.grad is None for p in made.generator.parameters())
    assert all(p.grad is None for p in made.teacher.parameters())
    terms["generator"].mean.backward()
    assert made.generator.electra.embeddings.word_embeddings.weight.grad is not None
    still, student = objective(stage(weights={"generator": 0}))
    assert list(still(student, batch_of())) == ["replaced", "logits"]
    assert not any(p.requires_grad for p in still.generator.parameters())


class Corpus:
    """Random rows."""

    def __init__(self) -> None:
        draw = np.random.default_rng(4)
        self._rows = [np.array([2, *draw.integers(6, 90, 10), 3]) for _ in range(16)]
        self.lengths = np.array([len(r) for r in self._rows])
        self.counts = np.bincount(np.concatenate(self._rows), minlength=len(vocabulary(0)))

    def ids(self, rows: Sequence[int]) -> list[np.ndarray[Any, np.dtype[np.int64]]]:
        return [self._rows[r] for r in rows]


def job_of(folder: Path, name: str, generator: Path) -> StageJob[ReplacedTokensStage]:
    write_tokenizer(folder)
    tokenizer, rows = TextTokenizer(folder, 32), Corpus()
    masking = masking_of(MaskingKind.DYNAMIC, rows.counts, tokenizer, 3, WHERE)
    settings = stage(generator={"model": str(generator)}, batch=8, steps=6, lr=1e-2)
    pair = TeacherStudent(judge(2, 1), judge(1, 2), ROW, settings, WHERE)
    task = TASKS[TaskName.TEXT_CLASSIFICATION]
    return StageJob(pair, lambda: GeneralSet(rows, tokenizer, masking), 3, folder / name, task)


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    folder = tmp_path / "generator"
    folder.mkdir()
    guesser().save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_a_stage_trains_both_and_leaves_the_student_as_it_was_made(tmp_path: Path, generator: Path) -> None:
    jobs = [job_of(tmp_path, name, generator) for name in ("one", "two")]
    names = set(jobs[0].pair.student.state_dict())
    histories = [train(job).outcome.history for job in jobs]
    for job in jobs:
        assert set(job.pair.student.state_dict()) == names
    first, second = (job.pair.student.state_dict() for job in jobs)
    assert all(torch.equal(first[n], second[n]) for n in names), "the same draws in every run"
    assert [r.terms for r in histories[0]] == [r.terms for r in histories[1]]
    before = judge(1, 2).state_dict()
    assert not torch.equal(
        first["discriminator_predictions.dense.weight"], before["discriminator_predictions.dense.weight"]
    )


def test_a_killed_stage_goes_on_with_the_same_generator_and_the_same_draws(tmp_path: Path, generator: Path) -> None:
    job = job_of(tmp_path, "killed", generator)
    job = job.with_stage(job.pair.stage.model_copy(update={"checkpoint": 2}))

    class Killed(Exception):
        pass

    class Dies(ReplacedTokens):
        def __call__(self, model: Any, batch: dict[str, Tensor]) -> Any:
            if int(batch["steps"][0]) == 4:
                raise Killed
            return super().__call__(model, batch)

    def fresh(kind: type[ReplacedTokens], work: Path) -> tuple[StageJob[Any], ReplacedTokens]:
        own = replace(job, pair=replace(job.pair, student=judge(1, 2)), work=work)
        made = guesser()
        own.pair.student.add_module("token_generator", made)
        return own, kind(own.pair, made, MASK, 3)

    whole, straight = fresh(ReplacedTokens, tmp_path / "straight")
    whole.fit(straight)
    dying, dies = fresh(Dies, tmp_path / "killed")
    with pytest.raises(Killed):
        dying.fit(dies)
    again, lives = fresh(ReplacedTokens, tmp_path / "killed")
    again.fit(lives)
    one, two = whole.pair.student.state_dict(), again.pair.student.state_dict()
    assert any(name.startswith("token_generator.") for name in one)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_generator_with_other_words_is_refused(tmp_path: Path, generator: Path) -> None:
    write_tokenizer(generator, pad_id=1)
    with pytest.raises(InputError, match=r"distill\.1\.generator\.model.*another vocabulary than the teacher"):
        train(job_of(tmp_path, "work", generator))


def test_a_teacher_that_judges_no_tokens_is_refused(tmp_path: Path) -> None:
    bert = tiny_classifier("bert", 1, (), auto_class="AutoModelForMaskedLM")
    pair = TeacherStudent(bert, bert, find_family("bert"), stage(), WHERE)
    with pytest.raises(InputError) as error:
        ReplacedTokens(pair, guesser(), MASK, 0)
    said = str(error.value)
    assert "BERT checkpoints do not judge tokens; objectives: masked-lm, next-sentence" in said
    assert "BertForMaskedLM has no head that judges tokens" in said


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masking": "none"}, "leaves the generator nothing to replace"),
        ({"masking": "similar"}, "leaves the generator nothing to replace"),
        ({"weights": {"replaced": 0, "logits": 0}}, "the student would learn nothing"),
    ],
)
def test_stages_that_teach_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        stage(**changes)


def test_it_goes_with_no_stage_that_trains_guesses() -> None:
    other = DistilBertStage.model_validate({"method": "distilbert", "steps": 4})
    (problem,) = stage().problems(StagePlace(0, [stage(), other], None))
    assert problem.startswith("distill.0: the student judges tokens and guesses none, distill.1 trains guesses")
    assert stage().problems(StagePlace(0, [stage()], None)) == []
    assert needs(stage(), WHERE).heads is Heads.TOKENS
