"""Small Core ML packages: programs put together operation by operation, and tiny encoders."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

os.environ["TQDM_DISABLE"] = "1"
if importlib.util.find_spec("coremltools") is None:  # needs pocketbert[coreml]
    collect_ignore_glob = ["test_*.py"]

LABELS = ("negative", "neutral", "positive")
LENGTHS = (8, 16, 24)


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """coremltools and torch.export warn about versions and every pass."""
    import warnings

    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def build_program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`build_program(shapes, body, target="iOS17", precision="FLOAT32", **convert arguments)`.

    Args:
        shapes: Shape, or shape and dtype name, of each input; named a, b, c...
        body: Called with coremltools' builder and the inputs; returns the outputs.
    """

    def build(
        shapes: Sequence[Any],
        body: Callable[..., Any],
        target: str = "iOS17",
        precision: str = "FLOAT32",
        **more: Any,
    ) -> Path:
        with silent():
            import coremltools as ct
            from coremltools.converters.mil.mil import Builder as mb
            from coremltools.converters.mil.mil import types

            pairs = [s if isinstance(s[-1], str) else (s, "fp32") for s in shapes]
            specs = [mb.TensorSpec(shape=s, dtype=getattr(types, d)) for s, d in pairs]
            names = ", ".join(f"x{i}" for i in range(len(specs)))
            # the builder reads the names of inputs from the function's code
            function = eval(f"lambda {names}: body(mb, {names})", {"body": body, "mb": mb})
            version = getattr(ct.target, target)
            made = mb.program(input_specs=specs, opset_version=version)(function)
            model = ct.convert(
                made,
                convert_to="mlprogram",
                skip_model_load=True,
                minimum_deployment_target=version,
                compute_precision=getattr(ct.precision, precision),
                **more,
            )
            path = tmp_path_factory.mktemp("program") / "model.mlpackage"
            model.save(str(path))
        return path

    return build


@pytest.fixture(scope="session")
def encoder(make_classifier: Callable[..., Any]) -> Any:
    """A tiny BERT as a torch module of ids and mask [1, L] that returns logits [1, 3], mask applied as -1e4."""
    import torch

    class Exportable(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = make_classifier("bert", 1, LABELS, attn_implementation="eager")

        def forward(self, input_ids: Any, attention_mask: Any) -> Any:
            bias = (attention_mask.to(torch.float32) - 1.0) * 1e4
            return self.model(input_ids=input_ids, attention_mask=bias[:, None, None, :]).to_tuple()[0]

    return Exportable().eval()


@pytest.fixture(scope="session")
def convert(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`convert(module, kind, precision, target, **convert arguments)`: a package, by torch.export.

    `kind` is ``fixed`` (16 tokens), ``enumerated`` (`LENGTHS`) or ``ranged`` (8 to 32).
    """

    def run(module: Any, kind: str = "fixed", precision: str = "FLOAT32", target: str = "iOS17", **more: Any) -> Path:
        with silent():
            import coremltools as ct
            import torch

            example = tuple(torch.ones(1, 16, dtype=torch.int32) for _ in range(2))
            dynamic = None
            if kind != "fixed":
                dynamic = tuple({1: torch.export.Dim("length", min=8, max=32)} for _ in range(2))
                shape = (
                    (1, ct.RangeDim(8, 32, 16))
                    if kind == "ranged"
                    else ct.EnumeratedShapes([[1, n] for n in LENGTHS], default=[1, 16])
                )
                more["inputs"] = [
                    ct.TensorType(name=n, shape=shape, dtype=np.int32) for n in ("input_ids", "attention_mask")
                ]
            exported = torch.export.export(module, example, dynamic_shapes=dynamic, strict=False)
            model = ct.convert(
                exported.run_decompositions({}),
                convert_to="mlprogram",
                skip_model_load=True,
                outputs=[ct.TensorType(name="logits")],
                minimum_deployment_target=getattr(ct.target, target),
                compute_precision=getattr(ct.precision, precision),
                **more,
            )
            path = tmp_path_factory.mktemp(f"encoder-{kind}-{precision}") / "model.mlpackage"
            model.save(str(path))
        return path

    return run


@pytest.fixture(scope="session")
def bert16(encoder: Any, convert: Callable[..., Path]) -> Path:
    """A tiny BERT, fp16, enumerated lengths. Copy it before changing it."""

    return convert(encoder, "enumerated", "FLOAT16", "iOS18")


@pytest.fixture(scope="session")
def batch() -> Callable[..., dict[str, np.ndarray]]:
    """`batch(length, seed=0)`: ids and mask [1, length], a quarter of it padding."""

    def make(length: int, seed: int = 0) -> dict[str, np.ndarray]:
        ids = np.random.default_rng(seed).integers(5, 100, (1, length))
        mask = np.ones_like(ids)
        mask[:, length - length // 4 :] = 0
        return {"input_ids": ids, "attention_mask": mask}

    return make


@pytest.fixture
def edit() -> Callable[..., None]:
    """`edit(package, change)`: parse model.mlmodel with our classes, call `change(model, main block)`, write it back."""

    def run(package: Path, change: Callable[[Any, Any], None]) -> None:
        from pocketbert.runtime.coreml.proto import mlpackage_pb2

        path, model = model_file(package), mlpackage_pb2.Model()
        model.ParseFromString(path.read_bytes())
        function = model.mlProgram.functions["main"]
        change(model, function.block_specializations[function.opset])
        path.write_bytes(model.SerializeToString())

    return run


def model_file(package: Path) -> Path:
    manifest = json.loads((package / "Manifest.json").read_text())
    return package / "Data" / manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
