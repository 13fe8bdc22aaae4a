"""L6. Commands that check: ``verify``, ``audit``, and ``export``, which verifies before it writes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from durable_core.cli.output import CORRUPT, FAILED, OK, Answer, Table, human_bytes
from durable_core.engine.inspect import open_run

if TYPE_CHECKING:
    from durable_core.engine.audit.explain import Use
    from durable_core.engine.audit.sources import SourceCount
    from durable_core.engine.export.hugging import Wanted
    from durable_core.engine.verify import Verified


def verify(root: str, c: int | None, *, strict: bool = False) -> Answer:
    from durable_core.engine import verify as engine

    reader = open_run(root, with_holes=True)
    report = engine.verify(reader, c, strict=strict)
    document = {
        "run": reader.state.run_id,
        "ok": not report.findings,
        "bytes": report.bytes,
        "records": reader.view.next_seq,
        "checkpoints": [
            {
                "c": v.c, "step": v.step, "state": v.state.value, "objects": v.objects, "bytes": v.bytes,
                "ok": not v.findings, "elsewhere": list(v.elsewhere),
            }
            for v in report.checkpoints
        ],
        "findings": [asdict(finding) for finding in report.findings],
    }  # fmt: skip
    human: list[Table | str] = [
        Table(
            ("c", "step", "state", "objects", "read", "verdict"),
            [
                (v.c, v.step, v.state.value, v.objects, human_bytes(v.bytes), _verdict(v))
                for v in report.checkpoints
            ],
        )
    ]
    if report.findings:
        human.append(
            Table(
                ("c", "what", "object", "reason"), [(f.c, f.kind, f.key, f.reason) for f in report.findings]
            )
        )
    human.append(
        f"{reader.view.next_seq} journal records and {human_bytes(report.bytes)} read: "
        + (f"{len(report.findings)} FINDINGS" if report.findings else "every byte is as it was written")
    )
    if any(v.elsewhere for v in report.checkpoints):
        human.append("elsewhere: in tiers that the journal names and that are not this root (durable ls)")
    code = CORRUPT if report.corrupt else FAILED if report.findings else OK
    return Answer(document, human, code)


def _verdict(verified: Verified) -> str:
    if verified.findings:
        return f"{len(verified.findings)} FINDINGS"
    return f"fine; {len(verified.elsewhere)} objects are elsewhere" if verified.elsewhere else "fine"


def audit(root: str, c: int | None = None) -> Answer:
    from durable_core.engine import audit as engine

    found = engine.audit(open_run(root), c)
    document = found.to_json()
    names = ("steps", "samples", "repeated", "skipped", "abandoned", "left_out")
    human: list[Table | str] = [Table(("what", "count"), [(name, document[name]) for name in names])]
    if found.consumption.sources:
        human.append(_by_source(found.consumption.sources))
    if found.consumption.findings:
        human.append(
            Table(
                ("finding", "c", "epoch", "count", "detail"),
                [(f.kind, f.c, f.epoch, f.count, f.detail) for f in found.consumption.findings],
            )
        )
    human += [f"note: {note}" for note in found.notes]
    if found.unverified:
        human.append("note: the dataset is unverified: its identity is a claim, not a digest")
    if left_out := document["left_out"]:
        packs = any(source.tokens is not None for source in found.consumption.sources)
        kept = "" if packs else f"{found.consumption.samples - left_out} consumed, "
        human.append(f"{kept}{left_out} left out by declaration")
    human.append(_conclusion(found.sound, found.proven, found.steps))
    return Answer(document, human, OK if found.sound else FAILED)


def _by_source(sources: Sequence[SourceCount]) -> Table:
    return Table(
        ("source", "size", "draws", "due", "tokens", "epochs", "repeated", "skipped", "left out"),
        [
            (
                s.name, s.size, s.draws, None if s.due is None else f"{s.due:.1f} {s.due_in}", s.tokens,
                s.epochs, s.repeated, s.skipped, s.left_out,
            )
            for s in sources
        ],
    )  # fmt: skip


def explain(root: str, sample: str, c: int | None = None) -> Answer:
    from durable_core.engine.audit import explain as engine

    found = engine.explain(open_run(root), sample, c)
    name = f"sample {found.id}" + (f" of {found.source}" if found.source is not None else "")
    if not found.uses:
        return Answer(found.to_json(), [f"{name} was not consumed by step {found.step}"])
    uses = [(u.step, u.epoch, u.batch, u.role, u.place, u.tokens, _effect(u), u.c) for u in found.uses]
    columns = ("step", "epoch", "batch", "role", "place", "tokens", "effect", "committed by c")
    held = ", ".join(f"c{c}" for c in found.checkpoints) or "none"
    human: list[Table | str] = [Table(columns, uses, name), f"checkpoints that hold its effect: {held}"]
    return Answer(found.to_json(), human)


def _effect(use: Use) -> str:
    if use.left_out:
        return "left out by declaration"
    return "applied" if use.applied else "no update"


def _conclusion(sound: bool, proven: bool, steps: int) -> str:
    if sound and steps == 0:
        return "nothing was trained yet: no step was committed (a loop of one's own calls run.step())"
    if sound:
        return "every sample that was due was consumed exactly once"
    if not proven:
        return "NOT PROVEN: steps were committed without a ledger"
    return "FAILED: the steps did not consume what they should have"


def export(root: str, out: str, c: int | None, form: str, hf: Wanted) -> Answer:
    from durable_core.engine import export as engine

    formats = ("safetensors", "lightning") if form == "all" else (form,)
    done = engine.export(open_run(root), out, c, formats=formats, required=form != "all", hf=hf)
    for each in done.damaged:
        print(f"durable: c{each.c} at step {each.step} is passed over: {each.reason}", file=sys.stderr)
    document = {
        "c": done.c,
        "step": done.step,
        "out": str(done.out),
        "files": [{"path": str(path), "bytes": nbytes} for path, nbytes in done.files],
        "notes": list(done.notes),
        "damaged": [asdict(each) for each in done.damaged],
    }
    human: list[Table | str] = [
        f"c{done.c} at step {done.step}, verified, to {done.out}",
        Table(
            ("file", "bytes"),
            [(str(path.relative_to(done.out)), human_bytes(nbytes)) for path, nbytes in done.files],
        ),
        *(f"note: {note}" for note in done.notes),
    ]
    return Answer(document, human)
