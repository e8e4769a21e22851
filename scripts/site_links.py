"""A hook of mkdocs: links of a page that lead out of docs/ become links to the repository.

mkdocs.yml names this file. mkdocs calls `on_page_markdown` for each page before it is converted to HTML.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

_LINK = re.compile(r"(\]\()(?![a-z]+:)([^)\s#]+)")
_OUTSIDE = ("figures/", "ci/")
"""Folders of docs/ that are not part of the site."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Return a page's Markdown with the relative links that leave docs/ replaced by addresses in the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def replace(match: re.Match[str]) -> str:
        """Return one link, rewritten if its target is not part of the site."""
        target = posixpath.normpath(posixpath.join("docs", folder, match[2]))
        if target.startswith("docs/") and not f"{target}/".removeprefix("docs/").startswith(_OUTSIDE):
            return match[0]
        kind = "blob" if posixpath.splitext(target)[1] else "tree"
        return f"{match[1]}{config['repo_url']}/{kind}/main/{target}"

    return _LINK.sub(replace, markdown)
