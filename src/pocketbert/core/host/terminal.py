"""Text as it is printed: errors of bounded length, and values that neither a terminal nor a reader of lines takes for more."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from html import escape
from pathlib import Path
from unicodedata import category

from pocketbert.core.errors import one_line

MOST_LINES = 40
"""Lines of an error as it is printed."""
MOST_COLUMNS = 200
"""Columns of each of them."""
_MOST_CHARACTERS = 5 * MOST_COLUMNS
"""Characters of one problem; a longer one holds a value that nobody reads to its end."""
_MOST_READ = 1 << 16
"""Characters of it that are looked at."""
_SEPARATORS = frozenset("\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029")
"""What ends a line or a field for one program or another."""
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""What shows text in another order than it is read."""


def one_field(text: str) -> str:
    """Text that stays within one field of a line: breaks, tabs and halves of surrogate pairs as Python writes them."""
    return "".join(repr(c)[1:-1] if c in _SEPARATORS or "\ud800" <= c <= "\udfff" else c for c in text)


def visible(text: str) -> str:
    """Text that a terminal shows and does not obey; joiners, which some scripts need, stay as they are."""
    kinds = ("Cc", "Cs", "Zl", "Zp")
    return "".join(repr(c)[1:-1] if category(c) in kinds or c in _BIDIRECTIONAL else c for c in text)


def printed(problems: Sequence[str]) -> str:
    """Compose what is printed of an error: at most `MOST_LINES` lines of at most `MOST_COLUMNS` columns.

    A problem that does not fit a line goes on in the next ones, further indented. What is too long is cut. Of too
    many problems the first ones and the last one are printed, and between them how many were left out.

    Args:
        problems: At least one; empty texts count as unknown errors.

    Returns:
        ``Error: ...`` for one problem, ``N problems:`` and an indented list for several.
    """
    if len(problems) == 1:
        return "\n".join(_wrapped(f"Error: {_shown(problems[0])}", "  "))
    head = f"{len(problems)} problems:"
    blocks = [_wrapped(f"  {_shown(p)}", "      ") for p in problems[:MOST_LINES]]
    if len(problems) <= MOST_LINES and 1 + sum(map(len, blocks)) <= MOST_LINES:
        return "\n".join([head, *(line for block in blocks for line in block)])
    # the last problem stays: it may count those that were not listed at all
    lines, last = [head], _wrapped(f"  {_shown(problems[-1])}", "      ")
    shown = 0
    while len(lines) + len(blocks[shown]) + 1 + len(last) <= MOST_LINES:
        lines += blocks[shown]
        shown += 1
    return "\n".join([*lines, f"  and {len(problems) - shown - 1:,} more.", *last])


def _shown(problem: str) -> str:
    """A problem on one line of bounded length."""
    text = _cut(one_line(_cut(problem, _MOST_READ)), _MOST_CHARACTERS)
    return text.strip() or "unknown, without a message"


def _cut(text: str, most: int) -> str:
    """The beginning and the end of a long text, between them how much is left out: the fix is at the end."""
    if len(text) <= most:
        return text
    half = most // 2 - 30
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters left out ... {text[-half:]}"


def _wrapped(line: str, indent: str) -> list[str]:
    if len(line) <= MOST_COLUMNS:
        return [line]
    return textwrap.wrap(
        line, MOST_COLUMNS, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True, expand_tabs=False
    )


# --- notebook ---
# How results look in a notebook.


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
