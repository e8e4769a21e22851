"""The search for the best quantized files inside a budget."""

from pocketbert.pipeline.direct.search.choosing import (
    Considered,
    Finding,
    best_student,
    cannot_win,
    chosen_files,
    one_choice,
    recipe_lines,
    refuse_all,
)
from pocketbert.pipeline.direct.search.searching import (
    Material,
    check_inside,
    exported_error,
    material_of,
    search,
    told_of,
)

__all__ = [
    "Considered",
    "Finding",
    "Material",
    "best_student",
    "cannot_win",
    "check_inside",
    "chosen_files",
    "exported_error",
    "material_of",
    "one_choice",
    "recipe_lines",
    "refuse_all",
    "search",
    "told_of",
]
