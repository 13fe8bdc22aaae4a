"""A run on a real tier with real staging, saved step by step; any checkpoint is read back and compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from durable_core.clock import SystemClock
from durable_core.commit.claim import claim_generation, create_run
from durable_core.commit.journal import EMPTY
from durable_core.commit.request import Known, SaveOutcome, SaveRequest
from durable_core.commit.save import save_coordinator, save_writer
from durable_core.engine import restore
from durable_core.engine.lineage import Lineage
from durable_core.engine.performer import Performer
from durable_core.engine.staged import StagedShard
from durable_core.errors import DurableError
from durable_core.format.manifest import Manifest
from durable_core.state import tree
from durable_core.state.staging import SlotPool
from durable_core.tier.base import Tier
from durable_core.types import Promise

SHA = "sha256:" + "0" * 64


class Run:
    """``keep_previous``: whether the slot of the last save is still there to compare with."""

    def __init__(self, tier: Tier, *, keep_previous: bool = True, twins: bool = False) -> None:
        self.tier, self.twins, self.keep_previous = tier, twins, keep_previous
        self.performer = Performer(tier, SystemClock())
        how = {"run_id": "run", "spec": {}, "spec_digest": SHA, "seed": 1, "promise": Promise.BITWISE}
        view = self.performer.run(create_run(EMPTY, launch_id="L1", **how))
        self.claim = self.performer.run(claim_generation(view, launch_id="L1", members=("dp0",)))
        self.view = self.claim.view
        self.pool = SlotPool(2)
        self.lineage = Lineage()
        self.step = 0

    @property
    def known(self) -> Known | None:
        return self.lineage.known

    def save(self, state: Mapping[str, Tensor]) -> SaveOutcome:
        """Saves ``{"state": state}`` as the next step."""
        self.step += 1
        slot = self.pool.acquire()
        assert slot is not None
        flat = tree.flatten(dict(state), prefix="state")
        staged = slot.stage(flat.tensors)
        source = StagedShard(staged, "dp0")
        request = SaveRequest(
            role="dp0", roles=("dp0",), token=self.claim.token, run_id="run", step=self.step,
            documents={"state": flat.doc, "role": tree.flatten({}, prefix="roles/dp0").doc}, cursor=None,
            spec_digest=SHA, promise=Promise.BITWISE, slices=staged.slices, known=self.known,
            twins=self.twins,
        )  # fmt: skip
        try:
            with self.lineage.following(source):
                outcome = self.performer.with_source(source).run(save_coordinator(self.view, request))
        except DurableError:
            staged.release()
            raise
        self.lineage.committed(outcome, source, staged.release)
        if not self.keep_previous:
            assert self.lineage.spare()
        self.view = outcome.view
        return outcome

    def read(self, c: int) -> dict[str, Tensor]:
        info = self.view.state.checkpoints[c]
        state = restore.read(self.tier, info.manifest, info.manifest_digest, "dp0").state
        assert isinstance(state, dict)
        return state

    def close(self) -> None:
        self.lineage.spare()
        self.pool.close(remove=True)


class Pair:
    """As ``Run``, with two writers, each on a thread of its own."""

    roles = ("dp0", "dp1")

    def __init__(self, tier: Tier) -> None:
        self.tier = tier
        performer = Performer(tier, SystemClock())
        how = {"run_id": "run", "spec": {}, "spec_digest": SHA, "seed": 1, "promise": Promise.BITWISE}
        view = performer.run(create_run(EMPTY, launch_id="L1", **how))
        self.claim = performer.run(claim_generation(view, launch_id="L1", members=self.roles))
        self.views = dict.fromkeys(self.roles, self.claim.view)
        self.pools = {role: SlotPool(2) for role in self.roles}
        self.lineages = {role: Lineage() for role in self.roles}
        self.step = 0

    def save(self, states: Sequence[Mapping[str, Tensor]]) -> SaveOutcome:
        self.step += 1
        with ThreadPoolExecutor(len(self.roles)) as threads:
            jobs = [threads.submit(self._save, *each) for each in zip(self.roles, states, strict=True)]
            first, *_ = [job.result() for job in jobs]
        return first

    def _save(self, role: str, state: Mapping[str, Tensor]) -> SaveOutcome:
        slot = self.pools[role].acquire()
        assert slot is not None
        flat = tree.flatten(dict(state), prefix="state")
        staged = slot.stage(flat.tensors)
        source = StagedShard(staged, role)
        request = SaveRequest(
            role=role, roles=self.roles, token=self.claim.token, run_id="run", step=self.step,
            documents={"state": flat.doc, "role": tree.flatten({}, prefix=f"roles/{role}").doc}, cursor=None,
            spec_digest=SHA, promise=Promise.BITWISE, twins=False, known=self.lineages[role].known,
        )  # fmt: skip
        program = save_coordinator if request.coordinates else save_writer
        performer = Performer(self.tier, SystemClock(), source=source)
        with self.lineages[role].following(source):
            outcome = performer.run(program(self.views[role], request))
        self.lineages[role].committed(outcome, source, staged.release)
        self.views[role] = outcome.view
        return outcome

    def manifest(self, c: int) -> Manifest:
        info = self.views["dp0"].state.checkpoints[c]
        return restore.read_manifest(self.tier, info.manifest, info.manifest_digest)

    def read(self, c: int, role: str) -> dict[str, Tensor]:
        info = self.views["dp0"].state.checkpoints[c]
        state = restore.read(self.tier, info.manifest, info.manifest_digest, role).state
        assert isinstance(state, dict)
        return state

    def close(self) -> None:
        for role in self.roles:
            self.lineages[role].spare()
            self.pools[role].close(remove=True)


def same(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)
