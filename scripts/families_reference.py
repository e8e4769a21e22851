"""Write docs/lab/families.md, and the table of systems in README.md, from the family table and from recorded figures.

Run: python scripts/families_reference.py        (writes both files; `make reference` does it)
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from pocketbert.core.families import Family
from pocketbert.core.families.rows import ROWS
from pocketbert.core.formats import FORMATS
from pocketbert.core.models.systems import system_facts
from pocketbert.core.tasks import TASKS
from pocketbert.core.types import Format, Signal

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "lab"))
from systems.blocks import blocks_section
from systems.checkpoints import CHECKPOINTS
from systems.shapes import shapes_section
from systems.students import students_section

ROOT = Path(__file__).resolve().parents[1]
FIGURES = ROOT / "docs/figures/families.json"
README, PAGE = ROOT / "README.md", ROOT / "docs/lab/families.md"
START, END = "<!-- systems -->", "<!-- end of systems -->"
COLUMNS = ("text-classification", "pairs", *(t.value for t in TASKS if t.value != "text-classification"))
OF_PAIRS = {"pairs": "text-classification"}
REPRODUCED = ".venv/bin/python lab/matrix_cell.py"
"""What builds a single cell, and tells why it fails."""

HEAD = """# Systems

Generated from the family table (`src/pocketbert/core/families/rows`) and from `docs/figures/` by `scripts/families_reference.py`. `pocketbert families` prints the table of the installed version,
with `--json` for programs.

## What each system offers

✓ means yes; a number leads to a [reason](#reasons). Every system with files has all schemes: {schemes}.
"""
MATRIX = """
## The matrix

Every number is measured on a tiny random model (2 layers, random biases and normalizations), whose answers move by at least 2 % of their spread when the padding mask is dropped and when words change
places. Files are compared with the untouched model of transformers at lengths that no exporter has seen (TFLite and the fp16 Core ML packages: at the lengths they take), padded and not. All numbers are
relative to the [spread of the logits](../how-it-works.md#gates).

- first number: the largest difference of the fp32 file; at most 1e-04 is allowed. Over all fp32 files the median of the medians is {median}.
- Core ML, second number: the largest difference of the fp16 package; at most 3e-02 is allowed, or 1.5 times the difference of the untouched model when torch computes it in fp16.
- last number: the RMS of the file in 8 bits (ONNX and TFLite `int8`, Core ML `w8`), one unpadded text at a time; [three times the simulated error](../bounds.md) is allowed.
- *–*: not measured yet. A number in brackets: a [reason](#reasons).

Processor: {machines}. Versions: {versions}. `make matrix` measures what has not passed at the present state of the code, `make matrix SHARD=1/4` a fourth of it; `lab/matrix_figures.py` writes the
figures. `{cell}` builds a single cell; the reason of a cell that failed has its command.
"""
LAYOUTS = """
## Checkpoints as they are published

The names are those of the authors' own models on the Hugging Face Hub, unless the table gives another place. **They were not downloaded here**: the tests write tiny checkpoints in these layouts.

| system | for example | files |
|---|---|---|"""


FORMS = """
## Forms

Most files take what a tokenizer makes of a text, and nothing else: the form `text`. `pocketbert export --form NAME` (in a recipe `export.form`) writes files with further inputs, which are made of data columns. `artifacts.json`
records the form; `predict`, `verify` and `benchmark` know it, golden rows carry the columns (`data`) and what is made of them (`inputs` of `golden_tokens.jsonl`). No file for MediaPipe is written in these forms, and no snippets for clients
that have no place for another input. Models are trained as text only, then exported in a form.

| system | form | input | data column | |
|---|---|---|---|---|"""
COLUMNS_OF_DATA = """
The column `language` holds the name of a language in `lang2id` of config.json. The column `entities` holds a list of mentions, by characters: `[{"start": 0, "end": 5, "id": "Q90"}]`; `name` may replace
`id`, `"part": 1` is the second text of a pair, and where the input is vectors, `vector` is a list of numbers. A mention counts at the first token of it, as in the paper; the place of [CLS] is open in any case.

```bash
pocketbert export -m xlm-folder -o out --form language
pocketbert export -m ernie-folder -o out --form entities --entities keep.txt   # one id or title a line, or a .jsonl file with the column entities
echo '{"text": "Bob Dylan wrote it.", "entities": [{"start": 0, "end": 9, "id": "Q392"}]}' > rows.jsonl
pocketbert predict -m out --file rows.jsonl
```

From Python, `pocketbert.with_columns(text, {"language": "de"})` gives a text its columns. The table of the form `entities` is pruned to what `--entities` names, out of the authors' `entity2vec.vec`, `entity2id.txt` and `entity_map.txt` in the model folder
or in its `kg_embed`; entities are renumbered from 1, 0 is none, and `entities.json` in the artefact folder lists them. Unlike in the authors' code, where -1 is none, padding is 0 like everywhere else. In the form `entity-vectors` the application owns linker and table;
a place counts as an entity where the absolute values of its vector add up to 2<sup>-6</sup> or more.
"""


class Reasons:
    """Reasons by number, in the order in which they are first needed."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}

    def mark(self, reason: str) -> str:
        """Return a link to a reason, which gets a number if it is new."""
        number = self.numbers.setdefault(reason, len(self.numbers) + 1)
        return f"[[{number}]](#reasons)"

    def section(self) -> list[str]:
        """Return the lines of the page that list all reasons by number."""
        if not self.numbers:
            return []
        return ["", "## Reasons", "", *(f"{number}. {reason}" for reason, number in self.numbers.items())]


def offers(rows: list[Family], reasons: Reasons) -> list[str]:
    """Return the table of what each family offers."""
    lines = [
        f"| system | `model_type` | tokenizer | padding | {' | '.join(Signal)} | students of other systems | files |",
        f"|---|---|---|---|{':-:|' * len(Signal)}---|---|",
    ]
    titles = {r.name: r.title for r in rows}
    for row in rows:
        signals = [
            "✓" if s in row.signals else reasons.mark(f"{row.title}, signal {s}: {row.invalid_signals.get(s, '')}")
            for s in Signal
        ]
        files = ", ".join(FORMATS[f].title for f in system_facts(row).files)
        if row.instead_of_export is not None:
            files = reasons.mark(f"{row.title}: no exporter writes it. {row.instead_of_export}")
        types = ", ".join(f"`{t}`" for t in row.model_types)
        learns = ", ".join(titles.get(n, n) for n in row.students_of)
        cells = [row.title, types, row.tokenizer, row.padding_side, *signals, learns, files]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def matrix(format: Format, rows: list[Family], cells: dict[str, Any], reasons: Reasons) -> list[str]:
    """Return the table of measured differences of one format: a row per family, a column per task."""
    lines = [
        "",
        f"### {FORMATS[format].title}",
        "",
        f"| system | {' | '.join(COLUMNS)} |",
        f"|---|{'---|' * len(COLUMNS)}",
    ]
    for row in rows:
        found = [cell(row, column, cells.get(row.graph, {}), format, reasons) for column in COLUMNS]
        lines.append(f"| {row.title} | {' | '.join(found)} |")
    return lines


def cell(row: Family, column: str, found: dict[str, Any], format: Format, reasons: Reasons) -> str:
    """Return the measured differences in one cell of the matrix, or links to the reasons why there are none."""
    task = OF_PAIRS.get(column, column)
    if row.instead_of_export is not None:
        return reasons.mark(f"{row.title}: no exporter writes it. {row.instead_of_export}")
    if task in row.invalid_tasks:
        return reasons.mark(f"{row.title}, {task}: {row.invalid_tasks[task]}")
    values = found.get(column, {}).get(str(format), {})
    shown = []
    for scheme, value in values.items():
        if isinstance(value, str):
            what = f"{row.title}, {column}, {FORMATS[format].title} {scheme}: {value.rstrip('.')}"
            built = f"`{REPRODUCED} {row.graph} {column} {format} {scheme}`"
            shown.append(reasons.mark(f"{what}. Smallest reproduction: {built}"))
        else:
            shown.append(f"{value:.0e}" if scheme in ("fp32", "fp16") else f"{value:.3f}")
    return " · ".join(shown) or "–"


def limits(rows: list[Family]) -> list[str]:
    """Return the section on what does not work, family by family."""
    lines = ["", "## Limits", ""]
    for row in rows:
        lines += [f"- **{row.title}**: {'; '.join(row.limits)}."] if row.limits else []
    return lines


def forms(rows: list[Family]) -> list[str]:
    """Return the table of forms, whose files have inputs besides the text."""
    lines = [FORMS]
    for row in rows:
        for form in row.forms:
            for one in form.extra:
                shape = "[B, L, width] float" if one.width else "[B, L]"
                lines.append(f"| {row.title} | `{form.name}` | `{one.name}` {shape} | `{one.column}` | {form.title} |")
    return [*lines, COLUMNS_OF_DATA.rstrip()]


def layouts(rows: list[Family]) -> list[str]:
    """Return the table of checkpoints as they are published."""
    known = {t for r in rows for t in (r.name, *r.model_types)}
    shown = [c for c in CHECKPOINTS if c.row in known]
    return [LAYOUTS, *(f"| {c.system} | {c.names} | {c.files} |" for c in shown)]


def page() -> str:
    """Return the whole page."""
    rows, reasons = list(ROWS), Reasons()
    figures = json.loads(FIGURES.read_text("utf-8"))
    schemes = "; ".join(f"{i.title} {', '.join(_forms(i))}" for i in FORMATS.values())
    text = MATRIX.format(
        median=f"{figures['median fp32']:.0e}" if figures["median fp32"] else "not known",
        cell=f"{REPRODUCED} bert text-classification onnx int8",
        machines="; ".join(figures["machines"]),
        versions=", ".join(f"{k} {v}" for k, v in figures["versions"].items()),
    )
    offered = offers(rows, reasons)
    tables = [matrix(f, rows, figures["cells"], reasons) for f in (Format.ONNX, Format.TFLITE, Format.COREML)]
    head = [HEAD.format(schemes=schemes), *offered, text.rstrip()]
    blocks = blocks_section(ROOT / "docs/figures/longformer-blocks.json")
    shapes = shapes_section(ROOT / "docs/figures/real-shapes.json")
    tail = [*students_section(rows), *forms(rows), *limits(rows), *blocks, *layouts(rows), *shapes]
    return "\n".join([*head, *(line for t in tables for line in t), *reasons.section(), *tail]) + "\n"


def _forms(info: Any) -> list[str]:
    return [f"{scheme} for {runtime}" if runtime else str(scheme) for scheme, runtime in info.every_form]


def readme(text: str) -> str:
    """Return the text of README.md with the table of systems replaced."""
    lines = ["| system | `model_type` | teacher | exported files |", "|---|---|---|---|"]
    for row in ROWS:
        facts = system_facts(row)
        files = ", ".join(FORMATS[f].title for f in facts.files) or "none"
        lines.append(f"| {row.title} | {', '.join(f'`{t}`' for t in row.model_types)} | yes | {files} |")
    made = "\n".join([START, *lines, END])
    return re.sub(f"{START}.*?{END}", lambda _: made, text, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    README.write_text(readme(README.read_text("utf-8")), "utf-8")
