"""Fixtures of the tests of quantized files."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.types import Format, Layout, Runtime, Scheme
from pocketbert.export.coreml import CoremlForm
from pocketbert.export.prepare import prepare
from pocketbert.quantize import Plan, coreml, quantize, weights
from pocketbert.quantize.weights import WeightTypes
from support.quantized import CLASSIFY, SUFFIX, Feed, export_file


@pytest.fixture(scope="module", autouse=True)
def small_matrices_count() -> Iterator[None]:
    """Tiny models have no matrix above the usual bound."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weights, "SMALL", coreml.THRESHOLD + 1)
        yield


@pytest.fixture(scope="session")
def sentence_rows(open_tiny) -> list[Feed]:
    """Calibration rows without padding: the sample sentences of at most 40 tokens."""
    tokenizer = open_tiny("bert", 2)[2]
    return [tokenizer.pad([e]) for e in tokenizer.encode(list(SENTENCES)) if len(e) <= 40]


@pytest.fixture(scope="session")
def exported_coreml(open_tiny, tmp_path_factory) -> Callable[..., Path]:
    """`exported_coreml(layers=1, form=None, layout=Layout.PLAIN)`: the package of a tiny classifier."""

    @cache
    def export_once(layers: int, form: CoremlForm, layout: Layout) -> Path:
        model, folder, _ = open_tiny("bert", layers)
        module = prepare(model, folder.family, CLASSIFY, Format.COREML, layout)
        path = tmp_path_factory.mktemp("coreml") / "Model.mlpackage"
        return export_file(module, folder.family, path, form=form)

    return lambda layers=1, form=None, layout=Layout.PLAIN: export_once(layers, form or CoremlForm(), layout)


@pytest.fixture(scope="session")
def exported_file(exported, exported_tflite, exported_coreml) -> Callable[[Format], Path]:
    """`exported_file(format)`: the exported file of a tiny BERT with two layers."""
    exports = {Format.ONNX: lambda: exported("bert"), Format.TFLITE: lambda: exported_tflite("bert")}
    return lambda format: exports.get(format, lambda: exported_coreml(2))()


@pytest.fixture(scope="session")
def quantized(exported_file, sentence_rows, tmp_path_factory) -> Callable[..., tuple[Path, WeightTypes]]:
    """`quantized(format, scheme, runtime=None)`: that file of the tiny BERT, made once, and the types found in it."""

    @cache
    def make(format: Format, scheme: Scheme, runtime: Runtime | None = None) -> tuple[Path, WeightTypes]:
        path = tmp_path_factory.mktemp("quantized") / f"model{SUFFIX[format]}"
        rows = (lambda: sentence_rows) if scheme.static else None
        return path, quantize(exported_file(format), path, Plan(format, scheme, runtime, rows))

    return make


@pytest.fixture
def write(exported_file, sentence_rows, tmp_path) -> Callable[..., Path]:
    """`write(format, scheme, runtime=None, base=None, rows=None, **more)`: a file of the tiny BERT, or of `base`, anew."""

    def make(
        format: Format,
        scheme: Scheme,
        runtime: Runtime | None = None,
        base: Path | None = None,
        rows: Sequence[Feed] | None = None,
        **more: Any,
    ) -> Path:
        path = tmp_path / f"a{SUFFIX[format]}"
        calibration = (lambda: sentence_rows if rows is None else rows) if scheme.static else None
        quantize(base or exported_file(format), path, Plan(format, scheme, runtime, calibration, **more))
        return path

    return make
