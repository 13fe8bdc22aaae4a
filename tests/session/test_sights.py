"""What a snapshot says of itself does not depend on where it lies."""

from __future__ import annotations

from dataclasses import replace

from durable_core.format.seal import Seal
from durable_core.session.adopting import sight
from durable_core.types import SliceInfo, SliceKey


def info(key: str, digest: str) -> SliceInfo:
    return SliceInfo(SliceKey(key, (0,), (2,)), "F32", (2,), 8, digest * 32, "00000000")


SEALED = Seal(
    "a" * 32, 1, "launch", "dp0", ("dp0",), 5, 1, 4, (info("state/a", "1"), info("state/b", "2")), {}
)


def test_the_same_snapshot_in_another_order_is_the_same() -> None:
    turned = replace(SEALED, infos=SEALED.infos[::-1])
    assert sight(SEALED, "memory") == replace(sight(turned, "peer"), source="memory")


def test_another_snapshot_is_another() -> None:
    other = replace(SEALED, infos=(info("state/a", "1"), info("state/b", "3")))
    assert sight(SEALED, "memory").content != sight(other, "memory").content
