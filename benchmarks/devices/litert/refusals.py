"""Read from the log of LiteRT's plug-ins why operators stay on the CPU."""

from __future__ import annotations

import re

_QUALCOMM = re.compile(r"LiteRT Op #\d+ '\w+' \(code=(?P<code>\d+)\) is not supported")
_ERROR = re.compile(r"QNN error=(?P<error>\d+)")
UNTOLD = "the log of the plug-in gives no reason"
REFUSED = "refused by the plug-in"


def litert_reasons(log: str) -> dict[int, str]:
    """Why operators were refused, by their number in the TFLite schema; the last reason where there are several.

    Args:
        log: What the tool printed.
    """
    found, before = dict[int, str](), 0
    for refused in _QUALCOMM.finditer(log):
        errors = _ERROR.findall(log, before, refused.start())
        found[int(refused["code"])] = (
            f"refused by the validation of the compiler: error {errors[-1]}" if errors else REFUSED
        )
        before = refused.end()
    return found


def last_error(log: str) -> str:
    """The line that tells why nothing was compiled."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [
        line.partition("] ")[2] or line
        for line in lines
        if re.search(r"(ERROR: \[|Could not load|Unexpected|cannot open)", line)
    ]
    concrete = [line for line in told if not re.search(r"ERROR: \[[\w/.:]+\]?$", line)]
    return (concrete or told or lines or ["no output"])[0][:300]
