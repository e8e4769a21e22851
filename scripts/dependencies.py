"""Print the requirements of an extra, resolved through the extras it names; dependencies change less often than code."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict, extra: str) -> list[str]:
    """Return the requirements of the core and of an extra, in order and without repetitions."""
    out = list(project["dependencies"])
    for line in project["optional-dependencies"][extra]:
        inner = re.fullmatch(rf"{project['name']}\[(.+)\]", line)
        if inner is None:
            out.append(line)
        else:
            for name in inner[1].split(","):
                out += requirements(project, name.strip())
    return list(dict.fromkeys(out))


if __name__ == "__main__":
    content = tomllib.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    print("\n".join(requirements(content["project"], sys.argv[2])))
