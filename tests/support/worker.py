"""A process that runs commands one after the other with bounded memory, and says how each ended.

Started by `commander.Commander`, which starts another one where a native library took this one down. Each line on stdin is
a list of arguments; each answer is a line of JSON on the descriptor that the first argument names. Whatever the command
writes to the descriptors 1 and 2, native libraries included, goes to the two files named by the other arguments.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from pathlib import Path


def memory(key: str) -> int:
    """A value of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) << 10
    return 0


def run(arguments: list[str]) -> int:
    """What the console script does, in this process; its exit status."""
    from pocketbert.cli.main import main

    sys.argv = ["pocketbert", *arguments]
    try:
        main()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve(answers: int, out: str, err: str) -> None:
    """Read commands until stdin ends."""
    bounded = False
    for line in sys.stdin:
        request = json.loads(line)
        for path, descriptor in ((out, 1), (err, 2)):
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, descriptor)
            os.close(handle)
        if request["headroom"] is not None and not bounded:  # what the libraries have mapped by now is theirs
            most = memory("VmSize") + request["headroom"]
            resource.setrlimit(resource.RLIMIT_AS, (most, resource.getrlimit(resource.RLIMIT_AS)[1]))
            bounded = True
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM counts from here
        before = memory("VmRSS")
        code = run(request["arguments"])
        sys.stdout.flush()
        sys.stderr.flush()
        answer = json.dumps({"code": code, "grown": memory("VmHWM") - before}) + "\n"
        os.write(answers, answer.encode())


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2], sys.argv[3])
