"""One accelerator's run from its opening to its closing: what it is made of, and what is seen of a script."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from accelerate_durable import again, another, choosing, gathering, hooks, leaving, spec
from accelerate_durable.counting import Counting
from accelerate_durable.options import DurableOptions
from accelerate_durable.passes import Loop
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


class Opened:
    """``session`` is ``None`` until ``open``, and again after ``reset``."""

    unaware = False  #: zero code: the script knows nothing of it

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
        self.taken_back = ""  # what is told when a pass takes that back, and trains
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

    # --- what is prepared ---------------------------------------------------------------------

    def add_loader(self, loader: PreparedLoader) -> None:
        self._loaders.append(loader)

    def add_model(self, called: torch.nn.Module) -> None:
        self._called.append(called)

    def add_optimizer(self, optimizer: Any) -> None:
        if isinstance(optimizer, torch.optim.Optimizer):
            optimizer.register_step_pre_hook(self._before_unopened)

    def check_unopened(self, what: str) -> None:
        """``UsageError`` once training has begun: what comes now is in no checkpoint."""
        if self.is_open:
            raise UsageError(
                f"{what} after training has begun: its state is in no checkpoint of this run",
                hint="prepare and register everything before the first batch, load_state() and save_state()",
            )

    # --- opening ------------------------------------------------------------------------------

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
        self._hooks += gathering.refuse_unowned(state)
        for optimizer in hooks.optimizers(self.accelerator):
            self._hooks.append(optimizer.register_step_pre_hook(self._before_update))
        self._residue = state.get("gradients")
        if self._residue is not None:
            self._hooks += self._residue.watch()
        again.has(root, self)
        self._home = root
        if self.unaware and not self.asked:
            registered = bool(hooks.registered(self.accelerator))
            over = self.loader is not None and self.loader.cursor.epoch > 0
            self._counting.begun(self.session.steps, registered=registered, over=over)
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

    # --- what is so ---------------------------------------------------------------------------

    @property
    def is_open(self) -> bool:
        return self.session is not None and self._closed is None

    @property
    def ended(self) -> bool:
        """There is nothing to train any more."""
        session, steps = self.session, self.options.max_steps
        if session is None:
            return False
        return session.run.completed or (steps is not None and session.steps >= steps)

    @property
    def counts_itself(self) -> bool:
        """Nothing tells the script, or its run, where to end after a restart but the passes it counts."""
        return self.options.max_steps is None and not hooks.registered(self.accelerator)

    @property
    def steps(self) -> int:
        """Optimizer steps of the run; 0 before it is open."""
        return 0 if self.session is None else self.session.steps

    @property
    def _outstanding(self) -> int:
        return 0 if self.loader is None else self.loader.outstanding

    @property
    def _at_end(self) -> bool:
        """All of the pass that trains has been handed out: its last step may be a short one."""
        return self._trains is not None and self._trains.end_of_dataloader

    # --- what is seen of the script ---------------------------------------------------------------

    def handed_out(self, loader: PreparedLoader, since: int) -> None:
        """``loader`` hands over a batch of a pass that began at step ``since``. Raises ``UnsupportedError``
        when it is read along with the one that trains."""
        if loader is self._trains:
            self._strays.known()
        else:
            self._strays.handed_out(loader, along=self.loop.training and since != self.steps)

    def _note_skipped(self) -> None:
        self._skipped = True

    def _before_update(self, *_: Any) -> None:
        if self._trains is not None and not (self._outstanding or self.loop.by_hand):
            self._strays.check_update(self._trains)

    def _before_unopened(self, *_: Any) -> None:
        if self.session is None and again.another_trains(self):
            raise UnsupportedError(
                "an optimizer steps whose accelerator has no run, while another one of this process has: its "
                "model is in no checkpoint",
                hint="prepare all that is trained together with one accelerator",
            )

    # --- closing ------------------------------------------------------------------------------

    @property
    def _within_pass(self) -> bool:
        """A pass that trains was left before all of it was handed out, though there is more to train."""
        return self.loop.training and self._trains is not None and not (self._at_end or self.ended)

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
