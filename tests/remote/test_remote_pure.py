"""The decisions of the remote tier, apart from any store."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import TierDenied, TierFull, TierUnavailable, UsageError
from durable_core.format import layout
from durable_core.tier.remote import RemoteOptions, is_remote
from durable_core.tier.remote.answers import AGAIN, Kind, Refusal, backoff, classify, tier_error
from durable_core.tier.remote.options import MAX_PARTS, MIN_PART, parse
from durable_core.tier.remote.readahead import AFTER, ReadAhead
from durable_core.tier.remote.residue import why_dead
from durable_core.tier.remote.sending import Sending
from durable_core.types import CrashPoint

# --- answers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "NoSuchKey", Kind.ABSENT),
        (404, "", Kind.ABSENT),
        (404, "NoSuchBucket", Kind.NO_BUCKET),
        (412, "", Kind.EXISTS),
        (412, "PreconditionFailed", Kind.EXISTS),
        (409, "ConditionalRequestConflict", Kind.CONFLICT),
        (409, "BlobAlreadyExists", Kind.EXISTS),
        (400, "ExpiredToken", Kind.DENIED),
        (403, "", Kind.DENIED),
        (403, "QuotaExceeded", Kind.FULL),
        (507, "", Kind.FULL),
        (400, "BadDigest", Kind.GARBLED),
        (400, "RequestTimeout", Kind.LOST),
        (400, "MalformedXML", Kind.INVALID),
        (501, "NotImplemented", Kind.INVALID),
        (429, "TooManyRequests", Kind.LOST),
        (500, "InternalError", Kind.LOST),
        (502, "", Kind.LOST),
        (503, "SlowDown", Kind.LOST),
        (504, "", Kind.LOST),
        (None, "", Kind.LOST),
    ],
)
def test_what_an_answer_means(status: int | None, code: str, kind: Kind) -> None:
    assert classify(status, code) is kind


@given(st.one_of(st.none(), st.integers(500, 599)), st.text(max_size=20))
def test_what_does_not_say_no_is_never_taken_for_a_no(status: int | None, code: str) -> None:
    assert classify(status, f"x{code}") in (Kind.LOST, Kind.FULL)
    if status != 507:
        assert classify(status, f"x{code}") is Kind.LOST


def test_the_code_says_more_than_the_client_and_the_client_more_than_the_status() -> None:
    assert Refusal.of(409, "ConditionalRequestConflict", Kind.EXISTS).kind is Kind.CONFLICT
    assert Refusal.of(409, "Whatever", Kind.EXISTS).kind is Kind.EXISTS
    assert Refusal.of(404, "NoSuchBucket", Kind.ABSENT).kind is Kind.NO_BUCKET


@pytest.mark.parametrize("kind", Kind)
def test_each_refusal_is_a_typed_error_with_a_reason(kind: Kind) -> None:
    error = tier_error("get journal/0", Refusal(kind, "499 Said"))
    wanted = {Kind.DENIED: TierDenied, Kind.FULL: TierFull}.get(kind, TierUnavailable)
    assert type(error) is wanted
    assert "journal/0" in str(error) and "499 Said" in str(error)
    assert bool(error.hint) or kind in AGAIN | {Kind.ABSENT, Kind.EXISTS, Kind.RANGE, Kind.INVALID}


@given(st.integers(1, 1000), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_to_a_limit_and_differ(retry: int, chance: float) -> None:
    pause = backoff(retry, chance)
    assert 0.05 <= pause <= 5.0
    assert backoff(retry, 0.0) <= pause


# --- where and how -----------------------------------------------------------------------------


def test_a_url_says_where_and_how() -> None:
    place, options = parse("s3://bucket/a/b/?backend=s3fs&endpoint=http://h:1&region=r&profile=p", environ={})
    assert (place.scheme, place.bucket, place.prefix) == ("s3", "bucket", "a/b/")
    assert (options.backend, options.endpoint, options.region, options.profile) == (
        "s3fs",
        "http://h:1",
        "r",
        "p",
    )
    assert place.location == "s3://bucket/a/b"  # of the options, nothing


def test_the_environment_fills_what_is_not_said() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://all",
        "AWS_ENDPOINT_URL_S3": "http://s3",
        "AWS_DEFAULT_REGION": "r1",
    }
    assert parse("s3://bucket", environ=environ)[1] == RemoteOptions(endpoint="http://s3", region="r1")
    said = RemoteOptions(endpoint="http://mine", region="r2")
    assert parse("s3://bucket", said, environ=environ)[1] == said
    assert parse("gs://bucket", environ={"AWS_ENDPOINT_URL": "http://all"})[1].endpoint == ""


@pytest.mark.parametrize(
    "url",
    [
        "s3://", "s3:///a", "s3://B/a", "s3://bucket/a//b", "s3://bucket/../b", "s3://bucket/a b",
        "s3://bucket/" + "a" * 600, "s3://bucket/a?nonsense=1", "s3://bucket/a?backend=boto", "ftp://bucket/a",
    ],
)  # fmt: skip
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        parse(url, environ={})


@pytest.mark.parametrize(
    "url", ["s3://AKIAKEY:SECRET@bucket/a", "s3://bucket/a?endpoint=http://AKIAKEY:SECRET@h:1"]
)
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(url, environ={})
    assert "SECRET" not in str(caught.value) and "AKIAKEY" not in str(caught.value)


@pytest.mark.parametrize(
    "bad", [{"part_bytes": MIN_PART - 1}, {"attempts": 0}, {"parallel": 0}, {"backend": "boto3"}]
)
def test_options_that_cannot_work_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RemoteOptions(**bad)


def test_which_roots_are_remote() -> None:
    remote = ["s3://b/x", "gs://b", "az://b/x"]
    local = ["/data/run", "run", "file:///data", "s3", "ftp://b/x", "./s3://x"]
    assert [is_remote(root) for root in remote + local] == [True] * 3 + [False] * 6


# --- sending -----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 16))
def test_parts_become_chunks_of_one_size(lengths: list[int], size: int) -> None:
    counter = iter(range(10**6))
    parts = [bytes(next(counter) % 251 for _ in range(n)) for n in lengths]
    sending = Sending(iter(parts), size)
    chunks = list(sending)
    assert b"".join(chunks) == b"".join(parts)
    assert all(len(chunk) == size for chunk in chunks[:-1]) and all(
        0 < len(chunk) <= size for chunk in chunks
    )
    assert sending.nbytes == sum(lengths) and sending.finished


def test_a_part_is_copied_before_the_next_is_asked_for() -> None:
    buffer = bytearray(3)

    def parts() -> Any:
        for i in range(4):
            buffer[:] = bytes([i]) * 3
            yield buffer

    assert b"".join(Sending(parts(), 5)) == bytes([0] * 3 + [1] * 3 + [2] * 3 + [3] * 3)


def test_the_end_is_known_only_when_it_was_asked_for() -> None:
    seen: list[CrashPoint] = []
    sending = Sending([b"head", b"body"], 8, seen.append)
    assert next(sending) == b"headbody"
    assert not sending.finished and seen == [CrashPoint.K6]
    assert next(sending, None) is None
    assert sending.finished and seen == [CrashPoint.K6, CrashPoint.K7]


def test_a_shard_of_the_largest_size_fits_the_parts() -> None:
    assert RemoteOptions().part_bytes * MAX_PARTS >= 150 * 10**9


# --- residue -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("generation", "newest", "age", "dead"),
    [
        (1, 2, 0, True), (2, 2, 0, False), (3, 2, 0, False), (None, 2, 0, False), (1, -1, 0, False),
        (2, 2, 101, True), (None, -1, 101, True), (2, 2, 100, False),
    ],
)  # fmt: skip
def test_whose_upload_is_dead(generation: int | None, newest: int, age: float, dead: bool) -> None:
    assert bool(why_dead(generation, newest, age, 100)) is dead


# --- reading ahead -------------------------------------------------------------------------------


class Slots:
    """A journal of ``count`` records; ``asked`` are the slots looked up early."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.asked: list[int] = []
        self._lock = threading.Lock()

    def fetch(self, key: str) -> bytes | None:
        seq = layout.parse_journal_key(key)
        assert seq is not None
        with self._lock:
            self.asked.append(seq)
        return str(seq).encode() if seq < self.count else None

    def read(self, ahead: ReadAhead, seq: int) -> tuple[bytes | None, bool]:
        """As the tier reads: (what is there, whether the store was asked now)."""
        early = ahead.take(layout.journal_key(seq))
        return (early, False) if early is not None else (self._now(seq), True)

    def _now(self, seq: int) -> bytes | None:
        return str(seq).encode() if seq < self.count else None


def test_a_replay_is_read_ahead_and_each_slot_once() -> None:
    slots = Slots(200)
    ahead = ReadAhead(slots.fetch, depth=32)
    results = [slots.read(ahead, seq) for seq in range(200)]
    assert [data for data, _ in results] == [str(seq).encode() for seq in range(200)]
    assert sum(now for _, now in results) == AFTER + 1
    assert len(slots.asked) == len(set(slots.asked)) <= 200 + 32


def test_an_absence_found_early_is_not_believed() -> None:
    """The writer appends between the early look and the question: the question is asked again."""
    slots = Slots(20)
    ahead = ReadAhead(slots.fetch, depth=8)
    for seq in range(20):
        slots.read(ahead, seq)
    early = set(slots.asked)
    assert 20 in early  # looked up when it was not there yet
    slots.count = 25
    assert [slots.read(ahead, seq) for seq in (20, 21)] == [(b"20", True), (b"21", True)]


def test_following_the_tail_looks_nothing_up_early() -> None:
    slots = Slots(0)
    ahead = ReadAhead(slots.fetch, depth=8)
    for seq in range(50):
        assert slots.read(ahead, seq)[0] is None  # at the tail
        slots.count += 1
        assert slots.read(ahead, seq) == (str(seq).encode(), True)
    assert slots.asked == []


def test_other_keys_and_other_orders_are_not_read_ahead() -> None:
    slots = Slots(100)
    ahead = ReadAhead(slots.fetch, depth=8)
    assert ahead.take("hints/owner.json") is None
    for seq in (*range(0, 100, 2), *range(99, 0, -1)):
        assert slots.read(ahead, seq) == (str(seq).encode(), True)
    assert slots.asked == []


def test_depth_zero_is_off() -> None:
    slots = Slots(50)
    ahead = ReadAhead(slots.fetch, depth=0)
    assert all(slots.read(ahead, seq)[1] for seq in range(50))
    assert slots.asked == []
