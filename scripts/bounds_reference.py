"""Write docs/bounds.md from the formats' own bounds: one row per format, scheme and runtime.

Run: python scripts/bounds_reference.py > docs/bounds.md
"""

from __future__ import annotations

from pocketbert.core.families import Family
from pocketbert.core.formats import SIMULATION_MARGIN
from pocketbert.core.types import Scheme
from pocketbert.pipeline.formats.base import FormatPlace, form_title, format_places
from pocketbert.quantize import find_row

HEAD = """# Bounds of the gates

Generated from `src/pocketbert/core/formats.py` by `scripts/bounds_reference.py`. [The gates](how-it-works.md#gates) compare every file with these bounds. All but the last column are
relative to the spread of the logits.

| file | parity (`export.atol` changes it) | reference | padding | tolerance of golden rows | drop against torch |
|---|---:|---:|---:|---:|---:|"""
FOOT = """
- **parity**: largest difference of an exported file to the untouched model, at every length, padded and not; a family may have its own bound for fp32, which the others are multiples of.
- **reference**: largest difference to the torch model on golden rows; of files that do not compute in fp32 the RMS. *Simulated* is the [error of the scheme](lab/gates.md#the-error-that-a-scheme-makes), measured in torch for each model.
- **padding**: how far padding may move the answers more than it moves the torch model's.
- **tolerance of golden rows**: how far a right engine may be from the recorded answers of the file.
- **drop against torch**: most of the deciding metric that an exported file may lose, or two rows where that is more. Files made from it may lose `verify.max_drop` against it."""


def rows(place: FormatPlace, scheme: Scheme) -> list[str]:
    """Return the rows of the table for one scheme of a format."""
    out = []
    for form in (f for f in place.info.every_form if f[0] is scheme):
        bounds, exported = place.info.bounds[form], scheme in (Scheme.FP32, place.info.base)
        parity = f"{Family.parity_atol * bounds.loss:g}" if exported else "–"
        drop = f"{bounds.drop:.1%}" if exported else "–"
        simulated = find_row(place.format, *form).simulation is not None
        kind = "" if scheme is Scheme.FP32 else " (RMS)"
        reference = (
            f"{SIMULATION_MARGIN:g} × simulated, {bounds.least:g} to {bounds.reference:g}"
            if simulated
            else f"{bounds.reference:g}"
        )
        out.append(
            f"| {place.info.title} {form_title(form)} | {parity} | {reference}{kind} | {bounds.padding:g} "
            f"| {bounds.golden:g} | {drop} |"
        )
    return out


def page() -> str:
    """Return the whole page."""
    schemes = [(p, s) for p in format_places() for s in dict.fromkeys(s for s, _ in p.info.every_form)]
    lines = [line for place, scheme in schemes for line in rows(place, scheme)]
    return "\n".join([HEAD, *lines, FOOT]) + "\n"


if __name__ == "__main__":
    print(page(), end="")
