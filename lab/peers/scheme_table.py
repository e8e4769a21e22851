"""Print one table of what files of several data sets score, out of the results that `scheme_scores.py` keeps.

Run: python lab/peers/scheme_table.py docs/figures/schemes/sst2.json docs/figures/schemes/clinc150.json ...

The first table has a column for each data set: the score in percent, and what the file gains or loses against the fp32 (Core ML: fp16) file of its
format on the same rows, in points, with the interval of 95 %. Sizes differ between data sets, which have other lengths
and labels: the smallest and the largest one is given. The second table has the CPU
time of a row on one thread in ms, and its ratio to that of the fp32 file, interleaved: median and quartiles.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from naive.writers import NAIVE
from scheme_scores import FileScore

ORDER = ("fp32", "fp16", "int8", "w8", NAIVE, "a8w8", "a16w8", "small", "w4")
"""Schemes in the table's order; others follow."""


def main() -> None:
    """Read the results, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, nargs="+")
    sets = {path.stem: read(path) for path in parser.parse_args().results}
    most = {name: max(s.rows for s in scores.values()) for name, scores in sets.items()}
    titles = [f"{name} ({rows:,} rows)" for name, rows in most.items()]
    print(f"| format | scheme | MB | {' | '.join(titles)} |\n|---|---|---:|{'---|' * len(sets)}")
    every = {key: None for scores in sets.values() for key in scores}
    for key in sorted(every, key=_order):
        cells = [_cell(scores.get(key), most[name]) for name, scores in sets.items()]
        size = _size([s[key].bytes for s in sets.values() if key in s])
        print(f"| {key[0]} | {key[1]} | {size} | {' | '.join(cells)} |")
    print(f"\n| format | scheme | {' | '.join(sets)} |\n|---|---|{'---|' * len(sets)}")
    for key in sorted(every, key=_order):
        if any(key in s and s[key].speed is not None for s in sets.values()):
            print(f"| {key[0]} | {key[1]} | {' | '.join(_time(scores.get(key)) for scores in sets.values())} |")
    print("\n" + "\n".join(f"load, {name}: {_loads(scores.values())}" for name, scores in sets.items()))
    print("\n" + "\n".join(sorted({s.machine for scores in sets.values() for s in scores.values()})))


def read(path: Path) -> dict[tuple[str, str], FileScore]:
    """Scores of one data set, by format and scheme."""
    scores = [FileScore.model_validate(entry) for entry in json.loads(path.read_text(encoding="utf-8"))]
    return {(s.format.value, s.path if s.path.startswith(NAIVE) else s.scheme): s for s in scores}


def _order(key: tuple[str, str]) -> tuple[str, int, str]:
    format, scheme = key
    name = scheme.split(" for ")[0].split(" after ")[0].split(",")[0]
    return format, ORDER.index(name) if name in ORDER else len(ORDER), scheme


def _size(sizes: Sequence[int]) -> str:
    """MB of the smallest file, and of the largest one where it is another figure."""
    return "–".join(dict.fromkeys(f"{size / 1e6:.2f}" for size in (min(sizes), max(sizes))))


def _loads(scores: Iterable[FileScore]) -> str:
    """The lowest and the highest load average at which times were taken."""
    loads = [s.speed.load for s in scores if s.speed is not None]
    return f"{min(loads):.1f} to {max(loads):.1f}" if loads else "no times"


def _cell(score: FileScore | None, most: int) -> str:
    if score is None:
        return "–"
    value = f"{100 * score.value:.2f}"
    if score.rows < most:
        value += f" of {score.rows} rows"
    if score.rel == 0.0:
        return value
    return f"{value}, {100 * (score.value - score.against):+.2f} [{100 * score.low:+.2f}, {100 * score.high:+.2f}]"


def _time(score: FileScore | None) -> str:
    if score is None or score.speed is None:
        return "–"
    low, middle, high = score.speed.ratio
    return f"{score.speed.ms:.2f}, {middle:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
