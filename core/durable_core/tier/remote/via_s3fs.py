"""L3. The compatible client: s3fs, used for its session, credentials and event loop only.

Every request is one S3 call with its own conditions. s3fs' file layer is avoided for what it would do to
a commit: ``open("xb")`` of nothing overwrites, ``IfMatch`` is dropped from a multipart upload, the listings
cache hides other writers, and its own retries turn a lost answer into a conflict with oneself.

Every PUT and part carries its CRC32C, which S3 refuses to store when the bytes differ.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections import deque
from collections.abc import Coroutine, Iterable, Iterator
from concurrent.futures import Future
from typing import Any, TypeVar

import crc32c
from aiobotocore.httpsession import AIOHTTPSession
from aiohttp import ClientConnectorError
from aiohttp import ClientError as HttpError
from botocore import exceptions
from fsspec.asyn import sync
from s3fs import S3FileSystem

from durable_core.clock import Clock
from durable_core.errors import UsageError
from durable_core.threads import LastingPool
from durable_core.tier.remote.answers import AGAIN, Kind, Refusal, backoff
from durable_core.tier.remote.client import MARK, Head, Listed, Upload
from durable_core.tier.remote.options import MAX_PARTS, MIB, Place, RemoteOptions

T = TypeVar("T")
Parts = list[dict[str, Any]]

_FAILURES = (exceptions.BotoCoreError, exceptions.ClientError, HttpError, OSError, asyncio.TimeoutError)
_UNSIGNED = (
    exceptions.NoCredentialsError,
    exceptions.PartialCredentialsError,
    exceptions.CredentialRetrievalError,
    exceptions.UnauthorizedSSOTokenError,
    exceptions.ProfileNotFound,
)


class _SentOnce(AIOHTTPSession):  # type: ignore[misc]  # aiobotocore has no type information
    """aiohttp sends a PUT again by itself when the connection breaks, and reports only what came of the
    second: a refusal would pass for "not applied" though the first may have been. It is to say so instead.
    """

    async def _get_session(self, proxy_url: str | None) -> Any:
        session = await super()._get_session(proxy_url)
        session._retry_connection = False
        return session


class S3fsClient:
    name = "s3fs"
    checksum = "crc32c"

    def __init__(self, place: Place, options: RemoteOptions, clock: Clock) -> None:
        self._bucket = place.bucket
        self._options = options
        self._clock = clock
        config: dict[str, Any] = {
            "connect_timeout": options.connect_timeout,
            "read_timeout": options.timeout,
            "retries": {"total_max_attempts": 1},
            "max_pool_connections": 32,
            "http_session_cls": _SentOnce,
            "request_checksum_calculation": "when_required",  # ours is there already
        }
        if options.endpoint:
            config["s3"] = {"addressing_style": "path"}
        profile = {"profile": options.profile} if options.profile else {}
        with _refusals():
            self._fs = S3FileSystem(
                endpoint_url=options.endpoint or None,
                client_kwargs={"region_name": options.region} if options.region else {},
                config_kwargs=config,
                use_listings_cache=False,
                skip_instance_cache=True,
                **profile,
            )
        self._fs.retries = 1  # repeating is ours: see tier

    # --- documents -------------------------------------------------------------------------

    def create(self, path: str, body: bytes, mark: str) -> None:
        self._call("put_object", Key=path, Body=body, IfNoneMatch="*", Metadata={MARK: mark}, **_crc(body))

    def replace(self, path: str, body: bytes) -> None:
        self._call("put_object", Key=path, Body=body, **_crc(body))

    def get(self, path: str, limit: int) -> tuple[int, bytes | None]:
        async def fetch() -> tuple[int, bytes | None]:
            answer = await self._ask("get_object", Key=path)
            with contextlib.closing(answer["Body"]) as body:
                size: int = answer["ContentLength"]
                return size, None if size > limit else await body.read()

        return self._do(fetch(), self._options.timeout)

    def read(self, path: str, offset: int, out: memoryview) -> int:
        async def fetch() -> int:
            wanted = f"bytes={offset}-{offset + len(out) - 1}"
            answer = await self._ask("get_object", Key=path, Range=wanted)
            with contextlib.closing(answer["Body"]) as body:
                if answer["ResponseMetadata"]["HTTPStatusCode"] != 206:
                    raise Refusal(Kind.INVALID, "the store ignores Range")
                filled = 0
                while chunk := await body.read(MIB):
                    out[filled : filled + len(chunk)] = chunk
                    filled += len(chunk)
                return filled

        return self._do(fetch(), self._options.part_timeout)

    def head(self, path: str) -> Head:
        answer = self._call("head_object", Key=path)
        return Head(answer["ContentLength"], answer.get("Metadata", {}).get(MARK, ""))

    def delete(self, path: str) -> None:
        try:
            self._call("delete_object", Key=path)
        except Refusal as refusal:
            if refusal.kind is not Kind.ABSENT:
                raise

    def list(self, prefix: str) -> Iterator[Listed]:
        page: dict[str, Any] = {}
        while True:
            answer = self._call("list_objects_v2", Prefix=prefix, **page)
            for item in answer.get("Contents", ()):
                yield Listed(item["Key"], item["LastModified"].timestamp())
            if not answer.get("IsTruncated"):
                return
            page = {"ContinuationToken": answer["NextContinuationToken"]}

    def garbled(self, path: str, body: bytes) -> bool | None:
        try:
            self._call("put_object", Key=path, Body=body, **_crc(body + b"?"))
        except Refusal as refusal:
            if refusal.kind is Kind.LOST:
                raise
            return True
        return False

    # --- objects in parts ------------------------------------------------------------------

    def upload(self, path: str, chunks: Iterable[bytes]) -> None:
        began = self._call("create_multipart_upload", Key=path, ChecksumAlgorithm="CRC32C")
        upload = Upload(path, began["UploadId"], self._clock.now())
        try:
            parts = self._send_parts(upload, chunks)
        except BaseException:
            # What failed matters, not that the abort failed too: what stays is residue, and is collected.
            with contextlib.suppress(Refusal):
                self.abort(upload)
            raise
        self._repeat(
            "complete_multipart_upload", Key=path, UploadId=upload.id, MultipartUpload={"Parts": parts}
        )

    def uploads(self, prefix: str) -> Iterator[Upload]:
        page: dict[str, Any] = {}
        while True:
            answer = self._call("list_multipart_uploads", Prefix=prefix, **page)
            for item in answer.get("Uploads", ()):
                yield Upload(item["Key"], item["UploadId"], item["Initiated"].timestamp())
            if not answer.get("IsTruncated"):
                return
            page = {
                "KeyMarker": answer["NextKeyMarker"], "UploadIdMarker": answer.get("NextUploadIdMarker", "")
            }  # fmt: skip

    def abort(self, upload: Upload) -> None:
        try:
            self._repeat("abort_multipart_upload", Key=upload.path, UploadId=upload.id)
        except Refusal as refusal:
            if refusal.kind is not Kind.ABSENT:
                raise

    def _send_parts(self, upload: Upload, chunks: Iterable[bytes]) -> Parts:
        """At most ``parallel`` parts are under way, and no more than those and one are in memory."""
        done: Parts = []
        pending: deque[Future[dict[str, Any]]] = deque()
        with LastingPool(self._options.parallel, thread_name_prefix="durable-upload") as pool:
            for number, chunk in enumerate(chunks, start=1):
                if number > MAX_PARTS:
                    raise UsageError(
                        f"{upload.path} needs more than {MAX_PARTS} parts", hint="raise part_bytes"
                    )
                if len(pending) == self._options.parallel:
                    done.append(pending.popleft().result())
                pending.append(pool.submit(self._send_part, upload, number, chunk))
            done.extend(future.result() for future in pending)
        return done

    def _send_part(self, upload: Upload, number: int, chunk: bytes) -> dict[str, Any]:
        crc = _crc(chunk)
        answer = self._repeat(
            "upload_part", Key=upload.path, UploadId=upload.id, PartNumber=number, Body=chunk, **crc
        )
        return {"PartNumber": number, "ETag": answer["ETag"], **crc}

    # --- asking ----------------------------------------------------------------------------

    def _repeat(self, method: str, **arguments: Any) -> dict[str, Any]:
        """As ``_call``, again while that may help: for requests that come to the same when repeated."""
        for attempt in range(1, self._options.attempts):
            try:
                return self._call(method, seconds=self._options.part_timeout, **arguments)
            except Refusal as refusal:
                if refusal.kind not in AGAIN:
                    raise
            self._clock.sleep(backoff(attempt, int(self._clock.new_id()[:8], 16) / 2**32))
        return self._call(method, seconds=self._options.part_timeout, **arguments)

    def _call(self, method: str, *, seconds: float | None = None, **arguments: Any) -> dict[str, Any]:
        return self._do(self._ask(method, **arguments), seconds or self._options.timeout)

    async def _ask(self, method: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await self._fs._call_s3(method, Bucket=self._bucket, **arguments)
        return answer

    def _do(self, work: Coroutine[Any, Any, T], seconds: float) -> T:
        async def bounded() -> T:
            return await asyncio.wait_for(work, seconds)

        with _refusals():
            answer: T = sync(self._fs.loop, bounded)
        return answer


def _crc(body: bytes) -> dict[str, Any]:
    return {"ChecksumCRC32C": base64.b64encode(crc32c.crc32c(body).to_bytes(4, "big")).decode()}


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except _FAILURES as error:
        raise refusal_of(error) from None  # the text holds the store's answer: see answers


def refusal_of(error: BaseException) -> Refusal:
    """What a failed call says. s3fs maps some answers to ``OSError`` and keeps the answer as the cause."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, exceptions.ClientError):
            status = cause.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            code = str(cause.response.get("Error", {}).get("Code", ""))
            return Refusal.of(status, code if code.isidentifier() else "")
        if isinstance(cause, exceptions.ConnectTimeoutError) or _never_connected(cause):
            return Refusal(Kind.UNREACHED, type(cause).__name__)
        if isinstance(cause, _UNSIGNED):
            return Refusal(Kind.DENIED, type(cause).__name__)
        cause = cause.__cause__
    return Refusal(Kind.LOST, type(error).__name__)


def _never_connected(error: BaseException) -> bool:
    """botocore's ``EndpointConnectionError`` also stands for a connection that broke half way through."""
    inner = error.kwargs.get("error") if isinstance(error, exceptions.BotoCoreError) else None
    return isinstance(inner, ClientConnectorError)
