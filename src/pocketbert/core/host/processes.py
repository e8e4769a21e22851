"""What this process is among those of a launcher, and how process 0 directs the others.

Training is the only work that is shared. Process 0 alone runs a recipe: it holds the lock, decides what is
finished, and writes. The others wait for its orders, take part in a step that trains, and write nothing.

Orders go through the key-value store of the launcher, not through collectives: setting a key waits for no peer,
so a process that fails can say so while its peers are busy, and waiting for hours needs no time limit.
Importing this module is cheap, and so is `here`: torch is imported only in a launched process.
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

from pocketbert.core.errors import ExitCode, MachineError, PocketBertError

_RESUMES = "Finished work is kept: the same command resumes."
_POLL_S = 0.2
_LAST_WORD_S = 3.0
"""How long a failed process waits for process 0 to tell the same story, so that it is told once."""

_STUCK_S = 8.0
"""How long a process has to notice by itself that another one failed."""

_LOST = (
    "connection closed by peer",
    "connection reset",
    "broken pipe",
    "gloo",
    "nccl",
    "timed out",
    "socket",
)


@dataclass(frozen=True)
class Place:
    """A process among those of its launcher.

    Attributes:
        rank: Number of this process over all nodes, from 0.
        world: Processes over all nodes; 1 without a launcher.
    """

    rank: int
    world: int

    @property
    def main(self) -> bool:
        """Whether this process writes."""
        return self.rank == 0


def here() -> Place:
    """What ``torchrun`` or ``accelerate launch`` made of this process; one of one without them."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    return Place(int(os.environ["RANK"]), world) if world > 1 else Place(0, 1)


@dataclass(frozen=True)
class Order:
    """What process 0 tells the others.

    Attributes:
        step: A step to train together; None at the end.
        hash: Hash of that step, which all must share.
        code: Exit code, at the end.
    """

    step: str | None
    hash: str = ""
    code: int = 0


class Channel:
    """Orders of process 0, in sequence, and the failures of the others.

    Args:
        place: This process.
    """

    def __init__(self, place: Place) -> None:
        from datetime import timedelta

        from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

        # torchrun keeps this store in its agent: it outlives every worker. A restarted group starts afresh.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        server = TCPStore(
            host,
            port,
            is_master=place.main and not agent,
            wait_for_workers=False,
            multi_tenant=True,
            timeout=timedelta(minutes=5),
        )
        self.place, self._store, self._sent = place, PrefixStore(f"pocketbert/{attempt}", server), 0

    def send(self, order: Order) -> None:
        """Give the next order."""
        self._set(f"order/{self._sent}", json.dumps(vars(order)))
        self._sent += 1
        if order.step is None:
            self._set("end", str(order.code))

    def orders(self) -> Iterator[Order]:
        """Receive all orders, as they come; the last has no step."""
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

    def ended(self, within_s: float = 0.0) -> int | None:
        """Exit code of process 0, if it has ended or does so in time."""
        until = time.monotonic() + within_s
        while not self._store.check(["end"]):
            if time.monotonic() >= until:
                return None
            time.sleep(_POLL_S)
        return int(self._store.get("end"))

    def report(self, message: str) -> None:
        """Tell process 0 why this one fails."""
        self._set("failed", f"process {self.place.rank}: {message.rstrip('.')}.")

    def failure(self) -> str | None:
        """What the last other process that failed said."""
        return self._store.get("failed").decode() if self._store.check(["failed"]) else None

    def _set(self, key: str, value: str) -> None:
        """Set a key and wait until the store has it: `set` only sends, and this process may end right after it."""
        self._store.set(key, value)
        with suppress(RuntimeError):  # the store is gone: so is the launcher, and nobody waits for the key
            self._store.check([key])  # answered after all that this connection sent before


_open: list[Channel] = []


@contextmanager
def _watched(channel: Channel) -> Iterator[None]:
    """End this process where it cannot end itself: it waits in a collective for one that has failed.

    Sockets of gloo on one machine break when their other end dies. A process of another node that fails before
    it ever connected, or a GPU kernel that waits for its peer, is noticed by nobody else.
    """
    over = threading.Event()

    def watch() -> None:
        while not over.wait(1.0):
            try:
                code = 1 if channel.place.main and channel.failure() else 0
                code = code if channel.place.main else channel.ended() or 0
            except RuntimeError:  # the store is gone: so is the launcher, which ends its processes itself
                return
            if code and not over.wait(_STUCK_S):
                if channel.place.main:
                    print(f"Error: {channel.failure()} {_RESUMES}", file=sys.stderr, flush=True)
                    channel.send(Order(None, code=code))
                os._exit(code)  # as a kill would: checkpoints are whole at any moment, and the lock dies with us

    threading.Thread(target=watch, daemon=True, name="pocketbert-watch").start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def directing() -> Iterator[None]:
    """Process 0 of a launch: whatever happens inside, the others learn how it ended. Nothing without a launcher.

    Raises:
        MachineError: If another process failed, with its words, or the launch was used before.
    """
    if here().world == 1:
        yield
        return
    if _open:
        raise MachineError("one launch runs one verb: the other processes ended with the first. Start a second launch.")
    channel = Channel(here())
    _open.append(channel)
    try:
        with _watched(channel):
            yield
    except BaseException as error:
        channel.send(Order(None, code=_code(error)))
        failure = channel.failure() if _is_lost(error) else None
        if failure or _is_lost(error):
            raise MachineError(
                f"{failure or 'the connection to another process of this launch was lost.'} {_RESUMES}"
            ) from error
        raise
    channel.send(Order(None))
    _leave()


def train_together(step: str, hash: str) -> None:
    """Call the other processes into a step; nothing without a launcher."""
    if _open:
        _open[0].send(Order(step, hash))


def assist(train: Callable[[Order], Any]) -> NoReturn:
    """What every process but 0 does: train when told to, and leave when process 0 does, as it does.

    Args:
        train: Takes this process's part in a step.

    Raises:
        SystemExit: With the exit code of process 0.
        Exception: What went wrong in this process alone.
    """
    channel = Channel(here())
    code = 0
    try:
        for order in channel.orders():
            if order.step is None:
                code = order.code
            else:
                with _watched(channel):
                    train(order)
    except Exception as error:
        if not _is_lost(error):
            channel.report(str(error) or type(error).__name__)
        known = _ended(channel)
        if known:
            raise SystemExit(known) from None  # process 0 said why
        if _is_lost(error):
            raise MachineError("the connection to process 0 was lost; its own message says why.") from error
        raise
    if code == 0:
        _leave()
    raise SystemExit(code)


def _ended(channel: Channel) -> int | None:
    try:
        return channel.ended(_LAST_WORD_S)
    except RuntimeError:  # the store went with its host
        return None


def _leave() -> None:
    """Close the connections between the processes, where training opened any."""
    import torch.distributed

    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _code(error: BaseException) -> int:
    if isinstance(error, KeyboardInterrupt):
        return int(ExitCode.INTERRUPTED)
    return int(error.exit_code if isinstance(error, PocketBertError) else ExitCode.MACHINE)


def _is_lost(error: BaseException) -> bool:
    """Whether an error is that of a connection whose other end went away."""
    from torch.distributed import DistError

    if isinstance(error, DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _LOST)


# --- stopping ---
# A signal that asks a process to end, and work that ends at a good place first: after a training step, not within it.


class Hold:
    """A piece of work that a request to stop does not interrupt.

    Attributes:
        asked: What to raise at the next good place; None while nobody asked.
    """

    def __init__(self) -> None:
        self.asked: BaseException | None = None


_holds: list[Hold] = []


def postpone(error: BaseException) -> bool:
    """Hand a request to stop to the work that runs, if there is any that wants to end in order.

    Args:
        error: What the work raises when it is at a good place.

    Returns:
        Whether it will; else the caller raises it at once.
    """
    if not _holds or _holds[-1].asked is not None:
        return False
    _holds[-1].asked = error
    os.write(2, b"\nStopping after this step of the training; a second signal stops at once.\n")
    return True


@contextmanager
def holding() -> Iterator[Hold]:
    """Let requests to stop wait, for work that looks at `Hold.asked` between its steps.

    Where no command handles signals, as in a notebook, the first Ctrl-C waits too, and the second one interrupts.
    """
    hold = Hold()
    _holds.append(hold)
    main = threading.current_thread() is threading.main_thread()
    mine = main and signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def stop(number: int, frame: FrameType | None) -> None:
        error = KeyboardInterrupt()
        if not postpone(error):
            raise error

    if mine:
        signal.signal(signal.SIGINT, stop)
    try:
        yield hold
    finally:
        _holds.remove(hold)
        if mine:
            signal.signal(signal.SIGINT, signal.default_int_handler)
