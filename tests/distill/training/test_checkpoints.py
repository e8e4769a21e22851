from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from pocketbert.core.disk.ownership import write_marker
from pocketbert.core.errors import InputError
from pocketbert.distill.training import checkpoints as state
from pocketbert.distill.training.checkpoints import load_checkpoint, save_checkpoint
from pocketbert.distill.training.progress import Progress, StepRecord


def made(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3), nn.Linear(3, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)


def advance(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 1) -> None:
    for _ in range(steps):
        model(torch.arange(5)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()


def progress(step: int) -> Progress:
    record = StepRecord(step=2, loss=0.1 + 0.2, terms={"logits": 1 / 3}, lr=1e-4)
    return Progress(step=step, history=[record], pending={"_count": 1.0, "_loss": 2 / 3})


def names(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir()}


def test_a_checkpoint_restores_weights_moments_and_progress(tmp_path: Path) -> None:
    model, optimizer = made(0)
    advance(model, optimizer, 3)
    save_checkpoint(tmp_path / "work", progress(3), model, optimizer)
    other, its_optimizer = made(1)
    assert load_checkpoint(tmp_path / "work", other, its_optimizer) == progress(3)
    for pair in ((model, optimizer), (other, its_optimizer)):
        advance(*pair, steps=2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


def test_without_a_checkpoint_there_is_nothing_to_resume(tmp_path: Path) -> None:
    model, optimizer = made(0)
    before = [p.clone() for p in model.parameters()]
    assert load_checkpoint(tmp_path / "none", model, optimizer) is None
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert not optimizer.state


def saved(work: Path, *steps: int) -> None:
    """Checkpoints after so many optimiser steps each."""
    model, optimizer = made(0)
    done = 0
    for step in steps:
        advance(model, optimizer, step - done)
        done = step
        save_checkpoint(work, progress(step), model, optimizer)


def test_the_newest_checkpoint_and_the_one_before_are_kept(tmp_path: Path) -> None:
    for step, kept in ((1, {1}), (2, {1, 2}), (3, {2, 3}), (12345678, {3, 12345678})):
        save_checkpoint(tmp_path, progress(step), *made(0))
        assert names(tmp_path) == {"latest", *(f"step-{number:07d}" for number in kept)}
        assert (tmp_path / "latest").read_text() == f"step-{step:07d}"


def test_saving_the_same_step_again_keeps_the_one_before(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    save_checkpoint(tmp_path, progress(2), *made(1))
    assert names(tmp_path) == {"latest", "step-0000001", "step-0000002"}


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_a_nan(path: Path) -> None:
    tensors = load_file(path)
    next(v for v in tensors.values() if v.ndim).view(-1)[0] = float("nan")
    save_file(tensors, path)


def reshaped(path: Path) -> None:
    save_file({k: torch.zeros(7, 7) for k in load_file(path)}, path)


def of_step_1(path: Path) -> None:
    path.write_text(path.read_text().replace('"step": 3,', '"step": 1,', 1))


BREAKS = [
    ("model.safetensors", truncated, "model.safetensors: "),
    ("model.safetensors", lambda p: p.write_bytes(b""), "model.safetensors: "),
    ("model.safetensors", lambda p: p.write_bytes(b"\xff" * 200), "model.safetensors: "),
    ("model.safetensors", Path.unlink, "model.safetensors is missing"),
    ("model.safetensors", with_a_nan, "holds a NaN or an infinity"),
    ("model.safetensors", reshaped, "model.safetensors is of another model ('"),
    ("optimizer.safetensors", truncated, "optimizer.safetensors: "),
    ("optimizer.safetensors", Path.unlink, "optimizer.safetensors is missing"),
    ("optimizer.safetensors", reshaped, "optimizer.safetensors is of another model or optimiser ('"),
    ("progress.json", truncated, "progress.json cannot be read"),
    ("progress.json", Path.unlink, "progress.json is missing"),
    ("progress.json", of_step_1, "progress.json is that of step 1"),
    (".", shutil.rmtree, "progress.json is missing"),
]


@pytest.mark.parametrize(("file", "damage", "said"), BREAKS, ids=[f"{f}-{i}" for i, (f, _, _) in enumerate(BREAKS)])
def test_a_broken_checkpoint_is_left_for_the_one_before(
    file: str, damage: Callable[[Path], object], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    work = tmp_path / "work"
    saved(work, 1, 3)
    damage(work / "step-0000003" / file)
    model, optimizer = made(1)
    assert load_checkpoint(work, model, optimizer) == progress(1)
    told = " ".join(capsys.readouterr().err.split())
    assert "no usable checkpoint: " in told
    assert said in told
    assert "resumed from the checkpoint before, step-0000001" in told
    advance(model, optimizer, 2)
    whole, its_optimizer = made(0)
    advance(whole, its_optimizer, 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), whole.parameters(), strict=True))
    save_checkpoint(work, progress(3), model, optimizer)
    assert load_checkpoint(work, *made(1)) == progress(3)
    assert {"step-0000001", "step-0000003"} <= names(work)


def test_broken_checkpoints_are_no_reason_to_begin_again(tmp_path: Path) -> None:
    saved(tmp_path, 1, 3)
    for step in (1, 3):
        truncated(tmp_path / f"step-000000{step}" / "model.safetensors")
    model, optimizer = made(1)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(InputError) as caught:
        load_checkpoint(tmp_path, model, optimizer)
    told = str(caught.value)
    assert f"{tmp_path}/step-0000003: no usable checkpoint: model.safetensors: " in told
    assert f"{tmp_path}/step-0000001: no usable checkpoint: model.safetensors: " in told
    assert f"{tmp_path}: has no checkpoint to resume from. Fix: Put back the files of a checkpoint, or move" in told
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), before, strict=True))
    assert names(tmp_path) == {"latest", "step-0000001", "step-0000003"}


def test_a_lost_pointer_loses_no_checkpoint(tmp_path: Path) -> None:
    saved(tmp_path, 1, 3)
    for damage in (b"", b"\xff\xfe", b"step-x"):
        (tmp_path / "latest").write_bytes(damage)
        assert load_checkpoint(tmp_path, *made(1)) == progress(3)
    (tmp_path / "latest").unlink()
    assert load_checkpoint(tmp_path, *made(1)) == progress(3)


def test_a_checkpoint_beyond_the_pointer_waits_to_be_made_again(tmp_path: Path) -> None:
    saved(tmp_path, 1, 3)
    (tmp_path / "latest").write_text("step-0000001")  # killed between the folder and its pointer
    assert load_checkpoint(tmp_path, *made(1)) == progress(1)
    saved(tmp_path, 2)
    assert names(tmp_path) == {"latest", "step-0000001", "step-0000002", "step-0000003"}


def test_a_foreign_file_in_the_pointers_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("my own notes")
    with pytest.raises(InputError, match=r"latest: names no checkpoint, and there is none next to it. Fix: "):
        load_checkpoint(tmp_path, *made(0))
    assert (tmp_path / "latest").read_text() == "my own notes"


def test_what_is_no_checkpoint_is_never_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    foreign = ("step-notes", "step-0000001", "step-1", "step-0000001-copy", "step-00000002", "step-0000004")
    for name in foreign:
        (tmp_path / name).mkdir()
        (tmp_path / name / "chapter.tex").write_text(name)
    (tmp_path / "step-0000002").mkdir()
    (tmp_path / "step-0000002" / "progress.json").write_text('{"percent": 30}')
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "step-0000003").symlink_to(tmp_path / "elsewhere")
    saved(tmp_path, 3, 4, 5, 6)
    told = " ".join(capsys.readouterr().err.split())
    for name in ("step-0000003", "step-0000004"):
        assert f"{name} is not a complete checkpoint: it was renamed {name}.aside-1" in told
    for name in foreign[:-1]:
        assert (tmp_path / name / "chapter.tex").read_text() == name
    assert (tmp_path / "step-0000004.aside-1" / "chapter.tex").read_text() == "step-0000004"
    assert (tmp_path / "step-0000002" / "progress.json").is_file()
    assert (tmp_path / "step-0000003.aside-1").is_symlink()
    assert names(tmp_path) - set(foreign) == {
        "latest",
        "elsewhere",
        "step-0000002",
        "step-0000003.aside-1",
        "step-0000004.aside-1",
        "step-0000005",
        "step-0000006",
    }


def test_a_half_written_sibling_is_ignored_and_cleared(tmp_path: Path) -> None:
    work = tmp_path / "work"
    saved(work, 2)
    left = work / ".step-0000004.x1y2z3_4"
    (left / "new").mkdir(parents=True)
    write_marker(left, "temporary folder", output="step-0000004", of="")
    (left / "new" / "model.safetensors").write_bytes(b"half")
    assert load_checkpoint(work, *made(1)) == progress(2)
    save_checkpoint(work, progress(4), *made(0))
    assert names(work) == {"latest", "step-0000002", "step-0000004"}
    assert load_checkpoint(work, *made(1)) == progress(4)


def test_a_crash_while_saving_keeps_the_last_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    work = tmp_path / "work"
    model, optimizer = made(0)
    advance(model, optimizer)
    save_checkpoint(work, progress(2), model, optimizer)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        save_checkpoint(work, progress(4), model, optimizer)
    assert names(work) == {"latest", "step-0000002"}
    assert load_checkpoint(work, *made(1)) == progress(2)


def test_frozen_weights_are_not_saved_and_stay(tmp_path: Path) -> None:
    work = tmp_path / "work"
    model, _ = made(0)
    model[0].requires_grad_(False)  # type: ignore[index]
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], fused=True)
    advance(model, optimizer)
    save_checkpoint(work, progress(1), model, optimizer)
    saved = (work / "step-0000001" / "model.safetensors").stat().st_size
    assert saved < 400
    same, _ = made(0)
    same[0].requires_grad_(False)  # type: ignore[index]
    load_checkpoint(work, same, torch.optim.AdamW([p for p in same.parameters() if p.requires_grad], fused=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), same.parameters(), strict=True))


def test_weights_that_never_got_a_gradient_do_not_stop_a_resume(tmp_path: Path) -> None:
    model, optimizer = made(0)
    model[1](model[0](torch.arange(5))).square().sum().backward()  # type: ignore[index]
    optimizer.step()
    optimizer.zero_grad()
    save_checkpoint(tmp_path / "work", progress(1), model, optimizer)
    other, its_optimizer = made(1)
    assert load_checkpoint(tmp_path / "work", other, its_optimizer) == progress(1)
    advance(model, optimizer)
    advance(other, its_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
