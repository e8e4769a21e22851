"""Runs commands of the PocketBERT that is tested, in children of a warm process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fuzz.server import Request

MIB = 1 << 20
SHOWN = 1 << 20
"""Bytes of an output that are kept."""
ALWAYS = {
    **dict.fromkeys(("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE"), "1"),
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
    **{"TOKENIZERS_PARALLELISM": "false", "ORT_DISABLE_TELEMETRY": "1", "LANG": "C.UTF-8", "COLUMNS": "80"},
    "PYTHONIOENCODING": "utf-8:strict",  # C.UTF-8 lets any bytes through stdin, other locales do not
}
"""Variables of every command: one thread, no network."""


@dataclass(frozen=True)
class Limits:
    """What one command may take."""

    seconds: float = 60.0
    idle: float = 10.0  # seconds without using a processor
    memory: int = 2048 * MIB  # resident bytes


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int  # exit status; negative: the signal that ended it
    killed: str  # "time", "idle" or "memory" where a limit was passed
    seconds: float
    resident: int  # peak, in bytes
    out: str  # the beginning of its stdout
    err: str  # and of its stderr
    err_bytes: int  # length of its stderr


class Runner:
    """A warm process and what it runs.

    Args:
        python: The interpreter that has the PocketBERT to test.
        folder: For the outputs of commands, for caches and for its home.
        limits: What a command may take.
        packages: Folder whose packages go before those of the interpreter.
    """

    def __init__(self, python: Path, folder: Path, limits: Limits, packages: Path | None = None) -> None:
        self.python, self.folder, self.limits, self.packages = python, folder, limits, packages
        for name in ("home", "cache", "temporary"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        mine, theirs = os.pipe()
        self._answers = os.fdopen(mine, "rb")
        self._process = subprocess.Popen(
            [str(self.python), str(Path(__file__).with_name("server.py")), str(theirs)],
            stdin=subprocess.PIPE,
            stderr=(self.folder / "server.log").open("ab"),
            pass_fds=(theirs,),
            env=self.environment(),
            text=True,
        )
        os.close(theirs)

    def environment(self) -> dict[str, str]:
        """Variables of every command, with a home and caches of its own."""
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LD_LIBRARY_PATH")}
        first = {"PYTHONPATH": str(self.packages)} if self.packages else {}
        own = {"HOME": "home", "TMPDIR": "temporary", "POCKETBERT_CACHE": "cache", "HF_HOME": "cache/hf"}
        folders = {k: str(self.folder / name) for k, name in {**own, "MPLCONFIGDIR": "cache/mpl"}.items()}
        return {**kept, **first, **ALWAYS, **folders}

    def warm(self, argv: Sequence[str], cwd: Path) -> Ended:
        """Run a command, and import into the warm process what it imported."""
        return self.run(argv, cwd, learn=str(self.folder / "modules.json"))

    def run(
        self, argv: Sequence[str], cwd: Path, stdin: str = os.devnull, cold: bool = False, learn: str = ""
    ) -> Ended:
        """Run one command; see `Request`."""
        out, err = self.folder / "stdout", self.folder / "stderr"
        limits = Limits(900.0, 300.0, 8 << 30) if learn else self.limits
        request = Request(list(argv), str(cwd), stdin, str(out), str(err), *asdict(limits).values(), cold, learn)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(request)) + "\n")
        self._process.stdin.flush()
        line = self._answers.readline()
        if not line:
            raise RuntimeError(f"the fuzz server died: {(self.folder / 'server.log').read_text()[-2000:]}")
        texts = [path.open("rb").read(SHOWN).decode("utf-8", errors="replace") for path in (out, err)]
        return Ended(**json.loads(line), out=texts[0], err=texts[1], err_bytes=err.stat().st_size)

    def close(self) -> None:
        """End the warm process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        self._answers.close()
