"""``load_state``: where a script believes it is, and where the run is.

======================================  ==================================================================
called                                  what it does
======================================  ==================================================================
before the run is open                  the run's newest checkpoint is restored, whatever the directory
                                        names: a restart gives the same arguments as the first start. The
                                        directory says which epoch the script's next pass is
the same, and the run has no history    the run begins with what the directory holds: the state that
                                        accelerate wrote, or a checkpoint of another run
while passes yield nothing              the state of the directory's checkpoint is put in place, to be read;
                                        the run and its data stay where they are. A pass takes it back
later                                   the state of the directory's checkpoint is put in place. If an
                                        optimizer steps after it, the run goes on from there
======================================  ==================================================================

The script's load hooks run first, and our state is put in place after them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate.utils import broadcast_object_list

from accelerate_durable import counting, folders, hooks, making
from accelerate_durable.accelerator import DurableMixin
from accelerate_durable.folders import Folder, NoSuchFolder, Pointer, Start
from durable_core.data import DurableLoader
from durable_core.engine import restore
from durable_core.engine.inspect import open_run
from durable_core.engine.roots import named
from durable_core.errors import CorruptError, NotFoundError, RunNotFoundError, UnsupportedError
from durable_core.format.manifest import Manifest
from durable_core.session import notices
from durable_core.session.pairing import loader_of
from durable_core.session.plain import DurableSession
from durable_core.session.putting_back import PuttingBack, streams
from durable_core.session.restoring import Loaded
from durable_core.session.world import role_name

if TYPE_CHECKING:
    from accelerate_durable.durable import Durable

#: What accelerate takes for ``map_location``. Our state goes to where the objects are, whichever is given.
_LOCATIONS = (None, "cpu", "on_device")


def load(
    durable: Durable, input_dir: str | os.PathLike[str] | None, load_kwargs: Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> None:  # fmt: skip
    """Raises ``NoSuchFolder`` and ``FolderError`` for a directory that is not there, or not of this run;
    ``FormatError`` for a damaged one, ``UnknownVersionError`` for one of a newer version, and what opening
    the run raises. ``TypeError`` for a ``map_location`` that accelerate does not know either.
    """
    if more.get("map_location") not in _LOCATIONS:
        raise TypeError(
            f"Unsupported optimizer map location passed: {more['map_location']!r}, not one of {_LOCATIONS}"
        )
    session = durable.session
    if session is None:
        _start(durable, input_dir, load_kwargs, more)
    elif durable.epochs_over:
        _stay(durable, session, input_dir)
    else:
        _go_back(durable, session, input_dir)


# --- at the start of a process ------------------------------------------------------------------------


def _start(
    durable: Durable, input_dir: str | os.PathLike[str] | None, load_kwargs: Mapping[str, Any] | None,
    more: Mapping[str, Any],
) -> None:  # fmt: skip
    root = named(durable.root)
    run, candidates = _look(durable, input_dir, root)
    folder, passed = folders.newest(candidates, run) if input_dir is None else (candidates[0], ())
    _say(durable, *passed)
    if folder is not None and run is not None and folder.check().run != run:
        durable.open()  # it has what the run began with
    start = folders.at_start(folder, root=root, run=run, origin=durable.loop.origin)
    if start is Start.GO_ON:
        _go_on(durable, folder)
        _tell_behind(durable, folder)
    elif start is Start.ACCELERATE:
        assert folder is not None
        _begin_with(durable, folder, lambda _: _by_accelerate(durable, folder, load_kwargs, more))
    else:
        assert folder is not None
        _begin_with(durable, folder, lambda state: _take_over(durable, folder, state))
    _next_pass_is(durable, folder if input_dir is not None else None)


def _look(
    durable: Durable, input_dir: str | os.PathLike[str] | None, root: str
) -> tuple[str | None, list[Folder]]:
    """The run that has a history at ``root``, and the directories that may be meant, newest first: as the
    main process finds them, on all ranks."""
    found: list[Any] = [None]
    if durable.accelerator.is_main_process:
        found = [[_history(root), [folder.to_json() for folder in _candidates(durable, input_dir)]]]
    run, described = broadcast_object_list(found)[0]
    return run, [Folder.from_json(document) for document in described]


def _history(root: str) -> str | None:
    try:
        reader = open_run(root)
    except RunNotFoundError:
        return None
    return reader.state.run_id if reader.committed() else None


def _candidates(durable: Durable, input_dir: str | os.PathLike[str] | None) -> list[Folder]:
    project = durable.accelerator.project_configuration
    if input_dir is not None:
        return [Folder.at(Path(input_dir).expanduser())]
    if not project.automatic_checkpoint_naming or project.project_dir is None:
        return []
    parent = Path(project.project_dir) / folders.CHECKPOINTS
    return [Folder.at(parent / name) for name in reversed(folders.numbered(making.names(parent)))]


def _go_on(durable: Durable, folder: Folder | None) -> None:
    if folder is not None:
        _run_hooks(durable, folder)
    if durable.session is None:
        durable.open()
    else:
        durable.session.reapply()


def _tell_behind(durable: Durable, folder: Folder | None) -> None:
    restored = None if durable.session is None else durable.session.restored
    if folder is not None and folder.pointer is not None and restored is not None and durable.counts_itself:
        told = counting.behind(str(folder.path), folder.pointer.step, restored[1])
        _say(durable, *filter(None, [told]))


def _next_pass_is(durable: Durable, named_one: Folder | None) -> None:
    """A directory that the script has named tells it where it begins, at every start alike. Without one, what
    it knows of that is in what it has registered, or nowhere: then its loop begins at its first epoch."""
    if named_one is not None:
        durable.loop.first = 0 if named_one.pointer is None else named_one.pointer.epoch
    elif hooks.registered(durable.accelerator) and durable.loader is not None:
        durable.loop.first = durable.loader.cursor.epoch
        if durable.loop.first:
            _say(
                durable,
                f"load_state() has restored what the script has registered, so its next pass is taken for "
                f"epoch {durable.loop.first}, the one under way. Where the loop begins at 0 all the same, "
                "say loader.set_epoch(epoch) before each pass",
            )
    if durable.loop.first and durable.loop.set_late and not durable.loop.at_batch:
        _say(
            durable,
            "the script sets an optimizer (its learning rate, say) after save_state at the end of an epoch: "
            "the checkpoint knows nothing of it, and a loop that begins later does not do it again. Call "
            "save_state last, or set it at the start of each epoch",
        )


# --- a run that begins with what a directory holds -----------------------------------------------------


def _begin_with(durable: Durable, folder: Folder, load: Callable[[Mapping[str, Any]], None]) -> None:
    """``load`` puts it into the state objects, and the run's first checkpoint has it, with where it came
    from: by that a restart with the same arguments knows that it has been done."""

    def before(state: Mapping[str, Any]) -> None:
        load(state)
        durable.loop.origin = str(Path(folder.path).absolute())

    durable.open(before)
    _say(durable, f"the run at {named(durable.root)} begins with what is in {folder.path}")


def _by_accelerate(
    durable: Durable, folder: Folder, load_kwargs: Mapping[str, Any] | None, more: Mapping[str, Any]
) -> None:
    """Its hooks too. With pickle, as accelerate does: of a directory that it wrote, at a person's request."""
    given = None if load_kwargs is None else dict(load_kwargs)
    theirs: Any = super(DurableMixin, durable.accelerator)
    theirs.load_state(folder.path, given, **more)


def _take_over(durable: Durable, folder: Folder, state: Mapping[str, Any]) -> None:
    """Put a checkpoint of another run in place.

    Raises ``NoSuchFolder`` when it is not there any more, ``UnsupportedError`` for one of other processes,
    ``SpecMismatchError`` when it does not fit, and the errors of reading.
    """
    pointer, accelerator = folder.pointer, durable.accelerator
    assert pointer is not None
    role = role_name(accelerator.process_index)

    def own(manifest: Manifest) -> str:
        if role not in manifest.roles or len(manifest.roles) != accelerator.num_processes:
            raise UnsupportedError(
                f"{folder.path} is of a run of {len(manifest.roles)} processes, and here are "
                f"{accelerator.num_processes}: another run can only begin with it in as many",
                hint=f"go on with that run itself, whose root is {pointer.root}",
            )
        return role

    _run_hooks(durable, folder)
    try:
        reader = open_run(pointer.root)
        if reader.state.run_id != pointer.run:
            raise NotFoundError(f"there is run {reader.state.run_id} now")
        info = reader.checkpoint(pointer.c)
        found = restore.read(reader.tier, info.manifest, pointer.manifest, role, whose=own)
    except NotFoundError as error:
        raise _gone(folder, pointer, error) from error
    cursor = {**(found.manifest.cursor or {}), **found.role["position"]}
    loaded = Loaded(
        info.c, info.step, found.state, found.role["own"], cursor, found.manifest.counters, (), found.digest
    )
    PuttingBack(*apart(state), hold=False).state(loaded)
    streams(loaded)


def apart(state: Mapping[str, Any]) -> tuple[dict[str, Any], DurableLoader | None]:
    """The objects of a session, and its loader."""
    loader = loader_of(state)
    return {name: item for name, item in state.items() if item is not loader}, loader


# --- later -------------------------------------------------------------------------------------------------


def _stay(durable: Durable, session: DurableSession, input_dir: str | os.PathLike[str] | None) -> None:
    """Passes yield nothing. Before the first one the script says where it begins; later it wants what it
    asks for, the best state after the last pass above all, and the run is where it was."""
    if durable.loop.begun or durable.ended:
        _choose(durable, session, input_dir, lambda folder: _look_at(durable, session, folder))
    elif input_dir is not None:
        root = named(durable.root)
        folder = _look(durable, input_dir, root)[1][0]
        folders.at_start(folder, root=root, run=session.run.run_id, origin=durable.loop.origin)
        _run_hooks(durable, folder)
        session.reapply()
        _next_pass_is(durable, folder)


def _go_back(durable: Durable, session: DurableSession, input_dir: str | os.PathLike[str] | None) -> None:
    if not durable.by_hand:
        durable.boundary()
    _choose(durable, session, input_dir, lambda folder: _visit(durable, session, folder))


def _choose(
    durable: Durable, session: DurableSession, input_dir: str | os.PathLike[str] | None,
    put: Callable[[Folder], None],
) -> None:  # fmt: skip
    """``put`` the directory that was named, or the newest one that loads."""
    run = session.run.run_id
    _, candidates = _look(durable, input_dir, named(durable.root))
    if input_dir is not None:
        put(candidates[0])
        return
    while candidates:
        folder, passed = folders.newest(candidates, run)
        _say(durable, *passed)
        if folder is None:
            break
        try:
            put(folder)
            return
        except (NotFoundError, CorruptError) as error:
            _say(durable, f"{folder.path} is passed over: {error}")
        candidates = candidates[candidates.index(folder) + 1 :]
    raise NoSuchFolder(
        f"there is no directory of an earlier save_state of the run at {named(durable.root)}",
        hint="load_state(DIR), or automatic_checkpoint_naming=True and save_state() before it",
    )


def _look_at(durable: Durable, session: DurableSession, folder: Folder) -> None:
    durable.shown = pointer = _put(durable, session, folder, session.look)
    durable.taken_back = ""
    if durable.accelerator.is_main_process and pointer.epoch < durable.loop.next_epoch():
        durable.taken_back = _never_gone_back_to(pointer, folder)


def _never_gone_back_to(pointer: Pointer, folder: Folder) -> str:
    """What is told when training goes on after a look at what is older than the script's place. Whoever
    trains on from it in one life goes back by that; empty: the run has done so once."""
    if any(life.asked and life.restore_point == pointer.c for life in open_run(pointer.root).state.lives):
        return ""
    return (
        f"training goes on from the run's newest checkpoint, and not from {folder.path}, which load_state() "
        "has put in place to be read: the run was stopped before a step was made from there, or none is "
        "meant to be. If one is, begin another run with it: a root of its own, and load_state() before the "
        "first batch"
    )


def _visit(durable: Durable, session: DurableSession, folder: Folder) -> None:
    _put(durable, session, folder, session.visit)
    if not durable.loop.training:
        _next_pass_is(durable, folder)


def _put(durable: Durable, session: DurableSession, folder: Folder, put: Callable[[int], object]) -> Pointer:
    pointer = folders.of_this_run(folder, root=named(durable.root), run=session.run.run_id)
    _run_hooks(durable, folder)
    try:
        put(pointer.c)
    except NotFoundError as error:
        raise _gone(folder, pointer, error) from error
    return pointer


def _run_hooks(durable: Durable, folder: Folder) -> None:
    """They may take models out of the list to load them in their own way, which changes nothing here."""
    models = hooks.models(durable.accelerator)
    for hook in hooks.load_hooks(durable.accelerator):
        hook(models, folder.path)


def _gone(folder: Folder, pointer: Pointer, error: NotFoundError) -> NoSuchFolder:
    return NoSuchFolder(
        f"{folder.path} names checkpoint {pointer.c} of the run at {pointer.root}, which is not there any "
        f"more: {error.message}",
        hint=f"durable ls {pointer.root} shows what is; load_state() takes the newest directory that loads",
    )


def _say(durable: Durable, *sentences: str) -> None:
    if durable.accelerator.is_main_process:
        for sentence in sentences:
            notices.say(sentence)
