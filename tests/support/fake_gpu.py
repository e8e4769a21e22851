"""A device that computes on the CPU and refuses what a GPU refuses: to find without a GPU what would break on one.

`install` registers the device type ``card`` with torch, for the rest of the process, so that it belongs into a process of its own.
A tensor on it holds a tensor of the CPU. An operation computes with that and is refused if it mixes the card's tensors with
others, as CUDA refuses it; ``.numpy()`` is refused as well. Results are those of the CPU bit for bit, and autocast rounds the
matrix products to bf16 as elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

NAME = "card"
TAKES_BOTH = {"aten::copy_", "aten::_to_copy", "aten::index.Tensor", "aten::index", "aten::set_"}
"""Operations that CUDA allows to read tensors of the card and of the CPU."""
LOWERED = ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "scaled_dot_product_attention")
"""Operations that autocast computes in bf16."""
_LIBRARIES: list[torch.library.Library] = []


class CardTensor(Tensor):
    """A tensor whose device is the card; `held` is the tensor on the CPU that has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> CardTensor:
        made = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=torch.device(NAME, 0),
        )
        made.held = held
        return made  # type: ignore[no-any-return]

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.held} on the card"

    def tolist(self) -> Any:
        """Torch copies to the CPU here, but not for classes of one's own."""
        return self.held.tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """For those who ask where it is in memory."""
        return self.held.untyped_storage()

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


class _CardMode(TorchDispatchMode):
    """Sees operations that make tensors on the card from none, or from tensors of the CPU."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the CPU; its results are on the card if it was to be computed there."""
    name, wanted, leaves = func._schema.name, kwargs.get("device"), tree_leaves((args, kwargs))
    on_card = [x for x in leaves if isinstance(x, CardTensor)]
    elsewhere = [x for x in leaves if isinstance(x, Tensor) and not isinstance(x, CardTensor) and x.dim()]
    if on_card and elsewhere and name not in TAKES_BOTH:
        raise RuntimeError(f"{name}: expected all tensors to be on the same device, found cpu and {NAME}:0")
    is_here = bool(on_card) if wanted is None else torch.device(wanted).type == NAME
    if is_here and wanted is not None:
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain, named = tree_map_only(CardTensor, lambda tensor: tensor.held, (args, kwargs))
    made = func(*plain, **named)
    if func._schema.is_mutable and not func._schema.returns:
        return None
    if func._schema.name.endswith("_") or "out" in kwargs:
        return kwargs.get("out", args[0])
    if not is_here or name in ("aten::_local_scalar_dense", "aten::equal"):
        return made
    if name == "aten::_to_copy" and not on_card and made is args[0]:
        made = made.clone()
    return tree_map_only(Tensor, CardTensor, made)


def _compute_with(func: Any, *args: Any, **kwargs: Any) -> Any:
    return _compute(func, args, kwargs)


def _lowered(operation: Any) -> Callable[..., Any]:
    """An operation that casts fp32 inputs to the dtype of autocast first."""
    key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(key):
            dtype = torch.get_autocast_dtype(NAME)
            lower = lambda x: x.to(dtype) if x.dtype is torch.float32 else x  # noqa: E731
            plain, named = tree_map_only(Tensor, lower, (args, kwargs))
            return operation(*plain, **named)

    return cast


class _Module(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


@contextmanager
def install() -> Iterator[torch.device]:
    """Register the card with torch, which lasts as long as the process, and yield it; tensors can be made on it in the block."""
    _setup_privateuseone_for_python_backend(NAME, _Module())
    torch.__future__.set_swap_module_params_on_conversion(
        True
    )  # as a module's `to` keeps its parameters on a real device
    torch.inference_mode = torch.no_grad  # type: ignore[assignment, misc]  # which a class of one's own cannot be made in
    everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    _LIBRARIES.extend((everything, aten))
    everything.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    # torch.tensor and new_tensor pass by all modes
    for name in ("empty_strided", "empty.memory_format", "copy_"):
        overload = name.split(".")[1] if "." in name else "default"
        aten.impl(
            name, partial(_compute_with, getattr(getattr(torch.ops.aten, name.split(".")[0]), overload)), "PrivateUse1"
        )
    for name in LOWERED:
        aten.impl(name, _lowered(getattr(torch.ops.aten, name).default), "AutocastPrivateUse1")
    with _CardMode():
        yield torch.device(NAME, 0)
