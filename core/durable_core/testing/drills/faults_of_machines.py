"""L6. Scenarios in which a host, the launcher or an operator ends what runs."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable

from durable_core.testing.drills import namespaces
from durable_core.testing.drills.checks import Incident, left_of
from durable_core.testing.drills.ground import POLL_S, Ground, Launched
from durable_core.testing.drills.orders import Injection

DRAINED, FENCED, CANCELLED = 75, 76, 78
#: In which a cut network is seen.
BOUND_S = 30.0
#: In which a stale worker that is awake may do what it can.
AWAKE_S = 25.0


def stale_writer(ground: Ground, defended: bool) -> Incident:
    """A whole group is frozen in the middle of a save: launcher, keeper, workers. Another launch takes the
    run over and saves the same steps. The frozen workers wake up beside it, with nobody who would end them,
    and nothing that they write may count; then the rest wakes up."""
    ground.order(Injection("disk", step=12, argument="slow"), without=() if defended else ("fencing",))
    first = ground.launch()
    ground.until_step(17)
    frozen = ground.processes()
    _send(frozen, signal.SIGSTOP)
    began = ground.clock.monotonic()
    stale, workers = ground.reader.state.launch_id, {mark.pid for mark in ground.marks()}
    ground.order(Injection("slow", step=22, argument="0.5"), steps=60)  # it still trains when they have ended
    second = ground.launch("--takeover")
    ground.until_step(21, after=began)
    ground.until_true("the same steps to be saved", lambda: (ground.reader.state.head_step or 0) >= 20)
    taken = ground.reader.view.next_seq
    _send(workers, signal.SIGCONT)
    deadline = ground.clock.monotonic() + AWAKE_S
    while (awake := workers & set(ground.processes())) and ground.clock.monotonic() < deadline:
        ground.clock.sleep(POLL_S)
    _send(frozen, signal.SIGKILL if awake else signal.SIGCONT)
    codes: tuple[tuple[int, int], ...] = () if awake else ((ground.wait(first), FENCED),)
    codes = (*codes, (ground.wait(second), 0))
    counted = [
        entry.record.kind.value
        for entry in ground.reader.entries()
        if entry.record.seq >= taken and entry.record.launch_id == stale and not entry.void
    ]
    notes = {
        "stale stop": f"the stale workers {sorted(awake)} go on" if awake else "",
        "nothing counts": f"of the stale launch count {counted}" if counted else "",
    }
    return Incident(began, codes, notes)


def _send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def node_loss(ground: Ground, defended: bool) -> Incident:
    """Every process of the host ends at once, and its memory is empty."""
    memory = ground.base / "memory"
    memory.mkdir()
    ground.order(memory=str(memory), every=5 if defended else 1000)
    first = ground.launch()
    ground.until_step(23)
    began = ground.clock.monotonic()
    for pid in ground.processes():
        os.kill(pid, signal.SIGKILL)
    first.process.wait()
    shutil.rmtree(memory)
    memory.mkdir()
    return Incident(began, ((ground.wait(ground.launch()), 0),))


def controller_kill(ground: Ground, defended: bool) -> Incident:
    """Three times; the workers do not notice, and another one takes over under the next epoch."""
    ground.order(steps=100)
    launched = ground.launch(without="" if defended else "controllers")
    began = ground.until_step(5).time
    for number in range(3):
        epoch = ground.reader.state.epoch
        for pid in ground.processes("durable_core.launch.controller"):
            os.kill(pid, signal.SIGKILL)
        ground.until_epoch(epoch + 1)
        ground.until_step(10 * (number + 1))
    return Incident(began, ((ground.wait(launched), 0),))


def launcher_kill(ground: Ground, defended: bool) -> Incident:
    """Nothing of it is left, though nobody told the workers, who would train on for long; the next launch
    goes on."""
    ground.order(Injection("slow", step=12, argument="1"))
    first = ground.launch() if defended else _torchrun(ground)
    ground.until_step(13)
    began = ground.clock.monotonic()
    first.process.kill()
    first.process.wait()
    left = left_of(ground)
    codes = () if left else ((ground.wait(ground.launch("--takeover")), 0),)
    return Incident(began, codes, {"no orphans": left})


def _torchrun(ground: Ground) -> Launched:
    return ground.start(
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ground.world)
    )


def preemption(ground: Ground, defended: bool) -> Incident:
    """SIGTERM: the state of the next boundary is saved, and the next launch loses nothing."""
    ground.order()
    first = ground.launch()
    ground.until_step(13)
    began = ground.clock.monotonic()
    first.process.send_signal(signal.SIGTERM if defended else signal.SIGKILL)
    code = ground.wait(first)
    left_of(ground)
    charged = [each for each in ground.reader.state.failures if each.payload.get("charged")]
    second = ground.launch("--max-restarts", "0")
    return Incident(
        began,
        ((code, DRAINED if defended else -signal.SIGKILL), (ground.wait(second), 0)),
        {"not charged": f"{len(charged)} failures were charged" if charged else ""},
    )


def cancel_in_save(ground: Ground, defended: bool) -> Incident:
    """The journal says so first: what is being saved is not committed, and no launch goes on."""
    ground.order(Injection("disk", step=12, argument="slow"), steps=400)
    first = ground.launch()
    ground.until_step(16)
    began = ground.clock.monotonic()
    if defended:
        command = (sys.executable, "-m", "durable_core.cli", "cancel", ground.orders.root, "--as", "operator")
        subprocess.run((*command, "--reason", "drill"), check=True, timeout=60, stdout=subprocess.DEVNULL)
    else:
        first.process.send_signal(signal.SIGTERM)
    code = ground.wait(first)
    head = ground.reader.state.head
    again = ground.wait(ground.launch())
    grew = "" if ground.reader.state.head == head else "something was committed after the end"
    return Incident(began, ((code, CANCELLED), (again, CANCELLED)), {"nothing after the end": grew})


def world_size(ground: Ground, defended: bool) -> Incident:
    """Drained with two workers, continued with one: the same batches in the same order."""
    ground.order(promise="exact-order" if defended else "bitwise")
    first = ground.launch()
    ground.until_step(13)
    first.process.terminate()
    began = ground.clock.monotonic()
    code = ground.wait(first)
    second = ground.launch(world=1)
    return Incident(began, ((code, DRAINED), (ground.wait(second), 0)))


def network(ground: Ground, defended: bool) -> Incident:
    """Two hosts. The wire is cut for a second, which TCP bridges; then for longer than a step may take."""
    with namespaces.machine(alone=True) as inside:
        ground.order(steps=120)
        launched = _on_two_hosts(ground, inside, "4" if defended else "100000")
        ground.until_step(10)
        namespaces.wire(inside, up=False)
        ground.clock.sleep(1.0)
        namespaces.wire(inside, up=True)
        bridged = ground.until_step(25)
        generation = ground.reader.state.generation
        began = ground.clock.monotonic()
        namespaces.wire(inside, up=False)
        ground.until_true("bounded", lambda: bool(ground.reader.state.failures), within_s=BOUND_S)
        namespaces.wire(inside, up=True)
        codes = tuple((ground.wait(each), 0) for each in launched)
    kept = "" if bridged.generation == generation == 1 else "a second without network cost a restart"
    return Incident(began, codes, {"short cut bridged": kept})


def _on_two_hosts(ground: Ground, inside: namespaces.Inside, limit_s: str) -> list[Launched]:
    """An agent with one worker on each."""
    launched = []
    for number, host in enumerate(namespaces.two_hosts(inside), 1):
        wires = (f"{name}_SOCKET_IFNAME=wire{number}" for name in ("GLOO", "TP"))
        ground.prefix = (*inside.prefix, *host, "env", *wires)
        one = ground.launch(
            "--nnodes", "2", "--node-rank", str(number - 1), "--rdzv-backend", "c10d",
            "--rdzv-endpoint", "10.9.0.1:29511", "--rdzv-conf", f"is_host={int(number == 1)}",
            "--rdzv-id", "drill",
            "--local-addr", f"10.9.0.{number}", "--step-limit", limit_s, world=1,
        )  # fmt: skip
        launched.append(one)
    return launched
