"""L3. The peer tier: objects in the memory of another host.

``agent`` serves (one per host), ``client`` is the ``Tier``, ``placement`` says who keeps whose copies.
"""
