"""L5. Starting a group of workers, and starting it again: what failed, what to do about it, and doing it.

Decisions (``classes``, ``classify``, ``retry``, ``liveness``, ``stragglers``, ``machine``) are pure;
``rendezvous`` and ``agent`` are the only modules that touch TorchElastic; ``controller`` is a process of its
own. Nothing here imports a session: what a worker tells comes through ``engine.beats`` and ``engine.words``.
"""
