"""One small checkpoint's documents, whole and valid, for tests to damage."""

from __future__ import annotations

import dataclasses
import math

from durable_core.format import digests, layout, shard
from durable_core.format.manifest import SHARED, LedgerRef, Manifest, TensorEntry
from durable_core.format.receipt import LedgerSegment, Offer, Receipt
from durable_core.format.record import Kind, Record
from durable_core.types import ObjectInfo, PlacedSlice, Promise, SliceInfo, SliceKey

NAME = layout.checkpoint_name(3, 7, "0123abcd" * 4)
OLD = layout.checkpoint_name(2, 5, "feedbeef" * 4)
SHA = "sha256:" + "0" * 64


Ints = tuple[int, ...]


def slice_info(key: str, offsets: Ints, shape: Ints, whole: Ints) -> SliceInfo:
    nbytes = math.prod(shape) * 4
    content = f"{key}{offsets}".encode()
    return SliceInfo(
        SliceKey(key, offsets, shape), "F32", whole, nbytes, digests.xxh3(content), digests.crc32c(content)
    )


def place(infos: list[SliceInfo], key: str) -> tuple[ObjectInfo, tuple[PlacedSlice, ...]]:
    entries = [(shard.entry_name(i.slice, i.global_shape), i.dtype, i.slice.shape, i.nbytes) for i in infos]
    header, begins = shard.layout(entries, align=64)
    placed = tuple(PlacedSlice(info, key, begin) for info, begin in zip(infos, begins, strict=True))
    nbytes = len(header) + sum(info.nbytes for info in infos)
    return ObjectInfo(key, nbytes, len(header), digests.xxh3(header)), placed


W0 = slice_info("state/w", (0, 0), (2, 3), (4, 3))
W1 = slice_info("state/w", (2, 0), (2, 3), (4, 3))
EMPTY = slice_info("state/empty", (0,), (0,), (0,))
SCALAR = slice_info("roles/dp1/seed", (), (), ())
FROZEN = slice_info("state/frozen", (0,), (5,), (5,))

OBJECT0, PLACED0 = place([W0, EMPTY], NAME.shard("dp0"))
OBJECT1, PLACED1 = place([W1, SCALAR], NAME.shard("dp1"))
OLD_OBJECT = ObjectInfo(OLD.shard("dp0"), 9_000, 4_096, digests.xxh3(b"old"))
OLD_PLACED = PlacedSlice(FROZEN, OLD_OBJECT.key, 4_096 + 100)

OFFER = Offer("dp0", 3, 7, 40, (W0, W1, EMPTY), {"state": SHA})
RECEIPT = Receipt(
    "dp0", 3, 7, 40, (W0, W1, EMPTY), PLACED0, (OBJECT0,),
    {"state": {"w": {"$tensor": "state/w"}}, "role": {"rng": [1, 2]}},
    LedgerSegment(NAME.ledger("dp0"), SHA, 128),
)  # fmt: skip

MANIFEST = Manifest(
    run_id="a" * 32,
    generation=3,
    c=7,
    step=40,
    parent=5,
    spec_digest=SHA,
    promise=Promise.BITWISE,
    cursor={"epoch": 1, "batch": 3},
    roles=("dp0", "dp1"),
    objects=(OBJECT0, OBJECT1, OLD_OBJECT),
    tensors={
        "state/w": TensorEntry("F32", (4, 3), (PLACED0[0], PLACED1[0])),
        "state/empty": TensorEntry("F32", (0,), (PLACED0[1],)),
        "roles/dp1/seed": TensorEntry("F32", (), (PLACED1[1],)),
        "state/frozen": TensorEntry("F32", (5,), (OLD_PLACED,)),
    },
    documents={("state", SHARED): {"w": {"$tensor": "state/w"}}, ("role", "dp0"): 1, ("role", "dp1"): 2},
    receipts={"dp0": SHA, "dp1": SHA},
    counters={"optimizer_step": 40, "epoch": 1, "consumed_samples": 1280},
    topology={"world_size": 2},
    fingerprint={"torch": "2.13.0", "deterministic": True},
    dataset=SHA,
    metrics=({"step": 40, "loss": 1.25},),
    ledger=LedgerRef(NAME.ledger_index, SHA),
)

PAYLOADS = {
    Kind.RUN_CREATED: {"run_id": "r", "spec": {"a": 1}, "spec_digest": SHA, "seed": 1, "promise": "bitwise"},
    Kind.GENERATION_STARTED: {
        "restore_point": None, "manifest_digest": None, "members": ["dp0"], "takeover": False,
    },
    Kind.RUN_STATE: {"state": "suspect", "reason": "x", "evidence": {"rank": 1}},
    Kind.CHECKPOINT_ALLOCATED: {"c": 0, "step": 0, "parent": None},
    Kind.CHECKPOINT_COMMITTED: {
        "c": 7, "step": 40, "parent": 5, "manifest": NAME.manifest, "manifest_digest": SHA, "bytes": 9,
        "bytes_written": 4, "tiers": ["disk"], "cursor_digest": SHA, "reuses": [5],
        "ledger": {"key": NAME.ledger_index, "digest": SHA},
    },
    Kind.CHECKPOINT_ABORTED: {"c": 1, "reason": "x"},
    Kind.FAILURE: {"class": "F1", "signature": "s", "evidence": ["e"], "step": 3},
    Kind.PROMISE_LOWERED: {"from": "bitwise", "to": "coverage", "reason": "x"},
    Kind.RUN_DRAINING: {"reason": "SIGTERM", "step": 3},
    Kind.RUN_SUCCEEDED: {"c": 7, "target": {"max_steps": 40}},
    Kind.RUN_FAILED: {"reason": "x"},
    Kind.RUN_FORKED: {
        "parent_spec": {}, "spec": {}, "spec_digest": SHA, "diff": {}, "from": None, "external": "a.ckpt",
    },
    Kind.RUN_EXTENDED: {"target": {"max_steps": 80}},
    Kind.RUN_SUMMARIZED: {"end": 9, "key": "summaries/x.json", "digest": SHA},
    Kind.RUN_CANCELLED: {"principal": "me", "reason": "x"},
    Kind.NOOP: {"reason": "doubt"},
}  # fmt: skip


def record(kind: Kind = Kind.NOOP, **changes: object) -> Record:
    plain = Record(
        seq=4, generation=3, epoch=0, launch_id="launch", op_id="0123abcd" * 4, kind=kind,
        payload=PAYLOADS.get(kind, {"c": 7}), prev=SHA, time=1700000000.5,
    )  # fmt: skip
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]
