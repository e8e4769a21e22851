"""The student of a recipe: its size, and where its weights start."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, PositiveInt, model_validator

from pocketbert.core.recipe.section import Section, StudentFamily
from pocketbert.core.recipe.vocabulary import VocabularySection
from pocketbert.core.types import MobileBertSize


class StudentSection(Section):
    """The small model; whatever is not given is the teacher's own."""

    layers: PositiveInt | None = Field(None, description="Encoder layers; needed without model or size.")
    model: str | None = Field(
        None,
        min_length=1,
        description="Folder or Hub name of a student to go on with, e.g. one that learnt general text; it has its own sizes.",
    )
    revision: str | None = Field(None, description="Hub revision of model.")
    size: MobileBertSize | None = Field(
        None,
        description="A MobileBERT with as many layers as the teacher, and the heads and the width between blocks of one with bottlenecks: "
        "mobilebert, tiny or mini.",
    )
    init: Literal["teacher-layers", "pruned", "random"] = Field(
        "teacher-layers",
        description="Where its weights start: in teacher layers; in layers of the teacher, or of model, that keep only their most "
        "important feed-forward neurons (intermediate of them); or at random.",
    )
    teacher_layers: list[PositiveInt] | None = Field(
        None, description="Teacher layers (from 1) to start from; default round(m*N/M)."
    )
    hidden: PositiveInt | None = Field(None, description="Width; needs init: random.")
    heads: PositiveInt | None = Field(None, description="Attention heads; needs init: random.")
    intermediate: PositiveInt | None = Field(None, description="Feed-forward width; needs init: random or pruned.")
    family: StudentFamily | None = Field(
        None,
        description="Family of the student where it is not the teacher's, such as distilbert, which has no segment ids and no "
        "pooler; the table of families says which teachers it can have.",
    )
    fold_segments: bool = Field(
        False,
        description="With family: add the vector of segment 0 to the position table, so that embeddings equal the teacher's.",
    )
    vocabulary: VocabularySection | None = Field(
        None, description="Keep only some pieces of the vocabulary; {} for those of the training rows. Default all."
    )

    @model_validator(mode="after")
    def _consistent(self) -> StudentSection:
        problems = self._pruning_problems() if self.init == "pruned" else []
        if problems:
            raise ValueError("; ".join(problems))
        sizes = ["layers", "teacher_layers", "hidden", "heads", "intermediate", "family"]
        if self.init == "pruned" and self.model is not None:
            sizes = ["family"]
        if self.model is None and self.size is None and self.layers is None:
            raise ValueError("give layers: N, or model: FOLDER to go on with a student, or size: mobilebert")
        given = [k for k in sizes if getattr(self, k) is not None]
        if self.model is not None and self.size is not None:
            given.append("size")
        if self.model is not None and given:
            raise ValueError(f"{', '.join(given)}: the student in model has its own; leave them out")
        if self.size is not None and given:
            raise ValueError(f"{', '.join(given)}: a student of size {self.size} has the teacher's; leave them out")
        if self.model is None and self.revision is not None:
            raise ValueError("revision is that of model, which is not given")
        if self.init == "teacher-layers" and (self.hidden or self.heads or self.intermediate):
            raise ValueError(
                "a student of another width or head count cannot start from teacher layers; set init: random"
            )
        if self.teacher_layers is not None and self.layers is not None and len(self.teacher_layers) != self.layers:
            raise ValueError(f"teacher_layers lists {len(self.teacher_layers)} layers, the student has {self.layers}")
        if self.teacher_layers is not None and self.init == "random":
            raise ValueError("teacher_layers has no meaning with init: random")
        if self.fold_segments and (self.family is None or self.init == "random"):
            raise ValueError("fold_segments is for a student of another family that starts from teacher layers")
        return self

    def _pruning_problems(self) -> list[str]:
        """What does not go together with ``init: pruned``."""
        problems = []
        if self.intermediate is None:
            problems.append("init: pruned needs intermediate: N, the feed-forward neurons that stay in each layer")
        if self.hidden is not None:
            problems.append("hidden: pruning keeps the width of the layers; leave it out, or set init: random")
        if self.heads is not None:
            problems.append(
                "heads: attention heads cannot be pruned, because transformers computes the size of a head as the width divided "
                "by the number of heads: fewer heads would be larger ones; leave it out"
            )
        if self.size is not None:
            problems.append(f"size: a student of size {self.size} is built, not pruned; leave size or init out")
        return problems
