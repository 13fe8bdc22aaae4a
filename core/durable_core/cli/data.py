"""L6. ``durable data``: build, check and look at manifests of datasets, and the cache of their objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from durable_core.cli.options import size
from durable_core.cli.output import CORRUPT, FAILED, OK, Answer, Table, epilog, human_bytes, show
from durable_core.errors import UsageError

if TYPE_CHECKING:
    from durable_core.data.manifest import Built, DatasetManifest, Link, Tokenizer, Verified

_EPILOG = epilog()
_SHOWN = 20
_json = click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else.")
_jobs = click.option("--jobs", type=click.IntRange(min=1), default=1, show_default=True, help="Threads.")
#: option -> (field of the description, what it says)
_TEXTS = {
    "dataset-version": "What people call this version.",
    "schema-version": "Of the records' schema.",
    "split": "train, validation, …",
    "filter": "What was left out: a name, a version or a digest.",
    "dedup": "How duplicates were removed.",
    "transform": "Version of the transform graph.",
    "packing": "Version of the packing policy.",
}


@click.group("data", epilog=_EPILOG)
def data() -> None:
    """Say what a dataset is, and check that it still is that."""


def _described(body: Any) -> Any:
    for name, words in reversed(_TEXTS.items()):
        body = click.option(f"--{name}", help=words)(body)
    return body


@data.command("build", epilog=_EPILOG)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("-o", "--output", required=True, metavar="FILE", help="The manifest.")
@click.option("--root", help="What names are relative to. Default: the nearest directory above all sources.")
@click.option("--format", "form", help="See above. Default: what the names say.")
@click.option("--key", metavar="COLUMN", help="Names a record; checked to be unique. Default: its position.")
@click.option("--lengths", is_flag=True, help="Keep the tokens of each record, as the format knows them.")
@click.option("--tokens", metavar="COLUMN", help="Keep the lengths of this column.")
@click.option("--tokenizer", "tokenizer_file", metavar="FILE", help="The tokenizer the tokens are of.")
@click.option("--tokenizer-version", help="What people call it.")
@click.option("--vocabulary", metavar="FILE", help="Its vocabulary, when that is a file of its own.")
@_described
@click.option("--derived-from", multiple=True, metavar="ID", help="A dataset it was made of.")
@click.option("--used", multiple=True, metavar="DIGEST", help="Something else it was made with.")
@click.option("--activity", help="What made it: a command and its version.")
@click.option("--agent", help="Who ran that.")
@click.option("--mixture", help="How it is meant to be mixed: weights, or a name of them.")
@click.option("--replacement/--no-replacement", default=None, help="How it is drawn from in a mixture.")
@click.option("--exhaustion", type=click.Choice(["stop", "repeat", "renormalize", "error"]))
@click.option("--access", help="The policy that says who may read it.")
@click.option("--scope", help="What for.")
@click.option("--property", "properties", multiple=True, metavar="NAME=TEXT", help="Anything else.")
@click.option("--update", metavar="MANIFEST", help="Read only what may have changed since this was built.")
@click.option("--allow-empty", is_flag=True, help="A dataset without records is no mistake.")
@_jobs
@_json
def build(
    sources: tuple[str, ...], output: str, root: str | None, form: str | None, key: str | None,
    lengths: bool, tokens: str | None, update: str | None, allow_empty: bool, jobs: int, as_json: bool,
    **said: Any,
) -> int:  # fmt: skip
    """Write the manifest of a dataset.

    SOURCE is a file, a directory or a URL (s3://). Of directories the objects of the dataset's format are
    taken. Every object is read and digested; the id of the dataset is the digest of all that the manifest
    says. Beside it lie the lengths, if they are wanted, and stamps for --update.

    \b
    FORMAT and what a record is:
      parquet, arrow         a row
      jsonl                  a line
      text, text:lines, text:paragraphs
                             a file, a line, a paragraph
      blob                   a file, as bytes
      npy, npy:128           a row, or 128 numbers
      bin:uint16:2048        2048 numbers of this type
      safetensors[:2048]     a row of each tensor, or 2048 numbers
      megatron, tar, mds     a sequence, a sample, a record
    +gzip and +zstd after jsonl, text and blob; +zstd after mds.
    """
    from durable_core.data import manifest as manifests

    built = manifests.build(
        sources, root=root, format=form, key=key, lengths=lengths, tokens=tokens, update=update,
        allow_empty=allow_empty, jobs=jobs, **_description(said),
    )  # fmt: skip
    manifests.save(built, output)
    return show(_built(built, output), as_json=as_json)


@data.command("verify", epilog=_EPILOG)
@click.argument("manifest", metavar="MANIFEST")
@click.option("--root", help="Where the objects are. Default: where they were, or beside the manifest.")
@click.option("--sample", metavar="N|P%", help="Read the content of so many only; the sizes of all.")
@_jobs
@_json
def verify(manifest: str, root: str | None, sample: str | None, jobs: int, as_json: bool) -> int:
    """Compare the objects with the manifest.

    Missing, renamed, swapped, truncated and changed objects are told apart. Ends with 5 when there is any,
    and with 1 when some could not be read.
    """
    from durable_core.data import manifest as manifests

    loaded = manifests.load(manifest)
    where = manifests.root_of(manifest, loaded) if root is None else root
    found = manifests.verify(loaded, where, sample=_sample(sample), jobs=jobs)
    if loaded.about.lengths is not None:
        manifests.load_lengths(manifest, loaded)
    return show(_verified(loaded, found, where), as_json=as_json)


@data.command("show", epilog=_EPILOG)
@click.argument("manifest", metavar="MANIFEST|ID")
@click.option(
    "--among",
    multiple=True,
    metavar="DIR",
    help="Where manifests lie. Default: MANIFEST's directory, or here.",
)
@_json
def show_(manifest: str, among: tuple[str, ...], as_json: bool) -> int:
    """Say what a dataset is, and what it was made of.

    With an ID, as a checkpoint names it (sha256:…), its manifest is looked for among the others.
    """
    from durable_core.data import manifest as manifests

    if manifest.startswith("sha256:"):
        known = manifests.find(among or (".",))
        links = manifests.lineage(manifest, known)
    else:
        loaded = manifests.load(manifest)
        local = "://" not in manifest
        known = manifests.find(among or ((_beside(manifest),) if local else ()))
        known[loaded.dataset_id] = (manifest, loaded)
        links = manifests.lineage(loaded.dataset_id, known)
    return show(_shown(links), as_json=as_json)


@data.command("cache", epilog=_EPILOG)
@click.argument("directory", metavar="DIR")
@click.option("--evict-to", callback=size, help="Give up what is not in use, until so much is left (100GiB).")
@_json
def cache(directory: str, evict_to: int | None, as_json: bool) -> int:
    """Look at a cache of data objects; make room in it."""
    from durable_core.data.cache import DataCache

    if not Path(directory, "objects").is_dir():
        raise UsageError(f"{directory} is no cache of data objects")
    found = DataCache(directory, evict_to or 1)
    usage = found.usage() if evict_to is None else found.evict(evict_to)
    gone = found.counts
    document = {
        "directory": directory,
        "objects": usage.objects,
        "bytes": usage.nbytes,
        "pinned": usage.pinned,
        "filling_bytes": usage.filling,
        "evicted": gone.evictions,
        "evicted_bytes": gone.evicted_bytes,
    }
    line = f"{usage.objects} objects, {human_bytes(usage.nbytes)}; {usage.pinned} in use"
    if usage.filling:
        line += f"; {human_bytes(usage.filling)} being filled"
    if evict_to is not None:
        line += f"; {gone.evictions} given up, {human_bytes(gone.evicted_bytes)}"
    return show(Answer(document, [line]), as_json=as_json)


# --- what was asked ------------------------------------------------------------------------------


def _description(said: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a ``Description``, from the command line's options."""
    from durable_core.data.manifest import Access, MixturePolicy, Provenance

    return {
        **{name.replace("-", "_"): said[name.replace("-", "_")] for name in _TEXTS},
        "provenance": Provenance(said["derived_from"], said["activity"], said["agent"], said["used"]),
        "tokenizer": _tokenizer(said),
        "mixture": MixturePolicy(said["mixture"], said["replacement"], said["exhaustion"]),
        "access": Access(said["access"], said["scope"]),
        "properties": dict(_pair(each) for each in said["properties"]),
    }


def _tokenizer(said: Mapping[str, Any]) -> Tokenizer:
    from durable_core.data.manifest import Tokenizer, digest_file

    files = [said["tokenizer_file"], said["vocabulary"]]
    return Tokenizer(
        said["tokenizer_version"], *(None if each is None else digest_file(each) for each in files)
    )


def _pair(text: str) -> tuple[str, str]:
    name, found, value = text.partition("=")
    if not name or not found:
        raise UsageError(f"--property {text!r} is not NAME=TEXT")
    return name, value


def _sample(text: str | None) -> int | float | None:
    if text is None:
        return None
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else int(text)
    except ValueError:
        raise UsageError(f"--sample {text!r} is neither a number nor as 5%") from None


def _beside(manifest: str) -> str:
    return manifest.rpartition("/")[0] if "://" in manifest else str(Path(manifest).parent)


# --- what was found ------------------------------------------------------------------------------


def _built(built: Built, output: str) -> Answer:
    manifest = built.manifest
    document = {
        "manifest": output,
        "root": built.root,
        **_summary(manifest),
        "read": built.read,
        "reused": built.reused,
        "left_out": list(built.left_out),
        "twins": [list(pair) for pair in built.twins],
        "empty": list(built.empty),
        "notes": list(built.notes),
    }
    human: list[Table | str] = [manifest.dataset_id]
    human.append(
        f"{manifest.records} records in {len(manifest.objects)} objects, {human_bytes(manifest.nbytes)}; "
        f"{built.read} read, {built.reused} as they were"
    )
    human.append(f"names are relative to {built.root}")
    human.extend(f"note: {note}" for note in built.notes)
    human.extend(_some("left out", built.left_out))
    human.extend(_some("without a record", built.empty))
    human.extend(_some("with the content of another", [f"{one} ({two})" for one, two in built.twins]))
    return Answer(document, human)


def _some(what: str, names: Iterable[str]) -> list[str]:
    found = list(names)
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [f"{what}: {', '.join(found[:_SHOWN])}{more}"] if found else []


def _verified(manifest: DatasetManifest, found: Verified, where: str) -> Answer:
    faults = [vars(fault) for fault in found.faults]
    document = {
        "ok": not faults,
        "dataset_id": manifest.dataset_id,
        "root": where,
        "objects": found.looked_at,
        "read": found.read,
        "bytes": found.nbytes,
        "faults": faults,
        "moved": found.moved,
    }
    human: list[Table | str] = []
    if found.moved is not None:
        human.append(f"all objects are under {found.moved}: pass --root {found.moved}")
    elif faults:
        rows = [(f.name, f.kind, f"{f.start}-{f.stop}", f.reason) for f in found.faults]
        human.append(Table(("object", "is", "records", "reason"), rows))
    human.append(
        f"{found.looked_at} objects at {where}, {found.read} of them read ({human_bytes(found.nbytes)}): "
        + ("all as they were" if not faults else f"{len(faults)} at fault")
    )
    harmed = any(fault.kind != "unreadable" for fault in found.faults)
    return Answer(document, human, CORRUPT if harmed else FAILED if faults else OK)


def _shown(links: tuple[Link, ...]) -> Answer:
    manifest = links[0].manifest
    assert manifest is not None  # lineage() begins with one that is known
    about = manifest.about.to_json()
    document = {
        "manifest": links[0].path,
        **_summary(manifest),
        **about,
        "lineage": [
            {
                "dataset_id": each.dataset_id,
                "depth": each.depth,
                "manifest": each.path,
                "activity": each.activity,
            }
            for each in links
        ],
        "objects": [item.to_json() for item in manifest.objects],
    }
    rows = [
        ("dataset", manifest.dataset_id),
        ("records", manifest.records),
        ("bytes", human_bytes(manifest.nbytes)),
    ]
    rows += [(name, text) for name, value in about.items() if (text := _words(value))]
    objects = [
        (item.name, f"{item.start}-{item.stop}", human_bytes(item.nbytes), item.digest[7:19])
        for item in manifest.objects[:_SHOWN]
    ]
    human: list[Table | str] = [
        Table(("what", "is"), rows),
        Table(("object", "records", "bytes", "sha256"), objects),
    ]
    if len(manifest.objects) > _SHOWN:
        human.append(f"and {len(manifest.objects) - _SHOWN} more objects")
    if len(links) > 1:
        made = [
            (each.depth, each.dataset_id, each.path or "not at hand", each.activity) for each in links[1:]
        ]
        human.append(Table(("derivations", "made of", "manifest", "activity"), made))
    return Answer(document, human)


def _summary(manifest: DatasetManifest) -> dict[str, Any]:
    return {
        "dataset_id": manifest.dataset_id,
        "version": manifest.version,
        "records": manifest.records,
        "bytes": manifest.nbytes,
        "count": len(manifest.objects),
        "tokens": manifest.about.lengths and manifest.about.lengths.total,
    }


def _words(value: Any) -> str:
    """A part of the description in a line; empty when it says nothing."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, each in value.items() if (text := _words(each)))
    if isinstance(value, (list, tuple)):
        return " ".join(str(each) for each in value)
    return "" if value is None else str(value)
