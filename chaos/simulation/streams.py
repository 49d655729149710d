"""Environments in memory that are sent to another disk: the simulated twins of storage/lmdb/stream.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
from sortedcontainers import SortedDict

from ebla.chaos.simulation.medium import Keeper, Tables
from ebla.storage.errors import Corruption, Damaged, SnapshotExpired, StorageError
from ebla.storage.rows import checksum


class MemoryStream:
    """The tables as they are, with damaged records."""

    def __init__(self, path: str, check: Callable[[], None], tables: Tables) -> None:
        self.path = path
        self._check = check
        items = [(name, list(table.items())) for name, table in tables.items()]
        self._left: memoryview | None = memoryview(msgspec.msgpack.encode((path, items)))
        self.size_bytes = len(self._left)

    async def read(self, size: int) -> bytes:
        self._check()
        if self._left is None:
            raise SnapshotExpired(f"this stream of {self.path} was closed; begin a new one", path=self.path)
        data, self._left = bytes(self._left[:size]), self._left[size:]
        return data

    def close(self) -> None:
        self._left = None


class MemoryReceiver:
    def __init__(self, disk: Keeper, path: str, sealed: Mapping[str, int]) -> None:
        self.path = path
        self._sealed = sealed
        self._disk = disk
        self._arrived: list[bytes] | None = []

    async def write(self, data: bytes) -> None:
        arrived = self._require_open()
        self._disk.check_room(self.path)
        arrived.append(data)

    async def finish(self, databases: Sequence[str]) -> None:
        data = b"".join(self._require_open())
        try:
            await self._disk.sync(self.path)
            self._disk.check_room(self.path)
            try:
                path, named = msgspec.msgpack.decode(
                    data, type=tuple[str, list[tuple[str, list[tuple[bytes, bytes]]]]]
                )
            except msgspec.MsgspecError as error:
                raise Damaged(
                    f"environment {self.path} arrived unreadable: {error}", path=self.path
                ) from error
            tables = {name: SortedDict(items) for name, items in named}
            if path != self.path or not set(databases) <= set(tables):
                raise Damaged(f"{path} with {', '.join(tables)} arrived as {self.path}", path=self.path)
            self._verify(tables)
            self._disk.state.environments[self.path] = tables
        finally:
            await self.abort()

    def _verify(self, tables: Tables) -> None:
        try:
            for name, seed in self._sealed.items():
                checksum.verify([key + value for key, value in tables[name].items()], seed)
        except Corruption as error:
            raise Damaged(f"environment {self.path} arrived damaged: {error}", path=self.path) from error

    async def abort(self) -> None:
        self._arrived = None
        self._disk.forget_receiver(self.path)

    def _require_open(self) -> list[bytes]:
        self._disk.check()
        self._disk.check_data(self.path)
        if self._arrived is None:
            raise StorageError(f"the receiver of {self.path} is closed", path=self.path)
        return self._arrived
