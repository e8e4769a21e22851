"""``artifacts.json``, the list of an artefact folder: its records, reading and writing, and what must agree with it."""

from pocketbert.core.artefacts.contents import check_label_names, checked_config
from pocketbert.core.artefacts.folder import (
    CARD,
    artefact_folder,
    changed_files,
    edited_documents,
    integrity_problems,
    read_artefacts,
    strangers,
    unopened,
    write_artefacts,
)
from pocketbert.core.artefacts.records import (
    FILE_NAME,
    SCHEMA_VERSION,
    Artefacts,
    FileRecord,
    Kind,
    MadeFor,
    Minimum,
    ModelRecord,
    OldestEngine,
    Processing,
    SeenRight,
    Signature,
    Tensor,
)
from pocketbert.core.artefacts.role_table import RoleRow, in_one_line
from pocketbert.core.artefacts.search import SEARCH_FILE, BudgetSearch, Candidate, ConsideredStudent
from pocketbert.core.artefacts.sensitivity import RoleError, Sensitivities, Sensitivity

__all__ = [
    "CARD",
    "FILE_NAME",
    "SCHEMA_VERSION",
    "SEARCH_FILE",
    "Artefacts",
    "BudgetSearch",
    "Candidate",
    "ConsideredStudent",
    "FileRecord",
    "Kind",
    "MadeFor",
    "Minimum",
    "ModelRecord",
    "OldestEngine",
    "Processing",
    "RoleError",
    "RoleRow",
    "SeenRight",
    "Sensitivities",
    "Sensitivity",
    "Signature",
    "Tensor",
    "artefact_folder",
    "changed_files",
    "check_label_names",
    "checked_config",
    "edited_documents",
    "in_one_line",
    "integrity_problems",
    "read_artefacts",
    "strangers",
    "unopened",
    "write_artefacts",
]
