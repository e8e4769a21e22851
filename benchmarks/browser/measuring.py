"""The device ``browser``: any browser that opens the page of a local server, such as a phone's.

`Browsers.measure` serves the page, prints its address, and waits until the browsers have measured; Ctrl-C ends with what there
is. The row of the table of devices is in `pocketbert.benchmarks.devices.table`.
"""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Sequence

from pocketbert.benchmarks.browser.libraries import find_libraries
from pocketbert.benchmarks.browser.phones import Phones
from pocketbert.benchmarks.browser.plan import LIBRARY_OF, make_plan
from pocketbert.benchmarks.browser.server import Address, serve
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.core.devices import BROWSER
from pocketbert.core.errors import GateError, InputError, Problem
from pocketbert.core.formats import FORMATS
from pocketbert.core.host.progress import print_note
from pocketbert.core.predict.inputs import Text
from pocketbert.core.types import Format, Runtime

_WAIT_S = 600.0
"""Seconds in which the first browser has to open the page."""
_POLL_S = 0.2
_LAST_ANSWER_S = 1.0
"""The server stays a moment longer, so that the page gets the answer to its last post."""


def browser_refusal(format: Format, runtime: Runtime | None) -> str:
    """Return why no browser can run files of this format and runtime; empty if one can."""
    if format not in LIBRARY_OF:
        return f"{FORMATS[format].title} does not run in a browser"
    if runtime is not None and (runtime.own_engine is not None or runtime.accelerator):
        return f"it is made for {runtime}, which a browser does not reach"
    return ""


class Browsers:
    """The service that lets browsers measure files on a page that it serves.

    Args:
        argument: The argument in the device's name, which must be empty.
    """

    def __init__(self, argument: str = "") -> None:
        assert not argument

    def measure(
        self, variants: Sequence[Variant], texts: Sequence[Text], options: BenchmarkOptions
    ) -> list[BenchmarkResult]:
        """Serve the page until the browsers have measured, and return a result for each browser that measured something.

        It also ends with Ctrl-C, if all browsers are silent, or if none opens the page within ten minutes.

        Raises:
            InputError: If no browser measured anything.
            GateError: If no browser measured anything, and a file was refused because a browser computes wrong outputs.
        """
        libraries = find_libraries()
        phones = Phones(make_plan(variants, texts, options), options.pages.count)
        with serve(phones, libraries, options.pages.host, options.pages.https) as address:
            _print_address(address, options.pages.count)
            try:
                _wait(phones)
            except KeyboardInterrupt:
                print_note("  ended by Ctrl-C, with what the browsers have measured so far")
        sessions = phones.results()
        if not sessions and (refused := phones.refused()):
            raise GateError([f"{check.variant}: {check.words}" for check in refused])
        if not sessions:
            what = "no browser measured anything." if phones.joined else "no browser opened the page."
            problem = Problem(BROWSER, what, "Open the address that is printed, and press Start")
            raise InputError(problem, *(Problem(BROWSER, remark) for remark in phones.remarks()[:20]))
        return sessions


def _wait(phones: Phones) -> None:
    """Wait until the browsers have finished; stop waiting if none opens the page within `_WAIT_S` seconds."""
    while not phones.finished():
        if not phones.joined and time.monotonic() - phones.began > _WAIT_S:
            return
        time.sleep(_POLL_S)
    time.sleep(_LAST_ANSWER_S)


def _print_address(address: Address, count: int) -> None:
    """Print the page's address on stderr, even with ``-q``, as text and as a QR code (if segno is installed).

    It also prints how devices reach the address.
    """
    print(
        f"Open on {'the phone' if count == 1 else f'{count} phones'}, then press Start there:\n\n  {address.url}\n",
        file=sys.stderr,
    )
    try:
        import segno
    except ImportError:
        print("(pip install 'pocketbert[browser]' prints a QR code as well)", file=sys.stderr)
    else:
        code = io.StringIO()
        segno.make(address.url, error="l").terminal(out=code, compact=True)
        print(code.getvalue(), file=sys.stderr)
    if "//127.0.0.1:" in address.url:
        print(
            "Only this machine reaches the address. A phone on a cable does after\n"
            f"  adb reverse tcp:{address.port} tcp:{address.port}\n"
            "others in the network with --host lan. Ctrl-C ends with what is measured.",
            file=sys.stderr,
        )
    elif not address.secure:
        print(
            "Without --https a browser gives this page neither threads nor WebGPU and WebNN. Ctrl-C ends with what is measured.",
            file=sys.stderr,
        )
    else:
        print(
            "The browser warns of the certificate, which was made for this run. Ctrl-C ends with what is measured.",
            file=sys.stderr,
        )
    sys.stderr.flush()
