"""The priority of a request: what its client asks for, and what its key lets it ask for.

A priority is a number from 0 to 7; a lower one goes first, always. Most need no number: the header
`x-baton-class` says `interactive`, which is what nothing says too, or `bulk`.
"""

from starlette.datastructures import Headers

from services.gateway.http.api_keys import Tenant
from shared.errors import RequestError
from shared.fields.readers import invalid
from shared.protocol import DEFAULT_PRIORITY

HEADER = "x-baton-class"
CLASSES = {"interactive": DEFAULT_PRIORITY, "bulk": 6}


def priority_of(headers: Headers, field: int | None, tenant: Tenant) -> int:
    """`field`: the body's `priority`. A class goes as early as the key lets it. RequestError 400 if
    both say it, or if the class is none; 403 if the key does not let a number go so early."""
    named = headers.get(HEADER)
    if named is not None and field is not None:
        raise invalid(HEADER, "left out where the body has `priority`")
    if named is not None and named not in CLASSES:
        raise invalid(HEADER, f"{' or '.join(CLASSES)}, as a header")
    if field is None:
        priority = DEFAULT_PRIORITY if named is None else CLASSES[named]
        return max(priority, tenant.highest_priority)
    if field < tenant.highest_priority:
        raise RequestError(
            f"priority {field}: this key may ask for {tenant.highest_priority} and later",
            status=403,
            code="priority_not_allowed",
            param="priority",
        )
    return field
