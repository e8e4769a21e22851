"""The rows of the family table, one file for each architecture, in the order in which they are listed."""

from __future__ import annotations

from pocketbert.core.families.family import Family
from pocketbert.core.families.rows import (
    albert,
    bert,
    deberta,
    distilbert,
    electra,
    ernie,
    ernie_thu,
    longformer,
    mobilebert,
    modernbert,
    mpnet,
    roberta,
    xlm,
    xlnet,
)

ROWS: tuple[Family, ...] = (
    *bert.ROWS,
    *ernie.ROWS,
    *electra.ROWS,
    *roberta.ROWS,
    *distilbert.ROWS,
    *mobilebert.ROWS,
    *albert.ROWS,
    *deberta.ROWS,
    *xlnet.ROWS,
    *xlm.ROWS,
    *longformer.ROWS,
    *ernie_thu.ROWS,
    *modernbert.ROWS,
    *mpnet.ROWS,
)
