"""``python -m durable_core.cli``: the same as ``durable``."""

from durable_core.cli import main

if __name__ == "__main__":
    main()
