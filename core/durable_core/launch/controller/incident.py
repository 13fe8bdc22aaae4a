"""L5. The incident bundle: what was seen of one failure, kept beside the run, without secrets (OBS-15).

Values of environment variables are never asked for. Those of this process that look like secrets are known by
their names, so that they are also found where a message quotes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from durable_core.format import canonical
from durable_core.launch.controller.looking import Glimpse
from durable_core.spec.secrecy import looks_secret

VERSION = 1
_NAMES = re.compile(r"(?i)secret|token|passw|api_?key|access_?key|credential")
_WHERE = re.compile(r"(?i)_(file|path|dir|url)$")
#: A shorter value may be a word of its own anywhere.
_LEAST = 6


def secrets_of(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Values that must not be written anywhere, longest first."""
    found = {
        value for name, value in environ.items()
        if _NAMES.search(name) and not _WHERE.search(name) and len(value) >= _LEAST
    }  # fmt: skip
    return tuple(sorted(found, key=lambda value: (-len(value), value)))


def redacted(value: Any, secrets: tuple[str, ...]) -> Any:
    """``value``, a JSON document, with every line that holds or looks like a secret replaced by a word."""
    if isinstance(value, str):
        return "\n".join(_line(line, secrets) for line in value.split("\n"))
    if isinstance(value, Mapping):
        return {_line(str(key), secrets): redacted(item, secrets) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [redacted(item, secrets) for item in value]
    return value


def _line(line: str, secrets: tuple[str, ...]) -> str:
    if any(secret in line for secret in secrets):
        return "<redacted: it holds the value of a secret variable>"
    kind = looks_secret(line)
    return line if kind is None else f"<redacted: it looks like {kind}>"


def bundle(what: Mapping[str, Any], glimpse: Glimpse, secrets: tuple[str, ...]) -> bytes:
    """The bytes of it. ``what``: the failure or the move it is about."""
    document = {
        "v": VERSION,
        **what,
        "facts": {str(node): asdict(facts) for node, facts in glimpse.facts.items()},
        "beats": {
            str(rank): {**asdict(beat), "phase": beat.phase.name} for rank, beat in glimpse.beats.items()
        },
        "words": {str(rank): asdict(words) for rank, words in glimpse.words.items()},
        "stacks": {str(rank): text for rank, text in glimpse.stacks.items()},
        "unreadable": list(glimpse.unreadable),
    }
    return canonical.dumps(redacted(document, secrets))
