"""The front matter of a model's own card: licence, languages and data sets reach the artefact folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pocketbert.core.models.folder import ModelCard, _read_model_card

CARD = """---
license: mit
language: [en, de]
datasets:
- nyu-mll/glue
- 7
base_model: google-bert/bert-base-uncased
---
# A model
"""


def test_what_a_card_says_is_read_and_survives_the_run_folder(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text(CARD)
    card = _read_model_card(tmp_path, "org/model")
    assert card == ModelCard("mit", "org/model", ("en", "de"), ("nyu-mll/glue",))
    card.write(tmp_path / "model_card.json")
    assert ModelCard.read(tmp_path / "model_card.json") == card
    # a folder has no name on the Hub, and what its model was made from is not what the files are made from
    assert _read_model_card(tmp_path).base_model == ""


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "# No front matter",
        "---\nlicense: mit",
        "---\n[1, 2\n---\n",
        "---\n- a\n---\n",
        "---\nlicense: [[]]\n---\n",
        "---\nlanguage: no\nlicense: {a: b}\ndatasets: 3\n---\n",
        "---\nlicense: " + "x" * 300 + "\n---\n",
        '---\nlicense: "a\\x00b"\n---\n',
        "---\na: &a [*a]\nlanguage: *a\n---\n",
    ],
)
def test_a_card_that_says_nothing_useful_is_no_error(text: str | None, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "README.md").write_text(text)
    assert _read_model_card(tmp_path) == ModelCard()


def test_another_licence_is_known_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: our-licence\n---\n")
    assert _read_model_card(tmp_path).licence == "our-licence"
    assert ModelCard.read(tmp_path / "nothing.json") == ModelCard()
