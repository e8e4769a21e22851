"""Silence libraries: their output to the terminal (`silence_output`, `silence_coremltools`) and their telemetry.

PocketBERT sends nothing itself. Some of its dependencies report to their vendors unless environment variables forbid
it, which they read when they are imported or first used: `switch_off_telemetry` sets them,
`block_openvino_telemetry` covers OpenVINO, which has no variable. `docs/telemetry.md` lists all of them and how
they were checked.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from collections.abc import Iterator, MutableMapping
from typing import TextIO

_NOTED_LINES = 5

TELEMETRY_SWITCHES = {
    # onnxruntime 1.29 and newer: a device id below the user's cache folder, and reports to Microsoft
    "ORT_DISABLE_TELEMETRY": "1",
    # huggingface_hub, transformers and hf_xet: their telemetry, and details of the machine in every request
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # datasets: a request to Amazon S3 for each `load_dataset`, of local files too, that only counts it
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
}
"""Environment variables and the values with which a library sends nothing."""

_OPENVINO_REPORTER = "openvino_telemetry"
"""The package by which openvino and nncf report to Google Analytics. It has no variable; they do without it."""


_loud_streams: list[TextIO] = []
"""Where standard error led before `silence_output`, for each block that is open."""


def find_loud_stderr() -> TextIO | None:
    """Return a stream to standard error as it was before `silence_output`; None outside of such a block."""
    return _loud_streams[0] if _loud_streams else None


@contextlib.contextmanager
def silence_output() -> Iterator[None]:
    """Hide everything that is printed in the block; if the block raises an error, add the last lines to it.

    The output goes to a temporary file. File descriptors 1 and 2 of the whole process are redirected, since C++ code
    writes to them directly, and so are `sys.stdout` and `sys.stderr`, which do not use these descriptors in a notebook.
    Warnings and log messages below errors are dropped. Other threads may print nothing meanwhile except progress, which is
    written to `find_loud_stderr`.
    """
    import logging  # here: `import pocketbert` imports this module
    import tempfile

    logging_level, root, stderr = logging.root.level, logging.getLogger(), sys.stderr
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        tempfile.TemporaryFile() as sink,
        contextlib.redirect_stdout(_RedirectedStream(sink.fileno(), sys.stdout)) as out,
        contextlib.redirect_stderr(_RedirectedStream(sink.fileno(), sys.stderr)) as err,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        saved = [os.dup(1), os.dup(2)]
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
        root.setLevel(logging.ERROR)
        _loud_streams.append(_follow_descriptor(stderr, saved[1]))
        try:
            yield
        except BaseException as error:
            out.flush()
            err.flush()
            sink.seek(0)
            lines = sink.read().decode(errors="replace").splitlines()[-_NOTED_LINES:]
            if lines:
                error.add_note("printed before: " + " | ".join(lines))
            raise
        finally:
            _loud_streams.pop()
            out.sink = err.sink = None
            out.flush()
            err.flush()
            for target, handle in zip((1, 2), saved, strict=True):
                os.dup2(handle, target)
                os.close(handle)
            root.setLevel(logging_level)


def _follow_descriptor(stderr: TextIO, saved: int) -> TextIO:
    """Return a stream that still reaches standard error although descriptor 2 is redirected.

    If `stderr` writes to descriptor 2, that is a new stream on `saved`, a copy of the descriptor; else `stderr` itself.
    """
    try:
        is_own = stderr.fileno() != 2
    except (OSError, ValueError, AttributeError):  # in a notebook it has none
        is_own = True
    return stderr if is_own else open(saved, "w", encoding="utf-8", errors="replace", buffering=1, closefd=False)


class _RedirectedStream(io.TextIOBase):
    """Text stream that writes to the file descriptor `sink` and, after the block, to the original stream."""

    def __init__(self, sink: int, original: TextIO) -> None:
        self.sink: int | None = sink
        self.original = original

    def write(self, text: str, /) -> int:
        if self.sink is None:
            return self.original.write(text)
        os.write(self.sink, text.encode(errors="replace"))
        return len(text)

    def flush(self) -> None:
        self.original.flush()

    def fileno(self) -> int:
        return self.original.fileno()


@contextlib.contextmanager
def silence_coremltools() -> Iterator[None]:
    """Silence the log messages below errors and the progress bars of coremltools while the block runs."""
    import logging

    logger, bars = logging.getLogger("coremltools"), os.environ.get("TQDM_DISABLE")
    level = logger.level
    logger.setLevel(logging.ERROR)
    os.environ["TQDM_DISABLE"] = "1"
    try:
        yield
    finally:
        logger.setLevel(level)
        if bars is None:
            del os.environ["TQDM_DISABLE"]
        else:
            os.environ["TQDM_DISABLE"] = bars


def switch_off_telemetry(environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the environment variables that turn off the telemetry of dependencies, unless the user has set them.

    It is called when `pocketbert` is imported. A variable that the user has set keeps its value, so ``ORT_DISABLE_TELEMETRY=0``
    turns ONNX Runtime's telemetry on. A variable with an empty value counts as not set, since the libraries would read that as
    consent. If ONNX Runtime is imported already and its variable forbids telemetry, a call of it switches its telemetry off too.
    """
    for name, value in TELEMETRY_SWITCHES.items():
        if not environment.get(name):
            environment[name] = value
    onnxruntime = sys.modules.get("onnxruntime")
    if onnxruntime is None:
        return
    if environment["ORT_DISABLE_TELEMETRY"].strip().lower() in ("1", "true", "yes", "on"):
        # It read the variable when the program imported it. The report of its start can no longer be stopped; its
        # vendor documents this call as holding back what follows.
        with contextlib.suppress(Exception):
            onnxruntime.disable_telemetry_events()


@contextlib.contextmanager
def block_openvino_telemetry() -> Iterator[None]:
    """Prevent the import of openvino's telemetry package inside the `with` block.

    Otherwise ``import openvino`` writes two files into the folder ``intel`` of the user's home folder and reports to
    Google Analytics, without asking. If the program has imported openvino before, that has happened already.
    """
    absent = object()
    before = sys.modules.get(_OPENVINO_REPORTER, absent)
    sys.modules[_OPENVINO_REPORTER] = None  # type: ignore[assignment]  # makes `import` raise ImportError
    try:
        yield
    finally:
        if before is absent:
            del sys.modules[_OPENVINO_REPORTER]
        else:
            sys.modules[_OPENVINO_REPORTER] = before  # type: ignore[assignment]
