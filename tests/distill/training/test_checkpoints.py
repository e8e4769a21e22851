import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pocketbert.core.disk.ownership import write_marker
from pocketbert.core.errors import InputError
from pocketbert.distill.training import checkpoints
from pocketbert.distill.training.checkpoints import load_checkpoint, save_checkpoint
from pocketbert.distill.training.progress import Progress, StepRecord, read_steps_done

Made = tuple[nn.Module, torch.optim.Optimizer]


def make(seed: int, frozen: bool = False) -> Made:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    model[0].requires_grad_(not frozen)
    return model, torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.1, fused=True)


def advance(made: Made, steps: int = 1, layers: int = 3) -> None:
    model, optimizer = made
    for _ in range(steps):
        model[:layers](torch.arange(5)).square().sum().backward()  # type: ignore[index]
        optimizer.step()
        optimizer.zero_grad()


def equal(a: Made, b: Made) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a[0].parameters(), b[0].parameters(), strict=True))


def progress(step: int) -> Progress:
    record = StepRecord(step=2, loss=0.1 + 0.2, terms={"logits": 1 / 3}, lr=1e-4)
    return Progress(step=step, history=[record], pending={"_count": 1.0, "_loss": 2 / 3})


def save_steps(work: Path, *steps: int) -> None:
    """Checkpoints after so many optimiser steps each."""
    made, done = make(0), 0
    for step in steps:
        advance(made, step - done)
        done = step
        save_checkpoint(work, progress(step), *made)


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


@pytest.mark.parametrize("layers", [3, 2], ids=["all weights", "some never got a gradient"])
def test_a_checkpoint_restores_weights_moments_and_progress(layers, tmp_path):
    made, other = make(0), make(1)
    advance(made, 3, layers)
    save_checkpoint(tmp_path / "work", progress(3), *made)
    assert load_checkpoint(tmp_path / "work", *other) == progress(3)
    for each in (made, other):
        advance(each, 2)
    assert equal(made, other)


def test_frozen_weights_are_not_saved_and_stay(tmp_path):
    made, same = make(0, frozen=True), make(0, frozen=True)
    advance(made)
    save_checkpoint(tmp_path, progress(1), *made)
    assert set(load_file(tmp_path / "step-0000001" / "model.safetensors")) == {
        f"{n}.{leaf}" for n in (1, 2) for leaf in ("weight", "bias")
    }
    load_checkpoint(tmp_path, *same)
    assert equal(made, same)


def test_the_newest_checkpoint_and_the_one_before_are_kept(tmp_path):
    for step, kept in ((1, {1}), (2, {1, 2}), (2, {1, 2}), (3, {2, 3}), (12345678, {3, 12345678})):
        save_checkpoint(tmp_path / "run", progress(step), *make(0))
        assert names(tmp_path / "run") == {"latest", *(f"step-{number:07d}" for number in kept)}
        assert read_steps_done(tmp_path) == [("run", step)]


# --- damage -----------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def write_a_nan(path: Path) -> None:
    tensors = load_file(path)
    next(v for v in tensors.values() if v.ndim).view(-1)[0] = float("nan")
    save_file(tensors, path)


def reshape(path: Path) -> None:
    save_file({k: torch.zeros(7, 7) for k in load_file(path)}, path)


def say_step_1(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 3,', '"step": 1,', 1))


BREAKS = [
    ("model.safetensors", truncate, "model.safetensors: "),
    ("model.safetensors", lambda p: p.write_bytes(b"\xff" * 200), "model.safetensors: "),
    ("model.safetensors", Path.unlink, "model.safetensors is missing"),
    ("model.safetensors", write_a_nan, "holds a NaN or an infinity"),
    ("model.safetensors", reshape, "model.safetensors is of another model ('"),
    ("optimizer.safetensors", truncate, "optimizer.safetensors: "),
    ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
    ("optimizer.safetensors", reshape, "optimizer.safetensors is of another model or optimiser ('"),
    ("progress.json", truncate, "progress.json cannot be read"),
    ("progress.json", Path.unlink, "progress.json is missing"),
    ("progress.json", say_step_1, "progress.json is that of step 1"),
    (".", shutil.rmtree, "progress.json is missing"),
]


@pytest.mark.parametrize(("file", "damage", "said"), BREAKS, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(BREAKS)])
def test_a_broken_checkpoint_is_left_for_the_one_before(file, damage, said, tmp_path, capsys):
    save_steps(tmp_path, 1, 3)
    damage(tmp_path / "step-0000003" / file)
    made, whole = make(1), make(0)
    assert load_checkpoint(tmp_path, *made) == progress(1)
    told = " ".join(capsys.readouterr().err.split())
    for part in ("no usable checkpoint: ", said, "resumed from the checkpoint before, step-0000001"):
        assert part in told
    advance(made, 2)
    advance(whole, 3)
    assert equal(made, whole)
    save_checkpoint(tmp_path, progress(3), *made)
    assert load_checkpoint(tmp_path, *make(1)) == progress(3)
    assert {"step-0000001", "step-0000003"} <= names(tmp_path)


def test_broken_checkpoints_are_no_reason_to_begin_again(tmp_path):
    save_steps(tmp_path, 1, 3)
    for step in (1, 3):
        truncate(tmp_path / f"step-000000{step}" / "model.safetensors")
    made = make(1)
    with pytest.raises(InputError) as caught:
        load_checkpoint(tmp_path, *made)
    for step in (1, 3):
        assert f"{tmp_path}/step-000000{step}: no usable checkpoint: model.safetensors: " in str(caught.value)
    said = f"{tmp_path}: has no checkpoint to resume from. Fix: Put back the files of a checkpoint, or move"
    assert said in str(caught.value)
    assert equal(made, make(1))
    assert names(tmp_path) == {"latest", "step-0000001", "step-0000003"}


@pytest.mark.parametrize("pointer", [b"", b"\xff\xfe", b"step-x", None])
def test_a_lost_pointer_loses_no_checkpoint(pointer, tmp_path):
    save_steps(tmp_path, 1, 3)
    (tmp_path / "latest").unlink() if pointer is None else (tmp_path / "latest").write_bytes(pointer)
    assert load_checkpoint(tmp_path, *make(1)) == progress(3)


def test_a_checkpoint_beyond_the_pointer_waits_to_be_made_again(tmp_path):
    save_steps(tmp_path, 1, 3)
    (tmp_path / "latest").write_text("step-0000001")  # killed between the folder and its pointer
    assert load_checkpoint(tmp_path, *make(1)) == progress(1)
    save_steps(tmp_path, 2)
    assert names(tmp_path) == {"latest", "step-0000001", "step-0000002", "step-0000003"}


def test_a_crash_while_saving_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    save_steps(tmp_path, 2)

    def fill_the_disk(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_json", fill_the_disk)
    with pytest.raises(OSError, match="No space"):
        save_steps(tmp_path, 4)
    assert names(tmp_path) == {"latest", "step-0000002"}
    assert load_checkpoint(tmp_path, *make(1)) == progress(2)


# --- files of others --------------------------------------------------------------------------------------------------


def test_a_foreign_file_in_the_pointers_place_is_refused(tmp_path):
    (tmp_path / "latest").write_text("my own notes")
    with pytest.raises(InputError, match=r"latest: names no checkpoint, and there is none next to it. Fix: "):
        load_checkpoint(tmp_path, *make(0))
    assert (tmp_path / "latest").read_text() == "my own notes"


def test_what_is_no_checkpoint_is_never_deleted(tmp_path, capsys):
    foreign = ("step-notes", "step-0000001", "step-1", "step-0000001-copy", "step-00000002", "step-0000004")
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "chapter.tex").write_text(name)
    (tmp_path / "step-0000002").mkdir()
    (tmp_path / "step-0000002" / "progress.json").write_text('{"percent": 30}')
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "step-0000003").symlink_to(tmp_path / "elsewhere")
    save_steps(tmp_path, 3, 4, 5, 6)
    told = " ".join(capsys.readouterr().err.split())
    for name in ("step-0000003", "step-0000004"):
        assert f"{name} is not a complete checkpoint: it was renamed {name}.aside-1" in told
    for name in foreign[:-1]:
        assert (tmp_path / name / "chapter.tex").read_text() == name
    assert (tmp_path / "step-0000004.aside-1" / "chapter.tex").read_text() == "step-0000004"
    assert (tmp_path / "step-0000002" / "progress.json").is_file()
    assert (tmp_path / "step-0000003.aside-1").is_symlink()
    left = {"latest", "elsewhere", *(f"step-000000{n}" for n in ("2", "3.aside-1", "4.aside-1", "5", "6"))}
    assert names(tmp_path) - set(foreign) == left


def test_a_half_written_sibling_is_ignored_and_cleared(tmp_path):
    save_steps(tmp_path, 2)
    left = tmp_path / ".step-0000004.x1y2z3_4"
    (left / "new").mkdir(parents=True)
    write_marker(left, "temporary folder", output="step-0000004", of="")
    (left / "new" / "model.safetensors").write_bytes(b"half")
    assert load_checkpoint(tmp_path, *make(1)) == progress(2)
    save_checkpoint(tmp_path, progress(4), *make(0))
    assert names(tmp_path) == {"latest", "step-0000002", "step-0000004"}
    assert load_checkpoint(tmp_path, *make(1)) == progress(4)
