"""L3. Packing: documents of any length in rows of one length, with the residue as state."""

from durable_core.data.packing.packer import Packer
from durable_core.data.packing.policy import Packing
from durable_core.data.packing.rows import Piece, assemble, cu_seqlens, flatten, loss_tokens
from durable_core.data.packing.sequence import PackedSequence

__all__ = [
    "PackedSequence",
    "Packer",
    "Packing",
    "Piece",
    "assemble",
    "cu_seqlens",
    "flatten",
    "loss_tokens",
]
