"""L3. The contract of ``Tier`` on an object store.

Who created a document is never guessed. Each conditional PUT carries a mark of its own in the object's
metadata, kept over all its repetitions; when an answer was lost, the mark that stands there tells our
creation from another's, even of equal bytes. Once in doubt, no later failure clears it, however clean.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import wait
from importlib.util import find_spec
from itertools import chain
from typing import TypeVar

from durable_core.clock import Clock, SystemClock
from durable_core.errors import (
    FormatError,
    InDoubt,
    ObjectNotFoundError,
    TierError,
    UnsupportedError,
    UsageError,
)
from durable_core.format import layout
from durable_core.threads import LastingPool
from durable_core.tier.base import DEFAULT_LIMIT, Buffer, Tier, byte_view
from durable_core.tier.remote.answers import AGAIN, Kind, Refusal, backoff, tier_error
from durable_core.tier.remote.client import Head, ObjectClient
from durable_core.tier.remote.options import Place, RemoteOptions, parse
from durable_core.tier.remote.proof import Proof, prove
from durable_core.tier.remote.readahead import ReadAhead
from durable_core.tier.remote.residue import PROBES, collect
from durable_core.tier.remote.sending import Reached, Sending, nothing

T = TypeVar("T")


class RemoteTier(Tier):
    """Objects under a prefix of a bucket. ``open_remote`` makes one from a URL.

    ``reached`` is called at the crash points K6 (part of a large object taken) and K7 (all of it taken,
    not yet acknowledged). ``proof`` is what the last ``probe`` showed.
    """

    replaces_atomically = True
    proof: Proof | None = None

    def __init__(
        self,
        client: ObjectClient,
        place: Place,
        options: RemoteOptions,
        *,
        clock: Clock | None = None,
        reached: Reached = nothing,
    ) -> None:
        self.location = place.location
        self.client = client
        self._prefix = place.prefix
        self._options = options
        self._clock = clock or SystemClock()
        self._reached = reached
        self._ahead = ReadAhead(self._look, options.ahead)
        self._pool: LastingPool | None = None

    # --- reading ---------------------------------------------------------------------------

    def get(self, key: str, *, limit: int = DEFAULT_LIMIT) -> bytes:
        path = self._path(key)
        early = self._ahead.take(key)
        if early is not None and len(early) <= limit:
            return early
        size, body = self._read(key, lambda: self.client.get(path, limit))
        if body is None:
            raise FormatError(key, f"{size} bytes, more than the limit of {limit}")
        return body

    def read_into(self, key: str, offset: int, out: memoryview) -> None:
        path, target = self._path(key), byte_view(out)
        if offset < 0:
            raise UsageError(f"{key}: read at negative offset {offset}")
        if not len(target):
            self.size(key)  # there is something to say only when the object is missing
            return
        step = self._options.part_bytes
        if len(target) <= step:
            self._fill(key, path, offset, target)
            return
        if self._pool is None:
            self._pool = LastingPool(self._options.parallel, thread_name_prefix="durable-read")
        pieces = [
            self._pool.submit(self._fill, key, path, offset + at, target[at : at + step])
            for at in range(0, len(target), step)
        ]
        try:
            for piece in pieces:
                piece.result()
        finally:
            for piece in pieces:
                piece.cancel()
            wait(pieces)  # nothing may write to the caller's buffer after this returns

    def size(self, key: str) -> int:
        path = self._path(key)
        return self._read(key, lambda: self._head(path)).size

    def list(self, prefix: str) -> Iterator[str]:
        layout.check_prefix(prefix)
        whole = self._prefix + prefix
        for item in self._ask(f"list {prefix!r}", lambda: list(self.client.list(whole))):
            key = item.path[len(self._prefix) :]
            if item.path.startswith(whole) and not layout.key_fault(key):
                yield key

    # --- writing ---------------------------------------------------------------------------

    def put_if_absent(self, key: str, data: Buffer) -> bool:
        path, body, mark = self._path(key), bytes(byte_view(data)), self._clock.new_id()
        failure = doubt = None
        for _ in self._tries():
            try:
                self.client.create(path, body, mark)
                return True
            except Refusal as refusal:
                failure = refusal
            if failure.kind is Kind.LOST:
                doubt = failure
            if failure.kind not in AGAIN:
                break
        if doubt is None and (failure is None or failure.kind is not Kind.EXISTS):
            raise self._error(f"create {key}", failure)
        return self._is_ours(key, path, mark, doubt or failure)

    def put(self, key: str, data: Buffer) -> None:
        path, body = self._path(key), bytes(byte_view(data))
        self._change(f"put {key}", lambda: self.client.replace(path, body))

    def write_object(self, key: str, parts: Iterable[Buffer]) -> int:
        """A small object is one conditional PUT, a larger one an upload in parts, in bounded memory.

        An upload carries no condition: that nothing is there is looked up before, which suffices for
        names that are never used twice.
        """
        path = self._path(key)
        sending = Sending(parts, self._options.part_bytes, self._reached)
        first, more = next(sending, b""), next(sending, None)
        if more is not None:
            return self._upload(key, path, sending, chain((first, more), sending))
        if not self.put_if_absent(key, first):
            raise UsageError(f"{key} is already there, and objects are immutable")
        return len(first)

    def replace_object(self, key: str, parts: Iterable[Buffer]) -> int:
        path = self._path(key)
        sending = Sending(parts, self._options.part_bytes, self._reached)
        first, more = next(sending, b""), next(sending, None)
        if more is not None:
            return self._upload(key, path, sending, chain((first, more), sending), fresh=False)
        self._change(f"replace {key}", lambda: self.client.replace(path, first))
        return len(first)

    def delete(self, key: str) -> None:
        path = self._path(key)
        self._change(f"delete {key}", lambda: self.client.delete(path))

    def sync_tail(self, prefix: str) -> None:
        layout.check_prefix(prefix)  # what an object store shows is durable

    def probe(self) -> None:
        def proving() -> Proof:
            # Repeated as a whole, under fresh names: after a lost answer nothing is proved.
            mark = self._clock.new_id()
            path = f"{self._prefix}{PROBES}{mark}"
            return prove(self.client, path, f"{path}-sum", mark, self.location)

        self.proof = self._ask("probe", proving)

    def collect_residue(self, *, limit: int = 1000) -> int:
        """Removes unfinished uploads and what a probe that was killed left.

        An upload is a dead writer's when a later generation has written here, or when it is older than
        ``abandoned_after``.
        """

        def collecting() -> int:
            return collect(
                self.client, self._prefix, now=self._clock.now(),
                abandoned_after=self._options.abandoned_after, limit=limit,
            )  # fmt: skip

        return self._ask("collect residue", collecting)

    # --- parts of these ----------------------------------------------------------------------

    def _is_ours(self, key: str, path: str, mark: str, doubt: Refusal | None) -> bool:
        """Whether what stands there is this call's; ``InDoubt`` when nothing does.

        Asked after a lost answer, and whenever something is there already: what lies between us and
        the store (an HTTP library, a gateway) may have repeated the request by itself.
        """
        try:
            return self._read(key, lambda: self._head(path)).mark == mark
        except (TierError, ObjectNotFoundError) as error:
            raise InDoubt(f"{key} may or may not have been created: {doubt}; then {error.message}") from error

    def _upload(
        self, key: str, path: str, sending: Sending, chunks: Iterable[bytes], *, fresh: bool = True
    ) -> int:
        if fresh and self._size_or_none(key) is not None:
            raise UsageError(f"{key} is already there, and objects are immutable")
        try:
            self.client.upload(path, chunks)
        except Refusal as refusal:
            if not sending.finished:  # a part failed, so the completion was never sent
                raise self._error(f"write {key}", refusal) from refusal
            # It was sent, and answered by a failure: a lost answer, or that of a repetition.
            if not fresh or not self._is_complete(key, sending.nbytes):
                raise InDoubt(f"{key} may or may not be complete: {refusal}") from refusal
        return sending.nbytes

    def _is_complete(self, key: str, nbytes: int) -> bool:
        """Whether a name that was free holds as much as was sent. ``False`` also when nobody can say."""
        try:
            return self._size_or_none(key) == nbytes
        except TierError:
            return False

    def _size_or_none(self, key: str) -> int | None:
        try:
            return self.size(key)
        except ObjectNotFoundError:
            return None

    def _head(self, path: str) -> Head:
        try:
            return self.client.head(path)
        except Refusal as refusal:
            if refusal.kind in (Kind.ABSENT, Kind.INVALID):
                self.client.get(
                    path, 0
                )  # a refused HEAD has no body that says why: which of the two is absent?
            raise

    def _fill(self, key: str, path: str, offset: int, out: memoryview) -> None:
        def read() -> int:
            try:
                return self.client.read(path, offset, out)
            except Refusal as refusal:
                if refusal.kind is Kind.RANGE:
                    return 0
                raise

        got = self._read(key, read)
        if got < len(out):
            raise FormatError(key, f"ends {len(out) - got} bytes short of byte {offset + len(out)}")

    def _look(self, key: str) -> bytes | None:
        """For the read-ahead: what stands there, if it can be had at once."""
        try:
            return self.client.get(self._path(key), DEFAULT_LIMIT)[1]
        except Refusal:
            return None  # it is asked for again when it is needed

    def _path(self, key: str) -> str:
        return self._prefix + layout.check_key(key)

    # --- asking, again and again ---------------------------------------------------------------

    def _tries(self) -> Iterator[int]:
        """Attempts with pauses between them, until there were enough or they took too long."""
        started = self._clock.monotonic()
        for attempt in range(self._options.attempts):
            if attempt:
                pause = backoff(attempt, int(self._clock.new_id()[:8], 16) / 2**32)
                if self._clock.monotonic() - started + pause > self._options.patience:
                    return
                self._clock.sleep(pause)
            yield attempt

    def _ask(self, what: str, call: Callable[[], T], key: str = "") -> T:
        """What comes to nothing when it fails; with ``key``, an absence is that key's."""
        failure = None
        for _ in self._tries():
            try:
                return call()
            except Refusal as refusal:
                failure = refusal
            if failure.kind not in AGAIN:
                break
        if key and failure is not None and failure.kind is Kind.ABSENT:
            raise ObjectNotFoundError(key, self.location)
        raise self._error(what, failure)

    def _read(self, key: str, call: Callable[[], T]) -> T:
        return self._ask(f"read {key}", call, key)

    def _change(self, what: str, call: Callable[[], None]) -> None:
        """What comes to the same when it is repeated."""
        failure = doubt = None
        for _ in self._tries():
            try:
                return call()
            except Refusal as refusal:
                failure = refusal
            if failure.kind is Kind.LOST:
                doubt = failure
            if failure.kind not in AGAIN:
                break
        if doubt is not None:
            raise InDoubt(f"{self.location}: {what}: {doubt}")
        raise self._error(what, failure)

    def _error(self, what: str, failure: Refusal | None) -> TierError:
        assert failure is not None, "there is a first attempt"
        return tier_error(f"{self.location}: {what}", failure)


def open_remote(
    url: str,
    options: RemoteOptions | None = None,
    *,
    clock: Clock | None = None,
    reached: Reached = nothing,
) -> RemoteTier:
    """The tier at ``s3://bucket/prefix[?backend=&endpoint=&region=&profile=]``, ``gs://`` or ``az://``.

    Opening sends nothing. Raises ``UsageError`` for a URL that cannot be read, ``UnsupportedError`` when
    no client is installed, ``TierDenied`` when the credentials asked for are not to be had.
    """
    place, chosen = parse(url, options)
    clock = clock or SystemClock()
    try:
        return RemoteTier(_client(place, chosen, clock), place, chosen, clock=clock, reached=reached)
    except Refusal as refusal:
        raise tier_error(place.location, refusal) from refusal


def _client(place: Place, options: RemoteOptions, clock: Clock) -> ObjectClient:
    backend = options.backend or ("obstore" if find_spec("obstore") or place.scheme != "s3" else "s3fs")
    if backend == "s3fs" and place.scheme != "s3":
        raise UsageError(f"s3fs does not speak {place.scheme}://", hint="leave the backend to obstore")
    try:
        if backend == "s3fs":
            return _s3fs(place, options, clock)
        from durable_core.tier.remote.via_obstore import ObstoreClient
    except ModuleNotFoundError as error:
        raise UnsupportedError(
            f"{place.scheme}:// roots need {error.name}", hint="pip install 'durable-training[s3]'"
        ) from error
    lists = place.scheme == "s3" and find_spec("s3fs") is not None
    return ObstoreClient(place, options, clock, (lambda: _s3fs(place, options, clock)) if lists else None)


def _s3fs(place: Place, options: RemoteOptions, clock: Clock) -> ObjectClient:
    from durable_core.tier.remote.via_s3fs import S3fsClient

    return S3fsClient(place, options, clock)
