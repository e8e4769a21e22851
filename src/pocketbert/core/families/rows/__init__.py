"""The rows of the family table, one file for each architecture, in the order in which they are listed."""

from __future__ import annotations

from pocketbert.core.families.family import Family
from pocketbert.core.families.rows import albert, bert, distilbert, mobilebert, modernbert, roberta

ROWS: tuple[Family, ...] = (
    *bert.ROWS,
    *roberta.ROWS,
    *distilbert.ROWS,
    *mobilebert.ROWS,
    *albert.ROWS,
    *modernbert.ROWS,
)
