"""The text of general stages: refused where the teacher's family was not trained that way, similar words from file or embeddings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pocketbert.core.errors import InputError
from pocketbert.core.families import Objective, find_family
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.recipe.stages import MiniLmStage
from pocketbert.pipeline.learn.corpora import _check_objectives, _make_similar_words
from support.tiny import tiny_classifier
from support.tiny_tokenizers import vocabulary, write_tokenizer

BERT = find_family("bert")


def stage(**changes: Any) -> MiniLmStage:
    return MiniLmStage.model_validate({"method": "minilm", "steps": 4, **changes})


@pytest.mark.parametrize(
    ("changes", "key", "objective"),
    [
        ({"masking": "similar"}, "distill.2.masking: similar", Objective.SIMILAR_WORDS),
        ({"pairs": True, "second": "swapped"}, "distill.2.second: swapped", Objective.SENTENCE_ORDER),
    ],
)
def test_text_that_the_family_does_not_know_is_refused(changes: dict[str, Any], key: str, objective: Objective) -> None:
    with pytest.raises(InputError) as error:
        _check_objectives(stage(**changes), BERT, "distill.2")
    said = str(error.value)
    assert key in said
    assert "BERT checkpoints are not trained that way; objectives: masked-lm, next-sentence" in said
    _check_objectives(stage(**changes), replace(BERT, objectives=(objective,)), "distill.2")


def test_other_text_is_for_all_families() -> None:
    for changes in ({"masking": "ngram"}, {"masking": "span", "pairs": True}, {"second": "swapped"}):
        _check_objectives(stage(**changes), BERT, "distill.2")


def test_similar_words_are_the_files_or_the_teachers(tmp_path: Path) -> None:
    teacher = tiny_classifier("bert", 1, (), auto_class="AutoModel")
    teacher.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    source, size = open_model_folder(str(tmp_path)), len(vocabulary(0))
    (good,), (great,) = ([vocabulary(0).index(w)] for w in ("good", "great"))
    file = tmp_path / "vectors.txt"
    file.write_text("good 1 0\ngreat 1 0.1\npoor 0 1\n")
    named = _make_similar_words(stage(masking="similar", vectors=file), source, teacher, size, "distill.2")
    assert (great,) in named.of((good,))
    own = _make_similar_words(stage(masking="similar"), source, teacher, size, "distill.2")
    assert own.of((good,))
    assert own.key() != named.key()
    with pytest.raises(InputError, match=r"distill\.2\.vectors"):
        _make_similar_words(stage(masking="similar", vectors=tmp_path / "none.txt"), source, teacher, size, "distill.2")
