"""The search for the best quantized files inside a budget."""

from pocketbert.pipeline.direct.search.finding import Finding
from pocketbert.pipeline.direct.search.ledger import Ledger
from pocketbert.pipeline.direct.search.material import Material, material_of
from pocketbert.pipeline.direct.search.searching import search
from pocketbert.pipeline.direct.search.wording import chosen_files, outside_lines, recipe_lines

__all__ = ["Finding", "Ledger", "Material", "chosen_files", "material_of", "outside_lines", "recipe_lines", "search"]
