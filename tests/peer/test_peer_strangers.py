"""Who may speak to an agent, and what those who may not can do to it: nothing."""

from __future__ import annotations

import hmac
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from peer_agents import (
    BIG,
    DEADLINE,
    KEY,
    OTHER_SECRET,
    RUN,
    SECRET,
    SECRET_TEXT,
    channel,
    client,
    dial,
    is_closed,
    serving,
    until,
)  # fmt: skip

from durable_core.clock import SystemClock
from durable_core.errors import TierDenied, TierFull, TierUnavailable, UsageError
from durable_core.tier.peer import agent as agents
from durable_core.tier.peer.frames import (
    MAX_PAYLOAD,
    Channel,
    FrameRefused,
    Stream,
    greet_as_agent,
    greet_as_client,
)
from durable_core.tier.peer.seals import digest
from durable_core.tier.peer.secret import Secret, find_secret, make_secret, read_secret, write_secret
from durable_core.tier.peer.tls import agent_context, client_context

PREFIX = struct.Struct("!4sHIQ")


class Recorder(Stream):
    """Notes what a channel sends, and can change it on its way."""

    def __init__(self, sock: socket.socket, change: Callable[[bytes], bytes] = bytes) -> None:
        super().__init__(sock, SystemClock(), DEADLINE)
        self.sent: list[bytes] = []
        self.change = change

    def send(self, data: object) -> None:
        self.sent.append(bytes(data))  # type: ignore[call-overload]
        super().send(self.change(self.sent[-1]))


@pytest.fixture
def agent() -> Iterator[agents.Agent]:
    with serving() as made:
        yield made


def recorded(agent: agents.Agent) -> tuple[Channel, Recorder]:
    stream = Recorder(dial(agent.address))
    made = greet_as_client(stream, SECRET, agent.address)
    made.send({"op": "hello", "run": RUN, "generation": 1})
    made.receive()
    return made, stream


# --- the secret ----------------------------------------------------------------------------


def test_another_secret_is_denied(agent: agents.Agent) -> None:
    tier = client(agent, secret=OTHER_SECRET)
    for call in (lambda: tier.get(KEY), lambda: tier.put(KEY, b"x"), tier.probe, lambda: tier.list("")):
        with pytest.raises(TierDenied, match="secret"):
            call()
    assert list(client(agent).list("")) == []


def test_an_agent_without_the_secret_is_denied_by_the_client() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def impostor() -> None:
        sock, _ = listener.accept()
        with sock:
            sock.sendall(b"durpeer1" + bytes(32))
            sock.recv(64, socket.MSG_WAITALL)
            sock.sendall(b"\1" + bytes(32))

    thread = threading.Thread(target=impostor)
    thread.start()
    with listener, pytest.raises(TierDenied, match="does not have the secret"):
        client(f"127.0.0.1:{listener.getsockname()[1]}").put(KEY, b"x")
    thread.join()


def test_the_client_that_does_not_prove_the_secret_gets_no_further(agent: agents.Agent) -> None:
    sock = dial(agent.address)
    assert len(sock.recv(40, socket.MSG_WAITALL)) == 40
    sock.sendall(bytes(64))
    assert sock.recv(33, socket.MSG_WAITALL) == bytes(33)
    assert is_closed(sock)


def test_a_recorded_conversation_cannot_be_had_again(agent: agents.Agent) -> None:
    made, stream = recorded(agent)
    made.send({"op": "delete", "key": KEY})
    assert made.receive().header == {}
    client(agent).put_if_absent(KEY, b"kept")
    again = dial(agent.address)
    again.sendall(b"".join(stream.sent))
    answer = again.recv(40 + 33, socket.MSG_WAITALL)
    assert answer[40:] in (bytes(33), b"")  # denied, or the connection ended at once
    assert client(agent).get(KEY) == b"kept"


def test_a_frame_cannot_be_sent_twice(agent: agents.Agent) -> None:
    made, stream = recorded(agent)
    made.send({"op": "delete", "key": KEY})
    made.receive()
    client(agent).put_if_absent(KEY, b"kept")
    stream.sock.sendall(stream.sent[-1])
    assert is_closed(stream.sock)
    assert client(agent).get(KEY) == b"kept"


def test_frames_cannot_be_swapped(agent: agents.Agent) -> None:
    made, stream = recorded(agent)
    held: list[bytes] = []
    stream.change = lambda data: held.append(data) or b""  # type: ignore[func-returns-value]
    made.send({"op": "size", "key": KEY})
    made.send({"op": "room"})
    stream.sock.sendall(held[1] + held[0])
    assert is_closed(stream.sock)


def test_a_frame_of_the_agent_is_none_of_the_client(agent: agents.Agent) -> None:
    """The directions have keys of their own: what the agent said cannot be said to it."""
    sock = dial(agent.address)
    made = greet_as_client(Stream(sock, SystemClock(), DEADLINE), SECRET, "here")
    made._send_key = made._receive_key  # a client that signs as agents do
    made.send({"op": "hello", "run": RUN, "generation": 1})
    assert is_closed(sock)


@pytest.mark.parametrize("where", ["magic", "length", "number", "header", "digest", "mac", "payload"])
def test_a_changed_byte_anywhere_ends_the_connection_and_stores_nothing(
    agent: agents.Agent, where: str
) -> None:
    made, stream = recorded(agent)
    made.send({"op": "write", "key": KEY, "replace": False, "size": 5})
    body = len(b'{"op":"block"}')
    at = {
        "magic": 0, "length": 9, "number": 17, "header": 18 + 2, "digest": 18 + body, "mac": 18 + body + 16,
        "payload": 18 + body + 48,
    }[where]  # fmt: skip

    def flip(data: bytes) -> bytes:
        return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]

    stream.change = flip
    made.send({"op": "block"}, b"12345")
    assert is_closed(stream.sock)
    assert list(client(agent).list("")) == []


def test_lengths_are_refused_before_anything_is_received(agent: agents.Agent) -> None:
    for header, payload in ((4097, 0), (65535, 0), (10, MAX_PAYLOAD + 1), (10, 2**32 - 1)):
        _, stream = recorded(agent)
        stream.sock.sendall(PREFIX.pack(b"dpf1", header, payload, 1))
        assert is_closed(stream.sock), (header, payload)


def test_a_forged_length_is_refused_before_its_payload_comes(agent: agents.Agent) -> None:
    _, stream = recorded(agent)
    stream.sock.sendall(PREFIX.pack(b"dpf1", 2, MAX_PAYLOAD, 1) + b"{}" + bytes(48))
    assert is_closed(stream.sock)


def test_what_is_not_a_frame_of_json_is_refused() -> None:
    left, right = socket.socketpair()
    with left, right:
        ends: list[Channel] = []
        stream = Stream(left, SystemClock(), DEADLINE)
        thread = threading.Thread(
            target=lambda: ends.append(greet_as_agent(stream, SECRET, timeout=DEADLINE))
        )
        thread.start()
        made = greet_as_client(Stream(right, SystemClock(), DEADLINE), SECRET, "here")
        thread.join()
        with pytest.raises(FrameRefused, match="too large"):
            made.send({}, bytes(MAX_PAYLOAD + 1))
        with pytest.raises(FrameRefused, match="too large"):
            made.send({"key": "x" * 5000})
        made.send({"a": 1}, b"payload")
        frame = ends[0].receive()
        with pytest.raises(FrameRefused, match="was not taken"):
            ends[0].receive()
        with pytest.raises(FrameRefused, match="7 bytes where 8"):
            ends[0].payload(frame, memoryview(bytearray(8)))
        assert ends[0].payload_bytes(frame) == b"payload"


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"op": 7},
        {"op": "nonsense"},
        {"op": "read", "key": "../x"},
        {"op": "size"},
        {"op": "get", "key": KEY, "limit": -1},
    ],
)
def test_a_request_that_means_nothing_is_answered_with_an_error(
    agent: agents.Agent, request_: dict[str, object]
) -> None:
    made = channel(agent.address)
    made.send(request_)
    assert made.receive().header["error"] in ("usage", "corrupt")
    made.send({"op": "room"})
    assert "error" not in made.receive().header  # and the conversation goes on


@pytest.mark.parametrize(
    "first", [{"op": "room"}, {"op": "delete", "key": KEY}, {"op": "hello", "run": "../x", "generation": 1}]
)
def test_nothing_is_done_for_a_client_that_has_not_said_who_it_is(
    agent: agents.Agent, first: dict[str, object]
) -> None:
    made = channel(agent.address, hello=False)
    made.send(first)
    assert "error" in made.receive().header
    assert is_closed(made.stream.sock)


@pytest.mark.parametrize("header", [b"{}", b"[]", b"nonsense", b'{"a":1,"a":2}', b"\xff", b"[" * 3000])
def test_a_header_of_a_holder_of_the_secret_is_believed_no_more(agent: agents.Agent, header: bytes) -> None:
    made, stream = recorded(agent)
    signed = PREFIX.pack(b"dpf1", len(header), 0, 1) + header + digest(b"", made._seed)
    stream.sock.sendall(signed + hmac.digest(made._send_key, signed, "sha256"))
    if header == b"{}":
        assert made.receive().header["error"] == "corrupt"
    else:
        assert is_closed(stream.sock)


# --- strangers who take their time ---------------------------------------------------------


def test_a_stranger_who_says_nothing_is_shown_out() -> None:
    with serving(greeting=0.2) as agent:
        silent = dial(agent.address)
        assert len(silent.recv(40, socket.MSG_WAITALL)) == 40
        assert is_closed(silent)


def test_a_stranger_who_speaks_a_byte_at_a_time_is_shown_out() -> None:
    """The deadline is for the whole greeting, not for each byte."""
    with serving(greeting=0.3) as agent:
        slow = dial(agent.address)
        slow.recv(40, socket.MSG_WAITALL)
        clock, sent = SystemClock(), 0
        with pytest.raises(OSError):
            while sent < 64:
                sent += slow.send(b"x")
                clock.sleep(0.02)
        assert sent < 64


def test_many_strangers_keep_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """They have all the time in the world, but give way to newer ones."""
    monkeypatch.setattr(agents, "MAX_STRANGERS", 8)
    with serving(greeting=10 * DEADLINE) as agent:
        client(agent).put_if_absent(KEY, b"kept")
        crowd = [dial(agent.address) for _ in range(40)]
        assert client(agent).get(KEY) == b"kept"
        for sock in crowd[:30]:
            sock.recv(40, socket.MSG_WAITALL)  # the agent's greeting, if it came to that
            assert is_closed(sock)
        for sock in crowd:
            sock.close()


def test_one_client_too_many_is_told(agent: agents.Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents, "MAX_CLIENTS", 2)
    held = [channel(agent.address) for _ in range(2)]
    with pytest.raises(TierUnavailable, match="connected already"):
        client(agent).get(KEY)
    held.pop().stream.close()
    until(lambda: len(agent._guests._clients) == 1)
    client(agent).put(KEY, b"x")


def test_a_client_that_stops_in_the_middle_holds_nothing() -> None:
    with serving(transfer=0.2) as agent:
        made, stream = recorded(agent)
        made.send({"op": "write", "key": KEY, "replace": False, "size": len(BIG)})
        stream.change = lambda data: data[:1000]
        made.send({"op": "block"}, BIG[:MAX_PAYLOAD])
        assert is_closed(stream.sock)
        until(lambda: agent.store.room.used == 0)
        assert list(client(agent).list("")) == [] and client(agent).collect_residue() == 0


def test_a_client_that_does_not_read_holds_only_itself() -> None:
    with serving(transfer=0.3) as agent:
        client(agent).write_object(KEY, [bytes(1 << 20)] * 64)
        deaf, stream = recorded(agent)
        stream.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.send({"op": "get", "key": KEY, "limit": 1 << 30})
        assert client(agent).size(KEY) == 64 << 20
        until(lambda: stream.sock not in agent._guests._clients and len(agent._guests._clients) == 0)


# --- secrets -------------------------------------------------------------------------------


def test_a_secret_is_never_shown() -> None:
    assert SECRET_TEXT not in repr(SECRET) + str(SECRET) + f"{SECRET}"
    with pytest.raises(UsageError) as caught:
        Secret("short")
    assert "short" not in str(caught.value)
    tier = client("127.0.0.1:1")
    assert SECRET_TEXT not in tier.location + repr(tier)


def test_secrets_come_from_a_file_or_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    text = path.read_text().strip()
    assert len(text) == 64 and text != make_secret()
    found = [
        find_secret({}, path),
        find_secret({"DURABLE_PEER_SECRET_FILE": str(path)}),
        find_secret({"DURABLE_PEER_SECRET": text, "DURABLE_PEER_SECRET_FILE": "/nowhere"}),
    ]
    assert len({each.derive("x") for each in found}) == 1
    with pytest.raises(FileExistsError):
        write_secret(path)
    with pytest.raises(UsageError, match="DURABLE_PEER_SECRET"):
        find_secret({})


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666, 0o620])
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "secret"
    write_secret(path)
    path.chmod(mode)
    with pytest.raises(UsageError, match="chmod 600"):
        read_secret(path)


def test_a_secret_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(UsageError):
            read_secret(path)
    (tmp_path / "empty").touch(mode=0o600)
    with pytest.raises(UsageError, match="at least 16"):
        read_secret(tmp_path / "empty")


# --- TLS -----------------------------------------------------------------------------------


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    cert, key = directory / f"{name}.pem", directory / f"{name}.key"
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
    ]
    command += ["-days", "2", "-subj", f"/CN={name}", "-out", str(cert), "-keyout", str(key)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    return cert, key


needs_openssl = pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make certificates")


@needs_openssl
def test_over_tls_all_works_and_nothing_else_is_spoken(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "agent")
    stranger, _ = certificate(tmp_path, "stranger")
    with serving(tls=agent_context(cert, key)) as agent:
        tier = client(agent, tls=client_context(cert))
        tier.probe()
        assert tier.write_object(KEY, [BIG[:999], BIG[999:]]) == len(BIG)
        assert tier.get(KEY) == BIG
        with pytest.raises(TierUnavailable, match="certificate"):
            client(agent, tls=client_context(stranger)).get(KEY)
        with pytest.raises(TierUnavailable):
            client(agent, connect=1.0).get(KEY)  # plain TCP
        with pytest.raises(TierDenied):
            client(agent, tls=client_context(cert), secret=OTHER_SECRET).get(KEY)
        assert tier.get(KEY, limit=1 << 30) == BIG


@needs_openssl
def test_a_full_peer_is_noticed_over_tls(tmp_path: Path) -> None:
    """The early no of the agent is read in the middle of the write, and is no ticket of the handshake."""
    cert, key = certificate(tmp_path, "agent")
    with serving(tls=agent_context(cert, key), capacity_bytes=1 << 20) as agent:
        tier = client(agent, tls=client_context(cert))
        with pytest.raises(TierFull):
            tier.write_object(KEY, [BIG] * 20)


def test_files_that_are_no_certificates_are_named(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("nothing")
    with pytest.raises(UsageError, match="x"):
        agent_context(tmp_path / "x", tmp_path / "y")
    with pytest.raises(UsageError, match="x"):
        client_context(tmp_path / "x")
