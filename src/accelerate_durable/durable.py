"""One accelerator's run: what its passes do, where its boundaries are, and how it ends.

Nothing of the protocol is here: that is ``DurableSession``'s.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import torch

from accelerate_durable import choosing, hooks, leaving
from accelerate_durable.opened import Opened
from accelerate_durable.passes import READ_ONLY, Pass, check_not_beyond, decide, over
from durable_core.data import DurableLoader
from durable_core.errors import UsageError
from durable_core.session import notices
from durable_core.session.plain import DurableSession

if TYPE_CHECKING:
    from accelerate_durable.loader import PreparedLoader
    from accelerate_durable.saving import SaveStates


class Durable(Opened):
    """What becomes of passes, batches and steps while it is open."""

    @property
    def states(self) -> SaveStates:
        """The directories of ``save_state``."""
        if self._states is None:
            from accelerate_durable.saving import SaveStates

            self._states = SaveStates(self)
        return self._states

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
        whole = self._at_end and (self._due or not loader.outstanding)
        self._counting.next_pass(whole=whole or looked)
        if verdict is not Pass.TRAINS:
            self._ran = True
            self._empty_pass(session, verdict, epoch)
            self.loop.begin(verdict, epoch)
        elif not self.loop.training:
            self._go_on(session)
            if self.taken_back:
                notices.say(self.taken_back)
                self.taken_back = ""
            self._counting.resumed(loader.cursor.batch)
        elif self._due and loader.outstanding:  # what was trained of a pass that is left now belongs to it
            loader.acknowledge(loader.outstanding, step=session.steps + 1, no_update=not session.updated)
        return verdict

    def _empty_pass(self, session: DurableSession, verdict: Pass, epoch: int) -> None:
        """One that brings the script no further: the run has ended, or the epoch is that of the pass before.
        After a restart it asks for those of all epochs anew."""
        where, due = f"epoch {epoch} is over", 0
        if verdict is Pass.ENDED:
            where = f"the run has ended at step {session.steps}"
            due = 0 if self._stepped else self.loop.epoch + 1
        elif epoch != self.loop.last:
            self._beyond = 0
            return
        self._beyond += 1
        told = [check_not_beyond(self._beyond - due, where)]
        if self._beyond == 1 and session.run.completed:
            told.append(over(session.steps, self.root))
        for sentence in filter(None, told if self.accelerator.is_main_process else ()):
            notices.say(sentence)

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
            self._counting.stepped(0 if self._at_end else self.loader.outstanding)
        loss, self._loss = self._loss, None
        with self._told():
            return session.step(**_read(loss), lr=self._lr())

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

    def _lr(self) -> float | None:
        first = next(iter(hooks.optimizers(self.accelerator)), None)
        return None if first is None else float(first.param_groups[0]["lr"])

    def computing(self, loss: Any) -> None:
        """The script computes the gradients of ``loss`` now."""
        if self._residue is not None and (told := self._residue.computing()):
            notices.say(told)
        if isinstance(loss, torch.Tensor) and loss.numel() == 1:
            self._loss = loss.detach()

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
        if self.counts_itself and self._within_pass:
            self._counting.left(session.steps + self._due, (session.restored or (0, 0))[1])
        self.boundary()
        if self._states is not None:
            self._states.before_batch()
        with self._told():
            session.finish()
        self.close(leaving.How.FINISHED)


def _read(loss: torch.Tensor | None) -> dict[str, Any]:
    """What ``step`` is told of it: where reading would wait for a device, the session reads it later."""
    if loss is None:
        return {}
    return {"loss": float(loss)} if loss.device.type == "cpu" else {"unread": {"loss": loss}}
