"""L5. The health of a node beside its processes: probes read it, ``levels`` judges what they read
(DETECT-01/03/06)."""
