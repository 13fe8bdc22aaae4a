"""L3. Which objects a dataset is made of: from files, directories and URLs to names below one root."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from durable_core.data.files import Location, check_name
from durable_core.data.manifest.store import LENGTHS, STATS
from durable_core.data.readers import companion_of, detect, parse
from durable_core.errors import FormatError, NotFoundError, ObjectNotFoundError, UsageError

Opener = Callable[[str], Location]


@dataclass(frozen=True)
class Found:
    """``names`` below ``location``, sorted, which is at ``root`` as it was given: an absolute path or a URL.

    ``left_out``: what lies beside them in the directories given and is no object of the dataset.
    ``format``: given, or what the names say; None: nobody needs it.
    """

    root: str
    location: Location
    names: tuple[str, ...]
    left_out: tuple[str, ...]
    format: str | None


@dataclass(frozen=True)
class _Source:
    """``text`` without its query; ``whole``: an object, not a directory or a prefix."""

    text: str
    query: str
    whole: bool


def gather(
    sources: Iterable[str | os.PathLike[str]],
    root: str | os.PathLike[str] | None,
    *,
    opener: Opener,
    format: str | None,
    needs_format: bool,
) -> Found:
    """Files and objects as given; of directories and prefixes, the objects of the dataset's format.

    Of a directory are left out hidden files (``.name``), and manifests with what lies beside them. Without a
    ``root`` it is the directory given, or the nearest one above all that is given. Raises ``UsageError`` for
    what is outside the root, for symbolic links below it, for names of several formats or of none;
    ``ObjectNotFoundError``, and ``NotFoundError`` for a directory without any.
    """
    found = [_look(each, root, opener) for each in sources]
    if not found:
        raise UsageError("a dataset without a source")
    base, query = _base(found, root)
    location = opener(_resolved(base) + query)
    whole, listed = set[str](), set[str]()
    for source in found:
        name = _relative(source.text, base)
        if source.whole:
            whole.add(name)
        else:
            listed.update(_below(name, opener(_resolved(source.text) + query)))
    shown = {name for name in listed - _ours(listed) if not _is_hidden(name)}
    chosen, format = _choose(whole, shown - whole, format, needs_format)
    names = sorted(whole | chosen)
    for name in names:
        check_name(name)
        if alias := location.file(name).alias():
            raise UsageError(
                f"{alias}: an alias can change what it means", hint="name what it points to, or copy it"
            )
    companions = {c for name in names if format and (c := companion_of(format, name))}
    left_out = sorted(listed - set(names) - companions)
    return Found(base + query, location, tuple(names), tuple(left_out), format)


def _look(source: str | os.PathLike[str], root: str | os.PathLike[str] | None, opener: Opener) -> _Source:
    text, mark, query = os.fspath(source), "", ""
    base = os.fspath(root) if root is not None else None
    if base is not None and "://" in base and "://" not in text:
        base, mark, query = base.partition("?")
        text = f"{base.rstrip('/')}/{text}"
    elif "://" in text:
        text, mark, query = text.partition("?")
    if "://" not in text:
        path = Path(text) if base is None else Path(base, text)
        if not path.exists() and not (path := Path(text)).exists():  # as a shell completes it
            raise ObjectNotFoundError(text, base or os.curdir)
        return _Source(os.path.abspath(path), "", not path.is_dir())  # noqa: PTH100  # resolves no links
    text = text.rstrip("/")
    parent, _, name = text.rpartition("/")
    try:
        opener(parent + mark + query).file(name).stat()
    except (ObjectNotFoundError, FormatError):
        return _Source(text, mark + query, whole=False)
    return _Source(text, mark + query, whole=True)


def _base(found: Sequence[_Source], root: str | os.PathLike[str] | None) -> tuple[str, str]:
    queries = {each.query for each in found}
    if len(queries) > 1 or len({each.text.partition("://")[0] for each in found if "://" in each.text}) > 1:
        raise UsageError("the sources of one dataset lie in one store", hint="build a manifest for each")
    if root is not None:
        text, _, _ = os.fspath(root).partition("?") if "://" in os.fspath(root) else (os.fspath(root), "", "")
        return (text.rstrip("/") if "://" in text else os.path.abspath(text)), queries.pop()  # noqa: PTH100
    above = [posixpath.dirname(each.text) if each.whole else each.text for each in found]
    try:
        base = posixpath.commonpath(above)
    except ValueError as error:  # a path and a URL
        raise UsageError("paths and URLs in one dataset", hint="build a manifest for each") from error
    scheme, colon, rest = base.partition(":/")
    # commonpath takes the two slashes of a URL for one.
    return (f"{scheme}://{rest.lstrip('/')}" if colon and "://" in above[0] else base), queries.pop()


def _resolved(text: str) -> str:
    """A directory as it is now: a link that is moved on meanwhile must not mix two versions."""
    return text if "://" in text else str(Path(text).resolve())


def _relative(text: str, base: str) -> str:
    if text == base:
        return ""
    prefix = base.rstrip("/") + "/"
    if not text.startswith(prefix):
        raise UsageError(f"{text} is outside the dataset's root {base}")
    return text[len(prefix) :]


def _below(name: str, location: Location) -> list[str]:
    """The objects at ``location``, which is called ``name``. Raises ``NotFoundError`` for none."""
    names = location.names()
    if not names:
        raise NotFoundError(f"{location.url} holds no data files")
    return [f"{name}/{each}" if name else each for each in names]


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _ours(names: set[str]) -> set[str]:
    """Manifests that were written among the objects, with their stamps and lengths."""
    manifests = {name.removesuffix(STATS) for name in names if name.endswith(STATS)}
    return {
        name
        for name in names
        if name.removesuffix(STATS) in manifests
        or ((found := LENGTHS.fullmatch(name)) is not None and found[1] in manifests)
    }


def _choose(
    whole: set[str], listed: set[str], format: str | None, needs_format: bool
) -> tuple[set[str], str | None]:
    """Which of ``listed`` belong to the dataset, and its format."""
    if format is not None:
        how = parse(format)
        said = f"{how.kind}+{how.compression}" if how.compression else how.kind
        alike = {name for name in listed if detect(name) == said}
        return (listed if how.kind == "blob" or not alike else alike), format
    if not needs_format:
        return listed, None
    kinds: dict[str, str] = {}
    for name in sorted(whole | listed):
        kind = detect(name)
        if kind is None and name in whole:
            raise UsageError(f"{name}: its name does not say its format", hint="give the format")
        if kind is not None:
            kinds.setdefault(kind, name)
    if len(kinds) != 1:
        which = " and ".join(f"{kind} ({name})" for kind, name in kinds.items()) or "no format that is known"
        raise UsageError(f"the objects are of {which}", hint="give the format")
    return {name for name in listed if detect(name) is not None}, next(iter(kinds))
