"""What is kept of a failure, and what is not: secrets (OBS-15). And that one thing is asked for once."""

from __future__ import annotations

import json
from pathlib import Path

from durable_core.engine.launched import RunFiles
from durable_core.engine.words import Words
from durable_core.launch.controller import incident
from durable_core.launch.controller.asking import ask, derived
from durable_core.launch.controller.looking import Glimpse, look

OP = "ab" * 16


def test_values_of_secret_variables_are_found_wherever_they_are_quoted() -> None:
    environ = {
        "DB_PASSWORD": "correct horse",
        "AWS_SECRET_ACCESS_KEY": "abcdefgh",
        "API_TOKEN": "x",
        "HOME": "/root",
    }
    secrets = incident.secrets_of({**environ, "DURABLE_PEER_SECRET_FILE": "/run/secret"})
    assert secrets == ("correct horse", "abcdefgh"), "not a path, nor what may be any word"
    found = incident.redacted({"a": ["x\nit said: correct horse\ny", 3, None], "abcdefgh": True}, secrets)
    assert found["a"][1:] == [3, None]
    assert found["a"][0].split("\n")[::2] == ["x", "y"] and "horse" not in json.dumps(found)
    assert "abcdefgh" not in json.dumps(found)


def test_what_looks_like_a_secret_is_taken_out_line_by_line() -> None:
    text = "cannot connect\nhttps://me:hunter2@host/bucket\ntried 3 times"
    words = {0: Words("OSError", text)}
    document = json.loads(incident.bundle({"op_id": OP}, Glimpse(words=words), ()))
    lines = document["words"]["0"]["message"].split("\n")
    assert lines[0] == "cannot connect" and lines[2] == "tried 3 times" and "hunter2" not in lines[1]


def test_what_was_asked_for_is_not_asked_again(tmp_path: Path) -> None:
    files = RunFiles(tmp_path).prepare()
    ask([files], "dump", OP, 3, reason="first")
    (path,) = files.requests.iterdir()
    before = path.stat()
    ask([files], "dump", OP, 3, reason="second")
    assert path.stat().st_ino == before.st_ino and path.stem == derived(OP, "dump")
    ask([files], "restart", OP, 3)
    assert len(list(files.requests.iterdir())) == 2


def test_what_is_malformed_is_named_and_looked_past(tmp_path: Path) -> None:
    files = RunFiles(tmp_path).prepare()
    files.facts.write_text("not JSON")
    files.words(0).write_text("{}")
    files.beat(1).write_bytes(b"\x02\0\0\0" * 400)
    other = RunFiles(tmp_path / "nodes" / "3").prepare()
    other.stacks(5).write_text("frames")
    seen = look(tmp_path)
    assert seen.stacks == {5: "frames"} and not seen.facts and not seen.beats
    assert len(seen.unreadable) == 3
