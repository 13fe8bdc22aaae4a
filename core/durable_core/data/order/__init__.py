"""L3. The order: a versioned pure function (dataset id, seed, epoch, position) -> sample id.

==================  ================================  ======================  ==========================
name                randomness                        locality                memory, state
==================  ================================  ======================  ==========================
``full_prp_v1``     keyed permutation of all records  none                    O(1), no state
``block_prp_v1``    keyed permutation of the objects  at most 2S objects in   O(objects), no state
                    and, within windows of S, of the  any run of positions
                    records                           within two windows
``buffered_v1``     keyed permutation of the objects  one object is read at   O(objects); the buffer's ids
                    and a bounded shuffle buffer      a time                  are its state (a Sequence)
``sequential_v1``   none                              full                    O(1), no state
==================  ================================  ======================  ==========================

Only the first is a permutation of all records in which any may stand anywhere. ``buffered_v1`` stands
in ``order.buffered``: it is a ``Sequence``, which builds on this package.
"""

from durable_core.data.order.arithmetic import SMALL, WINDOW
from durable_core.data.order.base import MAX_SIZE, Ids, Order, spanned_ids, wrapped_ids
from durable_core.data.order.blocks import BLOCK_PERMUTATION, BlockPermutation
from durable_core.data.order.make import make_order, order_from
from durable_core.data.order.permutation import FULL_PERMUTATION, SEQUENTIAL, FullPermutation, Sequential

__all__ = [
    "BLOCK_PERMUTATION",
    "FULL_PERMUTATION",
    "MAX_SIZE",
    "SEQUENTIAL",
    "SMALL",
    "WINDOW",
    "BlockPermutation",
    "FullPermutation",
    "Ids",
    "Order",
    "Sequential",
    "make_order",
    "order_from",
    "spanned_ids",
    "wrapped_ids",
]
