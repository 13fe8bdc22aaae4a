"""L3. What a packer is asked to do: one frozen, versioned description."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from durable_core.errors import FormatError, UnsupportedError, UsageError

Policy = Literal["greedy", "best_fit"]
OnLong = Literal["split", "truncate", "error"]
Tail = Literal["pad", "drop"]

NAMES: dict[str, str] = {"greedy": "greedy_pack_v1", "best_fit": "best_fit_pack_v1"}


@dataclass(frozen=True)
class Packing:
    """How documents become rows of ``length`` tokens.

    ``greedy`` fills one pack after another in the order of the documents. ``best_fit`` keeps up to ``window``
    packs open, puts each document whole into the fullest that has room for it (the oldest of equals), and
    closes the fullest when nothing has room and the window is full. On log-normal lengths (median 400
    tokens, sigma 1, rows of 2,048, 10^5 documents) rows are filled to 99.5 % by best fit with 64 packs,
    99.2 % with 16, 80.4 % by greedy with whole documents (``tests/bench/packing.py``).

    Args:
        length: tokens in a row.
        policy: "greedy" or "best_fit".
        window: open packs of ``best_fit``, 2 or more. What a checkpoint holds grows with it.
        split: greedy only: documents are cut where a pack ends and go on in the next (concatenate, then
            split). False: whole documents. Default: what the policy can do.
        on_long: with whole documents, one longer than ``length``: "split" makes full rows of it and packs
            the rest, "truncate" leaves the rest out (its end-of-text token too), "error" refuses it.
        tail: packs not filled when the epoch ends: "pad", or "drop" (greedy only: best fit would
            lose ``window`` of them).
        pad_id: the token that fills a row up.
        eos_id: appended to each document, and counted in its length here; None: nothing.
        ignore_index: the label that no loss is computed for.
        labels: whether rows have "labels": the tokens themselves, not shifted (the model shifts).
        loss_weight: whether rows have "loss_weight".

    Raises:
        UsageError: a setting makes no sense; the message names it.
    """

    length: int
    policy: Policy = "greedy"
    window: int = 64
    split: bool | None = None
    on_long: OnLong = "split"
    tail: Tail = "pad"
    pad_id: int = 0
    eos_id: int | None = None
    ignore_index: int = -100
    labels: bool = True
    loss_weight: bool = False

    def __post_init__(self) -> None:
        for name, least in (("length", 1), ("window", 2), ("pad_id", None), ("ignore_index", None)):
            _check_integer(name, getattr(self, name), least)
        if self.eos_id is not None:
            _check_integer("eos_id", self.eos_id, None)
        for name, choices in (("policy", Policy), ("on_long", OnLong), ("tail", Tail)):
            if getattr(self, name) not in get_args(choices):
                raise UsageError(f"packing: {name}={getattr(self, name)!r} is none of {get_args(choices)}")
        greedy = self.policy == "greedy"
        if self.split is None:
            object.__setattr__(self, "split", greedy)
        if self.split and not greedy:
            raise UsageError("packing: best_fit keeps documents whole", hint="leave split out, or use greedy")
        if self.split and self.on_long != "split":
            raise UsageError(
                f"packing: on_long={self.on_long!r} has no meaning where every document may be cut",
                hint="split=False keeps documents whole",
            )
        if self.tail == "drop" and not greedy:
            raise UsageError(
                "packing: tail='drop' would lose every open pack of best_fit", hint="use tail='pad'"
            )

    @property
    def name(self) -> str:
        """The versioned name of the policy: same name and settings, same packs for ever."""
        return NAMES[self.policy]

    @property
    def open_packs(self) -> int:
        """How many packs may be open at once."""
        return self.window if self.policy == "best_fit" else 1

    @property
    def description(self) -> dict[str, Any]:
        """JSON; ``Packing.from_description`` makes an equal one of it."""
        fields = dataclasses.asdict(self)
        del fields["policy"]
        return {"name": self.name, **fields}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Packing:
        """Raises ``UnsupportedError`` for an unknown version, ``FormatError`` for what is no description."""
        fields = dict(description)
        name = fields.pop("name", None)
        policies = {version: policy for policy, version in NAMES.items()}
        if name not in policies:
            raise UnsupportedError(
                f"unknown packing {name!r}; known are {sorted(policies)}",
                hint="install the version of this library that wrote it",
            )
        known = {field.name for field in dataclasses.fields(cls)} - {"policy"}
        if set(fields) != known:
            raise FormatError("packing", f"fields {sorted(set(fields) ^ known)} are missing or unknown")
        return cls(policy=policies[name], **fields)  # type: ignore[arg-type]  # checked when made

    def tokens(self, length: int) -> int:
        """Tokens that a document of ``length`` takes in packs: with its end-of-text token."""
        return length + (self.eos_id is not None)

    def packed(self, length: int) -> int:
        """Tokens that come into packs of a document of ``length``: fewer if it is truncated."""
        tokens = self.tokens(length)
        return tokens if self.split or self.on_long != "truncate" else min(tokens, self.length)


def _check_integer(name: str, value: Any, least: int | None) -> None:
    if type(value) is not int or (least is not None and value < least):
        bound = "" if least is None else f" of {least} or more"
        raise UsageError(f"packing: {name}={value!r} is no integer{bound}")
