"""Environments of their own for libraries that cannot share one with the toolkit."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2] / ".venv-clients"
PACKAGES = {
    "optimum": (
        "optimum-onnx==0.1.0",
        "optimum==2.1.0",
        "transformers==4.57.6",
        "torch==2.13.0",
        "onnxruntime==1.31.1",
        "onnx==1.23.2",
    ),
    "model2vec": ("model2vec[distill,train,quantization,inference]==0.10.0", "torch==2.13.0"),
    "ov": ("openvino", "nncf", "tokenizers"),
    "olive": ("olive-ai[auto-opt]==0.13.0", "torch==2.13.0", "onnxruntime==1.31.1", "requests"),
    "heartcut": ("heartcut[pipeline,students,export,serve]==0.2.1", "torch==2.13.0"),
    "maatml": ("maatml[ml]==0.14.0", "torch==2.13.0"),
    "silverspoon": ("silverspoon-kd==0.1.0", "torch==2.13.0"),
    "easysmall": ("easysmallembeddingmodel==0.1.0", "torch==2.13.0", "datasets", "scikit-learn"),
    "awembed": ("awembed==0.1.1", "torch==2.13.0"),
    "distill-anything": ("distill-anything==0.5.0", "torch==2.13.0"),
}
"""What is installed where; a name without a version is the newest."""
TRANSFORMERS_JS = "@huggingface/transformers@4.3.1"


def environment(name: str, ready: Path | None = None) -> Path:
    """The interpreter of an environment, which is made on first use.

    Args:
        name: A key of `PACKAGES`.
        ready: Folder with environments that exist already.

    Returns:
        Path of its python.
    """
    if ready is not None and (ready / name / "bin" / "python").is_file():
        return ready / name / "bin" / "python"
    folder = ROOT / f"peers-{name}"
    python = folder / "bin" / "python"
    wanted = hashlib.sha256("\n".join(PACKAGES[name]).encode()).hexdigest()
    stamp = folder / ".packages"
    if not stamp.is_file() or stamp.read_text() != wanted:
        uv = str(Path(sys.executable).parent / "uv")
        print(f"making the environment '{name}' in {folder}", file=sys.stderr)
        subprocess.run([uv, "venv", "-q", "--clear", "-p", sys.executable, str(folder)], check=True)
        subprocess.run([uv, "pip", "install", "-q", "--python", str(python), *PACKAGES[name]], check=True)
        stamp.write_text(wanted)
    return python


def node_packages() -> Path:
    """The `node_modules` folder with transformers.js, which is made on first use; without install scripts, which look for CUDA."""
    folder = ROOT / "peers-node"
    if not (folder / "node_modules/@huggingface/transformers").is_dir():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"private": true}')
        install = ["npm", "i", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", TRANSFORMERS_JS]
        subprocess.run(install, check=True, cwd=folder)
    return folder / "node_modules"
