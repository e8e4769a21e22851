"""TCP ports of this machine."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 20_000, 32_000
"""Below the ports that Linux gives to outgoing connections (from 32,768): none of these can take the port before a test does."""


def free_port() -> int:
    """A port that can be bound now."""
    choose = random.SystemRandom()  # the tests' seeded generator would give parallel workers the same ports
    for _ in range(100):
        port = choose.randrange(_FIRST, _LAST)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"no free port between {_FIRST} and {_LAST}")


def listens(port: int) -> bool:
    """Whether something accepts connections at a port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
