"""L3. Seals: how a reader tells the bytes that a writer put from any others, whoever kept them.

The writer makes, with a key only holders of the secret have, one seal over an object's key and size,
and one tag per block over that seal, the block's index and its digest. The agent stores them behind
the bytes and cannot tell what they mean. Zeros, bytes of another object, of another version, moved,
cut or added bytes then do not match. (What cannot be told here is an older whole object under the
same key; keys of objects are used once, and the manifest has the digest of what belongs there.)

A stored object is one file: the blocks, their tags, the seal, and an end of fixed size. The digest is
xxh3-128 with a secret seed: fast, sure to find accidents, and no target for one who lacks the seed.
"""

from __future__ import annotations

import hmac
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xxhash

from durable_core.errors import DigestMismatchError, FormatError
from durable_core.format.fields import Fields
from durable_core.tier.base import Buffer
from durable_core.tier.peer.secret import Secret

#: Bytes of a block, which is what one frame carries; only an object's last block is shorter.
BLOCK = 1 << 20
TAG_BYTES = 16
NONCE_BYTES = 32
#: The tags of one object fit one frame, which bounds its size (64 GiB).
MAX_BLOCKS = BLOCK // TAG_BYTES

_END = struct.Struct("!Q32s32s8s")
_HEX = re.compile(r"[0-9a-f]{64}")
_MAGIC = b"dpeer\0\0\1"
END_BYTES = _END.size


def blocks_of(size: int) -> int:
    """How many blocks an object of ``size`` bytes has."""
    return -(-size // BLOCK)


def block_bytes(size: int, index: int) -> int:
    """Bytes of block ``index`` of an object of ``size`` bytes."""
    return min(BLOCK, size - index * BLOCK)


def span(size: int, begin: int, nbytes: int) -> range:
    """The blocks that hold ``nbytes`` from ``begin`` of an object; none when it does not have all of them."""
    if nbytes == 0 or begin + nbytes > size:
        return range(0)
    return range(begin // BLOCK, blocks_of(begin + nbytes))


def stored_bytes(size: int) -> int:
    """Bytes of the file that holds an object of ``size`` bytes."""
    return size + TAG_BYTES * blocks_of(size) + END_BYTES


@dataclass(frozen=True)
class Seal:
    """``nonce`` is fresh for every write, so that blocks of two writes of a key cannot be mixed."""

    size: int
    nonce: bytes
    seal: bytes

    def header(self) -> dict[str, Any]:
        """As fields of a frame."""
        return {"size": self.size, "nonce": self.nonce.hex(), "seal": self.seal.hex()}

    @staticmethod
    def of(fields: Fields) -> Seal:
        """From fields of a frame; ``FormatError`` when they are not what ``header`` makes."""
        nonce, seal = (bytes.fromhex(fields.matching(name, _HEX)) for name in ("nonce", "seal"))
        return Seal(fields.count("size"), nonce, seal)

    def end(self) -> bytes:
        """The last bytes of the object's file."""
        return _END.pack(self.size, self.nonce, self.seal, _MAGIC)

    @staticmethod
    def parse(key: str, end: bytes, stored: int) -> Seal:
        """From the end of a file of ``stored`` bytes; ``FormatError`` when that is not what it says."""
        if len(end) != END_BYTES:
            raise FormatError(key, f"{stored} bytes, too short for an object of a peer")
        size, nonce, seal, magic = _END.unpack(end)
        if magic != _MAGIC or stored_bytes(size) != stored:
            raise FormatError(key, "does not end as an object of a peer does")
        return Seal(size, nonce, seal)


class Sealer:
    """Makes and checks the seals of one run."""

    def __init__(self, secret: Secret, run_id: str) -> None:
        self._key = secret.derive("seal", run_id.encode())
        self._seed = digest_seed(secret)

    def digest(self, block: Buffer) -> bytes:
        return digest(block, self._seed)

    def seal(self, key: str, size: int, nonce: bytes) -> Seal:
        message = b"\0".join([b"object", key.encode(), size.to_bytes(8, "big") + nonce])
        return Seal(size, nonce, hmac.digest(self._key, message, "sha256"))

    def check(self, key: str, seal: Seal) -> None:
        """``DigestMismatchError`` unless ``seal`` was made for this key and size."""
        if not hmac.compare_digest(self.seal(key, seal.size, seal.nonce).seal, seal.seal):
            raise DigestMismatchError(key, f"a peer's {seal.size} bytes are not those that were put there")

    def tag(self, seal: Seal, index: int, block_digest: bytes) -> bytes:
        message = b"block" + seal.seal + index.to_bytes(8, "big") + block_digest
        return hmac.digest(self._key, message, "sha256")[:TAG_BYTES]

    def tags(self, seal: Seal, block_digests: Sequence[bytes]) -> bytes:
        return b"".join(self.tag(seal, index, each) for index, each in enumerate(block_digests))


def digest_seed(secret: Secret) -> int:
    return int.from_bytes(secret.derive("digest")[:8], "big")


def digest(data: Buffer, seed: int) -> bytes:
    """xxh3-128 under a secret seed: 16 bytes."""
    return xxhash.xxh3_128_digest(data, seed)
