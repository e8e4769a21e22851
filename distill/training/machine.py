"""How this machine trains: dtype of matrix products, Accelerate's set-up of the process, and the C library's memory.

`training_dtype` chooses bf16 or fp32, `check_bf16` refuses a recipe before anything is trained, `make_accelerator` creates
the Accelerator of the process, `open_process_group` connects the processes without one, `AttentionInFp32` computes the
student's attention in fp32, which is faster than in bf16 on a CPU, and `keep_freed_memory` makes the C library keep freed
memory, which is faster than giving it back to the system.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from pocketbert.core.errors import InputError, Problem
from pocketbert.core.families import all_families
from pocketbert.core.host.processes import current_process
from pocketbert.core.types import Precision

_PATIENCE = timedelta(hours=1)
"""How long a process waits for the others in a step, or to begin: process 0 may be writing to a slow disk, another one
reading from it. One that fails is noticed within seconds, whatever this is."""
_LONGEST_IN_FP32 = 192
"""Tokens up to which attention with gradients is faster in fp32 than in bf16 on a CPU."""

_SHARDING = {
    "FSDP": "ACCELERATE_USE_FSDP",
    "DeepSpeed": "ACCELERATE_USE_DEEPSPEED",
    "Megatron-LM": "ACCELERATE_USE_MEGATRON_LM",
    "tensor or context parallelism": "ACCELERATE_USE_PARALLELISM_CONFIG",
}
"""Ways of dividing one model among processes, by the variable with which `accelerate launch` asks for them."""


def make_accelerator(dtype: torch.dtype) -> Any:
    """Create the Hugging Face Accelerator of this process for bf16 or fp32 training.

    Raises:
        InputError: If Accelerate finds another number of processes than the launcher started, or its configuration asks to
            divide models among processes; here the recipe does (`teacher.shard`).
    """
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

    _refuse_sharding_launchers()
    mixed_precision = "bf16" if dtype is torch.bfloat16 else "no"
    if AcceleratorState._shared_state and AcceleratorState().mixed_precision != mixed_precision:
        AcceleratorState._reset_state()  # Accelerate has one precision per process, a recipe one per training
    accelerator = Accelerator(
        cpu=_trains_on_cpus(),
        mixed_precision=mixed_precision,
        kwargs_handlers=[
            # a term may leave a head without gradient, and an empty portion leaves all parameters without
            DistributedDataParallelKwargs(find_unused_parameters=True),
            InitProcessGroupKwargs(timeout=_PATIENCE),
        ],
    )
    if accelerator.num_processes != current_process().world:
        raise InputError(
            Problem(
                "launcher",
                f"WORLD_SIZE says {current_process().world} processes, Accelerate finds {accelerator.num_processes}.",
                "Start with torchrun or accelerate launch, on CPUs or on GPUs that torch can use.",
            )
        )
    return accelerator


def open_process_group() -> torch.device:
    """Connect the processes of the launch as `make_accelerator` does, if they are not yet; return this one's device.

    Raises:
        InputError: If Accelerate's configuration asks for sharded models.
    """
    from accelerate import PartialState

    _refuse_sharding_launchers()
    device: torch.device = PartialState(cpu=_trains_on_cpus(), timeout=_PATIENCE).device
    return device


def _refuse_sharding_launchers() -> None:
    """Raise InputError if Accelerate's configuration asks for FSDP, DeepSpeed or another way of dividing one model."""
    if sharding := [kind for kind, name in _SHARDING.items() if os.environ.get(name, "").lower() == "true"]:
        what = f"Accelerate's configuration asks for {', '.join(sharding)}: here the recipe says what is divided."
        fix = (
            "Launch with --multi_gpu (plain data parallel). teacher.shard: true divides a teacher that fits into no GPU among the "
            "processes; micro_batch divides a batch."
        )
        raise InputError(Problem("launcher", what, fix))


def _trains_on_cpus() -> bool:
    """Return whether several processes train on CPUs: without a GPU, Accelerate ignores torchrun unless it is told so."""
    return current_process().world > 1 and not torch.accelerator.is_available()


def keep_freed_memory() -> None:
    """Configure glibc to keep freed blocks instead of giving them back to the system after every step.

    Gradients of an embedding table are tens of megabytes; giving them back and faulting them in again each step costs a
    fifth of the CPU time. With another C library nothing is done.
    """
    if platform.libc_ver()[0] != "glibc":
        return
    trim_threshold, mmap_threshold = -1, -3
    libc = ctypes.CDLL(None)
    libc.mallopt(mmap_threshold, 1 << 30)
    libc.mallopt(trim_threshold, (1 << 31) - 1)


class AttentionInFp32(TorchFunctionMode):
    """Torch function mode in which attention with gradients is computed in fp32 on a CPU, although autocast says bf16.

    PyTorch's backward pass of fused attention takes 1.7 to 5 times as long in bf16 as in fp32 on a CPU, for up to 128
    tokens (torch 2.13, AMX; `python lab/training_step.py --attention`): up to a third of a training step. Results are
    more exact. Attention without gradients (a teacher's), without autocast, in fp64, on a GPU, or over more than 192
    tokens is left as it is. Gradient checkpointing must not be used in it: what it computes again is outside the mode.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call a torch function; attention gets its inputs in fp32, and its result is cast back."""
        named = kwargs or {}
        if func is not F.scaled_dot_product_attention or not torch.is_autocast_enabled("cpu"):
            return func(*args, **named)
        query: Tensor = args[0] if args else named["query"]
        is_left = query.device.type != "cpu" or query.dtype is torch.float64 or query.shape[-2] > _LONGEST_IN_FP32
        if is_left or not query.requires_grad:
            return func(*args, **named)
        with torch.autocast("cpu", enabled=False):
            context: Tensor = func(*map(_to_fp32, args), **{name: _to_fp32(value) for name, value in named.items()})
        return context.to(torch.get_autocast_dtype("cpu"))


def _to_fp32(value: Any) -> Any:
    """Return a tensor of floating-point numbers in fp32, and anything else as it is."""
    return value.float() if isinstance(value, Tensor) and value.is_floating_point() else value


def training_dtype(
    model: nn.Module | None = None, precision: Precision = Precision.AUTO, where: str = "precision"
) -> torch.dtype:
    """Return the dtype of matrix products in training on this machine: by default bf16 if the hardware computes it, else fp32.

    Args:
        model: The model to train, since some families cannot be trained in bf16; None for the dtype of all others.
        precision: The number type that the recipe asks for.
        where: Recipe key that an error names.

    Raises:
        InputError: If the recipe asks for bf16, and the hardware does not compute it or the model cannot be trained in it.
    """
    if precision is Precision.BF16:
        check_bf16([where])
    if precision is Precision.FP32 or not _bf16_is_fast():
        return torch.float32
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    # without a model the family table is not read: `doctor` works where the rows of a plug-in cannot be read
    only_fp32 = model_type is not None and any(
        model_type in f.model_types and not f.trains_in_bf16 for f in all_families()
    )
    if only_fp32 and precision is Precision.BF16:
        what = f"bf16, and the code of {model_type} in transformers cannot be trained in it."
        raise InputError(Problem(where, what, "Set precision: auto, which is fp32 for this model."))
    return torch.float32 if only_fp32 else torch.bfloat16


def check_bf16(keys: Sequence[str]) -> None:
    """Check that this machine's hardware computes in bf16, which some keys of the recipe ask for.

    Raises:
        InputError: Naming each of the keys, if it does not.
    """
    if keys and not _bf16_is_fast():
        what = f"bf16, and this machine's {lack_of_bf16()}: training would be slower than in fp32."
        raise InputError([Problem(key, what, "Set precision: auto, or train on another machine.") for key in keys])


def lack_of_bf16() -> str:
    """Return what a machine without hardware for bf16 lacks, in words that follow "this machine's"."""
    return "GPU does not compute in bf16" if torch.cuda.is_available() else "CPU has neither avx512_bf16 nor AMX"


def _bf16_is_fast() -> bool:
    """Return whether this machine's GPU or CPU has hardware for bf16 matrix products.

    On a CPU without avx512_bf16 or AMX, bf16 autocast was measured 3 times slower than fp32.
    """
    if torch.cuda.is_available():
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
