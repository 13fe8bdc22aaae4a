"""L3. Keys for everything pseudo-random in the data plane, from fields that can never alias.

Every key is a BLAKE2b digest of *length-prefixed, typed* fields, so (seed=1, epoch=0) and
(seed=0, epoch=1) share nothing, nor do ("ab", "c") and ("a", "bc").
"""

from __future__ import annotations

import hashlib


def hash_fields(*fields: str | int, size: int = 32) -> bytes:
    """Digest of ``fields`` in order; ``size`` is the number of bytes wanted (1 to 64).

    Each field is written as a type letter, its length as 8 little-endian bytes, and its UTF-8 text
    (integers in decimal). This encoding is part of every versioned name that uses it: never change it.
    """
    digest = hashlib.blake2b(digest_size=size)
    for field in fields:
        text = str(field).encode()
        digest.update((b"i" if isinstance(field, int) else b"s") + len(text).to_bytes(8, "little") + text)
    return digest.digest()
