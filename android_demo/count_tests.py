"""Count the tests that ran and compare with those in the sources: a build can be green with no test at all.

python count_tests.py
"""

import re
import shutil
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent
MODULES = ("core", "engine-ort", "engine-tflite", "snippets", "app")
REPORTS = {"": "surefire-reports", " under API level 36": "surefire-reports-36"}


def main() -> int:
    """Print a line for each module; the exit status is 1 where fewer tests ran than the sources have."""
    status = 0
    for module in MODULES:
        sources = (ROOT / module / "src" / "test").rglob("*Test.java")
        written = sum(len(re.findall(r"^\s*@Test\b", path.read_text("utf-8"), re.M)) for path in sources)
        for where, folder in REPORTS.items():
            suites = [ElementTree.parse(p).getroot() for p in (ROOT / module / "target" / folder).glob("TEST-*.xml")]  # noqa: S314  # surefire wrote them
            if not suites and (where or (module == "app" and shutil.which("aapt2") is None)):
                continue
            ran = sum(int(s.get("tests", 0)) for s in suites)
            skipped = {
                (c.get("name"), m.get("message")) for s in suites for c in s.iter("testcase") for m in c.iter("skipped")
            }
            print(f"test-android: {module}{where}: {ran} tests ran, {len(skipped)} of them skipped")
            for name, message in sorted(skipped, key=str):
                print(f"test-android: SKIPPED: {name}: {message}")
            # a test that runs with several parameters is written once
            methods = {
                (c.get("classname"), str(c.get("name")).split("[")[0]) for s in suites for c in s.iter("testcase")
            }
            if len(methods) != written:
                print(f"test-android: FAILED: {module}{where}: the sources have {written} tests, {len(methods)} ran")
                status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
