"""L6. What every tier must do, as tests. A backend's author subclasses this and gives a tier::

    class TestMine(TierContract):
        @pytest.fixture
        def tier(self, tmp_path):
            return MyTier(tmp_path)

Each test gets a tier of its own, empty. A backend is done when all of it passes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from durable_core.errors import FormatError, ObjectNotFoundError, UsageError
from durable_core.tier.base import Buffer, Tier

BAD_KEYS = [
    "", "/", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/./b", ".", "a..b", "A", "a b", "a\x00b", "a\nb",
    "a\\b", "ä", "tmp", "tmp/a", "a/" * 300 + "a", "a" * 256, "%2e%2e/a", "a:b", "~", "-/../x",
]  # fmt: skip

KEY = "checkpoints/g000001-c00000001-0123abcd/shard-dp0.safetensors"


class TierContract:
    #: threads racing for one key, and how many keys they race for
    race_threads = 8
    race_rounds = 40

    @pytest.fixture
    def tier(self) -> Tier:
        raise NotImplementedError("a subclass gives a fresh, empty tier")

    # --- put_if_absent ---------------------------------------------------------------------

    def test_the_first_put_wins_and_stays(self, tier: Tier) -> None:
        assert tier.put_if_absent("journal/0", b"first") is True
        assert tier.put_if_absent("journal/0", b"second") is False
        assert tier.put_if_absent("journal/0", b"first") is False  # equal bytes are no excuse
        assert tier.get("journal/0") == b"first"

    def test_an_empty_object_is_there(self, tier: Tier) -> None:
        assert tier.put_if_absent("a/empty", b"") is True
        assert tier.put_if_absent("a/empty", b"") is False
        assert (tier.get("a/empty"), tier.size("a/empty")) == (b"", 0)

    def test_exactly_one_of_many_racing_puts_wins(self, tier: Tier) -> None:
        for round_ in range(self.race_rounds):
            key = f"journal/{round_:020d}.json"
            bodies = [f"{round_} {i} ".encode() * (i + 1) for i in range(self.race_threads)]
            won = _race([partial(tier.put_if_absent, key, body) for body in bodies])
            assert won.count(True) == 1 and won.count(False) == len(bodies) - 1, f"round {round_}: {won}"
            assert tier.get(key) == bodies[won.index(True)], f"round {round_}"

    def test_a_taken_name_and_a_free_one_do_not_mix(self, tier: Tier) -> None:
        keys = [f"race/{i}" for i in range(self.race_threads)]
        won = _race([partial(tier.put_if_absent, key, key.encode()) for key in keys])
        assert all(won)
        assert sorted(tier.list("race/")) == sorted(keys)
        assert all(tier.get(key) == key.encode() for key in keys)

    # --- put -------------------------------------------------------------------------------

    def test_put_creates_and_replaces(self, tier: Tier) -> None:
        for body in (b"one", b"two, longer", b"3", b""):
            tier.put("hints/owner.json", body)
            assert tier.get("hints/owner.json") == body

    def test_a_reader_sees_the_old_or_the_new(self, tier: Tier) -> None:
        bodies = [bytes([65 + i]) * 20_000 * (i + 1) for i in range(3)]
        tier.put("hints/owner.json", bodies[0])
        seen: list[bytes] = []
        with _reading(lambda: seen.append(tier.get("hints/owner.json"))):
            for i in range(30):
                tier.put("hints/owner.json", bodies[i % 3])
        assert seen and set(seen) <= set(bodies)

    # --- write_object ----------------------------------------------------------------------

    def test_write_object_joins_parts_of_any_buffer(self, tier: Tier) -> None:
        floats = np.arange(6, dtype=np.float32).reshape(2, 3)
        parts: list[Buffer] = [b"head", bytearray(b"er"), floats.data, floats[:0].data, b"", b"!"]
        whole = b"header" + floats.tobytes() + b"!"
        assert tier.write_object(KEY, iter(parts)) == len(whole)
        assert tier.get(KEY) == whole
        assert tier.size(KEY) == len(whole)

    def test_write_object_without_parts(self, tier: Tier) -> None:
        assert tier.write_object(KEY, []) == 0
        assert tier.size(KEY) == 0

    def test_an_object_is_visible_only_when_whole(self, tier: Tier) -> None:
        def parts() -> Iterator[bytes]:
            for _ in range(4):
                assert list(tier.list("checkpoints/")) == []
                with pytest.raises(ObjectNotFoundError):
                    tier.size(KEY)
                yield b"x" * 100_000

        tier.write_object(KEY, parts())
        assert list(tier.list("checkpoints/")) == [KEY]

    def test_a_reader_sees_the_whole_object_or_none(self, tier: Tier) -> None:
        keys = [f"checkpoints/{i}" for i in range(10)]
        seen: list[int] = []

        def look() -> None:
            for key in keys:
                try:
                    seen.append(len(tier.get(key)))
                except ObjectNotFoundError:
                    continue

        with _reading(look):
            for key in keys:
                tier.write_object(key, [b"x" * 50_000] * 4)
        assert seen and set(seen) == {200_000}

    def test_a_failed_write_leaves_nothing_and_its_error_comes_through(self, tier: Tier) -> None:
        def parts() -> Iterator[bytes]:
            yield b"some"
            yield b"more"
            raise RuntimeError("the snapshot is void")

        with pytest.raises(RuntimeError, match="void"):
            tier.write_object(KEY, parts())
        assert list(tier.list("")) == []
        assert tier.write_object(KEY, [b"again"]) == 5

    def test_an_object_is_never_overwritten(self, tier: Tier) -> None:
        tier.write_object(KEY, [b"old"])
        with pytest.raises(UsageError, match=KEY):
            tier.write_object(KEY, [b"new"])
        assert tier.get(KEY) == b"old"

    def test_buffers_are_the_callers_again_afterwards(self, tier: Tier) -> None:
        buffer = bytearray(4)

        def parts() -> Iterator[bytearray]:
            for i in range(4):
                buffer[:] = bytes([i]) * 4
                yield buffer

        tier.write_object("a/object", parts())
        tier.put_if_absent("a/put", buffer)
        buffer[:] = b"XXXX"
        assert tier.get("a/object") == bytes([0] * 4 + [1] * 4 + [2] * 4 + [3] * 4)
        assert tier.get("a/put") == bytes([3] * 4)

    # --- reading ---------------------------------------------------------------------------

    def test_what_is_not_there_is_named(self, tier: Tier) -> None:
        reads: list[Callable[[], Any]] = [
            lambda: tier.get("no/such"),
            lambda: tier.size("no/such"),
            lambda: tier.read_into("no/such", 0, memoryview(bytearray(1))),
        ]
        tier.put_if_absent("no/other", b"x")
        for read in reads:
            with pytest.raises(ObjectNotFoundError, match="no/such") as caught:
                read()
            assert caught.value.key == "no/such"

    def test_a_prefix_is_no_object(self, tier: Tier) -> None:
        tier.put_if_absent("a/b/c", b"x")
        for key in ("a", "a/b", "a/b/c/d"):
            with pytest.raises(ObjectNotFoundError):
                tier.get(key)

    def test_read_into_fills_from_an_offset(self, tier: Tier) -> None:
        tier.write_object(KEY, [bytes(range(200))])
        for offset, length in ((0, 200), (0, 0), (13, 50), (199, 1), (200, 0)):
            out = bytearray(b"\xff" * length)
            tier.read_into(KEY, offset, memoryview(out))
            assert bytes(out) == bytes(range(200))[offset : offset + length]
        floats = np.zeros((2, 3), np.float32)
        tier.read_into(KEY, 4, floats.data)
        assert floats.tobytes() == bytes(range(4, 28))

    @pytest.mark.parametrize(("offset", "length"), [(0, 11), (5, 6), (10, 1), (11, 1), (2**40, 1)])
    def test_a_short_object_is_an_error_that_names_it(self, tier: Tier, offset: int, length: int) -> None:
        tier.write_object(KEY, [b"0123456789"])
        with pytest.raises(FormatError, match=KEY):
            tier.read_into(KEY, offset, memoryview(bytearray(length)))

    def test_stream_into_shows_every_part_once_and_in_order(self, tier: Tier) -> None:
        data = bytes(range(256)) * 5000
        tier.write_object("checkpoints/streamed", [data])
        for offset, length in ((0, len(data)), (3, 1_000_000), (len(data), 0)):
            out, seen = bytearray(length), bytearray()
            tier.stream_into("checkpoints/streamed", offset, memoryview(out), seen.extend)
            assert seen == out == data[offset : offset + length]
        with pytest.raises(FormatError):
            tier.stream_into("checkpoints/streamed", 1, memoryview(bytearray(len(data))), lambda part: None)
        with pytest.raises(ObjectNotFoundError):
            tier.stream_into("checkpoints/missing", 0, memoryview(bytearray(1)), lambda part: None)

    def test_replace_object_replaces_and_creates(self, tier: Tier) -> None:
        for body in (b"first", b"second, and longer", b"3rd"):
            assert tier.replace_object("checkpoints/replaced", [body[:3], body[3:]]) == len(body)
            assert tier.get("checkpoints/replaced") == body

    def test_what_replaces_atomically_may_read_what_it_replaces(self, tier: Tier) -> None:
        if not tier.replaces_atomically:
            pytest.skip("this tier deletes first")
        tier.write_object("checkpoints/read", [b"damaged"])

        def parts() -> Iterator[bytes]:
            yield tier.get("checkpoints/read").upper()
            yield b"!"

        tier.replace_object("checkpoints/read", parts())
        assert tier.get("checkpoints/read") == b"DAMAGED!"

    def test_a_negative_offset_is_refused(self, tier: Tier) -> None:
        tier.write_object(KEY, [b"0123456789"])
        with pytest.raises(UsageError):
            tier.read_into(KEY, -1, memoryview(bytearray(1)))

    def test_get_reads_nothing_beyond_the_limit(self, tier: Tier) -> None:
        tier.write_object(KEY, [b"0123456789"])
        assert tier.get(KEY, limit=10) == b"0123456789"
        with pytest.raises(FormatError, match=KEY):
            tier.get(KEY, limit=9)

    # --- keys, deleting, listing, syncing --------------------------------------------------

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_a_bad_key_is_refused_everywhere(self, tier: Tier, key: str) -> None:
        calls: list[Callable[[], Any]] = [
            lambda: tier.get(key),
            lambda: tier.size(key),
            lambda: tier.read_into(key, 0, memoryview(bytearray(1))),
            lambda: tier.put_if_absent(key, b"x"),
            lambda: tier.put(key, b"x"),
            lambda: tier.write_object(key, [b"x"]),
            lambda: tier.delete(key),
        ]
        for call in calls:
            with pytest.raises(UsageError):
                call()
        assert list(tier.list("")) == []

    def test_delete_is_idempotent(self, tier: Tier) -> None:
        tier.delete("never/there")
        tier.put_if_absent("a/b", b"x")
        tier.delete("a/b")
        tier.delete("a/b")
        with pytest.raises(ObjectNotFoundError):
            tier.get("a/b")
        assert list(tier.list("a/")) == []
        assert tier.put_if_absent("a/b", b"again") is True

    def test_list_gives_the_keys_under_a_prefix(self, tier: Tier) -> None:
        keys = {"journal/0", "checkpoints/g1/a", "checkpoints/g1/b", "checkpoints/g10/a", "hints/owner.json"}
        for key in keys:
            tier.put_if_absent(key, b"x")
        inside = ("checkpoints/g1", "checkpoints/g1/", "checkpoints/g1/a")
        for prefix in ("", "journal/", "checkpoints/", "no", *inside):
            found = list(tier.list(prefix))
            assert len(found) == len(set(found))
            assert set(found) == {key for key in keys if key.startswith(prefix)}, prefix

    def test_sync_tail_of_anything(self, tier: Tier) -> None:
        tier.sync_tail("journal/")
        tier.put_if_absent("journal/0", b"x")
        tier.sync_tail("journal/")
        assert tier.get("journal/0") == b"x"

    def test_the_probe_passes_and_leaves_nothing(self, tier: Tier) -> None:
        tier.probe()
        tier.put_if_absent("journal/0", b"x")
        tier.probe()
        assert list(tier.list("")) == ["journal/0"]
        assert tier.collect_residue() == 0

    def test_the_location_is_for_people(self, tier: Tier) -> None:
        assert isinstance(tier.location, str) and tier.location


def _race(calls: list[Callable[[], bool]]) -> list[bool]:
    """Run all at once, each in a thread; their results. What one raises comes through."""
    barrier = threading.Barrier(len(calls))

    def run(call: Callable[[], bool]) -> bool:
        barrier.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(run, call) for call in calls]]


@contextmanager
def _reading(look: Callable[[], None]) -> Iterator[None]:
    """Call ``look`` over and over in another thread, and once at the end; what it raises comes through."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            look()
        look()

    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(run)
        try:
            yield
        finally:
            stop.set()
        reader.result()
