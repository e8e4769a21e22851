"""Time of `pocketbert --help`: under half a second, since it imports nothing heavy.

Run: python lab/peers/startup.py
"""

from __future__ import annotations

import subprocess
import sys
import time

from common import print_header


def main() -> None:
    times = []
    for _ in range(10):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-m", "pocketbert.cli.main", "--help"], check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - began)
    print_header("pocketbert --help, whole process", "none")
    print(f"{min(times):.3f} s fastest, {sorted(times)[5]:.3f} s median of 10; wanted under 0.5")


if __name__ == "__main__":
    main()
