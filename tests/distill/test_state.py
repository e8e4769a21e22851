from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from pocketbert.distill import state
from pocketbert.distill.records import Progress, StepRecord
from pocketbert.distill.state import load_checkpoint, save_checkpoint


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


def test_only_the_newest_checkpoint_is_kept(tmp_path: Path) -> None:
    model, optimizer = made(0)
    advance(model, optimizer)
    for step in (1, 2, 3):
        save_checkpoint(tmp_path / "work", progress(step), model, optimizer)
    assert names(tmp_path / "work") == {"latest", "step-0000003"}


def test_a_half_written_sibling_is_ignored_and_cleared(tmp_path: Path) -> None:
    work = tmp_path / "work"
    model, optimizer = made(0)
    advance(model, optimizer)
    save_checkpoint(work, progress(2), model, optimizer)
    for left in (".step-0000004.partial", "step-0000004"):
        (work / left).mkdir()
        (work / left / "model.safetensors").write_bytes(b"half")
    other, its_optimizer = made(1)
    found = load_checkpoint(work, other, its_optimizer)
    assert found is not None
    assert found.step == 2
    save_checkpoint(work, progress(4), model, optimizer)
    assert names(work) == {"latest", "step-0000004"}
    assert load_checkpoint(work, *made(1)) == progress(4)


def test_a_crash_while_saving_keeps_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    load_checkpoint(
        work, same, torch.optim.AdamW([p for p in same.parameters() if p.requires_grad], fused=True)
    )
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
