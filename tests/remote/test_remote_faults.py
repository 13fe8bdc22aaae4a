"""An object store that fails in every way we know of: bounded tries, typed errors, nothing lost or twice."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import pytest
from remote_servers import ACCESS_KEY, BUCKET, FaultProxy, Seen, raw_client

from durable_core.errors import InDoubt, ObjectNotFoundError, TierDenied, TierError, TierFull, TierUnavailable
from durable_core.tier.remote import RemoteTier

MIB = 2**20
KEY = "checkpoints/g000001-c00000001-0123abcd/shard-dp0.safetensors"
LATER = "checkpoints/g000002-c00000002-0123abcd/shard-dp0.safetensors"

Opener = Callable[..., RemoteTier]


@pytest.fixture
def tier(proxy: FaultProxy, open_at: Opener, backend: str) -> RemoteTier:
    return open_at(proxy.endpoint, backend=backend, attempts=4)


def puts(seen: Seen) -> bool:
    return seen.method == "PUT" and not seen.query


def part_puts(seen: Seen) -> bool:
    return seen.method == "PUT" and "partNumber" in seen.query


def completions(seen: Seen) -> bool:
    return seen.method == "POST" and "uploadId" in seen.query


def gets(seen: Seen) -> bool:
    return seen.method == "GET"


def unfinished(endpoint: str, prefix: str) -> list[str]:
    answer = raw_client(endpoint).list_multipart_uploads(Bucket=BUCKET, Prefix=f"{prefix}/")
    return [upload["Key"] for upload in answer.get("Uploads", ())]


def body_of(mib: int) -> bytes:
    return bytes(range(256)) * (mib * MIB // 256)


# --- conditional PUTs ------------------------------------------------------------------------


def test_a_put_whose_answer_was_lost_is_known_to_be_ours(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("drop-answer", when=puts)
    assert tier.put_if_absent("journal/0", b"ours") is True
    assert tier.get("journal/0") == b"ours"
    assert proxy.count("PUT") == 2  # the second met the first


def test_equal_bytes_of_another_are_not_ours(tier: RemoteTier, proxy: FaultProxy) -> None:
    assert tier.put_if_absent("journal/0", b"equal")
    proxy.add("reset", when=puts)  # this one never arrives, but who knows
    assert tier.put_if_absent("journal/0", b"equal") is False


def test_a_put_that_stays_unknown_is_in_doubt(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("reset", when=puts, times=99)
    with pytest.raises(InDoubt, match="journal/0"):
        tier.put_if_absent("journal/0", b"x")
    assert proxy.count("PUT") == 4
    proxy.clear()
    assert list(tier.list("")) == []
    assert tier.put_if_absent("journal/0", b"x") is True


def test_a_last_look_settles_a_doubt(tier: RemoteTier, proxy: FaultProxy) -> None:
    """The first PUT was stored, and no later one is even let in."""
    proxy.add("drop-answer", when=puts)
    proxy.add("answer", when=puts, times=99)
    assert tier.put_if_absent("journal/0", b"ours") is True


def test_a_clean_refusal_does_not_clear_a_doubt(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("reset", when=puts)
    proxy.add("answer", when=lambda seen: True, times=99, status=403, code="AccessDenied")
    with pytest.raises(InDoubt):
        tier.put_if_absent("journal/0", b"x")


def test_a_storm_of_503_is_weathered_or_bounded(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("answer", when=puts, times=3)
    assert tier.put_if_absent("journal/0", b"x") is True
    proxy.clear()
    proxy.add("answer", times=10_000)
    for call in (lambda: tier.put_if_absent("journal/1", b"x"), lambda: tier.put("hints/owner.json", b"x")):
        with pytest.raises(InDoubt):
            call()
    for read in (lambda: tier.get("journal/0"), lambda: tier.size("journal/0"), lambda: list(tier.list(""))):
        with pytest.raises(TierUnavailable, match="503"):
            read()
    assert len(proxy.log) <= 8 * 4


def test_a_conflict_is_tried_again(tier: RemoteTier, proxy: FaultProxy) -> None:
    conflict = {"status": 409, "code": "ConditionalRequestConflict"}
    proxy.add("answer", when=puts, times=3, **conflict)
    assert tier.put_if_absent("journal/0", b"x") is True
    proxy.add("answer", when=puts, times=99, **conflict)
    with pytest.raises(TierUnavailable) as caught:
        tier.put_if_absent("journal/1", b"x")
    assert not isinstance(caught.value, InDoubt)  # every answer said: not applied


def test_a_slow_answer_is_lost_after_the_timeout(proxy: FaultProxy, open_at: Opener, backend: str) -> None:
    tier = open_at(proxy.endpoint, backend=backend, attempts=2, timeout=0.5)
    held = proxy.add("hold", when=puts, times=2)
    with pytest.raises(InDoubt):
        tier.put_if_absent("journal/0", b"ours")
    held.release.set()  # now it arrives: nobody was told that it would not


def test_a_closed_port_is_a_definite_no(open_at: Opener, backend: str) -> None:
    gone = open_at("http://127.0.0.1:1", backend=backend, attempts=2)
    with pytest.raises(TierUnavailable) as caught:
        gone.put_if_absent("journal/0", b"x")
    assert not isinstance(caught.value, InDoubt)


# --- who may not, and what is not there ----------------------------------------------------------


SESSION_TOKEN = "FQoGZXIvYXdzEXAMPLETOKEN"


@pytest.mark.parametrize(("status", "code"), [(403, "ExpiredToken"), (400, "ExpiredToken"), (403, "")])
def test_expired_credentials_are_named_and_never_shown(
    tier: RemoteTier, proxy: FaultProxy, status: int, code: str
) -> None:
    told = f"<Token-0>{SESSION_TOKEN}</Token-0><AWSAccessKeyId>{ACCESS_KEY}</AWSAccessKeyId>"
    proxy.add("answer", times=99, status=status, code=code, extra=told)
    calls: list[Callable[[], object]] = [
        lambda: tier.get("journal/0"),
        lambda: tier.put_if_absent("journal/0", b"x"),
        lambda: tier.put("hints/owner.json", b"x"),
        lambda: tier.write_object(KEY, [b"x"] * 3),
        lambda: tier.write_object(KEY, [body_of(6), body_of(6)]),
        lambda: tier.delete(KEY),
        lambda: list(tier.list("")),
        lambda: tier.probe(),
    ]
    for call in calls:
        with pytest.raises(TierDenied) as caught:
            call()
        error: BaseException | None = caught.value
        while error is not None:  # what a traceback would print
            assert SESSION_TOKEN not in str(error) and ACCESS_KEY not in str(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    assert len(proxy.log) <= len(calls) + 4


def test_a_full_store(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("answer", times=99, status=403, code="QuotaExceeded")
    with pytest.raises(TierFull):
        tier.put_if_absent("journal/0", b"x")


def test_a_bucket_that_was_deleted_is_not_an_empty_run(weed: str, open_at: Opener, backend: str) -> None:
    raw = raw_client(weed)
    raw.create_bucket(Bucket=f"gone-{backend}")
    tier = open_at(weed, bucket=f"gone-{backend}", backend=backend, attempts=2)
    tier.put_if_absent("journal/0", b"x")
    tier.delete("journal/0")
    with pytest.raises(ObjectNotFoundError):
        tier.size("journal/0")
    raw.delete_bucket(Bucket=f"gone-{backend}")
    calls: list[Callable[[], object]] = [
        lambda: tier.get("journal/0"),
        lambda: tier.size("journal/0"),
        lambda: tier.read_into("journal/0", 0, memoryview(bytearray(4))),
        lambda: list(tier.list("")),
        lambda: tier.put_if_absent("journal/0", b"x"),
        lambda: tier.put("hints/owner.json", b"x"),
        lambda: tier.write_object(KEY, [b"x"]),
        lambda: tier.write_object(KEY, [body_of(6), body_of(6)]),
        lambda: tier.probe(),
    ]
    for number, call in enumerate(calls):
        with pytest.raises(TierUnavailable, match="bucket") as caught:
            call()
        assert not isinstance(caught.value, InDoubt), number


# --- reading -------------------------------------------------------------------------------------


def test_an_answer_cut_short_is_asked_for_again(tier: RemoteTier, proxy: FaultProxy) -> None:
    tier.write_object(KEY, [body_of(12)])
    for cut in (1, 3):
        proxy.add("cut-answer", when=gets, times=cut)
        assert tier.get(KEY) == body_of(12)
    proxy.add("cut-answer", when=gets, times=2)
    out = bytearray(11 * MIB)
    tier.read_into(KEY, MIB, memoryview(out))
    assert out == body_of(12)[MIB:]
    proxy.add("cut-answer", when=gets, times=999)
    with pytest.raises(TierUnavailable):
        tier.get(KEY)


def test_a_large_range_comes_in_pieces(tier: RemoteTier, proxy: FaultProxy) -> None:
    tier.write_object(KEY, [body_of(12)])
    proxy.clear()
    out = bytearray(12 * MIB)
    tier.read_into(KEY, 0, memoryview(out))
    assert out == body_of(12)
    assert proxy.count("GET") == 3 and proxy.count("HEAD") == 0
    assert all("Range" in seen.headers or "range" in seen.headers for seen in proxy.log)


# --- large objects ---------------------------------------------------------------------------------


def test_a_reset_in_the_middle_of_a_part(tier: RemoteTier, proxy: FaultProxy, weed: str, prefix: str) -> None:
    proxy.add("reset", when=part_puts, times=2)
    assert tier.write_object(KEY, [body_of(6), body_of(8)]) == 14 * MIB
    assert tier.get(KEY) == body_of(6) + body_of(8)
    assert unfinished(weed, prefix) == []


def test_parts_that_never_arrive_leave_nothing(
    tier: RemoteTier, proxy: FaultProxy, weed: str, prefix: str
) -> None:
    proxy.add("reset", when=part_puts, times=9999)
    with pytest.raises(TierUnavailable) as caught:
        tier.write_object(KEY, iter([body_of(6)] * 6))
    assert not isinstance(caught.value, InDoubt)
    assert list(tier.list("")) == [] and unfinished(weed, prefix) == []
    proxy.clear()
    assert tier.write_object(KEY, [body_of(6), body_of(1)]) == 7 * MIB


def test_a_completion_whose_answer_was_lost(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("drop-answer", when=completions)
    assert tier.write_object(KEY, [body_of(6), body_of(6)]) == 12 * MIB
    assert tier.get(KEY) == body_of(12)


def test_a_completion_that_stays_unknown_is_in_doubt(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("answer", when=completions, times=99, code="InternalError", status=500)
    with pytest.raises(InDoubt):
        tier.write_object(KEY, [body_of(6), body_of(6)])


def test_a_snapshot_that_is_void_aborts_the_upload(tier: RemoteTier, weed: str, prefix: str) -> None:
    seen: list[list[str]] = []

    def parts() -> Iterator[bytes]:
        for _ in range(4):
            yield body_of(6)
            seen.append(list(tier.list("")))  # the tier can be used while it writes
        raise RuntimeError("void")

    with pytest.raises(RuntimeError, match="void"):
        tier.write_object(KEY, parts())
    assert seen == [[]] * 4
    assert list(tier.list("")) == [] and unfinished(weed, prefix) == []


def test_memory_stays_bounded_when_the_store_is_slow(tier: RemoteTier, proxy: FaultProxy) -> None:
    """Parts are asked for only as fast as the store takes them: 4 under way, and a few around them."""
    ahead: list[int] = []
    before = proxy.answered

    def parts() -> Iterator[bytes]:
        for number in range(16):
            ahead.append(number - (proxy.answered - before))
            yield body_of(5)

    tier.write_object(KEY, parts())
    assert tier.size(KEY) == 16 * 5 * MIB
    assert max(ahead) <= 4 + 3


# --- residue -----------------------------------------------------------------------------------------


def abandon(endpoint: str, prefix: str, key: str) -> None:
    """What a writer killed in the middle of an upload leaves."""
    raw = raw_client(endpoint)
    begun = raw.create_multipart_upload(Bucket=BUCKET, Key=f"{prefix}/{key}")
    raw.upload_part(
        Bucket=BUCKET, Key=f"{prefix}/{key}", UploadId=begun["UploadId"], PartNumber=1, Body=b"x" * 100
    )


def test_residue_of_a_fenced_generation_goes_and_that_of_the_living_stays(
    tier: RemoteTier, weed: str, prefix: str
) -> None:
    abandon(weed, prefix, KEY)
    assert tier.collect_residue() == 0  # nothing is known of anybody's death
    abandon(weed, prefix, LATER)  # generation 2 is at work here
    assert tier.collect_residue() == 1
    assert unfinished(weed, prefix) == [f"{prefix}/{LATER}"]
    assert tier.collect_residue() == 0
    tier.write_object(LATER.replace("g000002", "g000003"), [b"x"])
    assert tier.collect_residue() == 1
    assert unfinished(weed, prefix) == []


def test_old_residue_goes_whosever_it_is_within_the_limit(
    weed: str, open_at: Opener, backend: str, prefix: str
) -> None:
    tier = open_at(weed, backend=backend, abandoned_after=-3600.0)
    for number in range(3):
        abandon(weed, prefix, f"checkpoints/other-{number}")
    raw_client(weed).put_object(Bucket=BUCKET, Key=f"{prefix}/tmp/probe-0", Body=b"x")
    assert tier.collect_residue(limit=2) == 2
    assert tier.collect_residue() == 2
    assert unfinished(weed, prefix) == []


def test_uploads_that_may_not_be_listed_are_nobodys_fault(tier: RemoteTier, proxy: FaultProxy) -> None:
    proxy.add("answer", when=lambda seen: "uploads" in seen.query, times=9, status=403, code="AccessDenied")
    assert tier.collect_residue() == 0


def test_an_upload_aborted_under_its_writer_fails_that_save_only(
    tier: RemoteTier, proxy: FaultProxy, weed: str, prefix: str
) -> None:
    def parts() -> Iterator[bytes]:
        yield body_of(6)
        yield body_of(6)
        raw = raw_client(weed)
        for upload in raw.list_multipart_uploads(Bucket=BUCKET, Prefix=f"{prefix}/").get("Uploads", ()):
            raw.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])
        yield body_of(6)

    with pytest.raises(TierError):
        tier.write_object(KEY, parts())
    assert tier.write_object(LATER, [body_of(6), body_of(1)]) == 7 * MIB


# --- what goes to the store ------------------------------------------------------------------------------


def test_documents_are_single_conditional_puts_with_checksums(tier: RemoteTier, proxy: FaultProxy) -> None:
    tier.put_if_absent("journal/0", body_of(6))  # larger than a part: still one PUT
    tier.write_object(KEY, [b"small"])
    tier.write_object(LATER, [body_of(6), body_of(1)])
    writes = [seen for seen in proxy.log if seen.method in ("PUT", "POST")]
    headers = [{name.lower(): value for name, value in seen.headers.items()} for seen in writes]
    assert [h.get("if-none-match") for h in headers[:2]] == ["*", "*"]
    assert all(not seen.query for seen in writes[:2])
    for seen, given in zip(writes, headers, strict=True):
        if seen.method == "PUT":
            signed = len(given.get("x-amz-content-sha256", "")) == 64
            assert "x-amz-checksum-crc32c" in given if tier.client.name == "s3fs" else signed, seen.query


def test_options_do_not_change_under_a_tier(tier: RemoteTier) -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        tier._options.attempts = 9  # type: ignore[misc]


# --- replacing -------------------------------------------------------------------------------------------


def test_a_large_object_is_replaced_at_once(tier: RemoteTier, weed: str, prefix: str) -> None:
    tier.write_object(KEY, [body_of(6), body_of(6)])

    def parts() -> Iterator[bytes]:
        for start in (0, 6 * MIB):
            out = bytearray(6 * MIB)
            tier.read_into(KEY, start, memoryview(out))  # of the old one, all the while
            yield bytes(255 - byte for byte in out[:4]) + out[4:]

    assert tier.replace_object(KEY, parts()) == 12 * MIB
    assert tier.get(KEY)[:4] == bytes([255, 254, 253, 252]) and tier.size(KEY) == 12 * MIB
    assert unfinished(weed, prefix) == []


def test_a_replacement_whose_answer_was_lost_is_in_doubt(tier: RemoteTier, proxy: FaultProxy) -> None:
    """The size of what stands there says nothing: it was as large before."""
    tier.write_object(KEY, [body_of(6), body_of(6)])
    proxy.add("answer", when=completions, times=99, status=500, code="InternalError")
    with pytest.raises(InDoubt):
        tier.replace_object(KEY, [body_of(6), body_of(6)])
