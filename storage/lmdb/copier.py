"""Both ends of a stream of an environment (stream.py), each in its own process.

The processes are forks of one process for each owner, which is started by the path of this file, so that little more than LMDB is
loaded. The start of a Python with it takes 0.1 s of a processor, longer than the copy of a small tablet, and a fork 1 ms. The first
process ends with its owner: their socket ends.

The stream consists of frames: a length, then a database's name and some of its items, in order. The last frame has no
name and the count of items of each database. Items are half as large as the pages of a tablet whose rows arrived in no
order, and a damaged page does not travel.

An end that fails prints one line: the number of the operating system's error, or DAMAGE, and the reason. One that succeeds writes
DONE to its last file, which ends with it.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Iterator
from itertools import chain, islice, repeat
from threading import Thread
from typing import BinaryIO, TypeAlias

if __name__ == "__main__":
    sys.path += sys.argv[2:]

import crc32c
import lmdb
import msgspec

LENGTH_BYTES = 4
SIZE_BYTES = 8  # before the first frame: the estimated length of the stream
FRAME_BYTES = 1 << 20
FRAME_MAX = 1 << 28
STEP = 16  # small items between two checks of the size of a frame
SMALL_BYTES = FRAME_BYTES // STEP // 4  # of a small item: STEP of them exceed a frame by a quarter at most
SAMPLED = 64  # items at either end of a database
SYNC_BYTES = 4 << 20  # written between two syncs, for which a sync of another process may have to wait
ROOM_BYTES = 1 << 26
NICE = 10  # requests have priority
DAMAGE = 0
FILES = 4  # of a copier: its input, its output, its errors, and its end
DONE = b"."
NONE = -1  # instead of the number of a process
REAP_MS = 1000

Item = tuple[bytes, bytes]
Transaction: TypeAlias = "lmdb.Transaction[bytes]"
Frame = tuple[bytes, list[Item] | dict[bytes, int]]
FRAMES = msgspec.msgpack.Decoder(Frame)


class Work(msgspec.Struct, frozen=True):
    """`sealed`: the databases whose items carry checksums, with the seed; `residues`: the CRCs of a good item including
    its checksum (storage/rows/checksum.py)."""

    verb: str
    directory: str
    databases_max: int
    sealed: dict[str, int]
    residues: list[int]


class Broken(Exception):
    """The data is incomplete or wrong."""


def send(work: Work) -> None:
    environment = lmdb.open(work.directory, readonly=True, create=False, max_dbs=work.databases_max)
    out = sys.stdout.buffer
    with environment.begin() as transaction:
        names = list(transaction.cursor().iternext(values=False))
        databases = {name: environment.open_db(name, txn=transaction, create=False) for name in names}
        entries = {name: transaction.stat(database)["entries"] for name, database in databases.items()}
        size = sum(_estimate(transaction, database, entries[name]) for name, database in databases.items())
        out.write(size.to_bytes(SIZE_BYTES, "big"))
        out.flush()
        for name, database in databases.items():
            for items in frames(transaction, database, entries[name]):
                write(out, (name, items))
        write(out, (b"", entries))
        out.flush()


def write(out: BinaryIO, frame: Frame) -> None:
    body = msgspec.msgpack.encode(frame)
    out.write(len(body).to_bytes(LENGTH_BYTES, "big"))
    out.write(body)


def frames(transaction: Transaction, database: lmdb._Database, entries: int) -> Iterator[list[Item]]:
    """All items, some FRAME_BYTES at a time: both ends of a stream hold a whole frame. Raises Broken: a damaged page may hide some
    items, or lead in a circle."""
    found = transaction.cursor(db=database).iternext()
    sent, more = 0, True
    while more and sent <= entries:
        items: list[Item] = []
        size, step = 0, 1
        while size < FRAME_BYTES and (some := list(islice(found, step))):
            items += some
            size += _size(some)
            step = STEP if size <= SMALL_BYTES * len(items) else 1
        sent += len(items)
        more = size >= FRAME_BYTES
        if items:
            yield items
    if sent != entries:
        raise Broken(f"{entries} items should be in it, {sent} are found")


def _estimate(transaction: Transaction, database: lmdb._Database, entries: int) -> int:
    ends = [*islice(transaction.cursor(db=database).iternext(), SAMPLED)]
    ends += islice(transaction.cursor(db=database).iterprev(), SAMPLED)
    return entries * _size(ends) // len(ends) if ends else 0


def _size(items: list[Item]) -> int:
    return sum(map(len, chain.from_iterable(items)))


def receive(work: Work) -> None:
    data_file = os.path.join(work.directory, "data.mdb")
    environment = lmdb.open(
        work.directory,
        map_size=ROOM_BYTES,
        sync=False,
        metasync=False,
        meminit=False,
        max_dbs=work.databases_max,
        lock=False,  # no other process uses it; a lock file is written through a map, which ends the process on a full disk
    )
    syncs = Syncs(os.open(data_file, os.O_RDWR | os.O_CLOEXEC))
    arrived: dict[bytes, int] = {}
    unsynced = 0
    while True:
        name, items = _read(sys.stdin.buffer)
        if isinstance(items, dict):
            break
        if name.decode(errors="replace") in work.sealed:
            _verify(items, work.sealed[name.decode()], set(work.residues))
        _room(environment, items)
        with environment.begin(write=True) as transaction:
            database = environment.open_db(name, txn=transaction)
            _, added = transaction.cursor(db=database).putmulti(items, append=True)
        if added != len(items):
            raise Broken("its keys do not ascend")
        arrived[name] = arrived.get(name, 0) + len(items)
        unsynced += _size(items)
        if unsynced >= SYNC_BYTES:
            unsynced = 0
            syncs.begin()
    if sys.stdin.buffer.read(1):
        raise Broken("there is more data after its end")
    syncs.end()
    _finish(environment, arrived, items)


class Syncs:
    """Syncs of one file, one at a time, concurrent with the next writes."""

    def __init__(self, file: int) -> None:
        self._file = file
        self._thread: Thread | None = None
        self._error: OSError | None = None

    def begin(self) -> None:
        """Wait for the previous sync, then start one. Raises OSError if the previous one failed."""
        self.end()
        self._thread = Thread(target=self._sync, daemon=True)
        self._thread.start()

    def end(self) -> None:
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def _sync(self) -> None:
        try:
            os.fdatasync(self._file)
        except OSError as error:
            self._error = error


def _verify(items: list[Item], seed: int, residues: set[int]) -> None:
    keys, values = zip(*items, strict=True)
    found = set(map(crc32c.crc32c, values, map(crc32c.crc32c, keys, repeat(seed))))
    if not found <= residues:
        raise Broken("some of its rows fail their checksum")


def _finish(environment: lmdb.Environment, arrived: dict[bytes, int], expected: dict[bytes, int]) -> None:
    """Make the databases without items, check the counts, sync."""
    with environment.begin(write=True) as transaction:
        for name in expected:
            environment.open_db(name, txn=transaction)
    if arrived != {name: count for name, count in expected.items() if count}:
        raise Broken(f"{expected} items should be in it, {arrived} arrived")
    environment.sync(True)
    environment.close()


def _read(stdin: BinaryIO) -> Frame:
    head = stdin.read(LENGTH_BYTES)
    length = int.from_bytes(head, "big")
    if length > FRAME_MAX:
        raise Broken("the length of a frame is broken")
    body = stdin.read(length)
    if len(head) + len(body) < LENGTH_BYTES + length:
        raise Broken("its end is missing")
    try:
        frame: Frame = FRAMES.decode(body)
        return frame
    except msgspec.MsgspecError as error:
        raise Broken(f"a frame cannot be read: {error}") from error


def _room(environment: lmdb.Environment, items: list[Item]) -> None:
    """Grow the map before a transaction needs it. Pages are at worst half full."""
    used = (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
    wanted = used + 4 * _size(items) + ROOM_BYTES // 2
    if wanted > environment.info()["map_size"]:
        environment.set_mapsize(2 * wanted)


def carry_out(encoded: bytes) -> str:
    """Do the work. Returns the reason why it failed, or ""."""
    try:
        work = msgspec.json.decode(encoded, type=Work)
        {"send": send, "receive": receive}[work.verb](work)
    except Broken as error:
        return f"{DAMAGE} {error}"
    except lmdb.Error as error:
        code = getattr(error, "code", 0) or 0  # negative, or absent, for errors of LMDB itself
        return f"{max(code, DAMAGE)} {error}"
    except OSError as error:
        return f"{error.errno or DAMAGE} {error}"
    return ""


def fork(control: socket.socket, encoded: bytes, files: list[int]) -> int:
    """A process that does the work, and ends; 0 if there can be none."""
    try:
        pid = os.fork() if len(files) == FILES else NONE
    except OSError:
        pid = NONE
    if pid:
        for file in files:
            os.close(file)
        return max(pid, 0)
    try:
        control.close()
        *standard, end = files
        for place, file in enumerate(standard):
            os.dup2(file, place)
            os.close(file)
        reason = carry_out(encoded)
        os.write(*((2, f"{reason}\n".encode()) if reason else (end, DONE)))
    except BaseException as error:  # a fork must not return to the loop
        os.write(2, f"{DAMAGE} {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(0)


def reap(running: dict[int, None]) -> None:
    """Forget the forks that have ended; until then their numbers are theirs."""
    for pid in list(running):
        if os.waitpid(pid, os.WNOHANG)[0]:
            del running[pid]


def serve(control: socket.socket) -> None:
    """Fork a process for each request with files, and answer with its number, or 0. Kill the one that a request without files
    names."""
    running: dict[int, None] = {}
    requests = select.poll()  # which, unlike select, takes files of every number
    requests.register(control, select.POLLIN)
    while True:
        while running and not requests.poll(REAP_MS):
            reap(running)
        head, files, _, _ = socket.recv_fds(control, LENGTH_BYTES, FILES)
        if len(head) < LENGTH_BYTES:
            return
        body = control.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
        reap(running)
        if files:
            pid = fork(control, body, files)
            if pid:
                running[pid] = None
            control.sendall(pid.to_bytes(LENGTH_BYTES, "big"))
        elif int(body) in running:
            os.kill(int(body), signal.SIGKILL)


def main(control: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # owners end their copiers
    os.nice(NICE)
    gc.disable()  # items make no reference cycles
    with contextlib.suppress(ConnectionError), socket.socket(fileno=control) as owner:
        serve(owner)


if __name__ == "__main__":
    main(int(sys.argv[1]))
