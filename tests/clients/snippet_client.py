"""Runs Python code of a model card inside a client's environment: `python snippet_client.py question.json answer.json`."""

import json
import os
import sys
from pathlib import Path


def main():
    """Per code its `answer`, and the outputs of its last run where it has one."""
    question = json.loads(Path(sys.argv[1]).read_text())
    out = Path(sys.argv[2])
    os.chdir(question["folder"])
    rows = []
    for code in question["codes"]:
        names = {}
        exec(code, names)
        outputs = names["run"](names["e"]) if "run" in names else {}
        rows.append({"answer": names["answer"], "outputs": outputs})
    out.write_text(json.dumps(rows, default=lambda value: value.tolist()))


main()
