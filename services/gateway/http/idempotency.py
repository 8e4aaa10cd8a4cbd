"""The header by which a client says that a request repeats another: `Idempotency-Key`."""

from hashlib import blake2b

from starlette.datastructures import Headers

from shared.fields.readers import invalid
from shared.state.records import ClientKey

HEADER = "idempotency-key"
MAX_CHARACTERS = 255
DIGEST_BYTES = 16


def idempotency_key(headers: Headers) -> str:
    """What the client named; nothing without the header. RequestError 400 if it is empty, too long,
    said twice, or not of visible ASCII."""
    given = headers.getlist(HEADER)
    if not given:
        return ""
    key = given[0]
    visible = all("!" <= character <= "~" for character in key)
    if len(given) > 1 or not 0 < len(key) <= MAX_CHARACTERS or not visible:
        raise invalid(HEADER, f"1 to {MAX_CHARACTERS} visible ASCII characters, sent once")
    return key


def client_key(key: str, tenant: str, path: str, body: bytes) -> ClientKey:
    """What records have of it: no word of the client's."""
    return ClientKey(_hash(tenant.encode(), key.encode()), _hash(path.encode(), body))


def _hash(first: bytes, second: bytes) -> str:
    """Of both, told apart."""
    digest = blake2b(len(first).to_bytes(8, "big"), digest_size=DIGEST_BYTES)
    digest.update(first)
    digest.update(second)
    return digest.hexdigest()
