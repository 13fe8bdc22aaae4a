"""L3. TLS for the peer tier. The secret says who may speak; TLS keeps what is said private and unaltered."""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping

from durable_core.errors import UsageError

#: File of the authorities, or of the agents' own certificates, that a client accepts.
TLS_CA = "DURABLE_PEER_TLS_CA"


def agent_context(certificate: str | os.PathLike[str], key: str | os.PathLike[str]) -> ssl.SSLContext:
    """For an agent, from PEM files; ``UsageError`` when they cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.num_tickets = 0  # unread tickets would look like an answer to a client that has not asked yet
    try:
        context.load_cert_chain(certificate, key)
    except OSError as error:
        raise UsageError(
            f"cannot use the certificate {certificate} with the key {key}: {error.strerror or error}"
        ) from error
    return context


def client_context(authority: str | os.PathLike[str]) -> ssl.SSLContext:
    """For a client that accepts agents certified by ``authority``, a PEM file; nobody else certifies them.

    The name in the certificate is not compared: agents are found by addresses that come and go, and
    whoever has a certificate of this authority has to prove the run's secret as well.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = False
    try:
        context.load_verify_locations(authority)
    except OSError as error:
        raise UsageError(f"cannot use the authority {authority}: {error.strerror or error}") from error
    return context


def find_client_context(environ: Mapping[str, str]) -> ssl.SSLContext | None:
    """From ``DURABLE_PEER_TLS_CA``; ``None`` (plain TCP) when it is not set."""
    authority = environ.get(TLS_CA)
    return client_context(authority) if authority else None
