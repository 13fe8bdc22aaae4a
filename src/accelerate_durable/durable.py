"""One accelerator's run: when it is opened, where its boundaries are, and how it ends.

Nothing of the protocol is here: that is ``DurableSession``'s.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import DistributedType

from accelerate_durable import choosing, hooks, spec
from accelerate_durable.exits import FencedExit
from accelerate_durable.options import DurableOptions
from accelerate_durable.passes import BEYOND, Loop, Pass, decide
from durable_core.data import DurableLoader
from durable_core.errors import FencedError, UnsupportedError, UsageError
from durable_core.session import notices
from durable_core.session.plain import PEERS_S, DurableSession
from durable_core.session.world import World
from durable_core.state import buckets, contract

if TYPE_CHECKING:
    import accelerate

    from accelerate_durable.loader import PreparedLoader
    from accelerate_durable.saving import SaveStates

#: Ways to share out work that this adapter knows. The others split the model, or have engines of their own.
_KNOWN = (
    "NO",
    "MULTI_CPU",
    "MULTI_GPU",
    "MULTI_NPU",
    "MULTI_MLU",
    "MULTI_SDAA",
    "MULTI_MUSA",
    "MULTI_XPU",
    "MULTI_HPU",
)

#: Of this process: root -> whose session is open there.
_open: weakref.WeakValueDictionary[str, Durable] = weakref.WeakValueDictionary()


class Durable:
    """``session`` is ``None`` until ``open``, and after ``reset``."""

    def __init__(self, accelerator: accelerate.Accelerator, options: DurableOptions) -> None:
        hooks.check(accelerator)
        _check_kind(accelerator)
        self.accelerator, self.options = accelerator, options
        self.session: DurableSession | None = None
        self.loop = Loop(accelerator)
        self.loader: DurableLoader | None = None
        self._trains: PreparedLoader | None = None
        self._loaders: list[PreparedLoader] = []
        self._called: list[torch.nn.Module] = []  # models as the script calls them
        self._elsewhere: PreparedLoader | None = None
        self._by_hand = False
        self._skipped = False
        self._ran = False  # code of the script's ran after the session was opened
        self._beyond = 0
        self._closed = False
        self._loss: torch.Tensor | None = None
        self._states: SaveStates | None = None
        self._hooks: list[Any] = []
        self._process = os.getpid()

    @property
    def root(self) -> str:
        """Where the run lives. ``UsageError`` when nobody says where."""
        return self.options.home(self.accelerator.project_dir)

    @property
    def states(self) -> SaveStates:
        """The directories of ``save_state``."""
        if self._states is None:
            from accelerate_durable.saving import SaveStates

            self._states = SaveStates(self)
        return self._states

    # --- what is prepared ---------------------------------------------------------------------

    def add_loader(self, loader: PreparedLoader) -> None:
        self._loaders.append(loader)

    def add_model(self, called: torch.nn.Module) -> None:
        self._called.append(called)

    def check_unopened(self, what: str) -> None:
        """``UsageError`` once training has begun: what comes now is in no checkpoint."""
        if self.session is not None and not self._closed:
            raise UsageError(
                f"{what} after training has begun: its state is in no checkpoint of this run",
                hint="prepare and register everything before the first batch, load_state() and save_state()",
            )

    # --- opening -----------------------------------------------------------------------------

    def open(self, before: Callable[[Mapping[str, Any]], None] | None = None) -> DurableSession:
        """At first need: claim the run, and put what it goes on with in place.

        ``before`` is called with the state objects by name: what a run without history is to begin with.
        Raises what ``DurableSession.open`` raises, ``UnsupportedError`` for a loader that cannot be made
        exact, ``UsageError`` when nobody says where the run lives, or it has ended in this process.
        """
        if self.session is not None:
            return self.session
        root = self.root
        other = _open.get(root)
        if other is not None:
            other.close()
        world = World.torch_distributed()
        seed = self._seed(world)
        self._choose(world, seed)
        for model in self._called:
            buckets.settle(model, self.accelerator.device)
        state = self._state()
        if before is not None:
            before(state)
        models = [item for item in state.values() if isinstance(item, torch.nn.Module)]
        session = DurableSession.open(
            root,
            state=state,
            hold=True,
            world=world,
            **{
                **self.options.session(),
                "spec": self.options.spec or spec.derive(self.accelerator, models, self.options, world, seed),
            },
        )
        self.session, self._closed = session, False
        hooks.watch_skipped(self.accelerator, self._note_skipped)
        for optimizer in hooks.optimizers(self.accelerator):
            self._hooks.append(optimizer.register_step_pre_hook(self._before_update))
        _open[root] = self
        atexit.register(self._at_exit)
        return session

    def _seed(self, world: World) -> int:
        given = self.accelerator.dataloader_config.data_seed
        return int(world.broadcast(torch.initial_seed() if given is None else given))

    def _choose(self, world: World, seed: int) -> None:
        place = choosing.choose(
            [choosing.shuffles(loader) for loader in self._loaders], self.options.train_loader
        )
        if place is None:
            return
        accelerator = self.accelerator
        self._trains = self._loaders[place]
        self.loader = choosing.durable_loader(
            self._trains,
            replica=world.roles.index(world.role),
            replicas=len(world.roles),
            seed=seed,
            promise=self.options.settings().promise,
            accumulate=accelerator.gradient_accumulation_steps,
            split=accelerator.split_batches,
            even=hooks.even_batches(self._trains, accelerator.even_batches),
        )

    def _state(self) -> dict[str, Any]:
        accelerator = self.accelerator
        found: dict[str, Any] = {}
        for word, items in (
            ("model", hooks.models(accelerator)),
            ("optimizer", hooks.optimizers(accelerator)),
            ("scheduler", hooks.schedulers(accelerator)),
            ("registered", hooks.registered(accelerator)),
        ):
            unwrapped = {id(item): item for item in map(contract.adapt, items)}
            found |= {f"{word}_{i}" if i else word: item for i, item in enumerate(unwrapped.values())}
        if accelerator.scaler is not None:
            found["scaler"] = accelerator.scaler
        found["loop"] = self.loop
        if self.loader is not None:
            found["loader"] = self.loader
        return found

    # --- passes ------------------------------------------------------------------------------

    def trains(self, loader: PreparedLoader) -> bool:
        """Whether a pass over ``loader`` that begins now is one of the training."""
        if not torch.is_grad_enabled() or self._closed:
            return False
        if self.session is None:
            if not hooks.optimizers(self.accelerator):
                return False  # nothing can be trained yet
            self.open()
            self._ran = False
        return loader is self._trains

    @property
    def training_data(self) -> DurableLoader:
        assert self.loader is not None
        return self.loader

    @property
    def epochs_over(self) -> bool:
        """Passes still yield nothing: the run was restored, and the script has not come to its place yet."""
        return self.session is not None and self.session.restored is not None and not self.loop.training

    def told_epoch(self, loader: PreparedLoader, epoch: int) -> None:
        if self._trains is None or loader is self._trains:
            self.loop.tell(epoch)

    def begin_pass(self) -> Pass:
        """What the pass over the training loader that begins now does."""
        session, loader = self.open(), self.training_data
        epoch, under_way = self.loop.next_epoch(), loader.cursor.epoch
        verdict = decide(epoch=epoch, under_way=under_way, training=self.loop.training, ended=self.ended)
        if verdict is Pass.ENDED:
            self._count_beyond()
        if verdict is not Pass.TRAINS:
            self._ran = True
            self.loop.begin(verdict, epoch)
            return verdict
        if not self.loop.training:
            self._go_on(session)
        elif self._due and loader.outstanding:  # what was trained of a pass that is left now belongs to it
            loader.acknowledge(loader.outstanding, step=session.steps + 1, no_update=not session.updated)
        return verdict

    def entered(self, epoch: int) -> None:
        """The pass that trains is of ``epoch``."""
        self.loop.begin(Pass.TRAINS, epoch)

    def _go_on(self, session: DurableSession) -> None:
        """What the script computed since the run was opened, for epochs long done, is undone. A run of which
        nothing was trained has no such epochs: there it is what the first start computed as well."""
        if self._ran and session.steps:
            session.reapply()
        session.release()

    @property
    def ended(self) -> bool:
        session = self.session
        if session is None:
            return False
        steps = self.options.max_steps
        return session.run.completed or (steps is not None and session.steps >= steps)

    def _count_beyond(self) -> None:
        self._beyond += 1
        if self._beyond > BEYOND:
            assert self.session is not None
            raise UsageError(
                f"the run has ended at step {self.session.steps}, and the script has since asked for {BEYOND} "
                "passes, all of them empty",
                hint="end the script's loop by a count of passes, or register what it counts "
                "(register_for_checkpointing)",
            )

    # --- the boundary ------------------------------------------------------------------------

    def before_batch(self) -> bool:
        """The instant before a batch is taken. ``True``: there is none any more, for the run has ended."""
        if not self._by_hand:
            self.boundary()
        if self._states is not None:
            self._states.before_batch()
        return self.ended

    def skip(self, batches: int) -> None:
        """The script asks for a loader without its first ``batches``: a run with a history goes on where it
        stands, and a fresh one begins there. Raises as ``DurableLoader.skip``."""
        session, loader = self.open(), self.training_data
        if session.restored is None and not self.loop.training and not loader.cursor.consumed_samples:
            loader.skip(batches)

    @property
    def by_hand(self) -> bool:
        """The script says where its boundaries are (``commit``)."""
        return self._by_hand

    @property
    def _due(self) -> bool:
        return self.session is not None and (self.session.updated or self._skipped)

    def boundary(self) -> bool:
        """Account for the step since the last one, if there was any; ``True`` when it was saved.

        Raises ``Drained`` after SIGTERM (exit 75), ``FencedExit`` when another process owns the run (76),
        and what ``DurableSession.step`` raises.
        """
        if self.session is None or self.epochs_over or not self._due:
            return False
        self._skipped = False
        loss, self._loss = self._loss, None
        try:
            return self.session.step(loss=_read(loss), lr=self._lr())
        except FencedError as error:
            raise FencedExit from error

    def commit(self, wait: bool = False) -> bool:
        """The boundary, where the script says so: from the first call on it is nowhere else, but at the end.

        ``wait``: until the state is durable. ``True`` when it was saved. While passes are empty, and within
        an accumulation, nothing happens.
        """
        session = self.open()
        self._by_hand = True
        if self.epochs_over or self.ended or (not self._due and self._outstanding):
            return False
        saved = self.boundary()
        return session.save(wait=True) if wait else saved

    @property
    def _outstanding(self) -> int:
        return 0 if self.loader is None else self.loader.outstanding

    def _lr(self) -> float | None:
        first = next(iter(hooks.optimizers(self.accelerator)), None)
        return None if first is None else float(first.param_groups[0]["lr"])

    def note_loss(self, loss: Any) -> None:
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._loss = loss.detach()

    def _note_skipped(self) -> None:
        self._skipped = True

    def handed_out(self, loader: PreparedLoader) -> None:
        """``loader`` hands over a batch."""
        if loader is self._trains:
            self._elsewhere = None
        elif torch.is_grad_enabled():
            self._elsewhere = loader

    def _before_update(self, *_: Any) -> None:
        """An optimizer is about to step: the batch must be one that the run knows of."""
        if self._elsewhere is None or self._outstanding or self.loader is None or self._by_hand:
            return
        place = self._loaders.index(self._elsewhere)
        raise UnsupportedError(
            f"an optimizer steps on batches of prepared loader {place}, and the one that trains is "
            f"{self._loaders.index(self._trains)} (counted from 0 in the order of prepare)",
            hint=f"train_loader={place}, or one loader for all that is trained on",
        )

    # --- ending ------------------------------------------------------------------------------

    def finish(self) -> None:
        """The script says that it is done: the last boundary, and the run has succeeded."""
        session = self.session
        if session is None or self._closed:
            return
        if self.epochs_over and session.steps:
            session.reapply()
        self.boundary()
        if self._states is not None:
            self._states.before_batch()
        try:
            session.finish()
        except FencedError as error:
            raise FencedExit from error
        self.close()

    def close(self, timeout: float = 600.0) -> None:
        """Flush and close, whatever the script still does. Saves nothing; harmless when repeated."""
        if self.session is None or self._closed:
            return
        self._closed = True
        atexit.unregister(self._at_exit)
        while self._hooks:
            self._hooks.pop().remove()
        self.session.close(timeout)

    def reset(self) -> None:
        """``free_memory``: what is prepared after it is another training."""
        self.close()
        self.session = self.loader = self._trains = self._elsewhere = None
        self._loaders, self._called, self.loop, self._states = [], [], Loop(self.accelerator), None
        self._closed = self._by_hand = self._skipped = False

    def _at_exit(self) -> None:
        if self.session is None or os.getpid() != self._process:
            return
        failed = getattr(sys, "last_value", None) is not None
        alone = len(self.session.run.world.roles) == 1
        done = self.session.run.completed
        self.close(PEERS_S if failed and not alone else 600.0)
        if not failed and not done:
            notices.say(
                f"the script has ended, and run {self.session.run.run_id} is not marked as finished: a "
                "restart goes on from its last checkpoint. Call accelerator.end_training() at its end"
            )


def _read(loss: torch.Tensor | None) -> float | None:
    """Not where reading would wait for a device."""
    return None if loss is None or loss.device.type != "cpu" else float(loss)


def _check_kind(accelerator: accelerate.Accelerator) -> None:
    """``UnsupportedError`` for what this adapter cannot make exact."""
    kind = accelerator.distributed_type
    parallel = accelerator.parallelism_config
    if kind in {getattr(DistributedType, name, None) for name in _KNOWN} and parallel is None:
        return
    what = f"{kind.value}" if parallel is None else "a parallelism_config"
    raise UnsupportedError(
        f"{what}: the model's state is spread over the processes, which this adapter cannot save exactly",
        hint="data parallelism (DDP) is supported: leave it out, or use plain Accelerate there",
    )
