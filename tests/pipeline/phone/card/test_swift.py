"""The card's Swift code is Swift: a parser reads it without an error. No compiler for it was available."""

from __future__ import annotations

import re

import pytest
import tree_sitter
import tree_sitter_swift

from pocketbert.core.artefacts import FileRecord, Kind
from pocketbert.core.families import family_of
from pocketbert.core.predict.scores import Confidence
from pocketbert.core.tasks import TaskName
from pocketbert.core.types import Format
from pocketbert.pipeline.phone.card import CardFacts, render_card
from support.card_folders import folder


def errors(code: str) -> list[str]:
    """Pieces of code that are no Swift, or before which something is missing."""
    tree = tree_sitter.Parser(tree_sitter.Language(tree_sitter_swift.language())).parse(code.encode())
    out, waiting = [], [tree.root_node]
    while waiting:
        node = waiting.pop()
        if node.is_error or node.is_missing:
            out.append(code.encode()[node.start_byte :][:60].decode(errors="replace"))
        waiting += node.children
    return out


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("task", list(TaskName))
def test_the_code_is_parsed_and_says_that_it_was_never_compiled(task: TaskName, side: str, pair: bool) -> None:
    artefacts = folder(task, padding_side=side)
    artefacts = artefacts.model_copy(update={"pair": artefacts.pair or pair})
    without = artefacts.model_copy(update={"files": [r for r in artefacts.models() if r.format is Format.ONNX]})
    source = FileRecord(path="ios/Tokenizer.swift", sha256="0" * 64, bytes=1, kind=Kind.TOOL)
    with_sources = artefacts.model_copy(update={"files": [*artefacts.files, source]})
    warm = [r.model_copy(update={"confidence": Confidence(temperature=1.5, unknown=0.7)}) for r in artefacts.models()]
    divided = artefacts.model_copy(update={"files": warm})
    choices = [(artefacts, 2), (without, 1), (with_sources, 2)]
    choices += [(divided, 2)] if task is TaskName.TEXT_CLASSIFICATION else []
    for made, count in choices:
        card = render_card(made, CardFacts(family_of("bert"), "unknown"))
        found = re.findall(r"^Swift, with ([^\n]*):\n\n```swift\n(.*?)\n```", card, re.M | re.S)
        assert len(found) == count
        for lead, code in found:
            assert "parsed, but never compiled" in lead
            assert code.startswith("import ")
            assert errors(code) == [], code
            assert ("tokenizer = try Tokenizer(" in code) == (made is with_sources)
            assert ("tokenizer is in `ios/`" in lead) == (made is with_sources)


def test_what_is_no_swift_is_found() -> None:
    assert errors("let x = try f(\n")
    assert errors("func answer(ids: [Int] throws -> Int { return 1 }")
    assert errors("let x = 1") == []
