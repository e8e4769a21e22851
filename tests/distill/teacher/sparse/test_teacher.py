from __future__ import annotations

import copy
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pocketbert.core.errors import InputError, MachineError
from pocketbert.core.families import family_of
from pocketbert.core.heads.head import IGNORED_LABEL
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.stages import DistilBertStage, SparseCache
from pocketbert.core.recipe.student import StudentSection
from pocketbert.distill.methods.distilbert import DistilBertDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.teacher import sparse as sparse_teacher
from pocketbert.distill.teacher.sparse import SparseTeacher, _build_store, _settings_of, _SparseStore
from pocketbert.distill.text.corpus import EncodedRows
from pocketbert.distill.text.masking import Masking
from pocketbert.distill.text.pairs import GeneralSet
from pocketbert.distill.training import loop
from pocketbert.distill.training.data import BatchOrder, take_rows

SEED, PURPOSE, STEPS, BATCH = 3, "distill.0", 11, 6
"""20 rows: epochs of 3 steps, the last one not whole."""


@dataclass
class World:
    """A teacher and text to ask it about.

    Attributes:
        asked: Forward passes of the teacher so far.
    """

    teacher: Any
    tokenizer: TextTokenizer
    rows: EncodedRows
    asked: list[int] = field(default_factory=list)

    @property
    def words(self) -> int:
        return int(self.teacher.config.vocab_size)

    def data(self, **more: Any) -> GeneralSet:
        chosen = {"seed": SEED, "purpose": PURPOSE, **more}
        masking = Masking(self.rows.counts, 4, range(5), **chosen)
        return GeneralSet(self.rows, self.tokenizer, masking)

    def order(self, batch: int = BATCH) -> BatchOrder:
        return BatchOrder(self.data().lengths, batch, SEED, PURPOSE)

    def store(self, folder: Path, cache: SparseCache, temperature: float = 2.0) -> _SparseStore:
        settings = _settings_of(self.teacher, self.data(), self.order(), cache, temperature, half=False)
        return _SparseStore(folder, settings)

    def every_token(self) -> SparseCache:
        return SparseCache(top=self.words, samples=0)


@pytest.fixture
def world(
    tmp_path: Path,
    make_classifier: Callable[..., Any],
    make_tokenizer: Callable[..., None],
    labelled_rows: Callable[..., list[dict[str, Any]]],
) -> World:
    make_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path, 48)
    rows = EncodedRows(tokenizer.encode([r["text"] for r in labelled_rows(20)]), tokenizer.vocabulary_size)
    teacher = make_classifier("bert", 3, ("a", "b"), auto_class="AutoModelForMaskedLM")
    made = World(teacher, tokenizer, rows)
    teacher.register_forward_pre_hook(lambda *_: made.asked.append(1))
    return made


def stage_of(**more: Any) -> DistilBertStage:
    plain = {
        "method": "distilbert",
        "steps": STEPS,
        "batch": BATCH,
        "lr": 1e-3,
        "masked_only": True,
        "weights": {"logits": 5, "mlm": 2, "cosine": 0},
    }
    return DistilBertStage(**{**plain, **more})


def objective_of(world: World, stage: DistilBertStage) -> tuple[Any, DistilBertDistillation]:
    student = build_student(world.teacher, family_of("bert"), StudentSection(layers=2), 0)
    return student, DistilBertDistillation(world.teacher, student, family_of("bert"), stage)


@pytest.fixture
def fp32(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(loop, "training_dtype", lambda _: torch.float32)
    monkeypatch.setattr(loop, "_LOG_EVERY", 1)
    yield


def trained(world: World, work: Path, stage: DistilBertStage, cached: SparseTeacher | None) -> tuple[Any, Any]:
    student, objective = objective_of(world, stage)
    if cached is not None:
        objective.replay(cached)
    outcome = loop.train(student, objective, world.data(), stage, SEED, PURPOSE, work)
    return student, outcome


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_cache_of_every_token_trains_as_the_teacher_itself(
    side: str, world: World, fp32: None, tmp_path: Path
) -> None:
    world.tokenizer = TextTokenizer(tmp_path, 48, padding_side=side)
    cached = _build_store(
        world.store(tmp_path / "c", world.every_token()), world.teacher, world.data(), world.order(), STEPS
    )
    before = len(world.asked)
    one, replayed = trained(world, tmp_path / "cached", stage_of(micro_batch=4), cached)
    assert len(world.asked) == before
    other, online = trained(world, tmp_path / "online", stage_of(micro_batch=4), None)
    assert len(world.asked) == before + 2 * STEPS
    assert len(replayed.history) == STEPS
    for a, b in zip(replayed.history, online.history, strict=True):
        assert a.terms == pytest.approx(b.terms, rel=1e-5, abs=1e-5)
    theirs = other.state_dict()
    for name, value in one.state_dict().items():
        if name.endswith("key.bias"):
            continue  # attention ignores it: its gradient is rounding alone, which Adam makes large
        torch.testing.assert_close(value, theirs[name], rtol=1e-5, atol=1e-5, msg=name)


def test_a_part_of_the_tokens_brings_the_student_as_near_to_the_teacher(
    world: World, fp32: None, tmp_path: Path
) -> None:
    store = world.store(tmp_path / "c", SparseCache(top=8, samples=32))
    cached = _build_store(store, world.teacher, world.data(), world.order(), STEPS)
    batch = world.data().batch(list(range(20)), 99)

    def apart(student: Any) -> float:
        """The exact divergence, over text that is masked as in no step."""
        judge = DistilBertDistillation(world.teacher, student.eval(), family_of("bert"), stage_of())
        with torch.no_grad():
            return float(judge(student, batch)["logits"].mean)

    start = apart(objective_of(world, stage_of())[0])
    sampled, with_samples = trained(world, tmp_path / "cached", stage_of(), cached)
    online, with_teacher = trained(world, tmp_path / "online", stage_of(), None)
    ends = apart(sampled), apart(online)
    assert ends[1] < 0.5 * start
    assert abs(ends[0] - ends[1]) < 0.1 * (start - ends[1])
    # a single step's estimate scatters by the noise of a cross-entropy, here 0.04; the mean of the curve does not
    curves = [[r.terms["logits"] for r in made.history] for made in (with_samples, with_teacher)]
    assert curves[0] != curves[1]
    assert sum(curves[0]) / STEPS == pytest.approx(sum(curves[1]) / STEPS, abs=0.03)


def test_a_part_of_a_batch_finds_its_own_rows_and_no_hidden_token_costs_nothing(world: World, tmp_path: Path) -> None:
    store = world.store(tmp_path / "c", world.every_token())
    cached = _build_store(store, world.teacher, world.data(), world.order(), STEPS, portion=4)
    batch = world.data().batch(world.order().rows(4).tolist(), 4)
    whole = cached(batch)
    halves = [cached(take_rows(batch, rows)) for rows in (slice(0, 2), slice(2, 6))]
    assert torch.equal(torch.cat([h.ids for h in halves]), whole.ids)
    hidden = (batch["labels"] != IGNORED_LABEL).sum(1)
    assert len(whole) == int(hidden.sum())
    student, objective = objective_of(world, stage_of())
    objective.replay(cached)
    seen = [objective(student.eval(), take_rows(batch, slice(i, i + 1)))["logits"] for i in range(BATCH)]
    assert [int(t.count) for t in seen] == hidden.tolist()
    assert all(t.mean.isfinite() for t in seen)


def test_other_masks_than_the_teacher_saw_are_an_error(world: World, tmp_path: Path) -> None:
    cached = _build_store(
        world.store(tmp_path / "c", world.every_token()), world.teacher, world.data(), world.order(), STEPS
    )
    batch = world.data(seed=SEED + 1).batch(world.order().rows(4).tolist(), 4)
    with pytest.raises(RuntimeError, match="other masks"):
        cached(batch)


class Killed(Exception):
    pass


def test_a_killed_build_goes_on_with_its_epoch(world: World, tmp_path: Path) -> None:
    cache = SparseCache(top=4, samples=3)

    def die(*_: Any) -> None:
        if len(world.asked) == 5:  # in the second epoch
            raise Killed

    hook = world.teacher.register_forward_hook(die)
    with pytest.raises(Killed):
        _build_store(world.store(tmp_path / "c", cache), world.teacher, world.data(), world.order(), STEPS)
    hook.remove()
    world.asked.clear()
    resumed = _build_store(world.store(tmp_path / "c", cache), world.teacher, world.data(), world.order(), STEPS)
    assert len(world.asked) == STEPS - 3
    whole = _build_store(world.store(tmp_path / "w", cache), world.teacher, world.data(), world.order(), STEPS)
    for step in range(STEPS):
        batch = world.data().batch(world.order().rows(step).tolist(), step)
        assert torch.equal(resumed(batch).ids, whole(batch).ids)
        assert torch.equal(resumed(batch).weights, whole(batch).weights)
    world.asked.clear()
    _build_store(world.store(tmp_path / "c", cache), None, world.data(), world.order(), STEPS)
    assert not world.asked


def test_more_steps_complete_the_last_epoch(world: World, tmp_path: Path) -> None:
    cache = SparseCache(top=4, samples=3)
    for steps, asked in ((4, 4), (9, 6)):  # an epoch and a step; then the second and the third anew
        world.asked.clear()
        _build_store(world.store(tmp_path / "c", cache), world.teacher, world.data(), world.order(), steps)
        assert len(world.asked) == asked


def changed_settings(world: World) -> Iterator[tuple[str, Any]]:
    def of(**more: Any) -> Any:
        plain: dict[str, Any] = {
            "teacher": world.teacher,
            "data": world.data(),
            "order": world.order(),
            "cache": SparseCache(),
            "temperature": 2.0,
        }
        return _settings_of(**{**plain, **more})

    other = copy.deepcopy(world.teacher)
    next(other.parameters()).data[7] += 0.1
    texts = World(world.teacher, world.tokenizer, copy.deepcopy(world.rows))
    texts.rows.ids([0])[0][1] += 1
    yield "nothing", of()
    yield "teacher", of(teacher=other)
    yield "text", of(data=texts.data())
    yield "mask share", of(data=world.data(share=0.2))
    yield "smoothing", of(data=world.data(smoothing=0.0))
    yield "seed", of(data=world.data(seed=4))
    yield "batch", of(order=world.order(5))
    yield "top", of(cache=SparseCache(top=31))
    yield "samples", of(cache=SparseCache(samples=31))
    yield "temperature", of(temperature=1.0)
    yield "number type", of(half=False)


def test_everything_that_changes_the_answers_changes_the_settings(world: World) -> None:
    first = dict(changed_settings(world))["nothing"]
    same = [name for name, settings in changed_settings(world) if settings == first]
    assert same == ["nothing"]


def test_a_changed_temperature_asks_the_teacher_again(world: World, tmp_path: Path) -> None:
    cache = SparseCache(top=4, samples=3)
    old = _build_store(world.store(tmp_path / "c", cache), world.teacher, world.data(), world.order(), STEPS)
    world.asked.clear()
    new = _build_store(world.store(tmp_path / "c", cache, 3.0), world.teacher, world.data(), world.order(), STEPS)
    assert len(world.asked) == STEPS
    batch = world.data().batch(world.order().rows(0).tolist(), 0)
    assert new(batch).temperature == 3.0
    old = SparseTeacher(_SparseStore(old.store.folder, old.store.settings), old.per_epoch)
    with pytest.raises(InputError, match=r"temperature: 3\.0 instead of 2\.0"):
        old(batch)


def test_an_objective_that_does_not_fit_a_cache_lists_why(world: World, tmp_path: Path) -> None:
    cached = SparseTeacher(world.store(tmp_path / "c", SparseCache()), 3)
    weights = {"logits": 5, "mlm": 2, "cosine": 1}
    _, objective = objective_of(world, stage_of(masked_only=False, weights=weights, temperature=1.0))
    with pytest.raises(InputError) as caught:
        objective.replay(cached)
    keys = [str(p).split(":")[0] for p in caught.value.problems]
    assert keys == ["distill.0.masked_only", "distill.0.weights.cosine", "distill.0.temperature"]


def test_more_tokens_than_the_vocabulary_has_are_refused(world: World) -> None:
    wrong = SparseCache(top=world.words + 1)
    with pytest.raises(InputError, match=rf"distill\.0\.cache\.top: .* has {world.words} tokens"):
        _settings_of(world.teacher, world.data(), world.order(), wrong, 2.0, where="distill.0.cache")


def test_a_full_disk_is_noticed_before_the_teacher_is_asked(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = sparse_teacher.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(sparse_teacher.shutil, "disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(MachineError, match=r"has 1,000 free\. Fix: make room"):
        _build_store(world.store(tmp_path / "c", SparseCache()), world.teacher, world.data(), world.order(), STEPS)
    assert not world.asked


def test_a_folder_of_something_else_is_not_replaced(world: World, tmp_path: Path) -> None:
    store = world.store(tmp_path / "c", SparseCache())
    store.path(1).mkdir(parents=True)
    (store.path(1) / "thesis.txt").write_text("mine")
    with pytest.raises(InputError, match="not a store of sparse logits; it is not replaced"):
        _build_store(store, world.teacher, world.data(), world.order(), STEPS)
    assert (store.path(1) / "thesis.txt").read_text() == "mine"
    assert not world.asked


def test_a_process_other_than_0_waits_and_never_asks(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = SparseCache(top=4, samples=3)
    store = world.store(tmp_path / "c", cache)
    mine = _build_store(store, world.teacher, world.data(), world.order(), STEPS)
    late, away = store.path(2), tmp_path / "away"
    late.rename(away)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    got: list[SparseTeacher] = []

    def follow() -> None:
        got.append(_build_store(world.store(tmp_path / "c", cache), None, world.data(), world.order(), STEPS))

    world.asked.clear()
    other = threading.Thread(target=follow, daemon=True)
    other.start()
    time.sleep(0.5)
    assert other.is_alive() and not got
    away.rename(late)
    other.join(60)
    batch: dict[str, Tensor] = world.data().batch(world.order().rows(7).tolist(), 7)
    assert torch.equal(got[0](batch).ids, mine(batch).ids)
    assert not world.asked
