"""L5. Warm standbys: processes that have imported the frameworks and wait to become a worker.

``pool.Warm`` is a starter like ``agent.starting.Cold``; ``zygote`` is the process it keeps. Whatever goes
wrong with them costs seconds and nothing else: the worker is started cold.
"""
