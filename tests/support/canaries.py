"""Files of a stranger in every place that a command might take for its own: each must survive the command."""

from __future__ import annotations

import inspect
import os
import stat
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

BESIDE = (
    *(".{}.run", ".{}.old", ".{}.partial", ".{}.work", ".{}.new", ".{}.tmp", ".{}.lock.d", ".{}.abcdefgh"),
    *("{}.old", "{}.bak", "{}-other"),
)
"""Names of sibling folders; the first four are those that PocketBERT itself once gave to temporary folders."""
_TEXT = b"precious"
_VERBS = (
    *("run", "finetune", "distill", "export", "quantize", "pack", "report", "demo"),
    *("data_prepare", "data_augment", "data_demo"),
)


def outputs_of(arguments: Sequence[object]) -> list[Path]:
    """What a command line names with -o or --output."""
    words = [os.fsdecode(a) if isinstance(a, bytes) else str(a) for a in arguments]
    named = [after for word, after in pairwise(words) if word in ("-o", "--output")]
    return [Path(n) for n in named] + [Path(w.partition("=")[2]) for w in words if w.startswith("--output=")]


class Canaries:
    """The canaries around what a command will write."""

    def __init__(self, output: Path) -> None:
        self._alive: list[Path] = []
        self._folders: list[Path] = []
        name = f"canary-{os.getpid()}.keep"
        with suppress(OSError, ValueError):  # names that no file system takes are the command's to refuse
            output = output.expanduser().absolute()
            for parent in [p for p in output.parents[:2] if p.is_dir()]:
                self._plant(parent / name)
            if output.parent.is_dir() and output.name:
                for pattern in BESIDE:
                    self._plant(output.parent / pattern.format(output.name) / name)

    def _plant(self, path: Path) -> None:
        with suppress(OSError):  # a full or read-only disk
            if not path.parent.exists():
                path.parent.mkdir()
                self._folders.append(path.parent)
            if not path.exists():  # else of a command around this one
                path.write_bytes(_TEXT)
                self._alive.append(path)

    def collect(self) -> list[str]:
        """Take the canaries away again; those that are gone or changed."""
        dead = [str(p) for p in self._alive if not _is_whole(p)]
        for path in self._alive:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        for folder in self._folders:
            with suppress(OSError):
                folder.rmdir()
        self._alive, self._folders = [], []
        return dead


def _is_whole(path: Path) -> bool:
    """Whether a canary is still the regular file that it was, and no link to something endless."""
    with suppress(OSError):
        found = path.lstat()
        return stat.S_ISREG(found.st_mode) and found.st_size == len(_TEXT) and path.read_bytes() == _TEXT
    return False


def _fail_if_dead(planted: list[Canaries]) -> None:
    dead = [path for own in planted for path in own.collect()]
    if dead:
        pytest.fail(f"the command removed or changed what is not its own: {', '.join(dead)}")


@contextmanager
def canaries(outputs: Sequence[Path]) -> Iterator[None]:
    """Canaries around the outputs of a command, which fails the test if one does not survive it."""
    planted = [Canaries(output) for output in outputs]
    try:
        yield
    finally:  # also where the command refuses
        _fail_if_dead(planted)


def guard(patch: pytest.MonkeyPatch) -> None:
    """Let every command that writes, in this process or in another one, run among canaries."""
    from pocketbert import api

    for verb in _VERBS:
        patch.setattr(api, verb, _guarded(getattr(api, verb)))
    invoke = CliRunner.invoke

    def guarded_invoke(self: CliRunner, app: Any, args: Sequence[str] = (), **options: Any) -> Any:
        with canaries(outputs_of(args)):
            return invoke(self, app, args, **options)

    patch.setattr(CliRunner, "invoke", guarded_invoke)
    patch.setattr(subprocess, "Popen", _GuardedPopen)


def _guarded(verb: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(verb)

    def call(*args: Any, **options: Any) -> Any:
        output = signature.bind(*args, **options).arguments["output"]
        with canaries([Path(output)]):
            return verb(*args, **options)

    return call


def is_ours(words: Sequence[str]) -> bool:
    """Whether a command line runs PocketBERT; a checkout or an environment in a folder of that name does not make it so."""
    program, *arguments = words or [""]
    return Path(program).name == "pocketbert" or any("pocketbert" in a for a in arguments if not Path(a).is_absolute())


class _GuardedPopen(subprocess.Popen):  # type: ignore[type-arg]
    """A process whose canaries are counted when its end has been awaited."""

    def __init__(self, args: Any, *more: Any, **options: Any) -> None:
        words = [] if isinstance(args, str | bytes | os.PathLike) else list(args)
        ours = is_ours([str(w) for w in words])
        place = Path(options.get("cwd") or ".")
        self._planted = [Canaries(place / o) for o in outputs_of(words)] if ours else []
        super().__init__(args, *more, **options)

    def communicate(self, *args: Any, **options: Any) -> Any:
        """Also count the canaries, where the process has ended."""
        out = super().communicate(*args, **options)
        planted, self._planted = self._planted, []
        _fail_if_dead(planted)
        return out
