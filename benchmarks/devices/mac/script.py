"""The script that measures on a Mac, as text: artefact folders with Core ML packages get a copy.

Its user needs one file, so the parts in `on_mac` are joined: their imports once, then their code in order.
"""

from __future__ import annotations

import ast
from importlib import resources

FILE_NAME = "benchmark_on_mac.py"
PARTS = ("common", "golden", "system", "timing", "iphone", "packages", "command")
"""In the order of the joined file; the docstring of the last part is that of the file."""
_OWN = __package__ + ".on_mac"


def mac_script() -> str:
    """Content of ``coreml/benchmark_on_mac.py``."""
    texts = [resources.files(_OWN).joinpath(f"{part}.py").read_text(encoding="utf-8") for part in PARTS]
    trees = [ast.parse(text) for text in texts]
    imports = sorted(
        {line for tree in trees for line in _imports(tree)}, key=lambda line: (line.startswith("from"), line)
    )
    code = "\n\n\n".join(_code(text, tree) for text, tree in zip(texts, trees, strict=True))
    head = f'#!/usr/bin/env python3\n"""{ast.get_docstring(trees[-1], clean=False)}"""\n\nfrom __future__ import annotations\n'
    return "\n".join([head, *imports, f"\n{code}\n"])


def _imports(tree: ast.Module) -> list[str]:
    """What a part imports, except from other parts."""
    nodes = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)]
    own = (_OWN, "__future__")
    return [ast.unparse(n) for n in nodes if not (isinstance(n, ast.ImportFrom) and (n.module or "").startswith(own))]


def _code(text: str, tree: ast.Module) -> str:
    """The part behind its imports."""
    last = max(n.end_lineno or 0 for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom))
    return "\n".join(text.splitlines()[last:]).strip()
