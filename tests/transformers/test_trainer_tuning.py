"""PEFT and TRL: the same run after a kill, and a frozen base that is written once."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from statistics import fmean

import pytest
import tuned_subject
from trainer_subject import end_of, lines

from durable_core.engine.inspect import open_run
from tests.lives import check_stretches, life


@pytest.mark.parametrize("kind", tuned_subject.KINDS)
def test_the_same_run(tmp_path: Path, kind: str) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for home in (whole, killed):
        home.mkdir()
    assert life(whole, partial(tuned_subject.run, kind, whole)) == 0, (whole / "output").read_text()
    assert life(killed, partial(tuned_subject.run, kind, killed, ("step", 5))) == -9
    first = lines(killed)
    assert life(killed, partial(tuned_subject.run, kind, killed)) == 0, (killed / "output").read_text()
    second = lines(killed)[len(first) :]
    check_stretches(lines(whole), [first, second])
    assert next(line["step"] for line in second if line["what"] == "step") == 5, "on from step 4"
    assert end_of(killed) == end_of(whole)
    if kind == "lora":
        check_written_once(whole / "run")


def check_written_once(root: Path) -> None:
    """Of the base nothing is written again but, in turn, a second copy of each part: a later checkpoint costs
    a twentieth of the first at the most, on average."""
    reader = open_run(root)
    seen: set[str] = set()
    written = []
    for info in reader.committed():
        objects = {item.key: item.nbytes for item in reader.manifest(info).objects}
        written.append(sum(size for key, size in objects.items() if key not in seen))
        seen |= objects.keys()
    assert len(written) > 2
    assert fmean(written[1:]) * 20 <= written[0], written
