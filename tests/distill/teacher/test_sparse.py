"""A teacher's logits at masked tokens, sampled and stored before training: exact, resumed, and refused where they do not fit."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from pocketbert.core.errors import InputError, MachineError
from pocketbert.core.families import family_of
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.stages import DistilBertStage, SparseCache
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.types import MaskingKind
from pocketbert.distill.losses.tokens import draw_uniform_numbers, sparsify
from pocketbert.distill.methods.distilbert import DistilBertDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.teacher import sparse
from pocketbert.distill.teacher.sparse import SparseTeacher, sparse_teacher
from pocketbert.distill.text.corpus import EncodedRows
from pocketbert.distill.text.masking import Masking, masking_of
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.training import loop
from pocketbert.distill.training.data import BatchOrder, take_rows
from support.launches import run_launch

SEED, PURPOSE, STEPS, BATCH = 3, "distill.0", 11, 6
"""20 rows: epochs of 3 steps, the last one not whole."""
FEW = SparseCache(top=4, samples=3)


def stage_of(cache: SparseCache = FEW, **more: Any) -> DistilBertStage:
    weights = {"logits": 5, "mlm": 2, "cosine": 0}
    plain = {"method": "distilbert", "steps": STEPS, "batch": BATCH, "lr": 1e-3, "masked_only": True}
    return DistilBertStage(**{**plain, "weights": weights, "cache": cache, **more})


@dataclass
class World:
    """A teacher, text to ask it about, and how often it was asked."""

    teacher: Any
    tokenizer: TextTokenizer
    rows: EncodedRows
    asked: list[int] = field(default_factory=list)

    def data(self, **more: Any) -> GeneralSet:
        masking = Masking(self.rows.counts, 4, range(5), **{"seed": SEED, "purpose": PURPOSE, **more})
        return GeneralSet(self.rows, self.tokenizer, masking)

    def order(self, batch: int = BATCH) -> BatchOrder:
        return BatchOrder(self.data().lengths, batch, SEED, PURPOSE)

    def batch(self, step: int, **more: Any) -> dict[str, torch.Tensor]:
        return self.data(**more).batch(self.order().rows(step).tolist(), step)

    def open(self, folder: Path, stage: DistilBertStage | None = None, **more: Any) -> SparseTeacher:
        """The store in a folder; what is missing in it is computed."""
        told = {"teacher": self.teacher, "data": self.data(), "order": self.order(), "half": False, **more}
        return sparse_teacher(stage=stage or stage_of(), folder=folder, **told)

    def every_token(self) -> SparseCache:
        return SparseCache(top=int(self.teacher.config.vocab_size), samples=0)


@pytest.fixture
def world(tiny_model, make_classifier, labelled_rows) -> World:
    tokenizer = TextTokenizer(tiny_model("bert"), 48)
    rows = EncodedRows(tokenizer.encode([r["text"] for r in labelled_rows(20)]), tokenizer.vocabulary_size)
    teacher = make_classifier("bert", 2, ("a", "b"), auto_class="AutoModelForMaskedLM")
    made = World(teacher, tokenizer, rows)
    teacher.register_forward_pre_hook(lambda *_: made.asked.append(1))
    return made


def objective_of(world: World, stage: DistilBertStage) -> tuple[Any, DistilBertDistillation]:
    student = build_student(world.teacher, family_of("bert"), StudentSection(layers=1), 0)
    return student, DistilBertDistillation(world.teacher, student, family_of("bert"), stage)


# --- training on it ---


@pytest.fixture
def fp32(monkeypatch) -> None:
    monkeypatch.setattr(loop, "training_dtype", lambda *_: torch.float32)
    monkeypatch.setattr(loop, "_LOG_EVERY", 1)


def trained(world: World, work: Path, stage: DistilBertStage, cached: SparseTeacher | None) -> tuple[Any, Any]:
    student, objective = objective_of(world, stage)
    if cached is not None:
        objective.replay(cached)
    outcome = loop.train(student, objective, world.data(), stage, SEED, PURPOSE, work)
    return student, outcome


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_cache_of_every_token_trains_as_the_teacher_itself(side, world, fp32, tmp_path, tiny_model):
    world.tokenizer = TextTokenizer(tiny_model("bert"), 48, padding_side=side)
    stage = stage_of(world.every_token(), micro_batch=4)
    cached = world.open(tmp_path / "c", stage)
    before = len(world.asked)
    one, replayed = trained(world, tmp_path / "cached", stage, cached)
    assert len(world.asked) == before
    other, online = trained(world, tmp_path / "online", stage, None)
    assert len(world.asked) == before + 2 * STEPS
    assert len(replayed.history) == STEPS
    for a, b in zip(replayed.history, online.history, strict=True):
        assert a.terms == pytest.approx(b.terms, rel=1e-5, abs=1e-5)
    theirs = other.state_dict()
    for name, value in one.state_dict().items():
        if not name.endswith("key.bias"):  # attention ignores it: its gradient is rounding, which Adam makes large
            torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-5, msg=name)


def test_an_objective_that_does_not_fit_a_cache_lists_why(world, tmp_path):
    weights = {"logits": 5, "mlm": 2, "cosine": 1}
    stage = stage_of(masked_only=False, weights=weights, temperature=1.0, cache=None)
    _, objective = objective_of(world, stage)
    with pytest.raises(InputError) as caught:
        objective.replay(world.open(tmp_path / "c", stage_of(steps=1)))
    keys = [str(p).split(":")[0] for p in caught.value.problems]
    assert keys == ["distill.0.masked_only", "distill.0.weights.cosine", "distill.0.temperature"]


# --- what is stored ---


@pytest.mark.parametrize(("half", "vocabulary"), [(False, 400), (True, 400), (True, 1 << 16), (False, (1 << 16) + 1)])
def test_what_is_stored_is_the_teachers_distribution(half, vocabulary, world, make_classifier, tmp_path):
    if vocabulary != world.teacher.config.vocab_size:
        more = {"auto_class": "AutoModelForMaskedLM", "vocab_size": vocabulary}
        world.teacher = make_classifier("bert", 1, ("a", "b"), **more)
        with torch.no_grad():
            world.teacher.get_output_embeddings().bias[-1] = 50.0  # the highest id is kept
    stage = stage_of(FEW, steps=2, temperature=2.0)
    cached, positions = world.open(tmp_path / "c", stage, half=half), 0
    for step in range(2):
        batch = world.batch(step)
        masked = batch["labels"] != IGNORED_LABEL
        with torch.no_grad():
            logits = world.teacher(batch["input_ids"], batch["attention_mask"]).logits[masked]
        counts = zip(masked.sum(1).tolist(), batch["rows"].tolist(), strict=True)
        draws = [draw_uniform_numbers(count, 3, SEED, row, 0) for count, row in counts]
        wanted, found = sparsify(logits, 4, torch.cat(draws), 2.0), cached(batch)
        assert torch.equal(found.ids.long(), wanted.ids.long())
        torch.testing.assert_close(found.weights, wanted.weights, rtol=2**-10 if half else 1e-4, atol=1e-6)
        torch.testing.assert_close(found.negative_entropy, wanted.negative_entropy, rtol=1e-5, atol=1e-6)
        assert (found.vocabulary, found.temperature) == (vocabulary, 2.0)
        positions += len(found)
    if vocabulary > 400:
        assert int(found.ids.max()) == vocabulary - 1, "not wrapped round"
    by_hand = 6 + (4 + 3) * ((2 if vocabulary <= 65536 else 4) + (2 if half else 4))
    assert (cached.store.path(0) / "records.bin").stat().st_size == positions * by_hand


def test_a_part_of_a_batch_finds_its_own_rows_and_no_hidden_token_costs_nothing(world, tmp_path, labelled_rows):
    encoded = world.tokenizer.encode([r["text"] for r in labelled_rows(40)])
    world.rows = EncodedRows(encoded, world.tokenizer.vocabulary_size)
    stage, order = stage_of(world.every_token(), steps=1), world.order(36)
    cached = world.open(tmp_path / "c", stage, order=order)
    assert len(world.asked) == 2, "the teacher reads a part of a large batch at a time"
    batch = world.data().batch(order.rows(0).tolist(), 0)
    whole = cached(batch)
    parts = [cached(take_rows(batch, rows)) for rows in (slice(0, 2), slice(2, 36))]
    assert torch.equal(torch.cat([p.ids for p in parts]), whole.ids)
    hidden = (batch["labels"] != IGNORED_LABEL).sum(1)
    assert len(whole) == int(hidden.sum())
    assert 0 in hidden
    student, objective = objective_of(world, stage)
    objective.replay(cached)
    seen = [objective(student.eval(), take_rows(batch, slice(i, i + 1)))["logits"] for i in range(36)]
    assert [int(t.count) for t in seen] == hidden.tolist()
    assert all(t.mean.isfinite() for t in seen)


def test_text_without_masks_is_stored_as_nothing(world, tmp_path):
    masking = masking_of(MaskingKind.NONE, world.rows.counts, world.tokenizer, SEED, PURPOSE)
    data = GeneralSet(world.rows, world.tokenizer, masking)
    cached = world.open(tmp_path / "c", stage_of(steps=1), data=data)
    assert len(cached(data.batch(world.order().rows(0).tolist(), 0))) == 0


# --- building it ---


def die_after(world: World, passes: int, error: BaseException) -> Any:
    """The teacher raises an error once it was asked so often; returns what takes that back."""

    def die(*_: Any) -> None:
        if len(world.asked) == passes:
            raise error

    return world.teacher.register_forward_hook(die)


def test_a_killed_build_goes_on_with_its_epoch(world, tmp_path):
    hook = die_after(world, 5, KeyboardInterrupt())  # in the second epoch
    with pytest.raises(KeyboardInterrupt):
        world.open(tmp_path / "c")
    hook.remove()
    world.asked.clear()
    resumed = world.open(tmp_path / "c")
    assert len(world.asked) == STEPS - 3
    whole = world.open(tmp_path / "w")
    for step in range(STEPS):
        assert torch.equal(resumed(world.batch(step)).ids, whole(world.batch(step)).ids)
        assert torch.equal(resumed(world.batch(step)).weights, whole(world.batch(step)).weights)
    world.asked.clear()
    world.open(tmp_path / "c")
    assert not world.asked


def test_more_steps_complete_the_last_epoch(world, tmp_path):
    for steps, asked in ((4, 4), (9, 6)):  # an epoch and a step; then the second and the third anew
        world.asked.clear()
        world.open(tmp_path / "c", stage_of(steps=steps))
        assert len(world.asked) == asked


def test_a_failed_write_leaves_the_old_epoch_and_nothing_half_written(world, tmp_path):
    old = world.open(tmp_path / "c", stage_of(steps=3))
    before = {p.name: p.read_bytes() for p in old.store.path(0).iterdir()}
    world.asked.clear()
    die_after(world, 2, OSError(28, "No space left on device"))
    with pytest.raises(OSError, match="No space"):
        world.open(tmp_path / "c", stage_of(steps=3, temperature=3.0))
    assert {p.name: p.read_bytes() for p in old.store.path(0).iterdir()} == before
    assert [p.name for p in (tmp_path / "c").iterdir()] == ["epoch-00000"]


def nudge(teacher: Any) -> Any:
    other = copy.deepcopy(teacher)
    next(other.parameters()).data[7] += 0.1
    return other


def change_text(world: World) -> GeneralSet:
    texts = World(world.teacher, world.tokenizer, copy.deepcopy(world.rows))
    texts.rows.ids([0])[0][1] += 1
    return texts.data()


FIRST = stage_of(steps=1, temperature=1.0)
CHANGES: dict[str, Callable[[World], dict[str, Any]]] = {
    "teacher": lambda w: {"teacher": nudge(w.teacher)},
    "text": lambda w: {"data": change_text(w)},
    "batch": lambda w: {"order": w.order(5)},
    "number type": lambda w: {"half": True},
    "mask share": lambda w: {"data": w.data(share=0.2)},
    "smoothing": lambda w: {"data": w.data(smoothing=0.0)},
    "seed": lambda w: {"data": w.data(seed=4)},
    "top": lambda w: {"stage": stage_of(SparseCache(top=5, samples=3), steps=1, temperature=1.0)},
    "samples": lambda w: {"stage": stage_of(SparseCache(top=4, samples=2), steps=1, temperature=1.0)},
    "temperature": lambda w: {"stage": stage_of(steps=1, temperature=2.0)},
}


@pytest.mark.parametrize("name", CHANGES)
def test_whatever_changes_the_answers_asks_the_teacher_again(name, world, tmp_path):
    for asked_again in (True, False):
        world.asked.clear()
        world.open(tmp_path / "c", FIRST)
        assert bool(world.asked) is asked_again
    world.open(tmp_path / "c", **{"stage": FIRST, **CHANGES[name](world)})
    assert world.asked


def test_damaged_missing_and_misplaced_epochs_and_other_masks_are_refused(world, tmp_path):
    cached = world.open(tmp_path / "c", stage_of(steps=3))
    with pytest.raises(RuntimeError, match=r"is masked at .*, in the store at .*: other masks"):
        cached(world.batch(1, seed=SEED + 1))
    (unseen, *_) = {*range(20)} - {row for step in range(3) for row in world.order().rows(step).tolist()}
    with pytest.raises(RuntimeError, match="in the store at no time"):
        cached(world.data().batch([unseen], 0))
    with pytest.raises(InputError, match="not found"):
        cached(world.batch(4))
    shutil.copytree(cached.store.path(0), cached.store.path(1))
    with pytest.raises(InputError, match="epoch: 0 instead of 1"):
        cached(world.batch(4))
    records = cached.store.path(0) / "records.bin"
    whole = records.read_bytes()
    records.write_bytes(whole[:-1])
    again = SparseTeacher(type(cached.store)(tmp_path / "c", cached.store.settings), cached.per_epoch)
    with pytest.raises(InputError, match="wrong size"):
        again(world.batch(0))
    world.open(tmp_path / "c", stage_of(steps=3))
    assert records.read_bytes() == whole, "made again"


def test_more_tokens_than_the_vocabulary_has_are_refused(world, tmp_path):
    words = world.every_token().top
    with pytest.raises(InputError, match=rf"distill\.0\.cache\.top: .* has {words} tokens"):
        world.open(tmp_path / "c", stage_of(SparseCache(top=words + 1)), where="distill.0.cache")


def test_a_full_disk_is_noticed_before_the_teacher_is_asked(world, tmp_path, monkeypatch):
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(MachineError, match=r"has 1,000 free\. Fix: make room"):
        world.open(tmp_path / "c")
    assert not world.asked


def test_a_folder_of_something_else_is_not_replaced(world, tmp_path):
    thesis = tmp_path / "c" / "epoch-00001" / "thesis.txt"
    thesis.parent.mkdir(parents=True)
    thesis.write_text("mine")
    with pytest.raises(InputError, match="not a store of sparse logits; it is not replaced"):
        world.open(tmp_path / "c")
    assert thesis.read_text() == "mine"
    assert not world.asked


@pytest.mark.parametrize("world_size", [2, 5])
def test_the_processes_of_a_launch_write_the_bytes_of_one(world_size, world, tmp_path):
    def files(folder: Path) -> dict[str, bytes]:
        return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}

    world.open(tmp_path / "one")
    world.asked.clear()
    opened = run_launch(world_size, lambda _: world.open(tmp_path / "many"), sparse)
    assert len(world.asked) == STEPS
    assert files(tmp_path / "many") == files(tmp_path / "one")
    world.asked.clear()
    run_launch(world_size, lambda _: world.open(tmp_path / "many", stage_of(steps=3)), sparse)
    assert not world.asked, "every epoch of the stage is there"
    for cached in opened:
        assert len(cached(world.batch(7))) == len(opened[0](world.batch(7))) > 0
