"""The seeds of a prompt's choices, made from one."""

import hashlib

SEED_BYTES = 8


def choice_seed(seed: int, choice: int) -> int:
    """The seed of a prompt's choice, 63 bits: the first keeps the request's own, so that it is
    the answer that n=1 gives; the others' is a BLAKE2b digest of seed and number."""
    if not choice:
        return seed
    content = seed.to_bytes(SEED_BYTES, "big") + choice.to_bytes(SEED_BYTES, "big")
    digest = hashlib.blake2b(content, digest_size=SEED_BYTES, person=b"baton.choice").digest()
    return int.from_bytes(digest, "big") >> 1
