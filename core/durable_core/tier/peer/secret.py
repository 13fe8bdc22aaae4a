"""L3. The run's shared secret: where it comes from, and the keys made of it. It is never shown."""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

from durable_core.errors import TierDenied, UsageError

SECRET = "DURABLE_PEER_SECRET"
SECRET_FILE = "DURABLE_PEER_SECRET_FILE"

#: Characters; a secret of ``make_secret`` has 64.
MIN_LENGTH = 16
_MAX_FILE = 4096
_HINT = f"make one with: durable secret FILE; then set {SECRET} or {SECRET_FILE}"


class Secret:
    """A shared secret of at least 16 characters (``UsageError`` otherwise). Printing it prints nothing."""

    def __init__(self, text: str) -> None:
        if len(text) < MIN_LENGTH:
            raise UsageError(f"a peer secret needs at least {MIN_LENGTH} characters", hint=_HINT)
        self._key = text.encode()

    def __repr__(self) -> str:
        return "Secret(...)"

    def derive(self, purpose: str, *parts: bytes) -> bytes:
        """32 bytes: HMAC-SHA256 of the purpose and of parts, each of which has a fixed length."""
        return hmac.digest(self._key, b"\0".join([purpose.encode(), b"".join(parts)]), "sha256")


def make_secret() -> str:
    """A fresh secret: 64 hex digits, 256 bits of the system's randomness."""
    return secrets.token_hex(32)


def write_secret(path: str | os.PathLike[str]) -> None:
    """Make a secret in a new file that only this user can read; ``FileExistsError`` if it is there."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "w") as file:
        file.write(make_secret() + "\n")


def read_secret(path: str | os.PathLike[str]) -> Secret:
    """The secret in a file. ``UsageError`` when others can read it, or it cannot be one."""
    with _opened(Path(path)) as fd:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"secret file {path} is not a file")
        if status.st_uid not in (os.getuid(), 0) or status.st_mode & 0o077:
            raise UsageError(f"secret file {path} is open to other users", hint=f"chmod 600 {path}")
        text = os.read(fd, _MAX_FILE).decode("utf-8", "replace").strip()
    return Secret(text)


def find_secret(environ: Mapping[str, str], path: str | os.PathLike[str] | None = None) -> Secret:
    """From ``path``, else from ``DURABLE_PEER_SECRET``, else from the file ``DURABLE_PEER_SECRET_FILE``."""
    if path is not None:
        return read_secret(path)
    if text := environ.get(SECRET):
        return Secret(text)
    if named := environ.get(SECRET_FILE):
        return read_secret(named)
    raise UsageError("no secret for the peer tier", hint=_HINT)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except PermissionError as error:
        raise TierDenied(f"cannot read the secret file {path}") from error
    except OSError as error:
        raise UsageError(f"cannot read the secret file {path}: {error.strerror}", hint=_HINT) from error
    try:
        yield fd
    finally:
        os.close(fd)
