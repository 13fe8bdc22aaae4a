"""L3. What an object store's answer means for an operation: was it done, was it not, or is it unknown?

Clients report every failure as a ``Refusal``. It carries the status and the code, never the body: an
S3 error body repeats the access key, and for an expired session the session token itself.
"""

from __future__ import annotations

import enum

from durable_core.errors import TierDenied, TierError, TierFull, TierUnavailable


class Kind(enum.Enum):
    ABSENT = "there is no such object"
    EXISTS = "something is already there"
    CONFLICT = "another request for the key was under way; not applied"
    GARBLED = "the bytes did not arrive as they were sent; not applied"
    UNREACHED = "no connection: nothing was sent"
    LOST = "no answer, or one that does not say: applied or not is unknown"
    DENIED = "credentials or permissions"
    FULL = "a quota or the space is used up"
    NO_BUCKET = "the bucket itself is not there"
    RANGE = "the range begins beyond the object"
    INVALID = "refused for another reason; not applied"


#: Worth another attempt.
AGAIN = frozenset({Kind.CONFLICT, Kind.GARBLED, Kind.UNREACHED, Kind.LOST})

_BY_CODE = {
    "NoSuchBucket": Kind.NO_BUCKET,
    "NotImplemented": Kind.INVALID,
    "ContainerNotFound": Kind.NO_BUCKET,
    "PreconditionFailed": Kind.EXISTS,
    "BlobAlreadyExists": Kind.EXISTS,
    "ConditionalRequestConflict": Kind.CONFLICT,
    "OperationAborted": Kind.CONFLICT,
    "InvalidRange": Kind.RANGE,
    "RequestTimeout": Kind.LOST,
    **dict.fromkeys(
        ("BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"),
        Kind.GARBLED,
    ),
    **dict.fromkeys(("InsufficientStorage", "QuotaExceeded", "ServiceQuotaExceeded"), Kind.FULL),
    **dict.fromkeys(
        (
            "AccessDenied", "AccountProblem", "AllAccessDisabled", "ExpiredToken", "InvalidAccessKeyId",
            "InvalidToken", "MissingCredentials", "RequestTimeTooSkewed", "SignatureDoesNotMatch",
            "TokenRefreshRequired",
        ),
        Kind.DENIED,
    ),
}  # fmt: skip

_BY_STATUS = {
    401: Kind.DENIED,
    403: Kind.DENIED,
    404: Kind.ABSENT,
    408: Kind.LOST,
    409: Kind.CONFLICT,
    412: Kind.EXISTS,
    416: Kind.RANGE,
    429: Kind.LOST,
    507: Kind.FULL,
}

_HINTS = {
    Kind.DENIED: "check the credentials (expired?) and that they may get, put, delete and list here",
    Kind.NO_BUCKET: "was the bucket deleted or renamed? nothing is ever created by itself",
    Kind.FULL: "raise the quota or let durable gc remove old checkpoints",
    Kind.UNREACHED: "is the endpoint right and reachable?",
}


def classify(status: int | None, code: str) -> Kind:
    """The meaning of an answer with this HTTP status (``None``: there was none) and S3 error code.

    A 5xx is ``LOST``: it may come from something between us and the store, after the store had acted.
    A client that says "you may not" with a 5xx or a 400 is believed by its code.
    """
    if code in _BY_CODE:
        return _BY_CODE[code]
    if status is None or status >= 500:
        return _BY_STATUS.get(status or 0, Kind.LOST)
    return _BY_STATUS.get(status, Kind.INVALID)


class Refusal(Exception):
    """An operation that did not return normally. ``said``: status and code, fit for a log."""

    def __init__(self, kind: Kind, said: str) -> None:
        super().__init__(f"{kind.value} [{said}]")
        self.kind = kind
        self.said = said

    @classmethod
    def of(cls, status: int | None, code: str, named: Kind | None = None) -> Refusal:
        """``named``: what the client itself takes the answer for. The code says more, the status less."""
        said = " ".join(str(part) for part in (status, code) if part)
        return cls(named if named and code not in _BY_CODE else classify(status, code), said)


def tier_error(what: str, refusal: Refusal) -> TierError:
    """The error of an operation that was definitely not applied, or that only reads."""
    message, hint = f"{what}: {refusal}", _HINTS.get(refusal.kind, "")
    if refusal.kind is Kind.DENIED:
        return TierDenied(message, hint=hint)
    if refusal.kind is Kind.FULL:
        return TierFull(message, hint=hint)
    return TierUnavailable(message, hint=hint)


def backoff(retry: int, chance: float) -> float:
    """Seconds before the ``retry``-th further attempt (from 1): doubling from 0.1 to 5, half of it chance.

    ``chance`` is uniform in [0, 1): clients that failed together do not come back together.
    """
    return float(min(0.1 * 2 ** (retry - 1), 5.0)) * (0.5 + 0.5 * chance)
