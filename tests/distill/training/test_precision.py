from __future__ import annotations

import pytest
import torch

from pocketbert.distill.training import loop as precision


@pytest.mark.parametrize(
    ("bf16", "amx", "wanted"),
    [(False, False, torch.float32), (True, False, torch.bfloat16), (False, True, torch.bfloat16)],
)
def test_bf16_only_where_the_cpu_computes_in_it(
    monkeypatch: pytest.MonkeyPatch, bf16: bool, amx: bool, wanted: torch.dtype
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: bf16)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert precision.training_dtype() is wanted


@pytest.mark.parametrize("supported", [True, False])
def test_a_gpu_decides_where_there_is_one(monkeypatch: pytest.MonkeyPatch, supported: bool) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: supported)
    assert precision.training_dtype() is (torch.bfloat16 if supported else torch.float32)
