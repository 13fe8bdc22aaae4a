from __future__ import annotations

import json

from durable_core import events
from durable_core.types import Promise


def test_facts_are_plain_json() -> None:
    facts = [
        events.PromiseLowered(1.0, Promise.BITWISE, Promise.COVERAGE, "torch changed"),
        events.KnownGoodMarked(1.0, 2, 10, ("finite", "spike")),
        events.SaveFailed(1.0, 5, "TierFull: no space", 3),
    ]
    written = [json.loads(json.dumps(fact.to_json())) for fact in facts]
    assert written[0] == {
        "event": "PromiseLowered",
        "time": 1.0,
        "was": "bitwise",
        "now": "coverage",
        "reason": "torch changed",
    }
    assert written[1]["detectors"] == ["finite", "spike"]
    assert [fact["event"] for fact in written] == ["PromiseLowered", "KnownGoodMarked", "SaveFailed"]
