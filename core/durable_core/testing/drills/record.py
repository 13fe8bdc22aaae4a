"""L6. The last result of each drill, noted beside a run: how old it is, is a line of the operator's
checklist."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from durable_core.engine.inspect import open_run
from durable_core.errors import ObjectNotFoundError
from durable_core.format import canonical
from durable_core.testing.drills.play import Played

#: A hint: last writer wins, and nothing depends on it.
KEY = "hints/drills.json"


def note(root: str, played: Iterable[Played], *, seed: int, now: float) -> None:
    """Add these results to those noted at ``root``; the newest of each scenario counts."""
    tier = open_run(root).tier
    known = dict(noted(root))
    for each in played:
        if each.defended and not each.skipped:
            known[each.scenario] = {**each.to_json(), "seed": seed, "time": now}
    tier.put(KEY, canonical.dumps(known))


def noted(root: str) -> Mapping[str, Mapping[str, Any]]:
    """Scenario -> its last result, with ``time`` (seconds since the epoch)."""
    try:
        found = canonical.loads(open_run(root).tier.get(KEY), key=KEY)
    except ObjectNotFoundError:
        return {}
    return found if isinstance(found, dict) else {}
