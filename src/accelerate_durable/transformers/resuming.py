"""A run of a callback that was not attached, as a directory that the Trainer takes its place from."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

from accelerate_durable.transformers import folders
from durable_core.engine import restore
from durable_core.engine.export import export
from durable_core.engine.inspect import Reader, open_run
from durable_core.errors import RunNotFoundError, UsageError

#: Made by this process; of no use once the Trainer has begun.
_made: list[Path] = []


def last_checkpoint(where: str | os.PathLike[str], args: folders.Arguments = None) -> str | None:
    """What ``trainer.train(resume_from_checkpoint=...)`` is to go on with; ``None``: nothing yet.

    Of an ``output_dir``: its newest complete ``checkpoint-N``, that is, every file that ``args`` (the
    ``TrainingArguments``) imply is there, whole. Of the root of a durable run: a directory made of its newest
    checkpoint, which lasts until training begins; only a callback that is not attached needs it.

    Raises ``UsageError`` for a run that no Trainer made, and what reading a damaged checkpoint raises.
    """
    try:
        reader = open_run(os.fspath(where))
    except RunNotFoundError:
        return folders.newest_complete(where, folders.Wanted.of(args))
    return _of_run(reader)


def _of_run(reader: Reader) -> str | None:
    if not reader.committed():
        return None
    info = reader.newest_usable()
    role = reader.manifest(info).roles[0]
    trainer = restore.read(reader.tier, info.manifest, info.manifest_digest, role).state.get("trainer")
    if trainer is None or "state" not in trainer:
        raise UsageError(
            f"{reader.tier.location} is no run of a Trainer", hint="name its root, or output_dir"
        )
    if info.step == 0:
        return None
    place = Path(tempfile.mkdtemp(prefix="durable-resume-"))
    _made.append(place)
    atexit.register(forget)
    target = place / f"checkpoint-{trainer['state']['global_step']}"
    export(reader, target, info.c, formats=("hf",))
    (target / folders.STATE).write_text(json.dumps(trainer["state"]))
    return str(target)


def forget() -> None:
    """Remove what was made: what the Trainer needed of it, it has read."""
    while _made:
        shutil.rmtree(_made.pop(), ignore_errors=True)
