"""``save_state``: the state is committed, and then the directory that the script asked for names it.

In this order, so that a kill between any two of them costs nothing that was told to be there:

1. the checkpoint is committed;
2. a hidden directory says so, and the script's hooks write into it;
3. the checkpoint is pinned in the journal: what a directory names is never collected;
4. the directory is there, whole;
5. what ``total_limit`` no longer wants is out of sight;
6. checkpoints that no directory names any more are unpinned;
7. the old directories are removed.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate_durable import folders, hooks, loading, making
from accelerate_durable.folders import Folder, FolderError, Kind, Pointer
from durable_core.engine.roots import named
from durable_core.engine.uncaught import FencedExit
from durable_core.errors import CommitAborted, FencedError, TierError, UsageError
from durable_core.format import canonical, digests
from durable_core.session import notices
from durable_core.session.plain import DurableSession
from durable_core.state import bits, capture, rng, tree

if TYPE_CHECKING:
    from accelerate_durable.durable import Durable


#: How what an optimizer is set to is called, beside its number.
_SET = "what optimizer"


class SaveStates:
    """The directories of one accelerator. Every method is called by all ranks, on the training thread."""

    def __init__(self, durable: Durable) -> None:
        self._durable = durable
        self._deferred: dict[Path, tuple[int, int]] = {}  # the epoch and batch of the call
        self._naming: dict[str, Pointer] = {}  # directories seen to name a checkpoint
        self._parents: list[Path] = []  # where they are
        self._since = Since()
        self._between = False  # epochs: where the newest of them was made
        self._told: set[str] = set()

    # --- what a script calls --------------------------------------------------------------------

    def save(self, output_dir: str | os.PathLike[str] | None = None, **_: Any) -> Path:
        """What accelerate's ``save_state`` means: when it returns, the state is durable and ``output_dir``
        names it, on all ranks. Returns the directory, as accelerate's does.

        In the middle of an accumulation both happen at the end of it. While passes yield nothing after a
        restart, nothing is saved, and a directory that is not there names the run's newest checkpoint.
        Raises ``FolderError`` without ``output_dir`` and automatic naming, ``CommitAborted`` when the
        checkpoint could not be committed, and the errors of a tier.
        """
        durable = self._durable
        session = durable.session or durable.open()
        if session.run.completed or durable.epochs_over:
            return self._stand_in(session, output_dir)
        place = self._next_place(session, output_dir)
        if not durable.by_hand:
            durable.boundary()
        if self._within_a_step(session):
            self._deferred[place] = self._in_the_script()
            self._tell(
                "within",
                "save_state was called within a step, whose gradients no checkpoint has: it takes effect "
                f"when the step is complete ({place})",
            )
            return place
        self._save(session, {place: None})
        return place

    def load(
        self, input_dir: str | os.PathLike[str] | None = None, load_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> None:  # fmt: skip
        """What accelerate's ``load_state`` means; see ``loading``."""
        self._since.forget()
        loading.load(self._durable, input_dir, load_kwargs, more)

    # --- what the loop calls ----------------------------------------------------------------------

    def before_batch(self) -> None:
        """Between two steps: after the boundary, if one was due, and before the next batch is taken; and
        after the last one. Two tests where there is nothing to do."""
        if self._since.marked:
            self._tell_what_is_not_saved(self._since.found(self._watched()))
            self._since.forget()
        session = self._durable.session
        if self._deferred and session is not None and not self._within_a_step(session):
            asked, self._deferred = self._deferred, {}
            self._save(session, asked)
            self._since.forget()  # the batch comes now

    def _within_a_step(self, session: DurableSession) -> bool:
        loader = self._durable.loader
        return session.updated or bool(loader is not None and loader.outstanding)

    def _in_the_script(self) -> tuple[int, int]:
        """Where a script in the middle of a step is, and names its directory for: at the end of the step the
        data may be in the next epoch."""
        loader = self._durable.loader
        return (0, 0) if loader is None else (loader.passing, loader.cursor.batch + loader.outstanding)

    # --- saving -----------------------------------------------------------------------------------

    def _save(self, session: DurableSession, asked: Mapping[Path, tuple[int, int] | None]) -> None:
        if self._since.marked:  # of the same step: the head is named once more, as it was
            self._tell_what_is_not_saved(self._since.found(self._watched()))
        try:
            pointer = self._commit(session)
            for place, at in asked.items():
                epoch, batch = at or (pointer.epoch, pointer.batch)
                self._name(session, place, dataclasses.replace(pointer, epoch=epoch, batch=batch))
        except FencedError as error:
            raise FencedExit from error
        cursor = None if self._durable.loader is None else self._durable.loader.cursor
        self._between = cursor is not None and not cursor.batch
        self._since.mark(self._watched())

    def _commit(self, session: DurableSession) -> Pointer:
        """The state of this boundary is durable."""
        world = session.run.world
        if not world.all(_is_durable(session)):
            session.flush()
        if not world.all(_is_durable(session)):
            session.save(wait=True)
        if not _is_durable(session):
            raise CommitAborted(f"the state of step {session.steps} was not committed")
        return self._pointer(session)

    def _pointer(self, session: DurableSession) -> Pointer:
        assert session.newest is not None, "a session that is open has committed or restored something"
        c, step, manifest = session.newest
        loader = self._durable.loader
        at = (0, 0) if loader is None else (loader.cursor.epoch, loader.cursor.batch)
        return Pointer(named(self._durable.root), session.run.run_id, c, step, manifest, *at)

    def _name(self, session: DurableSession, asked: Path, pointer: Pointer) -> None:
        """``asked`` names the checkpoint, which is pinned; older ones are let go of."""
        place = asked.resolve()
        self._look_around(session, place.parent)
        self._make(session, place, pointer)
        if not session.run.completed:
            self._let_go(session, place)

    def _look_around(self, session: DurableSession, parent: Path) -> None:
        """What directories name before this process changes them: pins of an earlier one may become idle."""

        def look() -> None:
            self._naming |= making.pointers(parent) | making.pointers(parent, gone=True)

        if parent not in self._parents:
            self._parents.append(parent)
            session.run.world.decide(lambda: making.told(parent, look))

    def _make(self, session: DurableSession, place: Path, pointer: Pointer) -> None:
        """Hooks run on every rank, as under accelerate; one of them, or of each node, makes the directory."""
        together, makes, number = session.run.world.together, self._makes, session.run.generation
        together(lambda: making.told(place, lambda: making.begin(place, pointer, number)) if makes else None)
        self._run_hooks(making.partial_of(place, number))
        self._pin(session, pointer)
        try:
            together(
                lambda: making.told(place, lambda: making.complete(place, pointer, number)) if makes else None
            )
        except TierError:
            self._pin(session, pointer)  # who owns the run now may have removed what was to become it
            raise
        if not makes and self._durable.accelerator.is_local_main_process:  # of a node whose disk is its own
            shutil.rmtree(making.partial_of(place, number), ignore_errors=True)

    def _pin(self, session: DurableSession, pointer: Pointer) -> None:
        """Raises ``Fenced`` when another process owns the run."""
        if not session.run.completed:
            session.pin(pointer.c)

    def _run_hooks(self, partial: Path) -> None:
        accelerator = self._durable.accelerator
        found = hooks.save_hooks(accelerator)
        if not found:
            return
        partial.mkdir(parents=True, exist_ok=True)
        models = hooks.models(accelerator)
        weights = [accelerator.get_state_dict(model, unwrap=False) for model in models]
        for hook in found:
            hook(models, weights, str(partial))

    @property
    def _makes(self) -> bool:
        """Whether this process is the one that writes on its disk."""
        accelerator = self._durable.accelerator
        if accelerator.project_configuration.save_on_each_node:
            return bool(accelerator.is_local_main_process)
        return bool(accelerator.is_main_process)

    # --- letting go ---------------------------------------------------------------------------------

    def _let_go(self, session: DurableSession, place: Path) -> None:
        """Directories beyond ``total_limit``, and pins of checkpoints that no directory names any more:
        the script may have removed some itself, or one names another checkpoint now."""
        world, limit = session.run.world, self._limit

        def hide() -> None:
            if self._makes and limit is not None:
                making.told(place.parent, lambda: making.retire(place.parent, limit))

        def unnamed() -> list[int]:
            before = list(self._naming.values())
            self._naming = {}
            for parent in self._parents:
                before += making.pointers(parent, gone=True).values()
                self._naming |= making.pointers(parent)
            return list(folders.let_go(before, self._naming.values(), session.run.run_id))

        world.together(hide)
        for c in world.decide(lambda: making.told(place.parent, unnamed)):
            session.unpin(c)
        if self._makes:
            making.told(place.parent, lambda: making.sweep(place.parent))

    @property
    def _limit(self) -> int | None:
        """``total_limit`` is about the directories of automatic naming, and no others."""
        project = self._durable.accelerator.project_configuration
        return project.total_limit if project.automatic_checkpoint_naming else None

    # --- which directory ------------------------------------------------------------------------------

    def _next_place(self, session: DurableSession, output_dir: str | os.PathLike[str] | None) -> Path:
        project = self._durable.accelerator.project_configuration
        if not project.automatic_checkpoint_naming:
            project.iteration += 1
            return _given(output_dir)
        parent = automatic(project.project_dir)
        number = session.run.world.decide(
            lambda: folders.next_number(project.iteration, making.told(parent, lambda: making.names(parent)))
        )
        project.iteration = number + 1  # of the state that is saved now: who restores it makes the next one
        return parent / f"checkpoint_{number}"

    def _stand_in(self, session: DurableSession, output_dir: str | os.PathLike[str] | None) -> Path:
        """The directory of a call that the run made in an earlier life. One that is not there (killed
        between the commit and the directory, or removed since) is made, and names the newest checkpoint."""
        project = self._durable.accelerator.project_configuration
        if project.automatic_checkpoint_naming:
            place = automatic(project.project_dir) / f"checkpoint_{max(project.iteration - 1, 0)}"
        else:
            place = _given(output_dir)
        found = session.run.world.decide(lambda: making.told(place, lambda: Folder.at(place)).kind.value)
        if Kind(found) not in (Kind.OURS, Kind.PLAIN, Kind.NEWER):
            self._name(session, place, self._durable.shown or self._pointer(session))
        self._durable.at_save()
        return place

    # --- what comes after a save --------------------------------------------------------------------

    def _watched(self) -> dict[str, str]:
        """How everything looks."""
        accelerator = self._durable.accelerator
        looks = {f"scheduler {n}": _look(it) for n, it in enumerate(hooks.schedulers(accelerator))}
        looks |= {f"registered object {n}": _look(it) for n, it in enumerate(hooks.registered(accelerator))}
        models = enumerate(hooks.models(accelerator))
        looks |= {f"the weights of model {n}": _tensors(it.named_parameters()) for n, it in models}
        optimizers = enumerate(hooks.optimizers(accelerator))
        looks |= {f"{_SET} {n} is set to": _settings(it) for n, it in optimizers}
        return looks | {"random streams": _digest(rng.capture())}

    def _tell_what_is_not_saved(self, found: list[str]) -> None:
        """But what is set between epochs, another life sets again, if its loop does not begin later: that is
        told where one does."""
        loop = self._durable.loop
        if self._between and not loop.first:
            loop.set_late = loop.set_late or any(name.startswith(_SET) for name in found)
            found = [name for name in found if not name.startswith(_SET)]
        if found:
            self._tell(
                "after",
                f"what came after save_state and before the next batch has changed {', '.join(found)}, of "
                "which the checkpoint knows nothing: a restart from it is not the same run, unless the "
                "script does that again. Call save_state last, or leave saving to the run",
            )

    def _tell(self, kind: str, sentence: str) -> None:
        """Once of each kind, by one process."""
        if kind not in self._told and self._durable.accelerator.is_main_process:
            notices.say(sentence)
        self._told.add(kind)


class Since:
    """Whether what a script may change between ``save_state`` and the next batch has changed."""

    def __init__(self) -> None:
        self._was: dict[str, str] = {}

    @property
    def marked(self) -> bool:
        return bool(self._was)

    def mark(self, looks: Mapping[str, str]) -> None:
        self._was = dict(looks)

    def found(self, now: Mapping[str, str]) -> list[str]:
        """Names of what is otherwise now."""
        return [name for name, look in self._was.items() if now.get(name) != look]

    def forget(self) -> None:
        self._was = {}


def _look(item: Any) -> str:
    return _digest(capture.capture({"it": item}))


def _digest(state: Any) -> str:
    flat = tree.flatten(state, prefix="s")
    return digests.xxh3(canonical.dumps(flat.doc)) + _tensors(flat.tensors.items())


def _tensors(named_ones: Iterable[tuple[str, Any]]) -> str:
    return bits.digest(bits.sums((name, tensor.detach()) for name, tensor in named_ones))


def _settings(optimizer: Any) -> str:
    return repr([{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups])


def _is_durable(session: DurableSession) -> bool:
    newest = session.newest
    return newest is not None and newest[1] == session.steps


def automatic(project_dir: str | None) -> Path:
    """Where automatic naming puts its directories."""
    if project_dir is None:
        raise UsageError(
            "automatic_checkpoint_naming without a project directory",
            hint="Accelerator(project_dir=...), or ProjectConfiguration(project_dir=...)",
        )
    return Path(project_dir) / folders.CHECKPOINTS


def _given(output_dir: str | os.PathLike[str] | None) -> Path:
    if output_dir is None:
        raise FolderError(
            "save_state() without a directory, and automatic checkpoint naming is off",
            hint="save_state(DIR), or ProjectConfiguration(automatic_checkpoint_naming=True)",
        )
    return Path(output_dir)
