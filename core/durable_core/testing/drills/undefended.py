"""L6. Taking one defence away from a job, so that its drill can be seen to fail; and storage that turns slow.

In a job of a drill only: nothing else imports this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

from durable_core.clock import SystemClock
from durable_core.commit import claim, ending, fold, save, watch
from durable_core.commit import rules as r
from durable_core.errors import UsageError
from durable_core.format.record import Kind
from durable_core.session import opening
from durable_core.tier.base import Buffer
from durable_core.tier.posix import PosixTier

#: Seconds that each write to a storage takes that hangs.
HANGING_S = 1.0


def take_away(defences: Iterable[str]) -> None:
    for name in defences:
        _TAKEN[name]()


def _fencing() -> None:
    """Records of a generation that was replaced count as any other."""
    gone = {r.same_generation, r.same_launch, r.generation_active, r.launch_not_superseded}
    table: dict[Kind, fold.Row] = cast("dict[Kind, fold.Row]", fold.AUTHORITY)
    for kind, row in table.items():
        table[kind] = fold.Row(tuple(rule for rule in row.rules if rule not in gone), row.effect)
    for module in (claim, ending, save, watch, opening):
        vars(module)["token_error"] = lambda state, token: None


class _Believed(str):
    """Equal to every digest."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


def _verification() -> None:
    """A restore takes the bytes that it reads for what they are said to be."""
    from durable_core.engine import copies

    read = copies.read_extent
    copies.read_extent = lambda tier, extent, out: _Believed(read(tier, extent, out))


def _detectors() -> None:
    """Whatever losses, gradients or replicas show, nobody is told."""
    from durable_core.session.integrity import Watch

    Watch._tell = lambda self, finding: None  # type: ignore[method-assign]


_TAKEN: dict[str, Callable[[], None]] = {
    "fencing": _fencing,
    "verification": _verification,
    "detectors": _detectors,
}


def break_storage(how: str) -> None:
    """From here on every object takes ``HANGING_S`` to write."""
    if how != "slow":
        raise UsageError(f"storage cannot be made {how!r} from within the job", hint='"slow"')
    clock, put = SystemClock(), PosixTier.put_if_absent

    def slow(self: PosixTier, key: str, data: Buffer) -> bool:
        clock.sleep(HANGING_S)
        return put(self, key, data)

    PosixTier.put_if_absent = slow  # type: ignore[method-assign]
