"""L6. The ``durable`` command line. Importing it is cheap: the commands import what they use."""

from __future__ import annotations


def main() -> None:
    """Entry point of the ``durable`` script; ends the process with a documented exit code."""
    from durable_core.cli.app import run

    raise SystemExit(run())
