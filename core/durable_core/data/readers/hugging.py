"""L3. What must be known of Hugging Face ``datasets`` objects that are used as they are.

A ``Dataset`` is map-style: ``DurableLoader`` reads it along its own order, and nothing else is needed. An
``IterableDataset`` is a stream with a ``state_dict``: its place is exact after a restart, also through
``map``, ``filter`` and ``interleave_datasets``, except behind a shuffle buffer. Neither is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

#: Without the content of its buffer a resume fills it with later rows: those that were in it are lost.
_LOSSY = "BufferShuffledExamplesIterable"


def unverified_id(dataset: Any) -> str:
    """An id for a ``Dataset``: ``unverified:huggingface:<fingerprint>:<rows>``.

    The fingerprint stands for the calls that made the dataset, not for the bytes: two machines agree on it
    when they made it alike, and nothing notices a file that was changed in between. For an id that stands
    for the content, ``save_to_disk`` and build a manifest of that directory.
    """
    return f"unverified:huggingface:{dataset._fingerprint}:{len(dataset)}"


def lossy_buffer(dataset: Any) -> str | None:
    """Why a stream cannot be resumed where it was, in words; None when nothing like that is known."""
    for step in _steps(getattr(dataset, "_ex_iterable", None)):
        size = getattr(step, "buffer_size", 1)
        if type(step).__name__ == _LOSSY and size > 1:
            return (
                f"shuffle(buffer_size={size}) does not save its buffer: a resume loses the rows in it "
                "and gives others twice"
            )
    return None


#: the way out, for who refuses
INSTEAD = (
    "use the map-style Dataset, which DurableLoader shuffles whole; or WindowShuffle, a buffer that resumes; "
    "or only shuffle the shards: shuffle(buffer_size=1, max_buffer_input_shards=1)"
)


def _steps(step: Any) -> Iterator[Any]:
    """The operations a stream is made of, outermost first."""
    pending = [step]
    while pending:
        step = pending.pop()
        if step is None:
            continue
        yield step
        pending.append(getattr(step, "ex_iterable", None))
        pending.extend(getattr(step, "ex_iterables", None) or ())
