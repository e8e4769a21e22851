"""Text for a terminal and a notebook: errors of bounded length, values without control characters, HTML tables."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from unicodedata import category

from pocketbert.core.errors import escape_line

_MAX_LINES = 40
"""Lines of a printed error."""
_MAX_COLUMNS = 200
"""Columns of each of them."""
_MAX_PROBLEM = 5 * _MAX_COLUMNS
"""Characters of one problem; a longer one holds a value that nobody reads to its end."""
_MAX_READ = 1 << 16
"""Characters of a problem that are processed."""
_SEPARATORS = frozenset("\n\r\t\v\f\x1c\x1d\x1e\x85\u2028\u2029")
"""Characters that end a line or a field for one program or another."""
_BIDIRECTIONAL = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction in which text is shown."""
_CONTROL_CATEGORIES = ("Cc", "Cs", "Zl", "Zp")


def escape_separators(text: str) -> str:
    """Escape line breaks, tabs and halves of surrogate pairs, so that a text fits into one tab-separated field."""
    return "".join(repr(c)[1:-1] if c in _SEPARATORS or "\ud800" <= c <= "\udfff" else c for c in text)


def escape_control_characters(text: str) -> str:
    """Escape control characters, halves of surrogate pairs and characters that change the writing direction."""
    return "".join(repr(c)[1:-1] if category(c) in _CONTROL_CATEGORIES or c in _BIDIRECTIONAL else c for c in text)


def format_error(problems: Sequence[str]) -> str:
    """Format an error for the terminal: at most 40 lines of at most 200 columns.

    A problem that does not fit into a line continues in the next lines, indented; very long problems are cut. Of too
    many problems, the first ones and the last one are shown, with the number of those left out between them.

    Args:
        problems: At least one; empty texts count as unknown errors.

    Returns:
        ``Error: ...`` for one problem, ``N problems:`` and an indented list for several.
    """
    if len(problems) == 1:
        return "\n".join(_wrap(f"Error: {_shorten(problems[0])}", "  "))
    head = f"{len(problems)} problems:"
    blocks = [_wrap(f"  {_shorten(p)}", "      ") for p in problems[:_MAX_LINES]]
    if len(problems) <= _MAX_LINES and 1 + sum(map(len, blocks)) <= _MAX_LINES:
        return "\n".join([head, *(line for block in blocks for line in block)])
    # the last problem stays: it may count those that were not listed at all
    lines, last = [head], _wrap(f"  {_shorten(problems[-1])}", "      ")
    listed = 0
    while len(lines) + len(blocks[listed]) + 1 + len(last) <= _MAX_LINES:
        lines += blocks[listed]
        listed += 1
    return "\n".join([*lines, f"  and {len(problems) - listed - 1:,} more.", *last])


def _shorten(problem: str) -> str:
    """Shorten a problem's text to one line of bounded length."""
    text = _cut_middle(escape_line(_cut_middle(problem, _MAX_READ)), _MAX_PROBLEM)
    return text.strip() or "unknown, without a message"


def _cut_middle(text: str, limit: int) -> str:
    """Cut out the middle of a long text, keep its beginning and end, and write how many characters are missing."""
    if len(text) <= limit:
        return text
    half = limit // 2 - 30
    return f"{text[:half]} ... {len(text) - 2 * half:,} characters left out ... {text[-half:]}"


def _wrap(line: str, indent: str) -> list[str]:
    """Wrap a line at the maximum width; the further lines are indented."""
    if len(line) <= _MAX_COLUMNS:
        return [line]
    return textwrap.wrap(
        line, _MAX_COLUMNS, subsequent_indent=indent, break_on_hyphens=False, drop_whitespace=True, expand_tabs=False
    )


def html_table(
    header: Sequence[str], rows: Sequence[Sequence[object]], title: str = "", link: Path | None = None
) -> str:
    """Format a table as HTML for a notebook, with escaped cells.

    Args:
        header: Titles of the columns.
        rows: Cells of each row, as many as there are titles.
        title: Text above the table.
        link: File of a page about the table; a link to it is put below the table.
    """
    from html import escape  # here: the command line imports this module for every command

    heads = "".join(f"<th style='text-align:left'>{escape(name)}</th>" for name in header)
    body = "".join(
        f"<tr>{''.join(f'<td style=text-align:left>{escape(str(c))}</td>' for c in row)}</tr>" for row in rows
    )
    above = f"<p>{escape(title)}</p>" if title else ""
    below = f"<p><a href='{escape(link.resolve().as_uri())}'>{escape(link.name)}</a></p>" if link else ""
    return f"{above}<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>{below}"
