"""L3. Where a remote tier is and how it behaves, read from a URL and the standard AWS variables."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from durable_core.errors import UsageError
from durable_core.format.layout import MAX_KEY

SCHEMES = ("s3", "gs", "az")
BACKENDS = ("obstore", "s3fs")
MIB = 1024 * 1024

#: What S3 takes: parts of an upload, bytes of a part but the last, characters of a key.
MAX_PARTS = 10_000
MIN_PART = 5 * MIB
MAX_PATH = 1024

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,62}")
_SEGMENT = re.compile(r"[A-Za-z0-9_.=+-]+")
_IN_URL = ("backend", "endpoint", "region", "profile")


@dataclass(frozen=True)
class RemoteOptions:
    """``backend``: ``obstore``, ``s3fs``, or ``""`` (obstore if it is installed). ``endpoint``, ``region``,
    ``profile``: as the AWS variables, which are used where these are empty.

    An operation is tried ``attempts`` times within ``patience`` seconds; a request may take ``timeout``
    seconds, one that moves a part of an object ``part_timeout``. Objects above ``part_bytes`` go up in
    parts of that size, ``parallel`` at a time, and come down so. ``ahead``: journal slots read in advance.
    An unfinished upload of a writer that cannot be told to be dead is removed after ``abandoned_after`` s.
    """

    backend: str = ""
    endpoint: str = ""
    region: str = ""
    profile: str = ""
    attempts: int = 5
    patience: float = 60.0
    timeout: float = 20.0
    connect_timeout: float = 5.0
    part_timeout: float = 120.0
    part_bytes: int = 16 * MIB
    parallel: int = 4
    ahead: int = 32
    abandoned_after: float = 86_400.0

    def __post_init__(self) -> None:
        if self.backend not in ("", *BACKENDS):
            raise UsageError(f"backend {self.backend!r} is none of {', '.join(BACKENDS)}")
        if self.part_bytes < MIN_PART:
            raise UsageError(f"part_bytes {self.part_bytes} is below the {MIN_PART} that S3 accepts")
        if self.attempts < 1 or self.parallel < 1 or self.ahead < 0:
            raise UsageError("attempts and parallel must be 1 or more, ahead 0 or more")
        if "@" in urlsplit(self.endpoint).netloc:
            raise UsageError("the endpoint holds a user name", hint=_NO_SECRETS)

    @property
    def plain_http(self) -> bool:
        return self.endpoint.startswith("http://")


_NO_SECRETS = "credentials come from the environment, a profile or the instance, never from a URL"


@dataclass(frozen=True)
class Place:
    """A prefix in a bucket. ``prefix`` is empty or ends with ``/``."""

    scheme: str
    bucket: str
    prefix: str

    @property
    def location(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.prefix}".rstrip("/")


def is_remote(root: object) -> bool:
    """Whether a root as users write it is the URL of an object store."""
    return str(root).partition("://")[0] in SCHEMES and "://" in str(root)


def parse(
    url: str, options: RemoteOptions | None = None, environ: Mapping[str, str] = os.environ
) -> tuple[Place, RemoteOptions]:
    """``s3://bucket/prefix[?backend=&endpoint=&region=&profile=]``; also ``gs://`` and ``az://``.

    What the URL says goes before ``options``, and those before the environment. ``UsageError`` when it
    cannot be read; its message never repeats what might be a secret.
    """
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise UsageError("the root's URL holds a user name", hint=_NO_SECRETS)
    prefix = parts.path.strip("/")
    if parts.scheme not in SCHEMES or not _BUCKET.fullmatch(parts.netloc):
        raise UsageError(f"{url!r} names no bucket", hint="write s3://bucket/prefix")
    if any(not _SEGMENT.fullmatch(s) or s.strip(".") == "" for s in prefix.split("/") if prefix):
        raise UsageError(f"prefix {prefix!r}: use segments of [A-Za-z0-9_.=+-] between slashes")
    if len(prefix) + MAX_KEY >= MAX_PATH:
        raise UsageError(f"prefix {prefix!r} is longer than {MAX_PATH - MAX_KEY - 1} characters")
    said: dict[str, Any] = dict(parse_qsl(parts.query, keep_blank_values=True))
    if unknown := sorted(said.keys() - set(_IN_URL)):
        raise UsageError(
            f"{unknown[0]!r} is no option of a root's URL", hint=f"those are {', '.join(_IN_URL)}"
        )
    chosen = replace(options or RemoteOptions(), **said)
    if not chosen.endpoint and parts.scheme == "s3":
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
        chosen = replace(chosen, endpoint=next((environ[n] for n in names if environ.get(n)), ""))
    if not chosen.region:
        chosen = replace(chosen, region=environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "")
    return Place(parts.scheme, parts.netloc, f"{prefix}/" if prefix else ""), chosen
