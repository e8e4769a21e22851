"""Which role a file of a scheme computes in which way, and what cannot be chosen: the policy, read from the table of schemes."""

from __future__ import annotations

from pocketbert.core.types import Role, Scheme
from pocketbert.quantize.table import SchemeRow


def reason_against(row: SchemeRow, role: Role, scheme: Scheme | None) -> str | None:
    """Say why a role cannot have a scheme in the files of a row.

    Args:
        row: Format, scheme and runtime of the file.
        role: What the operators do.
        scheme: The scheme that they should have; None to leave them as they were exported.

    Returns:
        A clause without a full stop; None where the role can have the scheme.
    """
    computed = role in row.computes
    if scheme is None:
        return None if not computed or row.selective else f"{role}: the quantizer of {row.title} leaves no role out"
    if not computed:
        return f"{role} stays float in every file of {row.title}"
    second = row.seconds.get(scheme)
    if scheme is row.scheme or (second is not None and role in second.roles):
        return None
    if second is not None:
        return f"{role}: a file of {row.title} has {scheme} for {', '.join(r for r in Role if r in second.roles)} only"
    if row.seconds:
        return f"{role}: a file of {row.title} has {' or '.join(row.seconds)} as a second scheme, not {scheme}"
    floats = ", only weights that are left float" if row.selective else ""
    return f"{role}: a file of {row.title} has no second scheme{floats}"
