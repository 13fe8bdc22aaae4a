"""Imported once by the fork server, so that a life starts in milliseconds."""

import lightning  # noqa: F401
import torch  # noqa: F401

import lightning_durable  # noqa: F401
import tests.torture.model  # noqa: F401
