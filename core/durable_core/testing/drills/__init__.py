"""L6. Drills: a real training job under the real launcher, one fault at a time, and what must come of it.

``durable drill all`` plays every scenario of ``scenarios.SCENARIOS`` and measures RPO, RTO and MTR; with
``--without-defence`` each is played with the defence it is about switched off, and must then fail.
"""
