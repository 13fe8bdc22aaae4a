"""The peer tier's throughput: an object put to and read from an agent in another process, beside memcpy
and beside the same bytes sent over a bare connection to a process that drops them.

All are measured turn about in the same run, so that the ratios mean something on a busy machine.

    python tests/bench/peer.py [--size-mib 256] [--rounds 7] [--threads 2]

Prints one JSON document: GB/s are medians of 10**9 bytes per second; digests and tags are included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from durable_core.tier.peer.client import PeerTier
from durable_core.tier.peer.secret import Secret, make_secret

MIB = 1 << 20
KEY = "snapshots/g000001-s000000000001/dp0-0123abcd.slot"


def seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def drop_all(listener: socket.socket, size: int) -> None:
    """The other end of the bare connection: says when ``size`` bytes have come, over and over."""
    buffer = memoryview(bytearray(MIB))
    sock, _ = listener.accept()
    with sock:
        left = size
        while got := sock.recv_into(buffer[: min(left, MIB)]):
            left -= got
            if not left:
                sock.sendall(b"k")
                left = size


@contextlib.contextmanager
def bare_connection(size: int) -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = multiprocessing.get_context("fork").Process(target=drop_all, args=(listener, size))
        process.start()
        with socket.create_connection(listener.getsockname()) as sock:
            yield sock
        process.join()


def send_bare(sock: socket.socket, data: memoryview) -> None:
    sock.sendall(data)
    assert sock.recv(1) == b"k"


def in_parts(size: int, threads: int) -> list[tuple[int, int]]:
    step = -(-size // threads)
    return [(begin, min(begin + step, size)) for begin in range(0, size, step)]


def read_parallel(tier: PeerTier, out: memoryview, pool: ThreadPoolExecutor, threads: int) -> None:
    ranges = in_parts(len(out), threads)
    list(pool.map(lambda each: tier.read_into(KEY, each[0], out[each[0] : each[1]]), ranges))


def write_parallel(tier: PeerTier, data: memoryview, pool: ThreadPoolExecutor, threads: int) -> None:
    ranges = in_parts(len(data), threads)
    list(pool.map(lambda each: tier.write_object(f"{KEY}.{each[0]}", [data[each[0] : each[1]]]), ranges))
    for begin, _ in ranges:
        tier.delete(f"{KEY}.{begin}")


def measure(tier: PeerTier, size: int, rounds: int, threads: int) -> dict[str, Any]:
    data = memoryview(bytearray(os.urandom(MIB) * (size // MIB)))
    out = memoryview(bytearray(b"\1" * size))
    small = memoryview(bytearray(64))
    taken: dict[str, list[float]] = {}
    with bare_connection(size) as bare, ThreadPoolExecutor(threads) as pool:
        works: dict[str, Callable[[], object]] = {
            "memcpy": lambda: out.__setitem__(slice(None), data),
            "bare_tcp": lambda: send_bare(bare, data),
            "put": lambda: tier.write_object(KEY, [data]),
            "get": lambda: tier.read_into(KEY, 0, out),
            f"get_{threads}_threads": lambda: read_parallel(tier, out, pool, threads),
            f"put_{threads}_threads": lambda: write_parallel(tier, data, pool, threads),
        }
        for _ in range(rounds):
            for name, work in works.items():
                taken.setdefault(name, []).append(seconds(work))
            assert out == data
            tier.delete(KEY)
    tier.write_object(KEY, [b"x" * 4096])
    trips = [seconds(lambda: tier.read_into(KEY, 0, small)) for _ in range(500)]
    medians = {name: statistics.median(each) for name, each in taken.items()}
    return {
        "bytes": size,
        "gb_per_s": {name: size / each / 1e9 for name, each in medians.items()},
        "times_memcpy": {name: each / medians["memcpy"] for name, each in medians.items()},
        "times_bare_tcp": {name: each / medians["bare_tcp"] for name, each in medians.items()},
        "small_read_ms": statistics.median(trips) * 1e3,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--size-mib", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    secret = make_secret()
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    directory = tempfile.mkdtemp(dir=base, prefix="durable-peer-bench-")
    command = [
        sys.executable,
        "-m",
        "durable_core.cli",
        "agent",
        "--json",
        "--directory",
        f"{directory}/agent",
    ]
    env = {**os.environ, "DURABLE_PEER_SECRET": secret}
    agent = subprocess.Popen(
        [*command, "--directory", f"{directory}/agent", "--capacity", f"{3 * args.size_mib}MiB"],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )
    try:
        assert agent.stdout is not None
        said = json.loads(agent.stdout.readline())
        tier = PeerTier(said["address"], run_id="bench", generation=1, secret=Secret(secret))
        print(json.dumps(measure(tier, args.size_mib * MIB, args.rounds, args.threads), indent=2))
    finally:
        agent.terminate()
        agent.wait()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
