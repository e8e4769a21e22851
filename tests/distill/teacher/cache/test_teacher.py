from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pocketbert.core.errors import InputError, MachineError
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.stages import SignalWeights, TaskStage
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.distill.methods.task import TaskDistillation
from pocketbert.distill.students.build import build_student
from pocketbert.distill.teacher import cache as cache_build
from pocketbert.distill.teacher.cache import CachedTeacher, _estimate_bytes, _layout_of, cached_teacher
from pocketbert.distill.teacher.signals import OnlineTeacher, Taught, Wanted
from support.tiny import BASIC as FAMILIES

TEXTS = [
    "a good film",
    "not bad",
    "the day was far better than I had expected, never again",
    "ok",
    "you and me",
    "no.",
    "the quick brown fox jumps over the lazy dog",
    "stop",
    "would you please turn the light down a little, it is night",
    "very poor music",
]
ALL = Wanted(hidden=(0, 2, 3), attention=(0, 2))
MASKED = -1e4
WIDTH = 30


@dataclass(frozen=True)
class Rows:
    """Tokenized texts whose batches say which rows they are, padded to the longest or to a given width."""

    encoded: Sequence[Encoded]
    tokenizer: TextTokenizer
    width: int | None = None

    @property
    def lengths(self) -> list[int]:
        return [len(e) for e in self.encoded]

    def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
        padded = self.tokenizer.pad([self.encoded[i] for i in rows], self.width)
        return {"rows": torch.tensor(list(rows)), **{k: torch.from_numpy(v) for k, v in padded.items()}}


def rows_of(tokenizer: Any, texts: Sequence[str] = TEXTS, width: int | None = None) -> Rows:
    return Rows(tokenizer.encode(list(texts)), tokenizer, width)


def assert_same(found: Taught, wanted: Taught, mask: Tensor, atol: float = 1e-5) -> None:
    """Equal at all real tokens, attention as distributions and as scores of real keys."""
    real = mask.bool()
    assert (list(found.outputs), list(found.hidden), list(found.scores)) == (
        list(wanted.outputs),
        list(wanted.hidden),
        list(wanted.scores),
    )
    for name, value in wanted.outputs.items():
        ours = found.outputs[name]
        per_row = ours.shape[1:2] != mask.shape[1:]
        torch.testing.assert_close(*((ours, value) if per_row else (ours[real], value[real])), rtol=1e-5, atol=atol)
    for number, value in wanted.hidden.items():
        scale = max(1.0, float(value[real].abs().max()))
        torch.testing.assert_close(found.hidden[number][real] / scale, value[real] / scale, rtol=1e-5, atol=atol)
    pairs = real[:, None, :, None] & real[:, None, None, :]
    for number, value in wanted.scores.items():
        ours = found.scores[number]
        torch.testing.assert_close(ours[pairs.expand_as(ours)], value[pairs.expand_as(ours)], rtol=1e-5, atol=atol)
        a, b = ours.softmax(-1).transpose(1, 2)[real], value.softmax(-1).transpose(1, 2)[real]
        torch.testing.assert_close(a, b, rtol=1e-5, atol=atol)


@pytest.fixture(scope="module")
def built(
    open_tiny: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[CachedTeacher, OnlineTeacher, Rows]]:
    """Cache, teacher and rows of a family and padding side, made once."""
    done: dict[tuple[str, str], tuple[CachedTeacher, OnlineTeacher, Rows]] = {}

    def build(name: str, side: str) -> tuple[CachedTeacher, OnlineTeacher, Rows]:
        if (name, side) not in done:
            model, folder, plain = open_tiny(name, 3)
            tokenizer = TextTokenizer(folder.path, plain.max_length, padding_side=side)
            # these models count positions from the left or read the first token: padding there is comparable
            # at one width only
            data = rows_of(tokenizer, width=WIDTH if side == "left" else None)
            path = tmp_path_factory.mktemp("cache") / "teacher"
            cache = cached_teacher(model, folder.family, data, ALL, path, batch=4)
            done[name, side] = cache, OnlineTeacher(model, folder.family, ALL), data
        return done[name, side]

    return build


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", FAMILIES)
def test_cached_equals_online_in_whatever_batch(name: str, side: str, built: Callable[..., Any]) -> None:
    cache, online, data = built(name, side)

    @settings(max_examples=25)
    @given(st.lists(st.sampled_from(range(len(TEXTS))), min_size=1, max_size=6), st.integers(0, 4))
    def law(rows: list[int], extra: int) -> None:
        width = data.width or max(data.lengths[r] for r in rows) + extra
        batch = replace(data, width=width).batch(rows, 7)
        assert_same(cache(batch), online(batch), batch["attention_mask"])

    law()


@pytest.mark.parametrize("side", ["right", "left"])
def test_padding_teaches_nothing(side: str, built: Callable[..., Any]) -> None:
    cache, _, data = built("bert", side)
    batch = replace(data, width=WIDTH).batch([0, 2], 0)
    taught, padding = cache(batch), ~batch["attention_mask"].bool()
    assert padding.any()
    assert all(float(h[padding].abs().max()) == 0 for h in taught.hidden.values())
    for scores in taught.scores.values():
        assert (scores.transpose(1, 3)[padding] == MASKED).all()
        assert not (scores.transpose(1, 3)[~padding] == MASKED).any()


@pytest.mark.parametrize("name", FAMILIES)
def test_the_terms_of_task_distillation_and_their_gradients_are_equal(
    name: str, open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    model, folder, tokenizer = open_tiny(name, 3)
    hidden = 0.0 if name == "mobilebert" else 1.0
    weights = SignalWeights(logits=1, hidden=hidden, attention=1)
    stage = TaskStage(method="task", steps=1, signals=weights)
    task = TASKS[TaskName.TEXT_CLASSIFICATION]
    student = build_student(model, folder.family, StudentSection(layers=2, init="random"), 0).eval()
    data, wanted = rows_of(tokenizer), TaskDistillation.wanted(stage, [2, 3])
    cache = cached_teacher(model, folder.family, data, wanted, tmp_path / "cache", batch=3)
    batch, found = data.batch([8, 1, 4, 2], 0), []
    for signals in (None, cache):
        objective = TaskDistillation(model, student, folder.family, task, stage, signals=signals)
        student.zero_grad()
        terms = {k: t.mean for k, t in objective(student, batch).items()}
        torch.stack(list(terms.values())).sum().backward()
        found.append((terms, {k: p.grad.clone() for k, p in student.named_parameters() if p.grad is not None}))
    (online, gradients), (cached, others) = found
    assert set(online) == {"logits", "attention"} | ({"hidden"} if hidden else set())
    assert all(float(v.detach()) > 1e-4 for v in online.values()) and len(gradients) > 10
    torch.testing.assert_close(cached, online, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(others, gradients, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "auto_class", ["AutoModelForQuestionAnswering", "AutoModelForTokenClassification", "AutoModel"]
)
def test_outputs_per_token_are_cached(
    auto_class: str, make_classifier: Callable[..., Any], open_tiny: Callable[..., Any], tmp_path: Path
) -> None:
    _, folder, tokenizer = open_tiny("bert", 2)
    model, data = make_classifier("bert", 2, ("a", "b"), auto_class=auto_class), rows_of(tokenizer)
    cache = cached_teacher(model, folder.family, data, Wanted(), tmp_path / "cache")
    batch = data.batch([5, 2, 0], 0)
    assert_same(cache(batch), OnlineTeacher(model, folder.family, Wanted())(batch), batch["attention_mask"])


def test_an_existing_cache_needs_no_teacher_and_any_change_makes_it_stale(
    open_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    data, path, small = rows_of(tokenizer), tmp_path / "cache", Wanted(hidden=(1,))
    passes: list[int] = []
    real = model.forward
    monkeypatch.setattr(model, "forward", lambda *a, **k: (passes.append(1), real(*a, **k))[1])

    def runs(data: Rows, wanted: Wanted, half: bool = False) -> bool:
        passes.clear()
        cached_teacher(model, folder.family, data, wanted, path, half=half)
        return bool(passes)

    assert runs(data, small)
    assert not runs(data, small)
    assert runs(rows_of(tokenizer, [*TEXTS[1:], TEXTS[0]]), small)  # the order counts
    assert runs(data, Wanted(hidden=(2,)))
    assert runs(data, Wanted(hidden=(2,)), half=True)
    with torch.no_grad():
        model.classifier.bias += 0.5
    assert runs(data, Wanted(hidden=(2,)), half=True)
    model.config.layer_norm_eps = 1e-3
    assert runs(data, Wanted(hidden=(2,)), half=True)
    monkeypatch.setattr("pocketbert.distill.teacher.cache.installed_versions", lambda names: {"torch": "0"})
    assert runs(data, Wanted(hidden=(2,)), half=True)
    assert not runs(data, Wanted(hidden=(2,)), half=True)


def test_a_stale_or_broken_cache_is_refused_by_name(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    data, path = rows_of(tokenizer), tmp_path / "cache"
    cached_teacher(model, folder.family, data, Wanted(), path)
    with pytest.raises(InputError, match="was made from other weights, rows, signals or versions"):
        CachedTeacher(path, "0" * 64, Wanted())
    records = path / "records.bin"
    whole = records.read_bytes()
    records.write_bytes(whole[:-4])
    cached_teacher(model, folder.family, data, Wanted(), path)
    assert records.read_bytes() == whole
    with pytest.raises(InputError, match="not found"):
        CachedTeacher(tmp_path / "none", "", Wanted())


def test_a_folder_of_something_else_is_left_alone(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("dear")
    with pytest.raises(InputError, match="not a cache of teacher outputs; it is not replaced"):
        cached_teacher(model, folder.family, rows_of(tokenizer), Wanted(), tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter.txt").read_text() == "dear"


def test_the_estimate_is_the_size_on_disk(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    data = rows_of(tokenizer)
    taught = OnlineTeacher(model, folder.family, ALL)(data.batch([0], 0))
    for half in (False, True):
        cached_teacher(model, folder.family, data, ALL, tmp_path / "cache", half=half)
        n = np.asarray(data.lengths)
        # 3 logits, 3 hidden states of 32, attention of 4 heads in 2 layers
        by_hand = int((3 + 3 * 32 * n + 2 * 4 * n**2).sum()) * (2 if half else 4)
        assert (tmp_path / "cache" / "records.bin").stat().st_size == by_hand
        assert _estimate_bytes(_layout_of(taught, half), data.lengths) == by_hand


def test_a_cache_that_is_too_large_is_refused_before_anything_runs(
    open_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_build, "_LIMIT_BYTES", 20_000)
    model, folder, tokenizer = open_tiny("bert", 3)
    data = rows_of(tokenizer)
    with pytest.raises(InputError) as caught:
        cached_teacher(model, folder.family, data, ALL, tmp_path / "cache", where="distill.0")
    text = str(caught.value)
    size = _estimate_bytes(
        _layout_of(OnlineTeacher(model, folder.family, ALL)(data.batch([0], 0)), False), data.lengths
    )
    assert text.startswith("distill.0: teacher outputs of 10 rows") and f"{size:,} bytes" in text
    costs = text.index("hidden "), text.index("attention "), text.index("logits ")
    assert "run the teacher online" in text and max(costs) < text.index("Fix:")
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(("limit", "fp16", "without"), [(0.9, True, True), (0.45, False, False)])
def test_only_fixes_that_would_do_are_named(
    limit: float,
    fp16: bool,
    without: bool,
    open_tiny: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    data, wanted = rows_of(tokenizer), Wanted(hidden=(1,), attention=(1,))
    taught = OnlineTeacher(model, folder.family, wanted)(data.batch([0], 0))
    monkeypatch.setattr(
        cache_build, "_LIMIT_BYTES", int(limit * _estimate_bytes(_layout_of(taught, False), data.lengths))
    )
    with pytest.raises(InputError) as caught:
        cached_teacher(model, folder.family, data, wanted, tmp_path / "cache")
    assert ("store fp16" in str(caught.value)) is fp16
    assert ("weight 0" in str(caught.value)) is without


def test_a_full_disk_leaves_the_old_cache_and_nothing_half_written(
    open_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    data, path = rows_of(tokenizer), tmp_path / "cache"
    cached_teacher(model, folder.family, data, Wanted(), path)
    before = {p.name: p.read_bytes() for p in path.iterdir()}
    calls = iter(range(100))
    real = cache_build._stored_bytes

    def full(*args: Any) -> bytes:
        if next(calls) == 7:
            raise OSError(28, "No space left on device")
        return real(*args)

    monkeypatch.setattr(cache_build, "_stored_bytes", full)
    with pytest.raises(OSError, match="No space"):
        cached_teacher(model, folder.family, data, Wanted(hidden=(1,)), path)
    assert {p.name: p.read_bytes() for p in path.iterdir()} == before
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith("cache") or "partial" in p.name) == ["cache"]


def test_too_little_room_is_said_before_the_teacher_runs_through(
    open_tiny: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    usage = type(shutil.disk_usage(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1000, 999, 1))
    with pytest.raises(MachineError, match="1 free"):
        cached_teacher(model, folder.family, rows_of(tokenizer), Wanted(), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_rows_that_change_with_the_step_are_refused(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)

    class Masked(Rows):
        def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
            out = super().batch(rows, step)
            out["input_ids"][0, 1] = step
            return out

    with pytest.raises(InputError, match="rows change from step to step"):
        cached_teacher(model, folder.family, Masked(tokenizer.encode(TEXTS), tokenizer), Wanted(), tmp_path / "cache")


def test_relations_are_refused(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    with pytest.raises(InputError, match=r"holds no queries, keys and values \(layers \[1\]\)"):
        cached_teacher(model, folder.family, rows_of(tokenizer), Wanted(relations=(1,)), tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_other_rows_under_the_same_numbers_are_noticed(built: Callable[..., Any]) -> None:
    cache, _, data = built("bert", "right")
    batch = data.batch([0, 2], 0)
    with pytest.raises(RuntimeError, match="row 2 has .* tokens in the batch"):
        cache({**batch, "rows": torch.tensor([2, 0])})


def test_fp16_rounds_by_what_it_says(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, tokenizer = open_tiny("bert", 3)
    data = rows_of(tokenizer)
    exact = cached_teacher(model, folder.family, data, ALL, tmp_path / "exact")
    half = cached_teacher(model, folder.family, data, ALL, tmp_path / "half", half=True)
    batch = data.batch(range(len(TEXTS)), 0)
    wanted, found = exact(batch), half(batch)
    for a, b in (
        (found.outputs["logits"], wanted.outputs["logits"]),
        *((found.hidden[n], wanted.hidden[n]) for n in ALL.hidden),
        *((found.scores[n], wanted.scores[n]) for n in ALL.attention),
    ):
        assert a.dtype == torch.float32 and not torch.equal(a, b)
        assert ((a - b).abs() <= b.abs() * 2**-11 + 2**-25).all()


def test_what_fp16_cannot_hold_is_refused(open_tiny: Callable[..., Any], tmp_path: Path) -> None:
    model, folder, tokenizer = open_tiny("bert", 2)
    with torch.no_grad():
        model.bert.encoder.layer[0].output.LayerNorm.weight.fill_(1e5)
    data, wanted = rows_of(tokenizer), Wanted(hidden=(1,))
    with pytest.raises(InputError, match=r"hidden 1 of the teacher reach .*fp16 cannot hold.*fp32"):
        cached_teacher(model, folder.family, data, wanted, tmp_path / "cache", half=True)
    assert not (tmp_path / "cache").exists()
    cached_teacher(model, folder.family, data, wanted, tmp_path / "cache")
