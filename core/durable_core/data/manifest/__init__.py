"""L3. What a dataset is: its objects by digest. A path is a location, never an identity.

The id of a dataset is the digest of the canonical form of its manifest, so the same bytes have the
same id wherever they lie, in whatever order they were listed, and any changed byte has another.
"""

from durable_core.data.manifest.build import Built, build
from durable_core.data.manifest.describe import (
    Access,
    Lengths,
    MixturePolicy,
    Provenance,
    SampleIds,
    Tokenizer,
)
from durable_core.data.manifest.lineage import Link, find, lineage
from durable_core.data.manifest.model import VERSION, DataObject, DatasetManifest
from durable_core.data.manifest.store import load, load_lengths, root_of, save
from durable_core.data.manifest.verify import Fault, Verified, digest_file, verify

__all__ = [
    "VERSION",
    "Access",
    "Built",
    "DataObject",
    "DatasetManifest",
    "Fault",
    "Lengths",
    "Link",
    "MixturePolicy",
    "Provenance",
    "SampleIds",
    "Tokenizer",
    "Verified",
    "build",
    "digest_file",
    "find",
    "lineage",
    "load",
    "load_lengths",
    "root_of",
    "save",
    "verify",
]
