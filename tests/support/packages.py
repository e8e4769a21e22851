"""Build PocketBERT's wheel and sdist as users get them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*argv: str | Path, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    """Run a command that does not see what this process imports from."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run([str(a) for a in argv], cwd=cwd, capture_output=True, text=True, env=environment)
    assert not check or done.returncode == 0, f"{argv}\n{done.stdout}\n{done.stderr}"
    return done


def uv() -> Path:
    """The installer; skips the test where there is none."""
    path = Path(sys.executable).with_name("uv")
    if not path.is_file():
        pytest.skip("needs uv beside Python, as `make test` installs it")
    return path


def build_packages(source: Path, out: Path) -> dict[str, Path]:
    """Build wheel and sdist in `out` from a copy in the empty folder `source`, so that the checkout stays clean."""
    uv()
    listing = run("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).stdout.splitlines()
    for name in listing:
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    out.mkdir(exist_ok=True)
    run(sys.executable, "-m", "build", "--installer", "uv", "--outdir", out, source, cwd=out)
    return {"wheel": next(out.glob("*.whl")), "sdist": next(out.glob("*.tar.gz"))}
