"""L3. A tier in an object store: S3 and what speaks its language; GCS and Azure Blob by the same door.

The store does one thing for correctness, the conditional PUT (``If-None-Match: *``), and ``probe`` proves
it. ``tier`` turns answers into the contract of ``Tier``; ``answers`` says what each answer means;
``via_obstore`` and ``via_s3fs`` are the two clients. Neither client is imported before it is used.
"""

from durable_core.tier.remote.options import RemoteOptions, is_remote
from durable_core.tier.remote.tier import RemoteTier, open_remote

__all__ = ["RemoteOptions", "RemoteTier", "is_remote", "open_remote"]
