"""How results look in a notebook."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", link: Path | None = None
) -> str:
    """A table as HTML, for `_repr_html_`; nothing in a cell is taken for markup.

    Args:
        header: Titles of the columns.
        rows: Cells, as many in each row as there are titles.
        title: What stands above the table.
        link: A page with more about it, which is linked below.
    """
    heads = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td style=text-align:left>{escape(str(c))}</td>' for c in row)}</tr>" for row in rows
    )
    above = f"<p>{escape(title)}</p>" if title else ""
    below = f"<p><a href='{escape(link.resolve().as_uri())}'>{escape(link.name)}</a></p>" if link else ""
    return f"{above}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}"
