"""L5. A checkpoint put in place: into the objects of a session, its loader, and the random streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from durable_core.data import DurableLoader
from durable_core.errors import OrderError
from durable_core.session.pairing import check_position
from durable_core.session.restoring import Loaded
from durable_core.state import capture, rng


class PuttingBack:
    """``hold``: what was put in place is kept, in host memory, and can be put there again until ``release``.

    The objects get copies then, for they would change what is held.
    """

    def __init__(self, objects: Mapping[str, Any], loader: DurableLoader | None, *, hold: bool) -> None:
        self._objects, self._loader, self._hold = objects, loader, hold
        self._held: Loaded | None = None
        self._check: Callable[[], None] | None = None

    def state(self, loaded: Loaded) -> None:
        """The objects and the loader. Raises as ``capture.restore`` and ``DurableLoader.load_state_dict``;
        ``SpecMismatchError`` when one of the two has a data position and the other has none."""
        check_position(self._loader, loaded.cursor)
        capture.restore(self._objects, loaded.state, keep=self._hold)
        if self._loader is not None:
            self._loader.load_state_dict(loaded.cursor)
        self._held = loaded if self._hold else None

    def visited(self, loaded: Loaded) -> None:
        """As ``state``, in the middle of a script, and the streams; what is held is let go."""
        self.release()
        check_position(self._loader, loaded.cursor)
        capture.restore(self._objects, loaded.state)
        if self._loader is not None:
            self._loader.seek(loaded.cursor)
        streams(loaded)
        if self._check is not None:  # it was of where the loader stood before
            self._unwatch()
            self.watch_pair()

    def shown(self, loaded: Loaded) -> None:
        """Objects and streams; the loader is left alone, and so is what is held."""
        capture.restore(self._objects, loaded.state)
        streams(loaded)

    def again(self, *, modes: bool) -> None:
        """Objects and streams once more, if there is something held; the loader is left alone."""
        if self._held is not None:
            capture.restore(self._objects, self._held.state, keep=True, modes=modes)
            streams(self._held)

    def release(self) -> None:
        self._held = None

    def watch_pair(self) -> None:
        """Before the first batch: the loader still stands where it stands now, for there the model does."""
        loader = self._loader
        if loader is None:
            return
        at = loader.cursor

        def check() -> None:
            if loader.cursor != at:
                raise OrderError(
                    f"the model is at epoch {at.epoch} batch {at.batch} of the data, and its loader was "
                    f"moved to epoch {loader.cursor.epoch} batch {loader.cursor.batch}",
                    hint="load no other state into the loader of a session: the two are restored as a pair",
                )
            self._unwatch()

        self._check = check
        loader.before_next.insert(0, check)

    def _unwatch(self) -> None:
        if self._loader is not None and self._check is not None:
            self._loader.before_next.remove(self._check)
            self._check = None


def streams(loaded: Loaded) -> None:
    """The random streams of this process: as they were, or begun anew where the checkpoint has none of its
    role. Raises ``PromiseError`` for a stream of a device that is not here."""
    if loaded.begins:
        rng.begin(loaded.begins)
    else:
        rng.restore(loaded.role["rng"])
