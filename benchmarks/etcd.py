"""The peer: three etcd nodes on this machine, with the same loads over gRPC from one process.

Uses the `etcd` binary if it is installed (Debian: etcd-server). The few protobuf messages are encoded here by hand.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator

import grpc

from benchmarks.figures import Samples, Stopwatch, until

PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"
TXN = "/etcdserverpb.KV/Txn"
TXN_OPERATIONS = 128  # etcd's own limit


def available() -> bool:
    return shutil.which("etcd") is not None


@contextlib.contextmanager
def cluster() -> Iterator[list[str]]:
    """Client endpoints of three nodes. The nodes and their data are removed afterwards."""
    directory = tempfile.mkdtemp(prefix="ebla-etcd-")
    ports = _free_ports(6)
    peers = ",".join(f"n{i}=http://127.0.0.1:{ports[2 * i]}" for i in range(3))
    nodes = []
    try:
        for i in range(3):
            peer, client = (f"http://127.0.0.1:{port}" for port in ports[2 * i : 2 * i + 2])
            command = ["etcd", "--name", f"n{i}", "--data-dir", os.path.join(directory, str(i))]
            command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            command += ["--listen-client-urls", client, "--advertise-client-urls", client]
            command += ["--initial-cluster", peers, "--log-level", "error"]
            nodes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        endpoints = [f"127.0.0.1:{ports[2 * i + 1]}" for i in range(3)]
        until(lambda: _is_ready(endpoints[0]), 30.0, "etcd did not come up")
        yield endpoints
    finally:
        for node in nodes:
            node.kill()
            node.wait()
        shutil.rmtree(directory, ignore_errors=True)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def _is_ready(endpoint: str) -> bool:
    try:
        with grpc.insecure_channel(endpoint) as channel:
            channel.unary_unary(PUT)(_put(b"ready", b"1"), timeout=1)
    except grpc.RpcError:
        return False
    return True


def _field(number: int, data: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _put(key: bytes, value: bytes) -> bytes:
    return _field(1, key) + _field(2, value)


def _txn(items: list[tuple[bytes, bytes]]) -> bytes:
    return b"".join(_field(2, _field(2, _put(key, value))) for key, value in items)


def latency(endpoint: str, count: int) -> tuple[Samples, Samples]:
    """Times of single puts and single gets, one after the other."""
    puts, gets = Samples(), Samples()
    with grpc.insecure_channel(endpoint) as channel:
        put, get = channel.unary_unary(PUT), channel.unary_unary(RANGE)
        for number in range(count):
            key = b"%016d" % number
            with puts.timed():
                put(_put(key, b"y" * 100))
            with gets.timed():
                get(_field(1, key))
    return puts, gets


async def concurrent(endpoint: str, method: str, count: int, width: int) -> float:
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(method)

        async def worker(number: int) -> None:
            for turn in range(count // width):
                key = b"%016d" % (number * 1000 + turn % 50)
                await call(_put(key, b"z" * 100) if method == PUT else _field(1, key))

        with Stopwatch() as watch:
            await asyncio.gather(*[worker(number) for number in range(width)])
        return count / watch.seconds


async def bulk(endpoint: str, rows: int, in_flight: int = 16) -> float:
    """Rows per second in transactions of 128 puts."""
    async with grpc.aio.insecure_channel(endpoint) as channel:
        call = channel.unary_unary(TXN)
        gate = asyncio.Semaphore(in_flight)

        async def send(number: int) -> None:
            items = [(b"%08d%08d" % (number, i), b"x" * 100) for i in range(TXN_OPERATIONS)]
            async with gate:
                await call(_txn(items))

        batches = rows // TXN_OPERATIONS
        with Stopwatch() as watch:
            await asyncio.gather(*[send(number) for number in range(batches)])
        return batches * TXN_OPERATIONS / watch.seconds
