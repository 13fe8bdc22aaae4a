"""One accelerator's run: when it is opened, where its boundaries are, and how it ends.

Nothing of the protocol is here: that is ``DurableSession``'s.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelerate_durable import again, another, choosing, gathering, hooks, leaving, spec
from accelerate_durable.counting import Counting
from accelerate_durable.options import DurableOptions
from accelerate_durable.passes import READ_ONLY, Loop, Pass, check_not_beyond, decide, over
from accelerate_durable.residue import Residue
from accelerate_durable.strays import Strays
from durable_core.data import DurableLoader
from durable_core.errors import UnsupportedError, UsageError
from durable_core.session import notices
from durable_core.session.plain import DurableSession
from durable_core.session.world import World
from durable_core.state import buckets

if TYPE_CHECKING:
    import accelerate

    from accelerate_durable.folders import Pointer
    from accelerate_durable.loader import PreparedLoader
    from accelerate_durable.saving import SaveStates


class Durable:
    """``session`` is ``None`` until ``open``, and again after ``reset``."""

    def __init__(self, accelerator: accelerate.Accelerator, options: DurableOptions) -> None:
        gathering.check(accelerator)
        self.accelerator, self.options = accelerator, options
        self._forget()

    def _forget(self) -> None:
        self.session: DurableSession | None = None
        self.loop = Loop(self.accelerator)
        self._counting = Counting(self.loop, tells=self.accelerator.is_main_process)
        self.loader: DurableLoader | None = None
        self._trains: PreparedLoader | None = None
        self._even = True  # as Accelerate is asked to share out what fills no whole batch
        self._loaders: list[PreparedLoader] = []
        self._strays = Strays(self._loaders)
        self._called: list[torch.nn.Module] = []  # models as the script calls them
        self._states: SaveStates | None = None
        self.shown: Pointer | None = None  # what load_state has put in place while passes yield nothing
        self._hooks: list[Any] = []
        self._residue: Residue | None = None
        self._loss: torch.Tensor | None = None
        self._skipped = False
        self._ran = False  # code of the script's ran since the session was opened
        self._since: int | None = None  # the step at which the pass that trains began; None: it was read out
        self._told_untrained = False
        self._stepped = False  # this process has trained
        self._at_batch = False  # where what was restored was taken
        self._beyond = 0
        self._failed = False
        self._home = ""  # the root, once the session is open
        self.asked = False  # by load_state: the script says that it goes on
        self._closed: leaving.How | None = None

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

    def add_optimizer(self, optimizer: Any) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer.register_step_pre_hook(self._before_unopened)

    def _before_unopened(self, *_: Any) -> None:
        if self.session is None and again.another_trains(self):
            raise UnsupportedError(
                "an optimizer steps whose accelerator has no run, while another one of this process has: its "
                "model is in no checkpoint",
                hint="prepare all that is trained together with one accelerator",
            )

    @property
    def is_open(self) -> bool:
        return self.session is not None and self._closed is None

    def check_unopened(self, what: str) -> None:
        """``UsageError`` once training has begun: what comes now is in no checkpoint."""
        if self.is_open:
            raise UsageError(
                f"{what} after training has begun: its state is in no checkpoint of this run",
                hint="prepare and register everything before the first batch, load_state() and save_state()",
            )

    # --- opening -----------------------------------------------------------------------------

    def open(self, before: Callable[[Mapping[str, Any]], None] | None = None) -> DurableSession:
        """At first need: claim the run, and put what it goes on with in place.

        ``before`` is called with the state objects by name: what a run without history is to begin with.
        Raises what ``DurableSession.open`` raises, ``UnsupportedError`` for a loader that cannot be made
        exact, ``UsageError`` when nobody says where the run lives.
        """
        if self.session is not None:
            return self.session
        root = self.root
        again.take(root, asked=self.asked, tells=self.accelerator.is_main_process)
        world = World.torch_distributed()
        self._settle(world)
        state = gathering.state(self.accelerator, self.loop, self.loader)
        if (told := gathering.unsaved_schedule(self.accelerator)) and self.accelerator.is_main_process:
            notices.say(told)
        if before is not None:
            before(state)
        gathering.check_owned(state)
        modes = gathering.Modes(state)
        with another.named(root, state):
            self.session = DurableSession.open(
                root,
                state=state,
                hold=True,
                world=world,
                **(self.options.session() | self._spec(world, state)),
            )
        if self.session.restored is not None and not self.loop.at_batch:
            modes.put_back()  # the script's model.train() comes after where this checkpoint was taken
        self._ran, self._at_batch = True, self.loop.at_batch
        hooks.watch_skipped(self.accelerator, self._note_skipped)
        for optimizer in hooks.optimizers(self.accelerator):
            self._hooks.append(optimizer.register_step_pre_hook(self._before_update))
        self._residue = state.get("gradients")
        if self._residue is not None:
            self._hooks += self._residue.watch()
        again.has(root, self)
        self._home = root
        atexit.register(self._at_exit, os.getpid())
        return self.session

    def _settle(self, world: World) -> None:
        """Which loader trains, and what each life has to begin with alike."""
        self._trains = choosing.choose(self._loaders, self.options.train_loader)
        if self._trains is not None:
            self.loader = choosing.durable_loader(
                self._trains, self.accelerator, world, gathering.seed(self.accelerator, world),
                self.options.settings().promise,
            )  # fmt: skip
            self._even = hooks.even_batches(self._trains, self.accelerator.even_batches)
        for model in self._called:
            buckets.settle(model, self.accelerator.device)

    def _spec(self, world: World, state: Mapping[str, Any]) -> dict[str, Any]:
        seed = 0 if self.loader is None else self.loader.seed
        return {"spec": self.options.spec or spec.derive(self.accelerator, state, self.options, world, seed)}

    # --- passes ------------------------------------------------------------------------------

    def trains(self, loader: PreparedLoader) -> bool:
        """Whether a pass over ``loader`` that begins now is one of the training. Raises as ``open``, and
        ``UsageError`` when another accelerator of this process has taken the run."""
        if not torch.is_grad_enabled():
            return False
        if self._closed is leaving.How.TAKEN and loader is self._trains:
            raise UsageError(
                f"another Accelerator of this process trains the run at {self.root} now",
                hint="give each of them a root of its own",
            )
        if self._closed is not None:
            return False
        if self.session is None:
            if not hooks.optimizers(self.accelerator):
                return False  # nothing can be trained yet
            self.open()
            self._ran = loader is not self._trains  # what is evaluated first runs before training goes on
        return loader is self._trains

    @property
    def training_data(self) -> DurableLoader:
        """``UsageError`` where no loader was prepared."""
        if self.loader is None:
            raise UsageError("no loader was prepared", hint="accelerator.prepare(loader)")
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
        if self.shown is not None and not self.ended:
            session.reapply(modes=False)
            self.shown = None
        looked = self._untrained
        if looked:
            self.loop.looked(stepped=self._stepped)
            self._ran, self._since = True, None
        epoch, under_way = self.loop.next_epoch(), loader.cursor.epoch
        verdict = decide(
            epoch=epoch, under_way=under_way, training=self.loop.training, ended=self.ended,
            look=self.loop.look,
        )  # fmt: skip
        assert self._trains is not None
        choosing.check_even(self._even, hooks.even_batches(self._trains, self.accelerator.even_batches))
        whole = self._trains.end_of_dataloader and (self._due or not loader.outstanding)
        self._counting.next_pass(whole=whole or looked)
        if verdict is not Pass.TRAINS:
            self._ran = True
            self._beyond += verdict is Pass.ENDED
            if self._beyond == 1 and session.run.completed and self.accelerator.is_main_process:
                notices.say(over(session.steps, self.root))
            check_not_beyond(self._beyond, session.steps)
            self.loop.begin(verdict, epoch)
        elif not self.loop.training:
            self._go_on(session)
            self._counting.resumed(loader.cursor.batch)
        elif self._due and loader.outstanding:  # what was trained of a pass that is left now belongs to it
            loader.acknowledge(loader.outstanding, step=session.steps + 1, no_update=not session.updated)
        return verdict

    def entered(self, epoch: int) -> None:
        """The pass that trains is of ``epoch``."""
        self.loop.begin(Pass.TRAINS, epoch)
        self._since = self.steps + self._due  # the boundary of the step before is to come

    @property
    def _untrained(self) -> bool:
        """Since the last pass that trains began, and was not read to its end, no optimizer has stepped."""
        return self._since == self.steps and not self._due

    def read_out(self) -> None:
        """The pass that trains has come to its end."""
        if self._untrained and not self._told_untrained and self.accelerator.is_main_process:
            notices.say(READ_ONLY)
            self._told_untrained = True
        self._since = None

    def _go_on(self, session: DurableSession) -> None:
        """What the script computed since the run was opened, for epochs long done, is undone. A run of which
        nothing was trained has no such epochs: there it is what the first start computed as well."""
        if self._ran and session.steps:
            session.reapply(modes=self._at_batch)

    def at_save(self) -> None:
        """The script calls ``save_state`` while passes yield nothing. Where the run stands at the end of the
        pass before, that was the call that has saved it: what the script does from here on is done anew."""
        at = None if self.loader is None else self.loader.cursor
        here = at is not None and not at.batch and self.loop.last == at.epoch - 1
        if here and not self.loop.at_batch and self._ran and self.shown is None and self.session is not None:
            self.session.reapply(modes=False)
            self._ran = False

    @property
    def ended(self) -> bool:
        """There is nothing to train any more."""
        session, steps = self.session, self.options.max_steps
        if session is None:
            return False
        return session.run.completed or (steps is not None and session.steps >= steps)

    def skip(self, batches: int) -> None:
        """The script asks for a loader without its first ``batches``: a run with a history goes on where it
        stands, and a fresh one begins there. Raises as ``DurableLoader.skip``."""
        session, loader = self.open(), self.training_data
        if not (session.steps or self.loop.training or loader.cursor.consumed_samples):
            loader.skip(batches)

    # --- the boundary ------------------------------------------------------------------------

    def before_batch(self) -> bool:
        """The instant before a batch is taken. ``True``: there is none any more, for the run has ended."""
        self.loop.at_batch = True
        if not self.loop.by_hand:
            self.boundary()
        if self._states is not None:
            self._states.before_batch()
        self.loop.at_batch = False
        if self.ended:
            self.save()
        return self.ended

    @property
    def by_hand(self) -> bool:
        """The script says where its boundaries are (``commit``)."""
        return self.loop.by_hand

    @property
    def _due(self) -> bool:
        return self.session is not None and (self.session.updated or self._skipped)

    def boundary(self) -> bool:
        """Account for the step since the last one, if there was any; ``True`` when it was saved.

        Raises ``Drained`` after SIGTERM (exit 75), ``FencedExit`` when another process owns the run (76),
        and what ``DurableSession.step`` raises.
        """
        session = self.session
        if session is None or self.epochs_over or not self._due:
            return False
        self._skipped = False
        self._stepped = True
        session.release()  # it does go on from there
        if self._residue is not None:
            self._residue.boundary()
        if self.loader is not None:
            self._counting.stepped(self.loader.outstanding)
        loss, self._loss = self._loss, None
        with self._told():
            return session.step(loss=_read(loss), lr=self._lr())

    def save(self) -> bool:
        """The state of the last boundary is durable when this returns; ``True`` when it was not before."""
        session = self.session
        if session is None or session.run.completed:
            return False
        newest = session.newest
        with self._told():
            if session.run.world.all(newest is not None and newest[1] == session.steps):
                return False
            return session.save(wait=True)

    def commit(self, wait: bool = False) -> bool:
        """The boundary, where the script says so: from the first call on it is nowhere else, but at the end.

        ``wait``: until the state is durable. ``True`` when it was saved. While passes are empty, and within
        an accumulation, nothing happens.
        """
        self.open()
        self.loop.by_hand = True
        if self.epochs_over or self.ended or (self._outstanding and not self._due):
            return False
        saved = self.boundary()
        return self.save() or saved if wait else saved

    def _told(self) -> leaving.Told:
        return leaving.Told(self._note_failed)

    def _note_failed(self) -> None:
        self._failed = True

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

    # --- batches of other loaders --------------------------------------------------------------

    @property
    def steps(self) -> int:
        """Optimizer steps of the run; 0 before it is open."""
        return 0 if self.session is None else self.session.steps

    def handed_out(self, loader: PreparedLoader, since: int) -> None:
        """``loader`` hands over a batch of a pass that began at step ``since``. Raises ``UnsupportedError``
        when it is read along with the one that trains."""
        if loader is self._trains:
            self._strays.known()
        else:
            self._strays.handed_out(loader, along=self.loop.training and since != self.steps)

    def _before_update(self, *_: Any) -> None:
        if self._trains is not None and not (self._outstanding or self.loop.by_hand):
            self._strays.check_update(self._trains)

    # --- ending ------------------------------------------------------------------------------

    def finish(self) -> None:
        """The script says that it is done: the last boundary, and the run has succeeded.

        But not in a ``finally`` that an error passes through, nor by ``sys.exit()`` in the middle of a pass:
        there what is durable is kept, and a restart goes on. What is under way goes on as well.
        """
        session = self.session
        if session is None or self._closed is not None:
            return
        why = leaving.cut_short(sys.exc_info()[1], within=self._within_pass)
        if why or self._failed:
            self.close(leaving.How.CUT_SHORT, leaving.patience(session, failed=True))
            if not self._failed and not session.run.completed:
                leaving.say_unfinished(session, why)
            return
        if self.epochs_over and session.steps and self.shown is None:
            session.reapply()
        self._counting.next_pass(whole=self._due or not self._outstanding)
        self._counting.resumed(0)  # the last step of all may be a short one
        self.boundary()
        if self._states is not None:
            self._states.before_batch()
        with self._told():
            session.finish()
        self.close(leaving.How.FINISHED)

    @property
    def _within_pass(self) -> bool:
        """A pass that trains was left before all of it was handed out, though there is more to train."""
        loader = self._trains
        return self.loop.training and loader is not None and not (loader.end_of_dataloader or self.ended)

    def close(self, how: leaving.How, timeout: float = leaving.LONG_S) -> None:
        """Flush and close, whatever the script still does. Saves nothing; harmless when repeated."""
        if self.session is None or self._closed is not None:
            return
        self._closed = how
        atexit.unregister(self._at_exit)
        while self._hooks:
            self._hooks.pop().remove()
        if self.session.steps != (self.session.restored or (0, 0))[1]:
            freed = how is leaving.How.FREED
            again.left(self._home, self.session.steps, within=self._within_pass and not freed)
        self.session.close(timeout)

    def reset(self) -> None:
        """What is prepared from now on is another training (``free_memory``)."""
        self.close(leaving.How.FREED)
        self._forget()

    def _at_exit(self, process: int) -> None:
        """The script has ended without a word, or by an exception."""
        session = self.session
        if session is None or os.getpid() != process:
            return
        failed = self._failed or leaving.by_an_exception()
        self.close(leaving.How.FINISHED, leaving.patience(session, failed=failed))
        if not failed and not session.run.completed:
            leaving.say_unfinished(session)


def _read(loss: torch.Tensor | None) -> float | None:
    """Not where reading would wait for a device."""
    return None if loss is None or loss.device.type != "cpu" else float(loss)
