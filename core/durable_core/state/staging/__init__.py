"""L3. Staging: a sealed copy of the training state in memory that was paid for beforehand.

The training thread pays one memory copy per save at most, and next to nothing when the tensors that only the
next update changes are copied while it computes: the destination is mapped, page-faulted and cut into
typed views by ``prepare``, off the hot path, and is used again for every later save. A slot holds tensors
back to back in the order safetensors uses (widest element first, then by key), so there is no padding,
every tensor is aligned to its element, and neighbouring slices can be written with one call. With a
``SlotMemory`` the slots are files in shared memory and outlive the process: the staging buffer *is* the
memory tier.
"""

from durable_core.state.snapshots import SlotMemory
from durable_core.state.staging.pool import Reached, Slot, SlotPool
from durable_core.state.staging.staged import Staged

__all__ = ["Reached", "Slot", "SlotMemory", "SlotPool", "Staged"]
