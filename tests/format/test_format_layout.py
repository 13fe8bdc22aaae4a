"""Keys: made, parsed, and refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_core.errors import FormatError, UsageError
from durable_core.format import layout
from durable_core.testing.tier_contract import BAD_KEYS

OP = "0123abcd" + "f" * 24
NAME = layout.checkpoint_name(12, 345, OP)
STEM = "g000012-c00000345-0123abcd"
op_ids = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
roles = st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True)


def test_the_names_of_the_contract() -> None:
    assert layout.journal_key(0) == "journal/00000000000000000000.json"
    assert NAME.prefix == f"checkpoints/{STEM}/"
    assert NAME.offer("dp0") == f"checkpoints/{STEM}/offer-dp0.json"
    assert NAME.shard("dp0") == f"checkpoints/{STEM}/shard-dp0.safetensors"
    assert NAME.receipt("dp0") == f"checkpoints/{STEM}/receipt-dp0.json"
    assert NAME.manifest == f"checkpoints/{STEM}/manifest.json"
    assert NAME.ledger("dp0") == f"ledger/{STEM}/dp0.safetensors"
    assert NAME.ledger_index == f"ledger/{STEM}/index.json"
    assert layout.OWNER_HINT == "hints/owner.json"


@given(st.integers(0, 10**20 - 1))
def test_journal_keys_parse_back_and_sort_by_number(seq: int) -> None:
    key = layout.journal_key(seq)
    assert layout.parse_journal_key(key) == seq
    assert layout.key_fault(key) == ""
    assert (key < layout.journal_key(10**19)) == (seq < 10**19)


@given(st.integers(0, 10**6 - 1), st.integers(0, 10**8 - 1), op_ids, roles)
def test_checkpoint_keys_parse_back(generation: int, c: int, op_id: str, role: str) -> None:
    name = layout.checkpoint_name(generation, c, op_id)
    made = {
        ("offer", role): name.offer(role),
        ("shard", role): name.shard(role),
        ("receipt", role): name.receipt(role),
        ("manifest", None): name.manifest,
        ("ledger", role): name.ledger(role),
        ("index", None): name.ledger_index,
    }
    assert len(set(made.values())) == 6
    for (what, whose), key in made.items():
        assert layout.key_fault(key) == ""
        assert layout.parse_checkpoint_key(key) == layout.ParsedKey(name, what, whose)


@pytest.mark.parametrize(
    "key",
    [
        "", "journal/0.json", "journal/0000000000000000000x.json", "journal/00000000000000000000.json/x",
        f"checkpoints/{STEM}/", f"checkpoints/{STEM}/offer-.json", f"checkpoints/{STEM}/other.json",
        f"checkpoints/{STEM}/shard-DP0.safetensors", f"checkpoints/{STEM}/shard-a/b.safetensors",
        f"checkpoints/{STEM}/manifest.json\n", f"ledger/{STEM}/dp0.json", f"hints/{STEM}/manifest.json",
        "checkpoints/g12-c345-0123abcd/manifest.json", f"checkpoints/{STEM}/shard-...safetensors",
        f"x/checkpoints/{STEM}/manifest.json", "journal/٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠٠.json",
    ],
)  # fmt: skip
def test_other_keys_do_not_parse(key: str) -> None:
    assert layout.parse_journal_key(key) is None
    assert layout.parse_checkpoint_key(key) is None
    with pytest.raises(FormatError, match="manifest"):
        layout.require_checkpoint_key(key, within="the/manifest.json")


@pytest.mark.parametrize("key", BAD_KEYS)
def test_bad_keys(key: str) -> None:
    assert layout.key_fault(key)
    with pytest.raises(UsageError):
        layout.check_key(key)


@pytest.mark.parametrize("key", [None, 1, b"journal", ["a"]])
def test_what_is_no_string_is_no_key(key: object) -> None:
    assert layout.key_fault(key)


@pytest.mark.parametrize("key", ["a", "a.b/c_d-e", "0", "a" * 255, "tmpx/a", "a/tmp", "-", "_"])
def test_good_keys(key: str) -> None:
    assert layout.check_key(key) == key


@pytest.mark.parametrize("prefix", ["", "journal/", "journal", "checkpoints/g0"])
def test_good_prefixes(prefix: str) -> None:
    assert layout.check_prefix(prefix) == prefix


@pytest.mark.parametrize("prefix", ["/", "../", "a//", "tmp/", "tmp", "A/"])
def test_bad_prefixes(prefix: str) -> None:
    with pytest.raises(UsageError):
        layout.check_prefix(prefix)


@pytest.mark.parametrize("role", ["", "DP0", "a/b", "..", ".a", "a..b", "x" * 65, None, 0, "dp0\n"])
def test_bad_roles(role: object) -> None:
    assert not layout.is_role(role)
    with pytest.raises(UsageError):
        NAME.shard(role)  # type: ignore[arg-type]


@pytest.mark.parametrize("numbers", [(-1, 0), (10**6, 0), (0, -1), (0, 10**8)])
def test_numbers_that_do_not_fit(numbers: tuple[int, int]) -> None:
    with pytest.raises(UsageError):
        layout.checkpoint_name(*numbers, OP)


@pytest.mark.parametrize("op_id", ["", "0123abcd", "G" * 32, None])
def test_bad_op_ids(op_id: object) -> None:
    with pytest.raises(UsageError):
        layout.checkpoint_name(0, 0, op_id)  # type: ignore[arg-type]


def test_bad_seq() -> None:
    for seq in (-1, 10**20):
        with pytest.raises(UsageError):
            layout.journal_key(seq)


def test_a_snapshot_key_says_whose_it_is_and_sorts_by_age():
    key = layout.snapshot_key(3, 120, "dp0", "0a1b2c3d")
    assert key == "snapshots/g000003-s000000000120/dp0-0a1b2c3d.slot"
    assert layout.parse_snapshot_key(key) == layout.SnapshotKey(3, 120, "dp0")
    assert not layout.key_fault(key)
    older = layout.snapshot_key(3, 99, "dp0", "ffffffff")
    assert sorted([key, older, layout.snapshot_key(2, 10**6, "dp0", "ffffffff")])[-2:] == [older, key]
    for other in ("snapshots/g3-s1/dp0-0a1b2c3d.slot", key + "x", key.replace("dp0", "DP0"), "journal/1"):
        assert layout.parse_snapshot_key(other) is None
