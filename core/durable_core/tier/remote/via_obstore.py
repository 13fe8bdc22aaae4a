"""L3. The fast client: obstore (Rust) for S3, GCS and Azure. It releases the GIL and copies once.

Every PUT and part is signed with the SHA-256 of its bytes, which S3 refuses to store when they differ.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

import obstore
from obstore import exceptions, store

from durable_core.clock import Clock
from durable_core.errors import UnsupportedError
from durable_core.tier.remote.answers import Kind, Refusal
from durable_core.tier.remote.client import MARK, Head, Listed, ObjectClient, Upload
from durable_core.tier.remote.options import MIB, Place, RemoteOptions

if TYPE_CHECKING:
    from obstore.store import ObjectStore

Provider = Callable[[], dict[str, Any]]

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w+)</Code>")
_HTTP = re.compile(r"HttpError \{\s*kind: (\w+)")
_FAILURES = (exceptions.BaseError, OSError)  # some come as plain FileNotFoundError
_KINDS: dict[type[Exception], Kind] = {
    exceptions.AlreadyExistsError: Kind.EXISTS,
    exceptions.PreconditionError: Kind.EXISTS,
    exceptions.NotFoundError: Kind.ABSENT,
    FileNotFoundError: Kind.ABSENT,
}


class ObstoreClient:
    name = "obstore"

    def __init__(
        self,
        place: Place,
        options: RemoteOptions,
        clock: Clock,
        uploads: Callable[[], ObjectClient] | None = None,
    ) -> None:
        """``uploads`` makes a client that can list unfinished uploads; obstore cannot."""
        self.checksum = "sha256 of the payload, signed" if place.scheme == "s3" else ""
        self._options = options
        self._make_uploads = uploads
        self._listing: ObjectClient | None = None
        credentials = _credentials(options, clock) if place.scheme == "s3" else None
        self._control = _open(place, options, credentials, options.timeout, retries=0)
        self._parts = _open(place, options, credentials, options.part_timeout, retries=options.attempts - 1)

    def create(self, path: str, body: bytes, mark: str) -> None:
        with _refusals():
            obstore.put(self._control, path, body, mode="create", attributes={MARK: mark})

    def replace(self, path: str, body: bytes) -> None:
        with _refusals():
            obstore.put(self._control, path, body, use_multipart=False)

    def get(self, path: str, limit: int) -> tuple[int, bytes | None]:
        with _refusals():
            answer = obstore.get(self._control, path)
            size = answer.meta["size"]
            return size, None if size > limit else bytes(answer.bytes())

    def read(self, path: str, offset: int, out: memoryview) -> int:
        filled = 0
        with _refusals():
            answer = obstore.get(self._parts, path, options={"range": (offset, offset + len(out))})
            for chunk in answer.stream(min_chunk_size=MIB):
                piece = memoryview(chunk)
                out[filled : filled + len(piece)] = piece
                filled += len(piece)
        return filled

    def head(self, path: str) -> Head:
        with _refusals():
            answer = obstore.get(self._control, path, options={"head": True})
            return Head(answer.meta["size"], str(answer.attributes.get(MARK, "")))

    def delete(self, path: str) -> None:
        try:
            with _refusals():
                obstore.delete(self._control, path)
        except Refusal as refusal:
            if refusal.kind is not Kind.ABSENT:
                raise

    def list(self, prefix: str) -> Iterator[Listed]:
        """obstore's prefixes are whole segments, so this lists the last whole one."""
        with _refusals():
            for batch in obstore.list(self._control, prefix.rpartition("/")[0] or None, chunk_size=1000):
                for meta in batch:
                    yield Listed(meta["path"], meta["last_modified"].timestamp())

    def upload(self, path: str, chunks: Iterable[bytes]) -> None:
        # A writer, and not an iterator given to put(): that one would run inside the client's event
        # loop, where whatever produces the chunks could not use the client itself.
        with _refusals(), obstore.open_writer(
            self._parts, path, buffer_size=self._options.part_bytes, max_concurrency=self._options.parallel
        ) as writer:  # fmt: skip
            for chunk in chunks:
                writer.write(chunk)

    def uploads(self, prefix: str) -> Iterator[Upload]:
        if self._make_uploads is not None:
            self._listing = self._listing or self._make_uploads()
            yield from self._listing.uploads(prefix)

    def abort(self, upload: Upload) -> None:
        assert self._listing is not None, "an upload comes from uploads()"
        self._listing.abort(upload)

    def garbled(self, path: str, body: bytes) -> bool | None:
        return None  # the digest is computed by the client, always rightly


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise refusal_of(error) from None  # the text holds the store's answer: see answers


def refusal_of(error: Exception) -> Refusal:
    """What an obstore error says. The status and code stand only in its text."""
    text = str(error)
    status, code, http = _STATUS.search(text), _CODE.search(text), _HTTP.search(text)
    named = _KINDS.get(type(error))
    if "StartTooLarge" in text:  # found out by the client: Azure answers with an empty range
        return Refusal(Kind.RANGE, "StartTooLarge")
    if status is None and named is None:
        trouble = http[1] if http else type(error).__name__
        return Refusal(Kind.UNREACHED if trouble == "Connect" else Kind.LOST, trouble)
    return Refusal.of(int(status[1]) if status else None, code[1] if code else "", named)


def _open(
    place: Place, options: RemoteOptions, credentials: Provider | None, timeout: float, *, retries: int
) -> ObjectStore:
    common: dict[str, Any] = {
        "client_options": {
            "timeout": timedelta(seconds=timeout),
            "connect_timeout": timedelta(seconds=options.connect_timeout),
            "allow_http": options.plain_http,
        },
        "retry_config": {
            "max_retries": retries,
            "retry_timeout": timedelta(seconds=options.patience),
            "backoff": {
                "init_backoff": timedelta(seconds=0.1), "max_backoff": timedelta(seconds=5), "base": 2,
            },
        },
    }  # fmt: skip
    if options.endpoint:
        common["endpoint"] = options.endpoint
    if place.scheme != "s3":
        return store.from_url(f"{place.scheme}://{place.bucket}", **common)
    common["disable_bulk_delete"] = True  # one key is one DELETE, which every store knows
    if options.region:
        common["region"] = options.region
    if credentials is not None:
        common["credential_provider"] = credentials
    return store.S3Store(place.bucket, **common)


def _credentials(options: RemoteOptions, clock: Clock) -> Provider | None:
    """The chain that botocore knows (profiles, SSO, roles), where it is installed and has any.

    obstore's own chain is the environment and the instance; what it finds there needs no help.
    """
    try:
        from botocore import session
        from botocore.exceptions import BotoCoreError
    except ImportError:
        if options.profile:
            raise UnsupportedError(
                "a profile needs botocore", hint="pip install 'durable-training[s3]'"
            ) from None
        return None
    try:
        found = session.Session(profile=options.profile or None).get_credentials()
    except BotoCoreError as error:
        raise Refusal(Kind.DENIED, type(error).__name__) from None
    if found is None:
        return None

    def provide() -> dict[str, Any]:
        frozen = found.get_frozen_credentials()
        # asked again in good time: botocore itself knows when to renew
        expires = datetime.fromtimestamp(clock.now(), timezone.utc) + timedelta(minutes=5)
        return {
            "access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key,
            "token": frozen.token, "expires_at": expires,
        }  # fmt: skip

    return provide
