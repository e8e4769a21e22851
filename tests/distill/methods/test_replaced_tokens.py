"""ELECTRA's objective: what is drawn, what is judged, and what learns from what."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from pocketbert.core.errors import InputError
from pocketbert.core.families import find_family
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.sections import StagePlace
from pocketbert.core.recipe.stages import DistilBertStage, ReplacedTokensStage
from pocketbert.core.types import MaskingKind
from pocketbert.distill.methods.method import Heads, StageJob, TeacherStudent
from pocketbert.distill.methods.replaced_tokens import ReplacedTokens, _draw_tokens, needs, train
from pocketbert.distill.text.masking import masking_of
from pocketbert.distill.text.pairs import GeneralSet
from support.objectives import CLASSIFY, MASK_ID, Trial, try_replaced_tokens
from support.tiny import tiny_classifier
from support.tiny_tokenizers import vocabulary, write_tokenizer

WHERE = "distill.1"


def stage(**changes: Any) -> ReplacedTokensStage:
    named = {"method": "replaced-tokens", "generator": {"model": "generator"}, "steps": 4, "dropout": 0.0}
    return ReplacedTokensStage.model_validate(named | changes)


def watch(model: Any) -> list[Tensor]:
    """The tokens that a model reads from now on."""
    seen: list[Tensor] = []
    model.register_forward_pre_hook(lambda m, a, k: seen.append(k["input_ids"].clone()), with_kwargs=True)
    return seen


def original_ids(batch: dict[str, Tensor]) -> Tensor:
    return torch.where(batch["labels"] == -100, batch["input_ids"], batch["labels"])


@torch.no_grad()
def test_terms_are_those_of_loops_over_tokens():
    trial = try_replaced_tokens(temperature=2.0)
    made, batch = trial.objective, trial.batch()
    read, masked = watch(trial.student), watch(made.generator)
    terms = trial.terms()
    labels, original = batch["labels"], original_ids(batch)
    hidden = [tuple(place) for place in (labels != -100).nonzero().tolist()]
    assert masked[0].tolist() == original.masked_fill(labels != -100, MASK_ID).tolist()
    assert {tuple(place) for place in (read[0] != original).nonzero().tolist()} <= set(hidden)
    inputs = {n: batch[n] for n in ("attention_mask", "token_type_ids")}
    guessed = made.generator(input_ids=masked[0], **inputs).logits.log_softmax(-1)
    expected = -sum(float(guessed[b, t, labels[b, t]]) for b, t in hidden) / len(hidden)
    assert float(terms["generator"].mean) == pytest.approx(expected, rel=1e-5)
    said, taught = (m(input_ids=read[0], **inputs).logits for m in (trial.student, trial.teacher))
    real = [tuple(place) for place in batch["attention_mask"].nonzero().tolist()]
    loss = divergence = 0.0
    for b, t in real:
        yes = 1 / (1 + math.exp(-float(said[b, t])))
        loss -= math.log(yes if read[0][b, t] != original[b, t] else 1 - yes)
        p, q = (1 / (1 + math.exp(-float(z[b, t]) / 2)) for z in (taught, said))
        divergence += 4 * (p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q)))
    assert float(terms["replaced"].mean) == pytest.approx(loss / len(real), rel=1e-4)
    assert float(terms["logits"].mean) == pytest.approx(divergence / len(real), rel=1e-3)
    assert made.weights == {"generator": 1.0, "replaced": 50.0, "logits": 50.0}


@torch.no_grad()
def test_a_drawn_token_that_is_the_original_one_counts_as_original():
    trial = try_replaced_tokens(weights={"replaced": 50, "logits": 0})
    batch, read, word = trial.batch(), watch(trial.student), 17
    batch["labels"] = torch.where(batch["labels"] == -100, -100, word)
    trial.objective.generator.generator_lm_head.bias[word] = 1e4
    loss = trial.objective(trial.student, batch)["replaced"].mean
    assert torch.equal(read[0], original_ids(batch))
    inputs = {n: batch[n] for n in trial.objective.family.inputs} | {"input_ids": read[0]}
    zeros = torch.nn.functional.softplus(trial.student(**inputs).logits)[batch["attention_mask"].bool()].mean()
    assert float(loss) == pytest.approx(float(zeros), rel=1e-5)


def test_draws_follow_the_guesses():
    """The private function, as numbers at the very end of the unit interval cannot be asked for from outside."""
    logits = torch.tensor([0.2, 0.5, 1e-9, 0.3]).log().expand(5000, 4)
    noise = torch.from_numpy(np.random.default_rng(0).random(5000)).float()
    shares = torch.bincount(_draw_tokens(logits, noise), minlength=4) / 5000
    torch.testing.assert_close(shares, torch.tensor([0.2, 0.5, 0.0, 0.3]), atol=0.025, rtol=0)
    assert _draw_tokens(logits[:2], torch.tensor([0.0, 1 - 2**-24])).tolist() == [0, 3]


@torch.no_grad()
def test_draws_depend_on_row_and_step_and_on_nothing_around_them():
    trial = try_replaced_tokens()
    read, batch = watch(trial.student), trial.batch()
    turned, later = {n: v.flip(0)[:3] for n, v in batch.items()}, batch | {"steps": torch.full((5,), 12)}
    for other in (batch, turned, later):
        trial.objective(trial.student, other)
    assert torch.equal(read[0].flip(0)[:3], read[1])
    assert not torch.equal(read[0], read[2])


def test_the_generator_learns_from_its_guesses_alone():
    trial = try_replaced_tokens()
    generator, terms = trial.objective.generator, trial.terms()
    (terms["replaced"].mean + terms["logits"].mean).backward(retain_graph=True)
    assert all(p.grad is None for p in generator.parameters())
    terms["generator"].mean.backward()
    assert generator.electra.embeddings.word_embeddings.weight.grad is not None
    still = try_replaced_tokens(weights={"generator": 0})
    assert list(still.terms()) == ["replaced", "logits"]
    assert not any(p.requires_grad for p in still.objective.generator.parameters())


# --- stages -----------------------------------------------------------------------------------------------------------


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
    tokenizer, rows, trial = TextTokenizer(folder, 32), Corpus(), bare_trial()
    masking = masking_of(MaskingKind.DYNAMIC, rows.counts, tokenizer, 3, WHERE)
    settings = stage(generator={"model": str(generator)}, batch=8, steps=6, lr=1e-2)
    pair = TeacherStudent(trial.teacher, trial.student, find_family("electra"), settings, WHERE)
    return StageJob(pair, lambda: GeneralSet(rows, tokenizer, masking), 3, folder / name, CLASSIFY)


def bare_trial() -> Trial:
    """Its student without the generator."""
    trial = try_replaced_tokens()
    del trial.student.token_generator
    return trial


@pytest.fixture
def generator(tmp_path) -> Path:
    folder = tmp_path / "generator"
    folder.mkdir()
    try_replaced_tokens().objective.generator.save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def test_a_stage_trains_reproducibly_and_leaves_the_student_as_it_was_made(tmp_path, generator):
    jobs = [job_of(tmp_path, name, generator) for name in ("one", "two")]
    before = {name: value.clone() for name, value in jobs[0].pair.student.state_dict().items()}
    histories = [train(job).outcome.history for job in jobs]
    first, second = (job.pair.student.state_dict() for job in jobs)
    assert first.keys() == second.keys() == before.keys()
    assert all(torch.equal(first[n], second[n]) for n in before), "the same draws in every run"
    assert [r.terms for r in histories[0]] == [r.terms for r in histories[1]]
    head = "discriminator_predictions.dense.weight"
    assert not torch.equal(first[head], before[head])


def test_a_generator_with_other_words_is_refused(tmp_path, generator):
    write_tokenizer(generator, pad_id=1)
    with pytest.raises(InputError, match=r"distill\.1\.generator\.model.*another vocabulary than the teacher"):
        train(job_of(tmp_path, "work", generator))


def test_a_teacher_that_judges_no_tokens_is_refused(tmp_path, generator):
    bert, job = tiny_classifier("bert", 1, (), auto_class="AutoModelForMaskedLM"), job_of(tmp_path, "work", generator)
    pair = replace(job.pair, teacher=bert, student=bert, family=find_family("bert"))
    for attempt in (lambda: train(replace(job, pair=pair)), lambda: ReplacedTokens(pair, bert, MASK_ID, 0)):
        with pytest.raises(InputError) as error:
            attempt()
        assert "BERT checkpoints do not judge tokens; objectives: masked-lm, next-sentence" in str(error.value)
        assert "BertForMaskedLM has no head that judges tokens" in str(error.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"masking": "none"}, "leaves the generator nothing to replace"),
        ({"masking": "similar"}, "leaves the generator nothing to replace"),
        ({"weights": {"replaced": 0, "logits": 0}}, "the student would learn nothing"),
    ],
)
def test_stages_that_teach_nothing_are_refused(changes, message):
    with pytest.raises(ValidationError, match=message):
        stage(**changes)


def test_it_goes_with_no_stage_that_trains_guesses():
    other = DistilBertStage.model_validate({"method": "distilbert", "steps": 4})
    (problem,) = stage().problems(StagePlace(0, [stage(), other], None))
    assert problem.startswith("distill.0: the student judges tokens and guesses none, distill.1 trains guesses")
    assert stage().problems(StagePlace(0, [stage()], None)) == []
    assert needs(stage(), WHERE).heads is Heads.TOKENS
