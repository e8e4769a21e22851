"""Training in several processes, started by ``torchrun`` or ``accelerate launch``, and stopping it in order.

Only training is shared. Process 0 runs the recipe: it holds the lock of the run folder, decides which steps are
finished, and writes. The others wait for its orders, train their part, and write their shares of teacher caches and
corpora only.

1. `current_process` returns which process this one is; without a launcher, one of one,
2. `direct_processes` surrounds the whole recipe in process 0, `order_training` calls the others into a step,
3. `follow_orders` is what the other processes run,
4. `exchange` passes a text from each process to all others,
5. `postpone_stops` and `postpone_stop` let Ctrl-C wait for the end of a training step.

Orders go through the launcher's key-value store, not through collectives: setting a key waits for no peer, so that a
process that fails can report it while its peers are busy, and waiting for hours needs no time limit.
torch is imported only in a launched process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any, NoReturn

from pocketbert.core.errors import ExitCode, InputError, MachineError, PocketBertError, Problem
from pocketbert.core.host.terminal import format_error

_RESUMES = "Finished work is kept: the same command resumes."
_POLL_S = 0.2
_END_TIMEOUT_S = 3.0
"""How long a failed process waits for process 0 to report the same failure, so that it is printed once."""

_STUCK_S = 8.0
"""How long a process has to notice by itself that another one failed."""

_LOST_CONNECTION_WORDS = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "gloo",
    "nccl",
    "timed out",
    "socket",
)


@dataclass(frozen=True)
class LaunchedProcess:
    """This process among those that a launcher such as torchrun started.

    Attributes:
        rank: Number of this process over all nodes, from 0.
        world: Number of processes on all nodes; 1 without a launcher.
    """

    rank: int
    world: int

    @property
    def main(self) -> bool:
        """Whether this is process 0. The others write only their shares of teacher caches and corpora."""
        return self.rank == 0


def current_process() -> LaunchedProcess:
    """Return this process's rank and the number of processes from the launcher's variables; rank 0 of 1 without one."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return LaunchedProcess(int(os.environ["RANK"]), world) if world > 1 else LaunchedProcess(0, 1)


@dataclass(frozen=True)
class Order:
    """A message from process 0 to the other processes of a launch: train a recipe step together, or end.

    Attributes:
        step: Name of the recipe step to train together; None to end.
        hash: Hash of that step, which must be equal in all processes.
        code: Exit code with which the other processes end.
    """

    step: str | None
    hash: str = ""
    code: int = 0


# --- process 0 ------------------------------------------------------------


_channels: list[_Channel] = []
"""The channel of this process, once it is open; a process has one."""


@contextmanager
def direct_processes() -> Iterator[None]:
    """Run the block in process 0 of a multi-process launch; when it ends, send its exit code to the other processes.

    Raises:
        InputError: If the connection to another process was lost in the block because that found wrong input.
        MachineError: If the connection was lost otherwise (with the message of that process if it reported one), or if
            the launch ran a command before.
    """
    if current_process().world == 1:
        yield
        return
    if _channels:
        raise MachineError("one launch runs one verb: the other processes ended with the first. Start a second launch.")
    channel = _open_channel()
    try:
        with _watch_peers(channel):
            yield
    except BaseException as error:
        cause = error
        if is_lost_connection(error):
            lost = "the connection to another process of this launch was lost."
            cause = channel.failure() or MachineError(f"{lost} {_RESUMES}")
        channel.send(Order(None, code=_exit_code(cause)))
        if cause is error:
            raise
        raise cause from error
    channel.send(Order(None))
    _close_process_group()


def order_training(step: str, hash: str) -> None:
    """Tell the other processes of the launch to train a recipe step; do nothing without a launcher, or in another process than 0."""
    if _channels and current_process().main:
        _channels[0].send(Order(step, hash))


def _exit_code(error: BaseException) -> int:
    """Return the exit code of a command that ends with this error."""
    if isinstance(error, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    return int(error.exit_code if isinstance(error, PocketBertError) else ExitCode.MACHINE)


# --- the other processes ------------------------------------------------------------


def follow_orders(train: Callable[[Order], Any]) -> NoReturn:
    """Wait in a process other than 0 for messages from process 0: call `train` for each step, and exit at the end.

    Raises:
        SystemExit: With the exit code of process 0, when process 0 ends.
        MachineError: If the connection to process 0 was lost.
        Exception: The error that `train` raised in this process, unless process 0 ends with an error too.
    """
    channel = _open_channel()
    code = 0
    try:
        for order in channel.orders():
            if order.step is None:
                code = order.code
            else:
                with _watch_peers(channel):
                    train(order)
    except Exception as error:
        lost = is_lost_connection(error)
        if not lost:
            channel.report(error)
        main_code = None
        with suppress(RuntimeError):  # the store is gone with its host
            main_code = channel.end_code(_END_TIMEOUT_S)
        if main_code:
            raise SystemExit(main_code) from None  # process 0 has printed why
        if lost:
            raise MachineError("the connection to process 0 was lost; its own message says why.") from error
        raise
    if code == 0:
        _close_process_group()
    raise SystemExit(code)


# --- both ------------------------------------------------------------


def exchange(text: str = "") -> list[str]:
    """Give a text to all processes of the launch, wait until each has given its own, and return them by rank.

    All processes call it equally often. It needs no process group, and waits for hours if another process takes as long.

    Raises:
        InputError: In process 0, if another process found wrong input meanwhile.
        MachineError: In process 0, if another process failed otherwise.
        SystemExit: In the others, with the exit code of process 0, if that has ended.
    """
    return [text] if current_process().world == 1 else _open_channel().exchange(text)


def _open_channel() -> _Channel:
    """Return the channel of this process, which is opened by the first call."""
    if not _channels:
        _channels.append(_Channel(current_process()))
    return _channels[0]


class _Channel:
    """Passes messages between the processes of a launch through the launcher's key-value store.

    Args:
        process: This process.
    """

    def __init__(self, process: LaunchedProcess) -> None:
        from datetime import timedelta

        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        # torchrun keeps this store in its agent: it outlives every worker. A restarted group starts afresh.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        server = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=process.main and not agent,
            wait_for_workers=False,
            multi_tenant=True,
            timeout=timedelta(minutes=5),
        )
        self.process, self._store = process, PrefixStore(f"pocketbert/{attempt}", server)
        self._sent = self._exchanged = 0

    def send(self, order: Order) -> None:
        """Send the next message to all other processes."""
        self._set(f"order/{self._sent}", json.dumps(vars(order)))
        self._sent += 1
        if order.step is None:
            self._set("end", str(order.code))

    def orders(self) -> Iterator[Order]:
        """Yield the messages of process 0 as they arrive; the last one names no step."""
        number = 0
        while True:
            key = f"order/{number}"
            while not self._store.check([key]):
                time.sleep(_POLL_S)
            order = Order(**json.loads(self._store.get(key)))
            yield order
            if order.step is None:
                return
            number += 1

    def exchange(self, text: str) -> list[str]:
        """Set this process's text of the next exchange, and return the texts of all processes when all are there."""
        keys = [f"exchange/{self._exchanged}/{rank}" for rank in range(self.process.world)]
        self._exchanged += 1
        self._set(keys[self.process.rank], text)
        while not self._store.check(keys):
            if self.process.main and (failure := self.failure()):
                raise failure
            if not self.process.main and (code := self.end_code()) is not None:
                raise SystemExit(code)
            time.sleep(_POLL_S)
        return [self._store.get(key).decode() for key in keys]

    def end_code(self, within_s: float = 0.0) -> int | None:
        """Return the exit code of process 0; None if it has not ended within some seconds."""
        until = time.monotonic() + within_s
        while not self._store.check(["end"]):
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_S)
        return int(self._store.get("end"))

    def report(self, error: BaseException) -> None:
        """Report an error of this process to process 0."""
        problems = [vars(problem) for problem in error.problems] if isinstance(error, InputError) else []
        message = f"process {self.process.rank}: {(str(error) or type(error).__name__).rstrip('.')}. {_RESUMES}"
        self._set("failed", json.dumps({"problems": problems, "message": message}))

    def failure(self) -> PocketBertError | None:
        """Return the last error that another process reported, None without one. Wrong input has the message of one process."""
        if not self._store.check(["failed"]):
            return None
        reported = json.loads(self._store.get("failed"))
        problems = [Problem(**problem) for problem in reported["problems"]]
        return InputError(problems) if problems else MachineError(reported["message"])

    def _set(self, key: str, value: str) -> None:
        """Set a key of the store, and wait until it has arrived, because this process may end right after."""
        self._store.set(key, value)
        with suppress(RuntimeError):  # the store is gone: so is the launcher, and nobody waits for the key
            self._store.check([key])  # answered after all that this connection sent before


@contextmanager
def _watch_peers(channel: _Channel) -> Iterator[None]:
    """While the block runs, watch the other processes in a thread, and end this process if one of them failed.

    If another process on the same machine dies, its sockets break and gloo raises an error. If a process on another
    node fails before it has connected, or a GPU kernel waits for another process, only this thread notices.
    """
    block_ended, main = threading.Event(), channel.process.main

    def watch() -> None:
        """End this process some seconds after another one failed, unless the block has ended by then."""
        while not block_ended.wait(1.0):
            try:
                if main:
                    failure = channel.failure()
                    code = _exit_code(failure) if failure else 0
                else:
                    failure, code = None, channel.end_code() or 0
            except RuntimeError:  # the store is gone: so is the launcher, which ends its processes itself
                return
            if code and not block_ended.wait(_STUCK_S):
                if failure:
                    problems = failure.problems if isinstance(failure, InputError) else [failure]
                    print(format_error([str(p) for p in problems]), file=sys.stderr, flush=True)
                    channel.send(Order(None, code=code))
                    time.sleep(2 * _POLL_S)  # until the others have read it: the store may end with this process
                os._exit(code)  # as a kill would: checkpoints are whole at any moment, and the lock ends with us

    threading.Thread(target=watch, daemon=True, name="pocketbert-watch").start()
    try:
        yield
    finally:
        block_ended.set()


def is_lost_connection(error: BaseException) -> bool:
    """Return whether an error seems to mean, by its type or message, that the connection to another process is lost."""
    from torch.distributed import DistError

    if isinstance(error, DistError):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in _LOST_CONNECTION_WORDS)


def _close_process_group() -> None:
    """Close torch's process group, if training opened one."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


# --- stopping ------------------------------------------------------------


class PostponedStop:
    """A request to stop (Ctrl-C or a signal) that waits for the end of the current training step.

    Attributes:
        asked: The error to raise at the end of the step; None without a request.
    """

    def __init__(self) -> None:
        self.asked: BaseException | None = None


_postponing: list[PostponedStop] = []
"""Running work that stops at the end of a step; the innermost is last."""


def postpone_stop(error: BaseException) -> bool:
    """Postpone a request to stop, so that `error` is raised only after the current training step; print a note of it.

    Returns:
        True if the request was postponed. If False, the caller must raise the error at once.
    """
    if not _postponing or _postponing[-1].asked is not None:
        return False
    _postponing[-1].asked = error
    os.write(2, b"\nStopping after this step of the training; a second signal stops at once.\n")
    return True


@contextmanager
def postpone_stops() -> Iterator[PostponedStop]:
    """Postpone Ctrl-C and other requests to stop while the block runs; the block reads `PostponedStop.asked` between its steps.

    If nothing handles signals, as in a notebook, the first Ctrl-C is postponed too, and the second one interrupts.
    """
    stop = PostponedStop()
    _postponing.append(stop)
    in_main_thread = threading.current_thread() is threading.main_thread()
    set_handler = in_main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def handle(number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt()
        if not postpone_stop(error):
            raise error

    if set_handler:
        signal.signal(signal.SIGINT, handle)
    try:
        yield stop
    finally:
        _postponing.remove(stop)
        if set_handler:
            signal.signal(signal.SIGINT, signal.default_int_handler)
