"""Under torch's own agent: what a worker has started ends with its group, though torch ends workers alone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

from torchrun_runs import agent, until

SCRIPT = """\
import os, pathlib, signal, subprocess, sys
base, attempt = pathlib.Path(sys.argv[1]), os.environ["TORCHELASTIC_RESTART_COUNT"]
helper = subprocess.Popen(["sleep", "600"], start_new_session=True)
(base / f"helper{attempt}").write_text(str(helper.pid))
if attempt == "0":
    os.kill(os.getpid(), signal.SIGKILL)
stat = pathlib.Path("/proc", (base / "helper0").read_text(), "stat")
(base / "left").write_text(stat.read_text().split()[2] if stat.exists() else "")
"""


def test_a_helper_of_a_killed_worker_is_gone_when_the_next_group_starts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    process = agent(
        tmp_path, "agent", "--rdzv-endpoint", "localhost:0", "--nproc-per-node", "1", "--max-restarts", "3",
        script=(str(script), str(tmp_path)),
    )  # fmt: skip
    try:
        assert process.wait(120) == 0
        assert (tmp_path / "left").read_text() in ("", "Z")
        last = Path("/proc", (tmp_path / "helper1").read_text(), "environ")
        until(lambda: not _runs(last), 20, "the helper of the last group to end")
    finally:
        process.kill()
        for told in tmp_path.glob("helper*"):
            if _runs(Path("/proc", told.read_text(), "environ")):
                with suppress(ProcessLookupError):
                    os.kill(int(told.read_text()), signal.SIGKILL)


def _runs(environ: Path) -> bool:
    """A zombie has none, nor a process that is gone."""
    try:
        return bool(environ.read_bytes())
    except OSError:
        return False
