"""An LMDB environment as one process has it mapped: pinned snapshots, the exchange of the map, and life without one.

A read transaction points into the memory map, and the map may only be exchanged for a larger one while no transaction
of this process is open. So every read passes a gate, snapshots are registered, and an exchange of the map closes the
gate and expires the snapshots that are left.

An environment that is unmapped has no descriptor and takes no memory. Its next use maps it again, in a few tenths of a
millisecond. Its file does not change meanwhile, because only its owner writes it, and unmaps it.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

import lmdb

from ebla.storage.errors import InvalidArgument, SnapshotExpired, StorageError
from ebla.storage.lmdb.gate import Gate
from ebla.storage.lmdb.reads import Database, LmdbReads, Transaction, get, get_copied, look, read_error

T = TypeVar("T")
P = ParamSpec("P")
Open: TypeAlias = "lmdb.Environment"

_snapshot_closed = threading.Condition()  # of any environment; guards the lists of snapshots


class LmdbMapping(LmdbReads):
    """An open LMDB environment as this process sees it. Its own reads see the newest committed state."""

    def __init__(
        self,
        path: str,
        environment: Open,
        databases: dict[str, Database],
        again: Callable[[Path, int], Open] | None = None,
    ) -> None:
        """`again` maps the environment after `unmap`, from its directory and with a map of that many bytes."""
        self.path = path
        self.directory = os.path.realpath(environment.path())
        self.databases = databases
        self._lmdb: Open | None = environment
        self._again = again
        self._mapping = threading.Lock()
        self._map_bytes = self._used_bytes = self._last = 0  # map, file and last commit, while it is unmapped
        self.mapped = True
        self.used = True  # since someone last set it False
        self._pid = os.getpid()
        self.gate = Gate()
        self._snapshots: dict[LmdbSnapshot, None] = {}
        self._closed = False

    def check(self) -> None:
        if self._closed or os.getpid() != self._pid:
            assert os.getpid() == self._pid, "an LMDB environment never crosses a fork"
            raise StorageError(f"environment {self.path} is closed", path=self.path)

    @property
    def lmdb(self) -> Open:
        """LMDB's environment, which this call maps if it is unmapped. For threads inside the gate, and the writer's."""
        return self._lmdb or self._map_again()

    def size_bytes(self) -> int:
        """Bytes up to the last page ever used: the size of the file."""
        with self.gate.inside():
            self.check()
            return self._used_bytes if self._lmdb is None else _used_bytes(self._lmdb)

    def snapshot(self, *, views: bool = False) -> LmdbSnapshot:
        return self._inside(partial(self._pin, views))

    def info(self) -> dict[str, int]:
        """LMDB's own figures: map_size, last_txnid, last_pgno, num_readers, ..."""
        return self._inside(lambda: {k: v for k, v in self.lmdb.info().items() if isinstance(v, int)})

    def handle(self, name: str) -> Database:
        found = self.databases.get(name)
        if found is None:
            known = ", ".join(self.databases)
            raise InvalidArgument(f"there is no database {name!r} in {self.path}; it was opened with {known}")
        return found

    def forget(self, snapshot: LmdbSnapshot) -> None:
        with _snapshot_closed:
            self._snapshots.pop(snapshot, None)
            _snapshot_closed.notify_all()

    def _read(
        self,
        work: Callable[Concatenate[Transaction, Database, P], T],
        database: str,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        def read() -> T:
            transaction = self.lmdb.begin()
            try:
                return work(transaction, self.handle(database), *arguments, **options)
            finally:
                transaction.abort()

        return self._inside(read)

    def look(self, database: str, keys: Sequence[bytes], work: Callable[[int, Any], T]) -> list[T | None]:
        return self._inside(partial(self._look, database, keys, work))

    def _look(self, database: str, keys: Sequence[bytes], work: Callable[[int, Any], T]) -> list[T | None]:
        with self.lmdb.begin(buffers=True) as transaction:
            return look(transaction, self.handle(database), keys, work)  # type: ignore[arg-type]  # its values are buffers

    def _inside(self, work: Callable[[], T]) -> T:
        """Do `work` while the map stays as it is, and again with a larger map if its owner has made one meanwhile."""
        self.gate.enter()
        try:
            self.check()
            self.used = True
            return work()
        except lmdb.MapResizedError:
            pass
        except (lmdb.Error, OSError) as error:
            raise read_error(error, self.path) from error
        finally:
            self.gate.leave()
        self._adopt()
        return self._inside(work)

    def _adopt(self) -> None:
        """Take over the larger map of the owner, which is another process. The map must grow, so retries end."""
        before = self.lmdb.info()["map_size"]
        try:
            self.exchange_map(0, grace_s=0.0)
        except lmdb.Error as error:
            raise read_error(error, self.path) from error
        if self.lmdb.info()["map_size"] <= before:
            raise StorageError(
                f"cannot take over the larger map of {self.path}; open it again", path=self.path
            )

    def _pin(self, views: bool) -> LmdbSnapshot:
        transaction: Any = self.lmdb.begin(buffers=True) if views else self.lmdb.begin()
        snapshot = LmdbSnapshot(self, transaction, views)
        with _snapshot_closed:
            self._snapshots[snapshot] = None
        return snapshot

    def exchange_map(self, map_bytes: int, grace_s: float) -> None:
        """Map `map_bytes` (0: the size in the file), once no transaction points into the present map."""
        self._await_snapshots(grace_s)
        with self.gate.closed():
            self._expire_snapshots()
            if not self._closed:
                self.lmdb.set_mapsize(map_bytes)

    def _await_snapshots(self, grace_s: float) -> None:
        until = time.monotonic() + grace_s
        with _snapshot_closed:
            while self._snapshots and (left_s := until - time.monotonic()) > 0:
                _snapshot_closed.wait(left_s)

    def _expire_snapshots(self) -> None:
        with _snapshot_closed:
            left = list(self._snapshots)
        for snapshot in left:
            snapshot.close()

    def _unmap(self) -> bool:
        """Close LMDB's environment until its next use. A no-op that returns False while a snapshot is open, or a thread reads:
        it may wait for a disk that hangs, and others must not wait for it."""
        with self.gate.closed_if_empty() as empty:
            if not empty or self._snapshots or self._closed:
                return False
            if self._lmdb is not None:
                info = self._lmdb.info()
                self._map_bytes, self._last = info["map_size"], info["last_txnid"]
                self._used_bytes = _used_bytes(self._lmdb)
                self._lmdb.close()
                self._lmdb = None
                self.mapped = False
            return True

    def _map_again(self) -> Open:
        with self._mapping:
            if self._lmdb is None:
                assert self._again is not None, ("only its owner unmaps an environment", self.path)
                if not os.path.exists(
                    os.path.join(self.directory, "data.mdb")
                ):  # LMDB would make an empty one
                    raise FileNotFoundError(errno.ENOENT, "data.mdb is gone")
                opened = self._again(Path(self.directory), self._map_bytes)
                try:
                    if opened.info()["last_txnid"] != self._last:  # a root on the disk has changed since
                        raise lmdb.CorruptedError(f"its last commit was {self._last}")
                    self.databases = {
                        name: opened.open_db(name.encode(), create=False) for name in self.databases
                    }
                except BaseException:
                    opened.close()
                    raise
                self._lmdb = opened
                self.mapped = True
            return self._lmdb

    def _shut(self) -> None:
        """Close the environment; later calls raise."""
        with self.gate.closed():
            self._expire_snapshots()
            self._closed = True
            if self._lmdb is not None:
                self._lmdb.close()


class LmdbSnapshot(LmdbReads):
    """One pinned state, for any thread, one call at a time."""

    def __init__(self, mapping: LmdbMapping, transaction: Transaction, views: bool = False) -> None:
        self._mapping = mapping
        self._transaction: Transaction | None = transaction
        self._views = views
        self._lock = threading.Lock()

    def get(self, database: str, key: bytes) -> bytes | None:
        return self._read(get_copied if self._views else get, database, key)

    def look(self, database: str, keys: Sequence[bytes], work: Callable[[int, Any], T]) -> list[T | None]:
        if not self._views:
            return super().look(database, keys, work)
        return self._read(look, database, keys, work)

    def close(self) -> None:
        """Wait for a read in another thread, then close."""
        with self._lock:
            transaction, self._transaction = self._transaction, None
            if transaction is not None:
                transaction.abort()
        self._mapping.forget(self)

    def _read(
        self,
        work: Callable[Concatenate[Transaction, Database, P], T],
        database: str,
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        assert not self._views or work in (get_copied, look), "what is read would end with the snapshot"
        mapping = self._mapping
        with mapping.gate.inside(), self._lock:
            mapping.check()
            if self._transaction is None:
                raise SnapshotExpired(
                    f"this snapshot of {mapping.path} was closed, or gave way to a larger map; open a new one",
                    path=mapping.path,
                )
            try:
                return work(self._transaction, mapping.handle(database), *arguments, **options)
            except lmdb.Error as error:
                raise read_error(error, mapping.path) from error


def _used_bytes(environment: Open) -> int:
    return (environment.info()["last_pgno"] + 1) * environment.stat()["psize"]
