"""L5. The agent of one node: starts a group of workers, watches it, starts it again (``durable launch``)."""
