"""The search for the best quantized files inside a budget."""

from pocketbert.pipeline.direct.search.finding import Finding
from pocketbert.pipeline.direct.search.material import Material, material_of
from pocketbert.pipeline.direct.search.searching import search
from pocketbert.pipeline.direct.search.telling import check_inside, told_of
from pocketbert.pipeline.direct.search.wording import chosen_files, recipe_lines

__all__ = ["Finding", "Material", "check_inside", "chosen_files", "material_of", "recipe_lines", "search", "told_of"]
