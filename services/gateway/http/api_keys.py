"""The keys of clients, and the tenant that each names.

    [[keys]]
    tenant = "team-a"
    sha256 = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"
    max_live_requests = 16     # this and what follows may be left out
    highest_priority = 1       # its requests may ask to go before others
    weight = 2                 # its share of a full cell, next to tenants that have 1

The file has digests, so that reading it tells no key. A key is looked up by its digest: how long
that takes tells nothing, since nobody can choose what a digest begins with.
"""

import hashlib
import re
import tomllib
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request

from shared.errors import RequestError, SettingsError
from shared.protocol import DEFAULT_PRIORITY
from shared.queue.backlog import MAX_PRIORITY

DEFAULT_TENANT = "default"
"""of everybody where there are no keys"""
MAX_TENANT_CHARS = 64
_TENANT = "baton.tenant"
MAX_WEIGHT = 1000
_RANGES = {
    "max_live_requests": (1, 2**31 - 1),
    "highest_priority": (0, MAX_PRIORITY),
    "weight": (1, MAX_WEIGHT),
}
"""what an entry may have besides"""
_DIGEST = re.compile("[0-9a-f]{64}")


class Tenant(NamedTuple):
    """Whose requests they are."""

    name: str
    max_live_requests: int = 0
    """at all gateways of the cell together; 0: as many as there is room for"""
    highest_priority: int = 0
    """that its requests may ask for; lower goes first"""
    weight: int = 1
    """of what it is served where tenants wait for each other"""


class ApiKeys:
    """The keys of one gateway. Without any, everybody may ask."""

    def __init__(self, tenants: Mapping[str, Tenant] | None = None) -> None:
        """`tenants`: by the SHA-256 of a key, in hexadecimal. None: there are no keys."""
        self._tenants = tenants

    @classmethod
    def read(cls, path: str) -> "ApiKeys":
        """Those of a file; an empty path: none. SettingsError says what is wrong with it."""
        if not path:
            return cls()
        try:
            content = tomllib.loads(Path(path).read_text())
        except (OSError, ValueError) as error:
            raise SettingsError(f"--api-keys-file {path}: {error}") from None
        entries = content.pop("keys", None)
        if content or not isinstance(entries, list) or not entries:
            raise SettingsError(f"--api-keys-file {path}: needs tables [[keys]] and nothing else")
        tenants: dict[str, Tenant] = {}
        by_name: dict[str, Tenant] = {}
        for number, entry in enumerate(entries, 1):
            place = f"--api-keys-file {path}: key {number}"
            digest, tenant = _entry(place, entry)
            if digest in tenants:
                raise SettingsError(f"{place}: the same key stands there twice")
            if by_name.setdefault(tenant.name, tenant) != tenant:
                raise SettingsError(f"{place}: another key of this tenant has other limits")
            tenants[digest] = tenant
        return cls(tenants)

    def admit(self, request: Request) -> None:
        """Notes whose request it is; RequestError 401 if it has no key, or not one of ours."""
        if self._tenants is None:
            return
        tenant = self._tenants.get(hashlib.sha256(_key_of(request)).hexdigest())
        if tenant is None:
            raise _refused("the API key is not known here")
        request.scope[_TENANT] = tenant


def tenant_of(scope: MutableMapping[str, Any]) -> Tenant:
    """Of an admitted request."""
    tenant: Tenant = scope.get(_TENANT, Tenant(DEFAULT_TENANT))
    return tenant


def asking_tenant(scope: MutableMapping[str, Any]) -> str | None:
    """Whose key the request has; None where none is asked for."""
    tenant: Tenant | None = scope.get(_TENANT)
    return tenant.name if tenant is not None else None


def may_see(scope: MutableMapping[str, Any], tenant: str) -> bool:
    """Whether what is a tenant's is shown: to the tenant alone, if the one who asks is known."""
    return asking_tenant(scope) in (None, tenant)


def _entry(place: str, entry: Any) -> tuple[str, Tenant]:
    if not isinstance(entry, dict) or entry.keys() - _RANGES.keys() != {"sha256", "tenant"}:
        named = ", ".join(f"`{name}`" for name in _RANGES)
        raise SettingsError(f"{place}: needs `sha256` and `tenant`; {named} and nothing else")
    digest, tenant = entry["sha256"], entry["tenant"]
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise SettingsError(f"{place}: `sha256` is 64 digits of lower-case hexadecimal")
    if not isinstance(tenant, str) or not 0 < len(tenant) <= MAX_TENANT_CHARS:
        raise SettingsError(f"{place}: `tenant` is a name of 1 to {MAX_TENANT_CHARS} characters")
    for name, (low, high) in _RANGES.items():
        value = entry.get(name, low)
        if type(value) is not int or not low <= value <= high:
            raise SettingsError(f"{place}: `{name}` is a whole number from {low} to {high}")
    return digest, Tenant(
        tenant,
        entry.get("max_live_requests", 0),
        entry.get("highest_priority", DEFAULT_PRIORITY),
        entry.get("weight", 1),
    )


def _key_of(request: Request) -> bytes:
    """The one key that the headers name, in either way that clients know."""
    keys: set[bytes] = set()
    num_authorizations = 0
    for name, value in request.scope["headers"]:
        if name == b"authorization":
            num_authorizations += 1
            scheme, _, key = value.partition(b" ")
            keys.add(key.strip() if scheme.lower() == b"bearer" else b"")
        elif name == b"x-api-key":
            keys.add(value.strip())
    if len(keys) != 1 or num_authorizations > 1 or not all(keys):
        raise _refused("send one API key, as `Authorization: Bearer KEY` or as `x-api-key: KEY`")
    return keys.pop()


def _refused(text: str) -> RequestError:
    return RequestError(text, status=401, code="invalid_api_key")
