"""Power loss after any step of a write, by the rules of file systems rather than the luck of one.

The steps that the tier really takes are replayed on a model: content reaches the medium by fsync of the
file, a name by fsync of its directory; what was not synced may survive or not, as is worst. Each
fsync left out in turn must be found, or the model proves nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from durable_core.tier.posix import PosixTier

KEY = "checkpoints/c1/shard-dp0.safetensors"
Step = tuple[str, Path]


class Recorder(PosixTier):
    def __init__(self, path: Path) -> None:
        self.steps: list[Step] = []
        super().__init__(path)

    def before(self, action: str, path: Path) -> None:
        self.steps.append((action, path))


def faults(steps: list[Step], final: Path, existing: set[Path]) -> set[str]:
    """What a power loss could make of ``final``: ``torn`` at some instant, ``lost`` after the last step."""
    found: set[str] = set()
    unsynced_content: set[Path] = set()
    unsynced_names: set[Path] = set()
    known = set(existing)
    temporary = None
    for action, path in steps:
        if action == "create":
            temporary = path
        elif action == "write":
            unsynced_content.add(path)
        elif action == "fsync":
            unsynced_content.discard(path)
        elif action == "mkdir":
            missing = [each for each in (path, *path.parents) if each not in known]
            known.update(missing)
            unsynced_names.update(missing)
        elif action == "fsync-dir":
            unsynced_names = {each for each in unsynced_names if each.parent != path}
        elif action in ("link", "rename"):
            unsynced_names.add(path)
            if temporary in unsynced_content:
                found.add("torn")  # the name may reach the medium before the content
    if any(each in unsynced_names for each in (final, *final.parents)):
        found.add("lost")
    return found


def record(root: Path, *, warm: bool) -> tuple[list[Step], set[Path]]:
    tier = Recorder(root)
    if warm:
        tier.put_if_absent("checkpoints/c0/x", b"x")
        tier.steps.clear()
    existing = {each for each in (root, root / "checkpoints") if each.exists()} | set(root.parents)
    existing = {each for each in existing if each.exists()}
    tier.write_object(KEY, [b"header", b"0123456789"])
    return tier.steps, existing


@pytest.mark.parametrize("warm", [False, True])
def test_nothing_acknowledged_is_lost_and_nothing_visible_is_torn(tmp_path: Path, warm: bool) -> None:
    root = tmp_path / "new" / "run"
    steps, existing = record(root, warm=warm)
    assert faults(steps, root / KEY, existing) == set()


@pytest.mark.parametrize("warm", [False, True])
def test_each_fsync_left_out_is_found(tmp_path: Path, warm: bool) -> None:
    root = tmp_path / "new" / "run"
    steps, existing = record(root, warm=warm)
    final = root / KEY
    made = [path for path in (final, *final.parents) if path not in existing]
    needed = {("fsync", path) for action, path in steps if action == "fsync"}
    needed |= {("fsync-dir", path.parent) for path in made}
    assert needed <= set(steps)
    for left_out in needed:
        without = [step for step in steps if step != left_out]
        assert faults(without, final, existing), left_out


def test_a_name_given_too_early_is_found(tmp_path: Path) -> None:
    steps, existing = record(tmp_path / "run", warm=True)
    actions = [action for action, _ in steps]
    early = steps.copy()
    early.insert(actions.index("fsync"), early.pop(actions.index("link")))
    assert "torn" in faults(early, tmp_path / "run" / KEY, existing)


def test_a_replaced_hint_is_never_torn(tmp_path: Path) -> None:
    tier = Recorder(tmp_path)
    tier.put("hints/owner.json", b"old")
    tier.put("hints/owner.json", b"new")
    assert faults(tier.steps, tmp_path / "hints/owner.json", {tmp_path, *tmp_path.parents}) <= {"lost"}
