"""What every command shares: -q, -v, --debug, and errors turned into one message and an exit code."""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from pocketbert.cli.signals import Stopped, stopped_by
from pocketbert.core.errors import KEPT, ExitCode, GateError, InputError, PocketBertError
from pocketbert.core.host.terminal import printed

_COMMON = {
    "quiet": Annotated[
        bool, typer.Option("-q", "--quiet", help="Print no progress and no notes, only errors and results.")
    ],
    "verbose": Annotated[bool, typer.Option("-v", "--verbose", help="Also print the messages that go to run.log.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.")],
}

_DISK = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission denied",
    errno.EFBIG: "a file would be larger than the limit (ulimit -f) or the file system allows",
}

_NAMED = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR)
"""What the system says of a path that cannot be what was meant: nothing is wrong with the machine."""


def guarded(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the common options and the common end."""

    @functools.wraps(command)
    def run(*args: Any, quiet: bool = False, verbose: bool = False, debug: bool = False, **kwargs: Any) -> None:
        _set_up(quiet, verbose)
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt as error:
            code = error.exit_code if isinstance(error, Stopped) else ExitCode.INTERRUPTED
            _end(stopped_by(code), code, debug)
        except (InputError, GateError) as error:
            _end(_listing(error), error.exit_code, debug)
        except PocketBertError as error:
            _end(printed([str(error)]), error.exit_code, debug)
        except BrokenPipeError:
            # the reader of our output went away (`| head`); nothing to tell anybody
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.OK) from None
        except OSError as error:
            named = error.errno in _NAMED and error.filename is not None
            _end(
                _unusable(error) if named else _machine(error),
                ExitCode.INPUT if named else ExitCode.MACHINE,
                debug,
            )
        except Exception as error:
            _end(_machine(error), ExitCode.MACHINE, debug)

    signature = inspect.signature(command, eval_str=True)
    common = [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=a) for n, a in _COMMON.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *common])  # type: ignore[attr-defined]
    return run


def _set_up(quiet: bool, verbose: bool) -> None:
    from pocketbert.core.host.progress import set_quiet

    # OpenMP threads that spin while they wait cost half of a shared machine; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    set_quiet(quiet)
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger("pocketbert").addHandler(handler)
        logging.getLogger("pocketbert").setLevel(logging.INFO)


def _listing(error: InputError | GateError) -> str:
    failures = error.problems if isinstance(error, InputError) else error.failures
    return printed([str(f) for f in failures])


def _unusable(error: OSError) -> str:
    name = str(error.filename)
    shown = name if len(name) <= 200 else f"{name[:196]}..."
    return printed([f"{shown}: {(error.strerror or 'not usable').lower()}."])


def _machine(error: Exception) -> str:
    text = " ".join(str(error).split())[:300] or type(error).__name__
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    full = "No space left on device" in text
    if number in _DISK or full:
        what = _DISK[errno.ENOSPC] if full else _DISK[number]
        name = getattr(error, "filename", None)
        where = f" ({name})" if name else ""
        done = "Finished work is kept. Free some space or choose another -o/--output, then run the same command."
        return printed([f"{what}{where}. {done}"])
    return printed([f"{type(error).__name__}: {text} (--debug prints where; so does run.log)"])


def _end(message: str, code: ExitCode, debug: bool) -> NoReturn:
    if debug:
        traceback.print_exc()
    for note in getattr(sys.exception(), "__notes__", ()):
        if note.startswith(KEPT):
            print(note, file=sys.stderr)
    _print_error(message)
    raise typer.Exit(int(code)) from None


def _print_error(message: str) -> None:
    """Print what went wrong; on a terminal its first word in red."""
    if not sys.stderr.isatty():
        print(message, file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    head, colon, rest = message.partition(":")
    Console(stderr=True, soft_wrap=True).print(Text.assemble((head + colon, "bold red"), rest))
