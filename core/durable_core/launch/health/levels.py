"""L5. What a reading means: told to people first, a reason to leave the node later. Pure.

Two levels with hysteresis: it takes several looks in a row to come to a level and several to leave it, and
the value that ends it is better than the one that began it. What is only told becomes a reason to leave
once the work is affected (DETECT-03): counters that rise harm nobody yet.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from durable_core.errors import UsageError


class Kind(str, enum.Enum):
    """What is read, and its unit."""

    XID = "xid"  # code of an event that a GPU driver logged
    ECC_CORRECTABLE = "ecc_correctable"  # errors since the driver was loaded
    ECC_UNCORRECTABLE = "ecc_uncorrectable"  # errors since the driver was loaded
    LINK_SPEED = "link_speed"  # fraction of the nominal speed
    LINK_ERRORS = "link_errors"  # retransmissions and errors since the link came up
    TEMPERATURE = "temperature"  # degrees Celsius below the limit at which the device slows down
    THROTTLED = "throttled"  # 1 while the device slows itself down
    DISK_FREE = "disk_free"  # fraction of the file system
    CLOCK_SKEW = "clock_skew"  # seconds, whichever way
    BEATS_MISSED = "beats_missed"  # of the node's agent, in a row


class Level(enum.IntEnum):
    GOOD = 0
    NOTIFY = 1
    EVICT = 2  # at the next boundary, as a planned stop


@dataclass(frozen=True)
class Reading:
    """``subject``: which device, link or path."""

    kind: Kind
    value: float
    subject: str = ""


@dataclass(frozen=True)
class Rule:
    """``notify``, ``evict``: values from which on it is so (``None``: never); ``clear``: the value from
    which on it is no more. Larger is worse, unless ``falling``. ``per_hour``: the reading is a counter, and
    its increase in an hour is what counts. ``looks``: in a row, to come to a level and to leave it; 1 for
    what is certain at once."""

    notify: float | None
    evict: float | None
    clear: float
    falling: bool = False
    per_hour: bool = False
    looks: int = 3

    def __post_init__(self) -> None:
        order = [value for value in (self.clear, self.notify, self.evict) if value is not None]
        if order != sorted(order, reverse=self.falling) or self.looks < 1:
            raise UsageError(
                f"health rule {self}", hint="clear, notify and evict from good to bad; looks at least 1"
            )

    def level(self, value: float) -> Level:
        if self.evict is not None and self._reaches(value, self.evict):
            return Level.EVICT
        return Level.NOTIFY if self.notify is not None and self._reaches(value, self.notify) else Level.GOOD

    def cleared(self, value: float) -> bool:
        return value >= self.clear if self.falling else value <= self.clear

    def _reaches(self, value: float, threshold: float) -> bool:
        return value <= threshold if self.falling else value >= threshold


#: Severity of Xid codes (NVIDIA, "Xid Errors"): 2: the device or its link is at fault, 1: memory was
#: repaired or the device may be failing, 0: an application's own fault. What is not here is told.
XID: Mapping[int, int] = {
    13: 0, 31: 0, 43: 0, 45: 0,
    61: 1, 62: 1, 63: 1, 92: 1, 94: 1,
    48: 2, 64: 2, 74: 2, 79: 2, 95: 2, 119: 2, 120: 2,
}  # fmt: skip

RULES: Mapping[Kind, Rule] = {
    Kind.XID: Rule(notify=1, evict=2, clear=0, looks=1),
    Kind.ECC_CORRECTABLE: Rule(notify=10, evict=1000, clear=1, per_hour=True),
    Kind.ECC_UNCORRECTABLE: Rule(notify=None, evict=1e-9, clear=0, per_hour=True, looks=1),
    Kind.LINK_SPEED: Rule(notify=0.9, evict=0.5, clear=0.97, falling=True),
    Kind.LINK_ERRORS: Rule(notify=100, evict=None, clear=10, per_hour=True),
    Kind.TEMPERATURE: Rule(notify=5, evict=None, clear=10, falling=True),
    Kind.THROTTLED: Rule(notify=1, evict=None, clear=0),
    Kind.DISK_FREE: Rule(notify=0.1, evict=0.01, clear=0.15, falling=True, looks=2),
    Kind.CLOCK_SKEW: Rule(notify=1.0, evict=None, clear=0.5, looks=2),
    Kind.BEATS_MISSED: Rule(notify=3, evict=None, clear=0, looks=1),
}


@dataclass(frozen=True)
class Finding:
    """``value``: what was judged (of a counter: its increase per hour); ``since``: when it came to this
    level."""

    kind: Kind
    subject: str
    level: Level
    value: float
    since: float
    reason: str


@dataclass(frozen=True)
class _Seen:
    """One subject: ``streak`` looks in a row that speak for ``other`` or more instead of ``level``."""

    level: Level = Level.GOOD
    other: Level = Level.GOOD
    streak: int = 0
    since: float = 0.0
    value: float = 0.0
    raw: float | None = None
    time: float = 0.0


@dataclass(frozen=True)
class Watch:
    """A node over time. Immutable: ``seen`` returns the next one."""

    rules: Mapping[Kind, Rule] = field(default_factory=lambda: RULES)
    _seen: Mapping[tuple[Kind, str], _Seen] = field(default_factory=dict)

    def seen(self, readings: Iterable[Reading], now: float) -> Watch:
        """With one look more; ``now``: monotonic seconds. What was not read is left as it was: silence is
        not health."""
        known = dict(self._seen)
        worst: dict[tuple[Kind, str], Reading] = {}
        for reading in readings:
            key = (reading.kind, reading.subject)
            if key not in worst or _badness(reading) > _badness(worst[key]):
                worst[key] = reading
        for key, reading in worst.items():
            rule = self.rules.get(reading.kind)
            if rule is not None:
                known[key] = _next(known.get(key), rule, reading, now)
        return Watch(self.rules, known)

    def findings(self, *, affected: bool = False) -> tuple[Finding, ...]:
        """What is not good, worst first. ``affected``: communication or steps suffer, so that what would
        only be told is a reason to leave."""
        found = []
        for (kind, subject), seen in self._seen.items():
            if seen.level is Level.GOOD:
                continue
            level = Level.EVICT if affected else seen.level
            reason = f"{kind.value}{f' of {subject}' if subject else ''} is {seen.value:g}"
            if level is not seen.level:
                reason += ", and the work is affected"
            found.append(Finding(kind, subject, level, seen.value, seen.since, reason))
        return tuple(sorted(found, key=lambda one: (-one.level, one.since, one.kind.value, one.subject)))


def _badness(reading: Reading) -> float:
    return _value(reading) if not RULES[reading.kind].falling else -reading.value


def _value(reading: Reading) -> float:
    return float(XID.get(int(reading.value), 1)) if reading.kind is Kind.XID else reading.value


def _next(before: _Seen | None, rule: Rule, reading: Reading, now: float) -> _Seen:
    value = _value(reading)
    if rule.per_hour:
        increase = _per_hour(before, value, now)
        if increase is None:
            return _Seen(raw=value, time=now, since=now)
        value, raw = increase, value
    else:
        raw = value
    before = before or _Seen(since=now)
    wanted = rule.level(value)
    if wanted < before.level and not rule.cleared(value):
        wanted = before.level  # better, but not well
    if wanted is before.level:
        return _Seen(before.level, wanted, 0, before.since, value, raw, now)
    streak, target = 1, wanted
    if before.streak and (before.other > before.level) == (wanted > before.level):
        # the same way as the looks before: as far as all of them go
        streak = before.streak + 1
        target = min(before.other, wanted) if wanted > before.level else max(before.other, wanted)
    if streak >= rule.looks:
        return _Seen(target, target, 0, now, value, raw, now)
    return _Seen(before.level, target, streak, before.since, value, raw, now)


def _per_hour(before: _Seen | None, count: float, now: float) -> float | None:
    """``None``: nothing to compare with. A counter that fell was set back: it counts from nothing."""
    if before is None or before.raw is None or now <= before.time:
        return None
    since = count - before.raw if count >= before.raw else count
    return since * 3600.0 / (now - before.time)
