import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_precision() -> Iterator[None]:
    """Accelerate keeps the first precision for the whole process: a test that asks for fp32 must not choose it for others."""
    yield
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The training loop takes one thread: two that wait for each other are slow on a busy machine."""
    import torch

    before = torch.get_num_threads()
    monkeypatch.setattr("pocketbert.distill.training.loop.default_threads", lambda: 1)
    yield
    torch.set_num_threads(before)
