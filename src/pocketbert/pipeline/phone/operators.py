"""``required_operators.config``: what a build of ONNX Runtime must contain to run some files, and no more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pocketbert.core.disk.ownership import temporary_folder
from pocketbert.core.errors import InputError, Problem
from pocketbert.core.host.versions import version_of

FILE_NAME = "required_operators.config"
_LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED")
"""An operator can disappear, and a fused one appear, at each of these; above, operators depend on the processor."""
_HEADER = (
    "# Operators that ONNX Runtime {version} needs for {files}, before and after its graph optimizations.\n"
    "# A smaller library: build.py --include_ops_by_config required_operators.config (see ONNX Runtime's documentation).\n"
)


def missing_reader() -> str | None:
    """Why the operators cannot be listed here; None where they can."""
    return None if version_of("onnx") else "onnx is not installed here; pip install 'pocketbert[onnx]', then pack again"


def write_required_operators(files: Sequence[Path], destination: Path) -> None:
    """Write the operators of ONNX files in the format of ONNX Runtime's reduced build.

    Source: onnxruntime.ai, "Reduced operator config file": lines ``domain;opset;operator,operator``. ONNX Runtime fuses
    operators when it opens an ``.onnx`` file, so that the operators after each level of optimization are listed too.

    Args:
        files: The ONNX files.
        destination: Where to write.

    Raises:
        InputError: If ONNX Runtime refuses a file.
    """
    operators: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    with temporary_folder(destination.parent) as folder:
        for file in files:
            for graph in _optimized(file, folder):
                for domain, opset, name in _operators(graph):
                    operators[domain, opset].add(name)
    lines = [f"{domain};{opset};{','.join(sorted(names))}\n" for (domain, opset), names in sorted(operators.items())]
    header = _HEADER.format(version=version_of("onnxruntime"), files=", ".join(file.name for file in files))
    destination.write_text(header + "".join(lines), encoding="utf-8")


def _optimized(file: Path, folder: Path) -> Iterator[Any]:
    """The graph as it is stored, and as ONNX Runtime rewrites it at each level."""
    import onnx
    import onnxruntime

    yield onnx.load(str(file), load_external_data=False)
    for level in _LEVELS:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4  # errors come as exceptions
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(folder / "optimized.onnx")
        try:
            onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own exception classes are private
            first = (str(error).splitlines() or [type(error).__name__])[0]
            raise InputError(Problem(str(file), f"ONNX Runtime refuses the file: {first}")) from error
        yield onnx.load(str(folder / "optimized.onnx"), load_external_data=False)


def _operators(model: Any) -> Iterator[tuple[str, int, str]]:
    """Domain, operator set and name of every operator, those inside other operators and functions included."""
    sets = {entry.domain or "ai.onnx": int(entry.version) for entry in model.opset_import}
    functions = {(f.domain or "ai.onnx", f.name) for f in model.functions}
    for node in _nodes([*model.graph.node, *(n for f in model.functions for n in f.node)]):
        domain = node.domain or "ai.onnx"
        if (domain, node.op_type) not in functions:
            yield domain, sets.get(domain, 1), node.op_type


def _nodes(nodes: Iterable[Any]) -> Iterator[Any]:
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                waiting += graph.node
