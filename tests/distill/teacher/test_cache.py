"""The cache of a teacher's outputs for task data: the same numbers as the teacher, and never those of anything else."""

import shutil
import threading
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
from pocketbert.core.families import family_of
from pocketbert.core.predict.inputs import Encoded
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.distill.teacher import cache as caches
from pocketbert.distill.teacher.cache import CachedTeacher, cached_teacher
from pocketbert.distill.teacher.signals import OnlineTeacher, Taught, Wanted
from support.launches import run_launch

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
FAMILIES = ("bert", "distilbert", "mobilebert")
"""With segments, without, and with attention of another width."""
ALL = Wanted(hidden=(0, 2, 3), attention=(0, 2))
HIDDEN = Wanted(hidden=(1,))
MASKED = -1e4
WIDTH = 30
BERT = family_of("bert")


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


def assert_same(found: Taught, wanted: Taught, mask: Tensor) -> None:
    """Equal at all real tokens, attention as distributions and as scores of real keys."""
    real, near = mask.bool(), {"rtol": 1e-5, "atol": 1e-5}
    for signals in ("outputs", "hidden", "scores"):
        assert list(getattr(found, signals)) == list(getattr(wanted, signals))
    for name, value in wanted.outputs.items():
        ours = found.outputs[name]
        per_row = ours.shape[1:2] != mask.shape[1:]
        torch.testing.assert_close(*((ours, value) if per_row else (ours[real], value[real])), **near)
    for number, value in wanted.hidden.items():
        scale = max(1.0, float(value[real].abs().max()))
        torch.testing.assert_close(found.hidden[number][real] / scale, value[real] / scale, **near)
    pairs = real[:, None, :, None] & real[:, None, None, :]
    for number, value in wanted.scores.items():
        ours = found.scores[number]
        torch.testing.assert_close(ours[pairs.expand_as(ours)], value[pairs.expand_as(ours)], **near)
        a, b = ours.softmax(-1).transpose(1, 2)[real], value.softmax(-1).transpose(1, 2)[real]
        torch.testing.assert_close(a, b, **near)


@pytest.fixture(scope="module")
def built(open_tiny, tmp_path_factory) -> Callable[[str, str], tuple[CachedTeacher, OnlineTeacher, Rows]]:
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
def test_cached_equals_online_in_whatever_batch(name, side, built):
    cache, online, data = built(name, side)

    @settings(max_examples=15)
    @given(st.lists(st.sampled_from(range(len(TEXTS))), min_size=1, max_size=6), st.integers(0, 4))
    def law(rows: list[int], extra: int) -> None:
        width = data.width or max(data.lengths[r] for r in rows) + extra
        batch = replace(data, width=width).batch(rows, 7)
        assert_same(cache(batch), online(batch), batch["attention_mask"])

    law()


def test_padding_teaches_nothing(built):
    cache, _, data = built("bert", "right")
    batch = replace(data, width=WIDTH).batch([0, 2], 0)
    taught, padding = cache(batch), ~batch["attention_mask"].bool()
    assert padding.any()
    assert all(float(h[padding].abs().max()) == 0 for h in taught.hidden.values())
    for scores in taught.scores.values():
        assert (scores.transpose(1, 3)[padding] == MASKED).all()
        assert not (scores.transpose(1, 3)[~padding] == MASKED).any()


def test_other_rows_under_the_same_numbers_are_noticed(built):
    cache, _, data = built("bert", "right")
    batch = data.batch([0, 2], 0)
    with pytest.raises(RuntimeError, match="row 2 has .* tokens in the batch"):
        cache({**batch, "rows": torch.tensor([2, 0])})


# --- a teacher of two layers of BERT, and its cache ---


@dataclass
class Desk:
    """A teacher, its rows, and the place of its cache."""

    model: Any
    data: Rows
    path: Path

    def open(self, wanted: Wanted = HIDDEN, **more: Any) -> CachedTeacher:
        return cached_teacher(self.model, BERT, more.pop("data", self.data), wanted, self.path, **more)

    def files(self) -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in self.path.iterdir()}


@pytest.fixture
def desk(open_tiny, tmp_path) -> Desk:
    model, _, tokenizer = open_tiny("bert", 2)
    return Desk(model, rows_of(tokenizer), tmp_path / "cache")


@pytest.mark.parametrize(
    "auto_class", ["AutoModelForQuestionAnswering", "AutoModelForTokenClassification", "AutoModel"]
)
def test_outputs_per_token_are_cached(auto_class, make_classifier, desk):
    desk.model = make_classifier("bert", 2, ("a", "b"), auto_class=auto_class)
    batch = desk.data.batch([5, 2, 0], 0)
    online = OnlineTeacher(desk.model, BERT, Wanted())(batch)
    assert_same(desk.open(Wanted())(batch), online, batch["attention_mask"])


def test_an_existing_cache_needs_no_teacher_and_any_change_makes_it_stale(desk, monkeypatch):
    passes: list[int] = []
    desk.model.register_forward_pre_hook(lambda *_: passes.append(1))

    def runs(**more: Any) -> bool:
        passes.clear()
        desk.open(**more)
        return bool(passes)

    last = {"wanted": Wanted(hidden=(2,)), "half": True}
    assert runs()
    assert not runs()
    assert runs(data=rows_of(desk.data.tokenizer, [*TEXTS[1:], TEXTS[0]])), "the order counts"
    assert runs(wanted=last["wanted"])
    assert runs(**last)
    with torch.no_grad():
        desk.model.classifier.bias += 0.5
    assert runs(**last)
    desk.model.config.layer_norm_eps = 1e-3
    assert runs(**last)
    monkeypatch.setattr(caches, "installed_versions", lambda names: {"torch": "0"})
    assert runs(**last)
    assert not runs(**last)


def test_a_stale_or_broken_cache_is_refused_by_name(desk, tmp_path):
    desk.open()
    with pytest.raises(InputError, match="was made from other weights, rows, signals or versions"):
        CachedTeacher(desk.path, "0" * 64, HIDDEN)
    with pytest.raises(InputError, match="not found"):
        CachedTeacher(tmp_path / "none", "", HIDDEN)
    whole = desk.files()
    (desk.path / "records.bin").write_bytes(whole["records.bin"][:-4])
    desk.open()
    assert desk.files() == whole, "made again"
    (desk.path / "cache.json").write_text("{}")
    with pytest.raises(InputError, match="is not a cache of teacher outputs"):
        CachedTeacher(desk.path, "", HIDDEN)


def test_a_folder_of_something_else_is_left_alone(desk):
    desk.path.mkdir()
    (desk.path / "chapter.txt").write_text("dear")
    with pytest.raises(InputError, match="not a cache of teacher outputs; it is not replaced"):
        desk.open()
    assert desk.files() == {"chapter.txt": b"dear"}


def size_by_hand(lengths: Sequence[int], wanted: Wanted, half: bool = False) -> int:
    """3 logits, hidden states of 32 numbers, attention of 4 heads."""
    n = np.asarray(lengths)
    numbers = 3 + len(wanted.hidden) * 32 * n + len(wanted.attention) * 4 * n**2
    return int(numbers.sum()) * (2 if half else 4)


@pytest.mark.parametrize("half", [False, True])
def test_the_size_on_disk_is_the_one_that_is_documented(half, desk):
    wanted = Wanted(hidden=(0, 2), attention=(0, 1))
    desk.open(wanted, half=half)
    assert len(desk.files()["records.bin"]) == size_by_hand(desk.data.lengths, wanted, half)


@pytest.mark.parametrize(("limit", "fp16", "without"), [(0.9, True, True), (0.45, False, False), (0.01, False, False)])
def test_a_cache_that_is_too_large_is_refused_with_the_fixes_that_would_do(limit, fp16, without, desk, monkeypatch):
    wanted = Wanted(hidden=(1,), attention=(1,))
    size = size_by_hand(desk.data.lengths, wanted)
    monkeypatch.setattr(caches, "_LIMIT_BYTES", int(limit * size))
    with pytest.raises(InputError) as caught:
        desk.open(wanted, where="distill.0")
    text = str(caught.value)
    assert text.startswith("distill.0: teacher outputs of 10 rows")
    assert f"{size:,} bytes" in text
    assert max(text.index(f"{signal} ") for signal in ("hidden", "attention", "logits")) < text.index("Fix:")
    assert ("store fp16" in text) is fp16
    assert ("weight 0" in text) is without
    assert "run the teacher online" in text
    assert not desk.path.exists()


def test_a_full_disk_leaves_the_old_cache_and_nothing_half_written(desk):
    desk.open()
    before, passes = desk.files(), []

    def full(*_: Any) -> None:
        passes.append(1)
        if len(passes) == 3:  # the first is asked for shapes
            raise OSError(28, "No space left on device")

    desk.model.register_forward_hook(full)
    with pytest.raises(OSError, match="No space"):
        desk.open(Wanted(hidden=(2,)), batch=4)
    assert desk.files() == before
    beside = sorted(p.name for p in desk.path.parent.iterdir())
    assert [n for n in beside if n.startswith("cache") or "partial" in n] == ["cache"]


@pytest.mark.parametrize("world", [2, 7])
def test_the_processes_of_a_launch_write_the_bytes_of_one(world, desk, tmp_path):
    wanted = Wanted(hidden=(1,), attention=(0,))
    desk.open(wanted, batch=2)
    whole, desk.path = desk.files(), tmp_path / "other"
    asked = list[int]()
    desk.model.register_forward_hook(lambda *_: asked.append(threading.get_ident()))
    opened = run_launch(world, lambda _: desk.open(wanted, batch=2), caches)
    assert desk.files() == whole
    shares = [asked.count(process) - 1 for process in dict.fromkeys(asked)]  # each is asked for shapes first
    assert sum(shares) == 5 and max(shares) - min(shares) <= 1
    assert len(shares) == world or len(asked) == world, "every process answers its part"
    asked.clear()
    assert len(run_launch(world, lambda _: desk.open(wanted, batch=2), caches)) == len(opened) == world
    assert not asked, "it is there"
    assert sorted(p.name for p in tmp_path.iterdir() if "records" in p.name) == []


KILL, LOST = KeyboardInterrupt(), RuntimeError("[gloo/pair.cc:534] Connection closed by peer [::1]:29500")


@pytest.mark.parametrize(
    ("world", "then", "end"), [(2, 2, KILL), (3, 1, KILL), (1, 2, KILL), (1, 1, KILL), (1, 1, LOST)]
)
def test_a_build_that_was_killed_or_left_alone_is_continued_by_any_number_of_processes(
    world, then, end, desk, tmp_path, monkeypatch
):
    desk.open(batch=2)
    whole, desk.path = desk.files(), tmp_path / "other"
    monkeypatch.setattr(caches, "_SAVED_BATCHES", 1)
    passes = list[int]()

    def kill(*_: Any) -> None:
        passes.append(1)
        if len(passes) == world + 3:  # each process is asked for shapes
            raise end

    hook = desk.model.register_forward_hook(kill)
    with pytest.raises(type(end)):
        run_launch(world, lambda _: desk.open(batch=2), caches)
    assert not desk.path.exists()
    passes.clear()
    passes += [1] * (world + 3)
    run_launch(then, lambda _: desk.open(batch=2), caches)
    hook.remove()
    assert then < len(passes) - (world + 3) <= then + 3, "at least two of five batches were written before"
    assert desk.files() == whole
    assert [p.name for p in tmp_path.iterdir() if "records" in p.name] == []


def test_too_little_room_is_said_before_the_teacher_runs_through(desk, monkeypatch):
    usage = shutil.disk_usage(desk.path.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=1))
    with pytest.raises(MachineError, match="1 free"):
        desk.open()
    assert not desk.path.exists()


def test_rows_that_change_with_the_step_are_refused(desk):
    class Masked(Rows):
        def batch(self, rows: Sequence[int], step: int) -> dict[str, Tensor]:
            out = super().batch(rows, step)
            out["input_ids"][0, 1] = step
            return out

    with pytest.raises(InputError, match="rows change from step to step"):
        desk.open(data=Masked(desk.data.encoded, desk.data.tokenizer))


def test_relations_are_refused(desk):
    with pytest.raises(InputError, match=r"holds no queries, keys and values \(layers \[1\]\)"):
        desk.open(Wanted(relations=(1,)))
    assert not desk.path.exists()


def test_fp16_rounds_by_what_it_says(desk, tmp_path):
    wanted = Wanted(hidden=(0, 2), attention=(1,))
    exact = desk.open(wanted)
    desk.path = tmp_path / "half"
    half = desk.open(wanted, half=True)
    batch = desk.data.batch(range(len(TEXTS)), 0)
    b, a = exact(batch), half(batch)
    pairs = [(a.outputs["logits"], b.outputs["logits"]), (a.scores[1], b.scores[1])]
    for found, value in (*pairs, *((a.hidden[n], b.hidden[n]) for n in wanted.hidden)):
        assert found.dtype == torch.float32
        assert not torch.equal(found, value)
        assert ((found - value).abs() <= value.abs() * 2**-11 + 2**-25).all()


def test_what_fp16_cannot_hold_is_refused(desk):
    with torch.no_grad():
        desk.model.bert.encoder.layer[0].output.LayerNorm.weight.fill_(1e5)
    with pytest.raises(InputError, match=r"hidden 1 of the teacher reach .*fp16 cannot hold.*fp32"):
        desk.open(half=True)
    assert not desk.path.exists()
    desk.open()
