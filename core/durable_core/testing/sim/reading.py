"""Reading a simulated checkpoint as a restore would: whole, and all of one state."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from durable_core.errors import CorruptError
from durable_core.format import digests
from durable_core.format import manifest as manifests
from durable_core.format.manifest import Manifest
from durable_core.testing.sim.content import BASE, Model, slices_of

Get = Callable[[str], "bytes | None"]


class Broken(Exception):
    """A checkpoint does not restore completely and consistently."""


def read_checkpoint(get: Get, key: str, digest: str) -> Model:
    """Read all of a checkpoint as a restore would; ``Broken`` says what is missing or mixed."""
    data = get(key)
    if data is None:
        raise Broken(f"no manifest {key}")
    if digests.sha256(data) != digest:
        raise Broken(f"{key} is another manifest than was committed")
    try:
        manifest = manifests.decode(data, key=key)
    except CorruptError as error:
        raise Broken(str(error)) from error
    objects = {}
    for info in manifest.objects:
        found = get(info.key)
        if found is None:
            raise Broken(f"no object {info.key}")
        objects[info.key] = found
    return check_content(manifest, objects)


def check_content(manifest: Manifest, objects: Mapping[str, bytes]) -> Model:
    """The one model that every slice and document of the checkpoint agrees on; else ``Broken``."""
    shared = manifest.documents.get(("state", "*"))
    if shared is None:
        raise Broken("the replicas' documents differ")
    model = Model(shared["history"], shared["step"])
    if model.step != manifest.step:
        raise Broken(f"the documents are of step {model.step}, the manifest of {manifest.step}")
    wanted: dict[str, bytes] = {}
    for role in manifest.roles:
        staged = slices_of(model, role)
        if len(manifest.roles) > 1:
            staged[f"roles/{role}/state/n"] = staged.pop("state/n")
        wanted |= staged
        own = manifest.documents.get(("role", role))
        if own != {"history": model.history, "step": model.step, "role": role}:
            raise Broken(f"the document of {role} is {own}")
    if manifest.tensors.keys() != wanted.keys():
        raise Broken(f"tensors {sorted(manifest.tensors)} instead of {sorted(wanted)}")
    for key, entry in manifest.tensors.items():
        (piece,) = entry.slices
        found = objects[piece.object][piece.begin : piece.begin + piece.info.nbytes]
        if found != wanted[key]:
            raise Broken(f"{key} holds {found!r}, not {wanted[key]!r}" if key != BASE else f"{key} differs")
    return model
