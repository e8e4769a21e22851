"""The search for the best quantized files inside a budget."""

from pocketbert.pipeline.direct.search.finding import Finding
from pocketbert.pipeline.direct.search.material import Material, material_of
from pocketbert.pipeline.direct.search.searching import exported_error, search
from pocketbert.pipeline.direct.search.students import Considered, best_student, cannot_win, one_choice, refuse_all
from pocketbert.pipeline.direct.search.telling import check_inside, told_of
from pocketbert.pipeline.direct.search.wording import chosen_files, recipe_lines

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
