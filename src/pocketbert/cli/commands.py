"""Add commands to the command line, and end them in order.

`add` gives a function the options that all commands share (-q, -v, --debug), turns its errors into one message and an exit
code, and prints examples below its help. `signals` ends the running command at Ctrl-C and SIGTERM. `GroupedCommands` lists
the commands by group in `pocketbert --help`.
"""

from __future__ import annotations

import errno
import functools
import inspect
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Annotated, Any, NoReturn

import typer
import typer.core

from pocketbert.core.errors import KEPT_NOTE, ExitCode, GateError, InputError, PocketBertError
from pocketbert.core.host.processes import postpone_stop
from pocketbert.core.host.terminal import format_error

CHAIN = "The whole chain"
STEPS = "Single steps"
RESULTS = "Results"
HELPERS = "Helpers"
"""Groups of commands in `pocketbert --help`."""

_EXIT_CODES = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}
_END_SECONDS = 2.0
_SIGNAL_NAMES = {ExitCode.INTERRUPTED: "Ctrl-C", ExitCode.TERMINATED: "SIGTERM"}


class Stopped(KeyboardInterrupt):
    """The exception raised in the main thread when Ctrl-C or SIGTERM asks the command to end.

    Attributes:
        exit_code: Exit code of the command.
    """

    def __init__(self, exit_code: ExitCode) -> None:
        super().__init__()
        self.exit_code = exit_code


def _stopped_message(code: ExitCode, error: BaseException) -> str:
    """Return the line that is printed when Ctrl-C or SIGTERM ended a command: whether the same command continues its work."""
    after = "Finished work is kept; run the same command to continue."
    after = after if _keeps_work(error) else "The same command starts anew."
    return f"Stopped by {_SIGNAL_NAMES[code]}. {after}"


def _keeps_work(error: BaseException) -> bool:
    """Return whether an error has a note that names the folder of unfinished work."""
    return any(note.startswith(KEPT_NOTE) for note in getattr(error, "__notes__", ()))


@contextmanager
def signals() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM in the block by raising `Stopped`.

    In training, `Stopped` is raised after the checkpoint of the current step. A second signal ends the process at once.

    Signals that are ignored when the command starts (``nohup``, ``&``) stay ignored. A process that a launcher started
    is left to the launcher.
    """
    seen: list[ExitCode] = []
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> None:
        """Raise `Stopped` at the first signal, and end the process at the second."""
        code = _EXIT_CODES[signal.Signals(number)]
        if os.getpid() != process:  # a child that was forked: as if there were no handler
            os._exit(code)
        if seen:
            os.write(2, b"Stopped at once.\n")
            os._exit(seen[0])
        seen.append(code)
        error = Stopped(code)
        if not postpone_stop(error):
            raise error

    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    handled = [n for n in _EXIT_CODES if signal.getsignal(n) is usual[n] and "WORLD_SIZE" not in os.environ]
    for number in handled:
        signal.signal(number, stop)
    try:
        yield
    except Stopped as error:  # outside of any command: while options are read, or at the end
        print(f"Stopped by {_SIGNAL_NAMES[error.exit_code]}.", file=sys.stderr)
        sys.exit(error.exit_code)
    except SystemExit:
        if seen:  # typer has a code of its own for Ctrl-C
            sys.exit(seen[0])
        raise
    finally:
        for number in handled:
            # Python gives up its handlers when it ends: a second signal would then end the process with another code
            signal.signal(number, signal.SIG_IGN if seen else usual[number])
        _limit_end(sys.exception())


def _limit_end(error: BaseException | None) -> None:
    """If threads still compute answers that nobody waits for any more, end the process within `_END_SECONDS`.

    Python would wait for these threads: after Ctrl-C, after `| head`, and after the server's --stop-seconds.
    """
    if any(thread.name.startswith(("predict_", "ask_")) for thread in threading.enumerate()):
        with suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            sys.stdout.flush()
        code = error.code if isinstance(error, SystemExit) else error and ExitCode.MACHINE
        watchdog = threading.Timer(_END_SECONDS, os._exit, [code if isinstance(code, int) else 0])
        watchdog.daemon = True
        watchdog.start()


_COMMON_OPTIONS = {
    "quiet": Annotated[
        bool, typer.Option("-q", "--quiet", help="Print no progress and no notes, only errors and results.")
    ],
    "verbose": Annotated[bool, typer.Option("-v", "--verbose", help="Also print the messages that go to run.log.")],
    "debug": Annotated[bool, typer.Option("--debug", help="Print a traceback with an error.")],
}

_DISK_ERRORS = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EROFS: "the disk is read-only",
    errno.EACCES: "permission denied",
    errno.EFBIG: "a file would be larger than the limit (ulimit -f) or the file system allows",
}

_PATH_ERRORS = (errno.ENAMETOOLONG, errno.ELOOP, errno.EISDIR, errno.ENOTDIR)
"""Errors of a path that the user gave and that cannot be used, such as a name that is too long: wrong input, no fault of the machine."""


def _guard(command: Callable[..., None]) -> Callable[..., None]:
    """Wrap a command's function: add the options -q, -v and --debug, turn exceptions into messages and exit codes."""

    @functools.wraps(command)
    def run(*args: Any, quiet: bool = False, verbose: bool = False, debug: bool = False, **kwargs: Any) -> None:
        """Run the command; turn an exception into an error message and the process's exit code."""
        _prepare_process(quiet, verbose)
        try:
            command(*args, **kwargs)
        except typer.Exit:
            raise
        except KeyboardInterrupt as error:
            code = error.exit_code if isinstance(error, Stopped) else ExitCode.INTERRUPTED
            _end(_stopped_message(code, error), code, debug)
        except (InputError, GateError) as error:
            _end(_all_problems(error), error.exit_code, debug)
        except PocketBertError as error:
            _end(format_error([str(error)]), error.exit_code, debug)
        except BrokenPipeError:
            # the reader of the output has ended (`| head`): there is nobody to print an error for
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(ExitCode.OK) from None
        except OSError as error:
            if error.errno in _PATH_ERRORS and error.filename is not None:
                _end(_unusable_path(error), ExitCode.INPUT, debug)
            _end(_machine_error(error), ExitCode.MACHINE, debug)
        except Exception as error:
            _end(_machine_error(error), ExitCode.MACHINE, debug)

    signature = inspect.signature(command, eval_str=True)
    common = [
        inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=a)
        for n, a in _COMMON_OPTIONS.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *common])  # type: ignore[attr-defined]
    return run


def _prepare_process(quiet: bool, verbose: bool) -> None:
    """Set up the process of a command: thread settings in the environment, quiet mode, and logging to stderr."""
    from pocketbert.core.host.progress import set_quiet

    # OpenMP threads that spin while they wait cost half of a shared machine; read when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    set_quiet(quiet)
    if verbose:
        handler = logging.StreamHandler(sys.stderr)
        logging.getLogger("pocketbert").addHandler(handler)
        logging.getLogger("pocketbert").setLevel(logging.INFO)


def _all_problems(error: InputError | GateError) -> str:
    """Return the error message for an exception that lists several problems or failures."""
    failures = error.problems if isinstance(error, InputError) else error.failures
    return format_error([str(f) for f in failures])


def _unusable_path(error: OSError) -> str:
    """Return the error message for a path that the system refuses, such as one that is too long."""
    name = str(error.filename)
    shown = name if len(name) <= 200 else f"{name[:196]}..."
    return format_error([f"{shown}: {(error.strerror or 'not usable').lower()}."])


def _machine_error(error: Exception) -> str:
    """Return the error message for a machine error, such as a full disk, or for an unexpected exception."""
    text = " ".join(str(error).split())[:300] or type(error).__name__
    number = error.errno if isinstance(error, OSError) and error.errno else 0
    full = "No space left on device" in text
    if number in _DISK_ERRORS or full:
        what = _DISK_ERRORS[errno.ENOSPC] if full else _DISK_ERRORS[number]
        name = getattr(error, "filename", None)
        where = f" ({name})" if name else ""
        kept = "Finished work is kept. " if _keeps_work(error) else ""
        fix = "Free some space or choose another -o/--output, then run the same command."
        return format_error([f"{what}{where}. {kept}{fix}"])
    return format_error([f"{type(error).__name__}: {text} (--debug prints where; so does run.log)"])


def _end(message: str, code: ExitCode, debug: bool) -> NoReturn:
    """Print an error message and notes on kept files, and exit with a code.

    `debug` also prints the traceback of the exception that is being handled.
    """
    if debug:
        traceback.print_exc()
    for note in getattr(sys.exception(), "__notes__", ()):
        if note.startswith(KEPT_NOTE):
            print(note, file=sys.stderr)
    _print_error(message)
    raise typer.Exit(int(code)) from None


def _print_error(message: str) -> None:
    """Print an error message on stderr; on a terminal, the part before the colon in red."""
    if not sys.stderr.isatty():
        print(message, file=sys.stderr)
        return
    from rich.console import Console
    from rich.text import Text

    head, colon, rest = message.partition(":")
    Console(stderr=True, soft_wrap=True).print(Text.assemble((head + colon, "bold red"), rest))


EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "run": (
        "pocketbert run --data reviews.csv",
        "pocketbert run my.yaml -o runs/my",
        "pocketbert run sst2 data.train.path=train.csv data.eval.path=dev.csv -o runs/sst2",
    ),
    "finetune": ("pocketbert finetune my.yaml -o runs/my",),
    "distill": ("pocketbert distill my.yaml -o runs/my distill.0.steps=2000",),
    "demo": ("pocketbert demo -o runs/demo",),
    "plan": (
        "pocketbert plan --data reviews.csv --max-size-mb 8 --max-p90-ms 3 -o plan",
        "pocketbert plan --task token-classification --device adb --format tflite",
    ),
    "export": (
        "pocketbert export -m my-finetuned-model -o phone",
        "pocketbert export -m my-finetuned-model -o phone --data dev.csv --benchmark --licence apache-2.0",
        "pocketbert export -m my-finetuned-model -o phone --format coreml --ios 16 --lengths 64",
    ),
    "quantize": ("pocketbert quantize -m phone -o phone-216 --runtime tflite216",),
    "verify": ("pocketbert verify -m phone", "pocketbert verify -m phone --data test.csv --record"),
    "pack": (
        "pocketbert pack -m phone -o app/src/main/assets --for android",
        "pocketbert pack -m runs/my -o phone",
    ),
    "teach": (
        "pocketbert teach -m MODEL --data ROWS.csv -o taught.jsonl",
        'pocketbert teach -m NLI_MODEL --zero-shot "refund: asks for money back" --zero-shot "praise: is happy" --data TEXTS.txt -o taught.jsonl',
    ),
    "predict": (
        'pocketbert predict -m phone "wake me at six"',
        "pocketbert predict -m phone --file rows.csv -o answers.csv",
    ),
    "serve": ("pocketbert serve phone", "pocketbert serve phone --host 0.0.0.0 --port 80 --max-requests 256"),
    "benchmark": (
        "pocketbert benchmark -m phone --threads 1 --lengths 32 --record",
        "pocketbert benchmark -m phone -m other-phone -o compared.html",
    ),
    "diff": (
        "pocketbert diff phone:fp32 phone:int8 --data test.csv --html diff.html",
        "pocketbert diff released/phone runs/my/phone --data test.csv --fail-on-drop 0.01",
    ),
    "sensitivity": ("pocketbert sensitivity -m phone --calibrate train.csv --scheme int8,a8w8",),
    "diagnose": ("pocketbert diagnose runs/my", "pocketbert diagnose runs/my --rows 5000 --json"),
    "report": ("pocketbert report -m phone -o report.html",),
    "devices": ("pocketbert devices",),
    "families": ("pocketbert families",),
    "doctor": ("pocketbert doctor --json",),
    "recipes ls": ("pocketbert recipes ls",),
    "recipes show": ("pocketbert recipes show sst2",),
    "recipes cp": ("pocketbert recipes cp text-classification my.yaml",),
    "recipes validate": ("pocketbert recipes validate my.yaml seed=3",),
    "recipes schema": ("pocketbert recipes schema",),
    "data check": ("pocketbert data check my.yaml",),
    "data prepare": ("pocketbert data prepare my.yaml -o corpora",),
    "data augment": ("pocketbert data augment my.yaml -o augmented.jsonl.gz",),
    "data demo": ("pocketbert data demo -o corpus",),
}
"""Example command lines, by command."""


def add(app: typer.Typer, command: Callable[..., None], title: str | None = None, group: str = "") -> None:
    """Add a command to a typer application, with the shared options, error messages and its examples.

    Args:
        app: The application.
        command: A function with typer's annotations; its name is that of the command.
        title: Heading under which `--help` lists the command.
        group: The command that this one is a sub-command of, such as ``recipes``; empty for a command of its own.
    """
    name = f"{group} {command.__name__}".strip()
    shown = "\n".join(f"  {line}" for line in EXAMPLES[name])
    epilog = f"\b\nExamples:\n{shown}" if len(EXAMPLES[name]) > 1 else f"\b\nExample:\n{shown}"
    app.command(rich_help_panel=title, epilog=epilog)(_guard(command))


class GroupedCommands(typer.core.TyperGroup):
    """A typer group whose help lists commands under the title that each was registered with (`rich_help_panel`).

    Typer does that only in its framed help, which takes three times as long to start.
    """

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands to the help text, a section for each title in order of first occurrence."""
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        limit = formatter.width - 6 - max(len(name) for name, _ in commands)
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in commands:
            title = getattr(command, "rich_help_panel", None) or HELPERS
            sections.setdefault(str(title), []).append((name, command.get_short_help_str(limit)))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)
