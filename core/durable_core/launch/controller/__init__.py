"""L5. The controller, a process of its own: it looks, compares with what should be, says where the run
stands, and asks.

It signals nobody and starts nothing; the agents do, at its request. Killed at any instant, it leaves the
workers training and a journal from which the next one goes on.
"""
