"""The manifest: golden digest, round trips, links, and every lie it could tell."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import format_samples as samples
import pytest
from format_attacks import mutations, pickle_bombs, refused, survives_damage

from durable_core.errors import (
    CorruptError,
    CoverageError,
    DigestMismatchError,
    UnknownVersionError,
    UsageError,
)
from durable_core.format import canonical, digests
from durable_core.format.manifest import Manifest, check_digest, decode, encode, manifest_digest
from durable_core.types import Extent, ObjectInfo, PlacedSlice

KEY = samples.NAME.manifest
Change = Callable[[dict[str, Any]], None]


def manifest_of(data: bytes) -> Manifest:
    return decode(data, key=KEY)


def test_it_comes_back() -> None:
    data = encode(samples.MANIFEST)
    assert manifest_of(data) == samples.MANIFEST
    assert encode(manifest_of(data)) == data


def test_golden_digest() -> None:
    """The bytes of version 1 never change: old checkpoints stay readable and verifiable."""
    assert manifest_digest(encode(samples.MANIFEST)) == (
        "sha256:e4fd0a0ddcdbd48875e0f9fcba094d380fcfd505e9640e8b4d3c54171bac43da"
    )
    assert samples.MANIFEST.state_digest == (
        "sha256:e82b43048d0544035271e142c47f9129ed0ca6bd682ae56a0a3730e2a0d25ba3"
    )


def test_it_links_the_lineage() -> None:
    document = json.loads(encode(samples.MANIFEST))
    for name in (
        "run_id", "generation", "c", "step", "parent", "spec_digest", "promise", "cursor", "cursor_digest",
        "state_digest", "counters", "roles", "topology", "fingerprint", "dataset", "integrity_level",
        "consistent", "digests", "objects", "tensors", "documents", "metrics", "ledger", "receipts", "v",
    ):  # fmt: skip
        assert name in document
    assert document["integrity_level"] == "byte-verified"
    assert document["cursor_digest"] == digests.sha256(canonical.dumps(samples.MANIFEST.cursor))


def test_what_it_adds_up_to() -> None:
    assert samples.MANIFEST.logical_bytes == 48 + 0 + 4 + 20
    assert samples.MANIFEST.reuses == (5,)


def test_no_rank_in_any_key() -> None:
    text = encode(samples.MANIFEST).decode()
    assert "rank" not in text


def test_the_state_digest_is_of_the_content_alone() -> None:
    moved = _move(samples.MANIFEST)
    assert encode(moved) != encode(samples.MANIFEST)
    assert moved.state_digest == samples.MANIFEST.state_digest
    documents = {**samples.MANIFEST.documents, ("role", "dp0"): 9}
    other = dataclasses.replace(samples.MANIFEST, documents=documents)
    assert other.state_digest != samples.MANIFEST.state_digest


def _move(manifest: Manifest) -> Manifest:
    """The reused tensor in another place of its object."""
    entry = manifest.tensors["state/frozen"]
    piece = entry.slices[0]._replace(begin=entry.slices[0].begin + 4)
    tensors = {**manifest.tensors, "state/frozen": dataclasses.replace(entry, slices=(piece,))}
    return dataclasses.replace(manifest, tensors=tensors)


def test_the_digest_of_the_commit_record_is_checked() -> None:
    data = encode(samples.MANIFEST)
    check_digest(data, manifest_digest(data), key=KEY)
    with pytest.raises(DigestMismatchError, match=KEY):
        check_digest(data + b" ", manifest_digest(data), key=KEY)


# --- lies ----------------------------------------------------------------------------------


def put(*path: Any) -> Change:
    """Set the value at a path; the last item is the value."""
    *names, value = path

    def change(document: Any) -> None:
        for name in names[:-1]:
            document = document[name]
        document[names[-1]] = value

    return change


def drop(*path: Any) -> Change:
    def change(document: Any) -> None:
        for name in path[:-1]:
            document = document[name]
        del document[path[-1]]

    return change


def changed(*changes: Change) -> bytes:
    document = json.loads(encode(samples.MANIFEST))
    for change in changes:
        change(document)
    return canonical.dumps(document)


W = ("tensors", "state/w")
S0, S1 = (*W, "slices", 0), (*W, "slices", 1)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (drop(*S0), "cover 6 of 12|accounted"),
        (put(*S0, "offsets", [1, 0]), "overlap"),
        (put(*S0, "offsets", [2, 0]), "overlap"),
        (put(*S0, "offsets", [-1, 0]), "integers"),
        (put(*S0, "offsets", [3, 0]), "leaves the tensor"),
        (put(*S0, "offsets", [2**63, 0]), "integers"),
        (put(*S0, "shape", [1, 3]), "bytes for F32"),
        (put(*S0, "shape", [10**5, 10**5]), "leaves the tensor"),
        (put(*S0, "nbytes", -24), "integer"),
        (put(*S0, "nbytes", 10 * 2**30), "bytes for F32"),
        (put(*S0, "nbytes", 0), "bytes for F32"),
        (put(*S0, "begin", 0), "overlaps"),
        (put(*S0, "begin", 10 * 2**30), "gap|beyond"),
        (put(*S0, "begin", -1), "integer"),
        (put(*S0, "object", 3), "object 3 of 3"),
        (put(*S0, "object", -1), "integer"),
        (put(*S0, "object", 1), "overlaps|gap|accounted"),
        (put(*S0, "xxh3", ""), "xxh3"),
        (put(*S0, "crc32c", "0000000g"), "crc32c"),
        (put(*S0, "rank", 0), "unknown fields"),
        (put(*W, "global_shape", [5, 3]), "cover 12 of 15"),
        (put(*W, "global_shape", [4, 3, 1]), "different lengths"),
        (put(*W, "global_shape", [10**9, 10**9]), "cover"),
        (put(*W, "global_shape", [2] * 65), "at most 64"),
        (put(*W, "dtype", "F16"), "bytes for F16"),
        (put(*W, "dtype", "PICKLE"), "unknown dtype"),
        (put(*W, "slices", []), "cover 0 of 12"),
        (put("tensors", "", {"dtype": "F32", "global_shape": [0], "slices": []}), "cover"),
        (drop("tensors", "state/frozen", "dtype"), "lacks 'dtype'"),
        (put("objects", 0, "key", "../../etc/passwd"), "bad key"),
        (put("objects", 0, "key", "checkpoints/../x"), "bad key"),
        (put("objects", 0, "key", "/etc/passwd"), "bad key"),
        (put("objects", 0, "key", "tmp/x"), "reserved"),
        (put("objects", 0, "key", samples.OBJECT1.key), "listed twice|overlaps"),
        (put("objects", 0, "nbytes", samples.OBJECT0.nbytes + 1), "accounted for"),
        (put("objects", 0, "nbytes", samples.OBJECT0.nbytes - 1), "beyond"),
        (put("objects", 0, "nbytes", -1), "integer"),
        (put("objects", 0, "header_bytes", samples.OBJECT0.header_bytes - 8), "gap"),
        (put("objects", 0, "header_bytes", 10**12), "header of"),
        (put("objects", 2, "nbytes", 4_200), "beyond"),
        (put("objects", []), "object . of 0"),
        (put("roles", []), "roles"),
        (put("roles", ["dp0", "dp0"]), "twice"),
        (put("roles", [["dp0"]]), "roles"),
        (put("roles", ["dp0", "Rank 1"]), "roles"),
        (drop("receipts", "dp1"), "receipts"),
        (put("receipts", "dp2", samples.SHA), "receipts"),
        (put("receipts", "dp1", "md5:00"), "sha256"),
        (put("documents", 0, "role", "dp9"), "unknown role"),
        (put("documents", 0, "name", ""), "unknown role"),
        (put("documents", 1, {"name": "role", "role": "dp0", "document": 5}), "repeats"),
        (put("cursor", {"epoch": 2}), "cursor_digest does not hold"),
        (put("cursor_digest", samples.SHA), "cursor_digest does not hold"),
        (put("documents", 0, "document", "other"), "state_digest does not hold"),
        (put(*S0, "xxh3", "0" * 32), "state_digest does not hold"),
        (put("promise", "eternal"), "promise"),
        (put("integrity_level", "blessed"), "integrity_level"),
        (put("consistent", 1), "true or false"),
        (put("parent", 7), "continues"),
        (put("parent", -1), "integer"),
        (put("generation", 4), "generation 4"),
        (put("c", 8), "c 8"),
        (put("step", 1.0), "integer"),
        (put("counters", "epoch", 1.5), "counter"),
        (put("digests", {"slice": "md5"}), "algorithms"),
        (put("ledger", {"key": "a//b", "digest": samples.SHA}), "bad key"),
        (put("ledger", {}), "lacks"),
        (put("run_id", ""), "run_id"),
        (put("extra", 1), "unknown fields"),
        (drop("metrics"), "lacks"),
    ],
)  # fmt: skip
def test_lies_are_refused(change: Change, why: str) -> None:
    refused(manifest_of, changed(change), key=KEY, why=why)


def test_errors_of_coverage_are_of_that_kind() -> None:
    with pytest.raises(CoverageError, match="state/w") as caught:
        manifest_of(changed(put(*W, "global_shape", [5, 3])))
    assert caught.value.key == KEY


def test_a_slice_used_twice_or_left_out_of_an_object_is_refused() -> None:
    """Two tensors may not claim the same bytes, and no byte of a new shard may be unaccounted for."""
    entry = samples.MANIFEST.tensors["state/w"]
    copy = {
        **samples.MANIFEST.tensors,
        "state/copy": dataclasses.replace(
            entry,
            slices=tuple(
                PlacedSlice(
                    piece.info._replace(slice=piece.info.slice._replace(key="state/copy")),
                    piece.object,
                    piece.begin,
                )
                for piece in entry.slices
            ),
        ),
    }
    with pytest.raises(UsageError, match="overlaps"):
        encode(dataclasses.replace(samples.MANIFEST, tensors=copy))
    without = {key: value for key, value in samples.MANIFEST.tensors.items() if key != "state/w"}
    with pytest.raises(UsageError, match=r"gap|accounted"):
        encode(dataclasses.replace(samples.MANIFEST, tensors=without))


def test_a_reused_object_may_hold_dead_slices_but_no_overlaps() -> None:
    assert manifest_of(encode(_move(samples.MANIFEST))).reuses == (5,)
    outside = ObjectInfo(samples.OLD_OBJECT.key, 4_200, 4_096, samples.OLD_OBJECT.header_xxh3)
    broken = dataclasses.replace(samples.MANIFEST, objects=(*samples.MANIFEST.objects[:2], outside))
    with pytest.raises(UsageError, match="beyond"):
        encode(broken)


@pytest.mark.parametrize("version", [0, 3, None, True, "1"])
def test_unknown_versions(version: Any) -> None:
    with pytest.raises(UnknownVersionError, match="upgrade"):
        manifest_of(changed(put("v", version)))


def test_any_value_in_the_wrong_place_is_a_typed_error() -> None:
    for what, document in mutations(json.loads(encode(samples.MANIFEST))):
        try:
            manifest_of(canonical.dumps(document))
        except CorruptError:
            continue
        except Exception as error:  # noqa: BLE001 - reported with the mutation that caused it
            pytest.fail(f"{what}: {error!r}")


def test_truncations_and_flips() -> None:
    survives_damage(manifest_of, encode(samples.MANIFEST), key=KEY, stride=17)


def test_pickles_are_refused_unexecuted(tmp_path: Any) -> None:
    trace = tmp_path / "executed"
    for bomb in pickle_bombs(trace):
        refused(manifest_of, bomb, key=KEY)
        text = bomb.decode("latin-1")
        for change in (put("cursor", text), put("documents", 0, "document", text), put("metrics", [text])):
            with pytest.raises(CorruptError):
                manifest_of(changed(change, put("state_digest", samples.SHA)))
    assert not trace.exists()


def test_ten_gigabytes_claimed_consistently_allocate_nothing() -> None:
    """Nothing contradicts the claim but the object itself, which a reader asks next."""
    n = 10 * 2**30 // 4
    lie = changed(
        put("tensors", "state/frozen", "global_shape", [n]),
        put("tensors", "state/frozen", "slices", 0, "shape", [n]),
        put("tensors", "state/frozen", "slices", 0, "nbytes", 4 * n),
        put("objects", 2, "nbytes", 4 * n + 10_000),
    )
    refused(manifest_of, lie, key=KEY, why="state_digest")


# --- patches and twins ------------------------------------------------------------------------


def _rich() -> Manifest:
    """``state/w``'s first slice is a base in an old object and two patches; the frozen one has a twin."""
    entries = dict(samples.MANIFEST.tensors)
    own, old = samples.OBJECT0, samples.OLD_OBJECT
    w0, w1 = entries["state/w"].slices
    patches = (
        Extent(old.key, 4_096 + 300, 40, digests.xxh3(b"p0")),
        Extent(own.key, w0.begin, 24, digests.xxh3(b"p1")),
    )
    based = PlacedSlice(w0.info, old.key, 4_096 + 200, patches, digests.xxh3(b"base"))
    (frozen,) = entries["state/frozen"].slices
    twin = Extent(own.key, own.nbytes, 20, frozen.info.xxh3)
    entries["state/w"] = dataclasses.replace(entries["state/w"], slices=(based, w1))
    entries["state/frozen"] = dataclasses.replace(
        entries["state/frozen"], slices=(frozen._replace(twin=twin),)
    )
    objects = (dataclasses.replace(own, nbytes=own.nbytes + 20), *samples.MANIFEST.objects[1:])
    return dataclasses.replace(samples.MANIFEST, objects=objects, tensors=entries)


def test_patches_and_twins_come_back_as_version_two() -> None:
    data = encode(_rich())
    assert manifest_of(data) == _rich() and json.loads(data)["v"] == 2
    assert json.loads(encode(samples.MANIFEST))["v"] == 1
    assert _rich().state_digest == samples.MANIFEST.state_digest, "where bytes lie is not content"


def _first(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda document: document["tensors"][name]["slices"][0]


WEIGHT, FROZEN = _first("state/w"), _first("state/frozen")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d.update(v=1), "version 1 and reads like version 2"),
        (lambda d: WEIGHT(d).pop("base_xxh3"), "base_xxh3"),
        (lambda d: WEIGHT(d).pop("patches"), "unknown fields"),
        (lambda d: WEIGHT(d).update(patches=[]), "0 patches"),
        (lambda d: WEIGHT(d).update(patches=WEIGHT(d)["patches"] * 40), "80 patches"),
        (lambda d: WEIGHT(d)["patches"][0].update(object=9), "lies in object 9"),
        (lambda d: WEIGHT(d)["patches"][0].update(begin=0), "overlaps"),
        (lambda d: WEIGHT(d)["patches"][0].update(nbytes=10**9), "beyond"),
        (lambda d: WEIGHT(d)["patches"][0].update(xxh3="0"), "xxh3"),
        (lambda d: WEIGHT(d)["patches"][1].update(nbytes=23), "gap"),
        (lambda d: WEIGHT(d)["patches"][0].update(more=1), "unknown fields"),
        (lambda d: WEIGHT(d).update(twin=FROZEN(d)["twin"]), "both patches and a twin"),
        (lambda d: FROZEN(d)["twin"].update(nbytes=19), "no second copy"),
        (lambda d: FROZEN(d)["twin"].update(xxh3="0" * 32), "no second copy"),
        (lambda d: FROZEN(d)["twin"].update(object=2, begin=8_000), "no second copy"),
        (lambda d: FROZEN(d).pop("twin"), "gap|accounted"),
    ],
)
def test_lies_about_patches_and_twins(change: Callable[[dict[str, Any]], Any], why: str) -> None:
    document = json.loads(encode(_rich()))
    change(document)
    refused(manifest_of, canonical.dumps(document), key=KEY, why=why)


def test_any_value_in_the_wrong_place_of_a_rich_one() -> None:
    for what, document in mutations(json.loads(encode(_rich()))):
        try:
            manifest_of(canonical.dumps(document))
        except CorruptError as error:
            assert error.key == KEY, what
