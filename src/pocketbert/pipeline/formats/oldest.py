"""Which version of an engine computes files of a scheme right at least, measured with the packages of PyPI on x86-64.

`scripts/runtimes/oldest_engines.py` measures it; docs/quantization.md has the table. Files for one runtime or client were not tried.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pocketbert.core.artefacts import ModelRecord, OldestEngine
from pocketbert.core.types import Format, Scheme

_NAMES = {"onnxruntime": "ONNX Runtime", "ai-edge-litert": "LiteRT"}
_ONNX = {
    **dict.fromkeys((Scheme.FP32, Scheme.INT8, Scheme.A8W8, Scheme.SMALL), "1.18.0"),
    **dict.fromkeys((Scheme.W4, Scheme.INT8_B32), "1.23.0"),
}
_TFLITE = {
    **dict.fromkeys((Scheme.FP32, Scheme.W8), "1.0.1"),
    **dict.fromkeys((Scheme.INT8, Scheme.A8W8), "1.1.2"),
    Scheme.SMALL: "1.4.0",
    Scheme.W4: "2.1.0",
}
_OLDEST: Mapping[Format, tuple[str, Mapping[Scheme, str]]] = {
    Format.ONNX: ("onnxruntime", _ONNX),
    Format.TFLITE: ("ai-edge-litert", _TFLITE),
}
_SILENT = {(Format.TFLITE, s) for s in (Scheme.INT8, Scheme.A8W8, Scheme.SMALL, Scheme.W4)}
"""Files that an older version answers wrongly without an error; others are refused."""


def oldest_engine(format: Format, scheme: Scheme) -> OldestEngine | None:
    """Find the oldest engine that computes files of a scheme right; None where none was measured."""
    engine, versions = _OLDEST.get(format, ("", {}))
    if scheme not in versions:
        return None
    return OldestEngine(engine=engine, version=versions[scheme], older_answer_wrongly=(format, scheme) in _SILENT)


def engine_needs(record: ModelRecord) -> str:
    """Name the engine that a file needs, e.g. ``ONNX Runtime 1.23.0 or newer``; empty where none was measured."""
    engine = record.minimum.engine if record.minimum is not None else None
    return "" if engine is None else f"{_NAMES.get(engine.engine, engine.engine)} {engine.version} or newer"


def engine_lines(records: Sequence[ModelRecord]) -> list[str]:
    """Write which engine files need, a line for all that need the same."""
    files: dict[str, list[str]] = {}
    for record in records:
        minimum = record.minimum
        if minimum is None or minimum.engine is None:
            continue
        alone = f" No other engine has their operators ({', '.join(minimum.operators)})." if minimum.operators else ""
        wrong = (
            " Older versions were seen to answer wrongly without an error."
            if minimum.engine.older_answer_wrongly
            else ""
        )
        files.setdefault(f"{engine_needs(record)}.{wrong}{alone}", []).append(f"`{record.path}`")
    return [f"{', '.join(names)}: {needs}" for needs, names in files.items()]
