"""L1. A spec goes into the journal and is shown to whoever asks: what looks like a secret stays out of it."""

from __future__ import annotations

import re

#: Where a credential may be said to be. The value after the colon is a name or a path, never the secret.
REFERENCES = ("env:", "file:", "profile:", "keyring:", "vault:", "kubernetes:")

_LOOKS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("a private key", re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY")),
    ("an access key id", re.compile(r"\b(AKIA|ASIA)[A-Z0-9]{16}\b")),
    ("an API token", re.compile(r"\b(ghp_|gho_|github_pat_|glpat-|hf_|sk-|xox[bap]-)[A-Za-z0-9_-]{16,}")),
    ("a signed web token", re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.")),
    ("a URL with a password", re.compile(r"[a-z][a-z0-9+.-]*://[^/\s:@]+:[^/\s@]+@", re.IGNORECASE)),
    ("a password", re.compile(r"(?i)\b(password|passwd|secret|token|api_?key)\s*[=:]\s*\S{4,}")),
)


def looks_secret(value: str) -> str | None:
    """What kind of secret a text looks like; ``None``: none. Digests and identifiers are none."""
    return next((kind for kind, pattern in _LOOKS if pattern.search(value)), None)


def is_reference(value: str) -> bool:
    """Whether it says where a credential is (``env:NAME``, ``file:/run/secrets/s3``), with something after
    the colon that could not be the secret itself."""
    scheme = next((each for each in REFERENCES if value.startswith(each)), None)
    if scheme is None:
        return False
    named = value[len(scheme) :]
    if scheme == "env:":
        return bool(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", named))
    return bool(named.strip()) and looks_secret(named) is None
