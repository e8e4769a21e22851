"""Read from ONNX Runtime's verbose log why the NPU's provider refused nodes."""

from __future__ import annotations

import re

_REFUSED = re.compile(
    r"Operator type: (?P<type>\S+) Node name: (?P<name>.*?) Node index: \d+\s*\n\s*REASON : (?P<why>.*)"
)
_BACKEND = re.compile(
    r"backendValidateOpConfig\(\) failed for node `.*?` of type `(?P<type>\w+)` with error code (?P<code>\d+)"
)
_NOTHING = "Failed to add node."
"""What the log says where the reason is the line before."""
_UNSUPPORTED = re.compile(r"Operators of type `\S+` are not supported")
UNKNOWN_TYPE = "the provider does not know this operator"
UNTOLD = "the log gives no reason"


def reasons(log: str) -> dict[str, str]:
    """Why nodes were refused.

    Args:
        log: The log of the session at its most verbose level.

    Returns:
        A reason by name of the node; the last one where the log has several.
    """
    found, before = dict[str, str](), 0
    for refused in _REFUSED.finditer(log):
        why = refused["why"].strip()
        if why.startswith(_NOTHING):
            backend = list(_BACKEND.finditer(log, before, refused.start()))
            why = (
                f"refused by the validation of the compiler: error {backend[-1]['code']} of {backend[-1]['type']}"
                if backend
                else UNTOLD
            )
        elif _UNSUPPORTED.search(why):
            why = UNKNOWN_TYPE
        found[refused["name"]] = why
        before = refused.end()
    return found
