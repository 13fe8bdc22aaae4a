"""L3. The agent: one process per host that keeps objects of other hosts in shared memory.

One thread per connection and blocking sockets: publishing a file blocks, which would hold up everyone on
an event loop, and asyncio's streams took nearly twice the processor time of ``recv_into`` for the same
bytes. What a stranger can hold is bounded: connections that have not proved the secret are few,
short-lived, and give way to newer ones; nothing is allocated on their word.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from typing import TYPE_CHECKING

from durable_core.clock import Clock, SystemClock
from durable_core.errors import TierDenied, TierUnavailable, UsageError
from durable_core.tier.peer.frames import ConnectionLost, FrameRefused, Stream, greet_as_agent
from durable_core.tier.peer.secret import Secret
from durable_core.tier.peer.service import Service
from durable_core.tier.peer.store import Store

if TYPE_CHECKING:
    import ssl

#: Seconds: to prove the secret; for one frame to be transferred; for the next request to come.
GREETING, TRANSFER, IDLE = 5.0, 30.0, 600.0
MAX_STRANGERS, MAX_CLIENTS = 64, 256
_BACKLOG = 128
_FAREWELL = 10.0


class Agent:
    """Serves the objects under ``directory`` (made if missing) to holders of ``secret``.

    ``port`` 0 takes a free one; ``address`` says which. At most ``capacity_bytes`` are kept in all,
    and ``bytes_per_second`` (0: unlimited) moved. With ``tls`` (a server's context) nothing else is spoken.
    Raises ``UsageError`` when another agent serves the directory, ``TierUnavailable`` when it cannot listen.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        secret: Secret,
        capacity_bytes: int,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ssl.SSLContext | None = None,
        bytes_per_second: int = 0,
        clock: Clock | None = None,
        greeting: float = GREETING,
        transfer: float = TRANSFER,
    ) -> None:
        if capacity_bytes <= 0:
            raise UsageError("an agent needs a capacity of at least one byte")
        self._secret, self._tls = secret, tls
        self._clock = clock or SystemClock()
        self._greeting, self._transfer = greeting, transfer
        self._pace = Pace(bytes_per_second, self._clock)
        self._guests = _Guests()
        self._threads: set[threading.Thread] = set()
        self._closing = threading.Event()
        self.store = Store(directory, capacity_bytes)
        try:
            self._listener = _listen(host, port)
        except BaseException:
            self.store.close()
            raise
        name, port = self._listener.getsockname()[:2]
        self.address = f"[{name}]:{port}" if ":" in name else f"{name}:{port}"
        self._acceptor = threading.Thread(target=self._accept, name="peer-agent", daemon=True)
        self._acceptor.start()

    def close(self, *, forget: bool = False) -> None:
        """End every connection and stop listening. Nothing that is kept is removed, unless to ``forget``."""
        if self._closing.is_set():
            return
        self._closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._acceptor.join(_FAREWELL)
        self._guests.dismiss()
        for thread in list(self._threads):
            thread.join(_FAREWELL)
        if forget:
            self.store.forget_all()
        self.store.close()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                sock, _ = self._listener.accept()
            except OSError:
                # Closed, or out of descriptors: then the wait gives connections time to end.
                self._closing.wait(0.1)
                continue
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        thread: threading.Thread | None = None
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._tls is not None:
                sock = self._tls.wrap_socket(sock, server_side=True, do_handshake_on_connect=False)
            self._guests.arrive(sock)
            thread = threading.Thread(target=self._serve, args=(sock,), name="peer-client", daemon=True)
            self._threads.add(thread)
            thread.start()
        except (OSError, RuntimeError):  # it is gone already, or there can be no more threads
            self._leave(sock, thread)

    def _leave(self, sock: socket.socket, thread: threading.Thread | None) -> None:
        self._guests.leave(sock)
        sock.close()
        if thread is not None:
            self._threads.discard(thread)

    def _serve(self, sock: socket.socket) -> None:
        try:
            # Whoever ends a connection, or sends what is no frame of it, gets no answer: nothing on it
            # could be believed any more.
            with contextlib.suppress(ConnectionLost, FrameRefused, TierDenied):
                self._talk(sock)
        finally:
            self._leave(sock, threading.current_thread())

    def _talk(self, sock: socket.socket) -> None:
        if self._tls is not None:
            try:
                sock.settimeout(self._greeting)
                sock.do_handshake()  # type: ignore[attr-defined]  # an SSLSocket, by _welcome
            except OSError as error:
                raise ConnectionLost(f"no TLS: {error}") from error
        stream = Stream(sock, self._clock, self._greeting)
        channel = greet_as_agent(stream, self._secret, timeout=self._greeting)
        stream.timeout = self._transfer
        if not self._guests.admit(sock):
            full = TierUnavailable(f"{MAX_CLIENTS} clients are connected already")
            Service(channel, self.store, self._pace).refuse(full)
            return
        Service(channel, self.store, self._pace).run(idle=IDLE)


class Pace:
    """Lets ``bytes_per_second`` pass in all (0: any number), by making whoever is ahead of it wait."""

    def __init__(self, bytes_per_second: int, clock: Clock) -> None:
        self._rate = bytes_per_second
        self._clock = clock
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __call__(self, nbytes: int) -> None:
        if not self._rate:
            return
        with self._lock:
            now = self._clock.monotonic()
            begin = max(now, self._free_at)
            self._free_at = begin + nbytes / self._rate
        if begin > now:
            self._clock.sleep(begin - now)


class _Guests:
    """Who is connected. Strangers, who have not proved the secret, give way to newer strangers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._strangers: dict[socket.socket, None] = {}  # oldest first
        self._clients: set[socket.socket] = set()

    def arrive(self, sock: socket.socket) -> None:
        with self._lock:
            self._strangers[sock] = None
            if len(self._strangers) > MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _hang_up(oldest)

    def admit(self, sock: socket.socket) -> bool:
        """The secret is proved. Whether there is room for one more client."""
        with self._lock:
            self._strangers.pop(sock, None)
            if len(self._clients) >= MAX_CLIENTS:
                return False
            self._clients.add(sock)
            return True

    def leave(self, sock: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(sock, None)
            self._clients.discard(sock)

    def dismiss(self) -> None:
        with self._lock:
            for sock in (*self._strangers, *self._clients):
                _hang_up(sock)


def _hang_up(sock: socket.socket) -> None:
    """Wake the thread that waits on ``sock``. Not the method of an SSLSocket, which is not made for that."""
    with contextlib.suppress(OSError):
        socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _listen(host: str, port: int) -> socket.socket:
    try:
        family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(where[:2], family=family, backlog=_BACKLOG)
    except OSError as error:
        raise TierUnavailable(
            f"cannot listen on {host}:{port}: {error.strerror or error}", hint="choose another --port"
        ) from error
