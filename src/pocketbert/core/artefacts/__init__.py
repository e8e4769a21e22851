"""``artifacts.json``, the list of an artefact folder: its records, reading and writing, and what must agree with it.

The records are pydantic's; they are imported when they are first used, since a model that answers needs the listing only.
"""

from typing import TYPE_CHECKING

from pocketbert.core.plugins import make_facade_getattr

if TYPE_CHECKING:
    from pocketbert.core.artefacts.folder import (
        CARD_FILE,
        check_label_names,
        list_changed_files,
        list_edited_documents,
        list_foreign_files,
        list_integrity_problems,
        read_artefacts,
        read_checked_config,
        write_artefacts,
    )
    from pocketbert.core.artefacts.listing import (
        ARTEFACTS_FILE,
        FolderListing,
        ListedFile,
        ListedModel,
        find_artefact_folder,
        find_unsafe_entry,
    )
    from pocketbert.core.artefacts.records import (
        SCHEMA_VERSION,
        Artefacts,
        FileRecord,
        Kind,
        ModelFilePurpose,
        ModelRecord,
        OldestEngine,
        PassedEngine,
        Processing,
        Requirements,
        Signature,
        Tensor,
    )
    from pocketbert.core.artefacts.search import (
        SEARCH_FILE,
        BudgetSearch,
        Candidate,
        ConsideredStudent,
        RoleError,
        RoleRow,
        Sensitivities,
        Sensitivity,
        summarize_roles,
    )

__all__ = [
    "ARTEFACTS_FILE",
    "CARD_FILE",
    "SCHEMA_VERSION",
    "SEARCH_FILE",
    "Artefacts",
    "BudgetSearch",
    "Candidate",
    "ConsideredStudent",
    "FileRecord",
    "FolderListing",
    "Kind",
    "ListedFile",
    "ListedModel",
    "ModelFilePurpose",
    "ModelRecord",
    "OldestEngine",
    "PassedEngine",
    "Processing",
    "Requirements",
    "RoleError",
    "RoleRow",
    "Sensitivities",
    "Sensitivity",
    "Signature",
    "Tensor",
    "check_label_names",
    "find_artefact_folder",
    "find_unsafe_entry",
    "list_changed_files",
    "list_edited_documents",
    "list_foreign_files",
    "list_integrity_problems",
    "read_artefacts",
    "read_checked_config",
    "summarize_roles",
    "write_artefacts",
]

_PLACES = {
    "core.artefacts.folder": (
        "CARD_FILE",
        "check_label_names",
        "list_changed_files",
        "list_edited_documents",
        "list_foreign_files",
        "list_integrity_problems",
        "read_artefacts",
        "read_checked_config",
        "write_artefacts",
    ),
    "core.artefacts.listing": (
        "ARTEFACTS_FILE",
        "FolderListing",
        "ListedFile",
        "ListedModel",
        "find_artefact_folder",
        "find_unsafe_entry",
    ),
    "core.artefacts.records": (
        "SCHEMA_VERSION",
        "Artefacts",
        "FileRecord",
        "Kind",
        "ModelFilePurpose",
        "ModelRecord",
        "OldestEngine",
        "PassedEngine",
        "Processing",
        "Requirements",
        "Signature",
        "Tensor",
    ),
    "core.artefacts.search": (
        "SEARCH_FILE",
        "BudgetSearch",
        "Candidate",
        "ConsideredStudent",
        "RoleError",
        "RoleRow",
        "Sensitivities",
        "Sensitivity",
        "summarize_roles",
    ),
}
"""Names by the module that defines them."""

__getattr__ = make_facade_getattr(__name__, _PLACES)
