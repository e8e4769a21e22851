"""SqueezeBERT: groups in files, outliers divided before the split, sizes that do not fit; graphs and captures are in `test_table`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pocketbert.core.compare.sample_texts import SENTENCES
from pocketbert.core.errors import InputError
from pocketbert.core.families import check_prunable, find_family
from pocketbert.core.predict.tokenization import TextTokenizer
from pocketbert.core.recipe.student import StudentSection
from pocketbert.core.tasks import TASKS, TaskName
from pocketbert.core.types import Format, Layout
from pocketbert.distill.students.build import build_student
from pocketbert.export.prepare import list_divided_outliers, prepare
from support.drawn import difference, draw_inputs
from support.tiny import NAMES, noisy_model, tiny_classifier, write_own_tokenizer

ROW, TASK = find_family("squeezebert"), TASKS[TaskName.TEXT_CLASSIFICATION]
FORMS = [(f, Layout.PLAIN) for f in Format] + [(Format.COREML, Layout.ANE)]


@pytest.mark.parametrize(("format", "layout"), FORMS)
def test_a_file_has_the_numbers_of_the_groups_and_no_zeros_between_them(format: Format, layout: Layout) -> None:
    model = noisy_model("squeezebert", 2, TASK.auto_class)
    made = prepare(model, ROW, TASK, format, layout)
    assert sum(p.numel() for p in made.parameters()) <= sum(p.numel() for p in model.parameters())
    dense = noisy_model("squeezebert", 2, TASK.auto_class, **dict.fromkeys(list(ROW.largest)[1:], 1))
    whole = prepare(dense, ROW, TASK, format, layout)
    assert sum(p.numel() for p in whole.parameters()) > 1.5 * sum(p.numel() for p in made.parameters())
    for one, prepared in ((model, made), (dense, whole)):
        assert difference(one, prepared, draw_inputs("squeezebert", 11, (0, 3)), TASK.outputs) < 1e-5


@torch.no_grad()
@pytest.mark.parametrize(("format", "layout"), FORMS)
def test_outlier_channels_are_divided_and_the_answers_stay(format: Format, layout: Layout, tmp_path: Path) -> None:
    write_own_tokenizer(tmp_path, "squeezebert")
    model = noisy_model("squeezebert", 2, TASK.auto_class)
    model.base_model.encoder.layers[0].post_attention.layernorm.weight[5] *= 400
    tokenizer = TextTokenizer(tmp_path, 32)
    rows = [{n: v[:, :20] for n, v in tokenizer.pad(tokenizer.encode(list(SENTENCES[:4]))).items() if n in ROW.inputs}]
    rows = [{n: v % 90 for n, v in row.items()} for row in rows]
    made = prepare(model, ROW, TASK, format, layout, sentences=rows)
    assert [o.channels for o in list_divided_outliers(made)] == [1]
    assert difference(model, made, draw_inputs("squeezebert", 11, (0, 3)), TASK.outputs) < 1e-5


def test_a_student_may_be_narrower_and_not_pruned() -> None:
    teacher = tiny_classifier("squeezebert", 3, NAMES)
    student = build_student(teacher, ROW, StudentSection(layers=1, init="random", hidden=16, heads=2), 1)
    assert (student.config.hidden_size, student.config.embedding_size) == (16, 16)
    with pytest.raises(
        InputError, match="neurons of SqueezeBERT cannot be pruned: feed-forward neurons belong to groups"
    ):
        check_prunable(ROW, teacher.config.to_dict(), 32)
