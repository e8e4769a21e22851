"""What a reader sees of a page, and benchmarks with other figures."""

import re
from html import unescape

import pytest


@pytest.fixture(scope="session")
def words():
    """`words(page)`: the text of a page, without its styles, script and tags."""

    def read(page):
        page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
        return unescape(" ".join(re.sub(r"<[^>]*>", " ", page).split()))

    return read


@pytest.fixture(scope="session")
def change_all():
    """`change_all(result, **changes)`: the result with these changes of every measurement."""

    def change(result, **changes):
        made = [m.model_copy(update=changes) for m in result.measurements]
        return result.model_copy(update={"measurements": made})

    return change
