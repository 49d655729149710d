"""A disk in memory that promises what LMDB promises, and no more: the simulated twin of storage/lmdb/disk.py.

`DurableState` is the medium: it outlives crashes. `MemoryDisk` is one incarnation's view of it. The model has these faults,
which the system must tolerate, and no others:

    crash       committed batches stay; of the batches in flight, a random prefix stays; snapshots are lost
    failed sync `fail_next_commit`: DiskFailed; the whole disk is poisoned, also for the next incarnation
    full        `fill` .. `free`: commits raise DiskFull and change nothing; reads continue, and a role that has been here
                before can start, on its ballast
    low         `free_bytes`: the space that `space` reports as free
    slow        `commit_s`: a sync takes that long
    hanging     `hang`: a sync that begins in this time ends after it
    hung data   `hang_data` .. `unhang_data`: these environments cannot be opened in this time, and no commit to them ends
    growing     `expire_snapshots`: a map must grow, which ends snapshots
    rot         `rot`: one bit of a stored value is flipped, silently
    misdirected `misdirect`: a value that was written to one key is found under another
    stale       `make_stale`: a write to a record was lost, an older value is there
    data disk   `lose_data`: its environments raise DataDiskFailed, now and at every start; all others continue
    lost        `lose_environment`, or a new `DurableState()`: an environment, or the directory, is lost
    old copy    `copy`, later put back in its place: a restored backup; `given_up` says why no start uses it

A batch becomes visible to reads when it is durable, a moment before its `commit` returns, as in LMDB.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from sortedcontainers import SortedDict

from ebla.chaos.simulation.environment import ACKNOWLEDGE_S, HUNG_RETRY_S, MemoryEnvironment
from ebla.chaos.simulation.medium import SPACE_BYTES, DurableState, tables_bytes
from ebla.chaos.simulation.streams import MemoryReceiver
from ebla.storage.environment import Instance, SetAside
from ebla.storage.errors import (
    Damaged,
    DataDiskFailed,
    DirectoryLocked,
    DiskFailed,
    DiskFull,
    OldCopy,
    StorageError,
)
from ebla.storage.lmdb.disk import check_move
from ebla.storage.space import DiskSpace

INSTANCE = "instance"  # the path of the instance file for `fail_next_commit`


class MemoryFiles:
    """Files of the host outside of the directory; a file appears when it is closed."""

    def __init__(self, state: DurableState) -> None:
        self._state = state

    def make(self, directory: str) -> list[str]:
        inside = directory.rstrip("/") + "/"
        below = [path[len(inside) :] for path in self._state.outside if path.startswith(inside)]
        return sorted({name.split("/")[0] for name in below})

    def create(self, path: str) -> IO[bytes]:
        if self._state.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        return _File(self._state.outside, path)

    def remove(self, path: str) -> None:
        self._state.outside.pop(path, None)


class _File(io.BytesIO):
    def __init__(self, files: dict[str, bytes], path: str) -> None:
        super().__init__()
        self._files = files
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self._files[self._path] = self.getvalue()
        super().close()


class MemoryDisk:
    """One incarnation's view of a `DurableState`; each start makes a new one."""

    def __init__(self, state: DurableState, random: random.Random) -> None:
        self.state = state
        self.outside = MemoryFiles(state)
        self.random = random
        self.loop = asyncio.get_running_loop()
        self.gone = False
        self._environments: dict[str, MemoryEnvironment] = {}
        self._receivers: dict[str, MemoryReceiver] = {}

    def check(self) -> None:
        if self.state.failed is not None:
            raise DiskFailed(f"{self.state.failed}; nothing on this disk is believed any more")
        self._check_not_gone()

    def _check_not_gone(self) -> None:
        if self.gone or self.state.holder is not self:
            raise StorageError("the disk is not open: call open_instance first, and not after close")

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None:
        """Call `act` after the delay, unless this incarnation has ended."""
        self.loop.call_later(delay_s, self._unless_gone, act, arguments)

    def _unless_gone(self, act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        if not self.gone:
            act(*arguments)

    async def open_instance(self, new_uuid: str) -> Instance:
        state = self.state
        if state.holder is not None:
            raise DirectoryLocked("another incarnation holds this directory; wait for it to end")
        state.holder = self
        try:
            await self._sync()
            self._check_not_gone()
            if state.failed is not None:
                raise DiskFailed(f"{state.failed}; set the directory aside and come back as a new server")
            if state.given_up is not None:
                raise OldCopy(f"{state.given_up} (the directory was given up)")
            created = state.uuid is None
            if created and state.environments:
                raise Damaged("the directory has contents but no instance file; restore it, or set it aside")
            if state.full and created:
                state.seen["full"] += 1
                raise DiskFull("no space left on the device: free space")
        except StorageError:
            state.holder = None
            raise
        state.uuid = state.uuid or new_uuid
        state.seqno += 1
        return Instance(state.uuid, state.seqno, created)

    async def raise_seqno(self, by: int) -> int:
        await self._write_file()
        self.state.seqno += by
        raised = self.state.seqno
        await asyncio.sleep(self.random.uniform(0, ACKNOWLEDGE_S))  # durable, but not acknowledged yet
        return raised

    async def give_up(self, reason: str) -> bool:
        if self.state.holder is not self:
            return False
        await self._write_file()
        self.state.given_up = reason
        return True

    async def _write_file(self) -> None:
        self.check()
        await self._sync()
        self.check()
        if self.state.takes_failure(INSTANCE):
            self.poison(f"sync of {INSTANCE} failed: Input/output error")
            self.check()
        if self.state.full:
            raise DiskFull("no space left on the device; nothing was changed: free space")

    async def open_environment(
        self, path: str, databases: Sequence[str], *, create: bool, map_bytes: int = 1 << 30
    ) -> MemoryEnvironment:
        self._check_free(path)
        environment = self._environments[path] = MemoryEnvironment(self, path)
        try:
            await self._sync()
            while path in self.state.hung:
                self.state.seen["hung"] += 1
                await asyncio.sleep(HUNG_RETRY_S)
            self.check()
            self.check_data(path)
            if path not in self.state.environments:
                if not create:
                    raise Damaged(f"environment {path} must exist and does not; restore it", path=path)
                if self.state.full:
                    raise DiskFull("no space left on the device; nothing was changed: free space", path=path)
                self.state.environments[path] = {}
        except StorageError:
            self._environments.pop(path, None)  # a stop may have closed it meanwhile
            raise
        for database in databases:
            self.state.environments[path].setdefault(database, SortedDict())
        return environment

    async def receive(self, path: str, sealed: Mapping[str, int] | None = None) -> MemoryReceiver:
        self._check_free(path)
        if path in self.state.environments:
            raise StorageError(f"environment {path} exists; remove it before it is received", path=path)
        receiver = self._receivers[path] = MemoryReceiver(self, path, sealed or {})
        return receiver

    def exists(self, path: str) -> bool:
        self.check()
        return path in self.state.environments

    def directories(self, path: str) -> list[str]:
        self.check()
        inside = path.rstrip("/") + "/"
        names = [name[len(inside) :] for name in self.state.environments if name.startswith(inside)]
        return sorted({name.split("/")[0] for name in names if name.count("/") == 1})

    def list(self, path: str) -> list[str]:
        self.check()
        inside = path.rstrip("/") + "/"
        names = [name[len(inside) :] for name in self.state.environments if name.startswith(inside)]
        return sorted(name for name in names if "/" not in name)

    async def remove(self, path: str) -> None:
        self.check()
        self._check_closed(path, "removing")
        await self._sync()
        self.state.environments.pop(path, None)
        self.state.lost_data.pop(path, None)

    async def move(self, path: str, to: str) -> None:
        self.check()
        check_move(path, to)
        for each in (path, to):
            self._check_closed(each, "moving")
        await self._sync()
        self.check()
        environments = self.state.environments
        if path in environments and to in environments:
            raise StorageError(f"{path} and {to} are both there; purge one of them", path=path)
        if path in environments:
            if self.state.full:
                raise DiskFull("no space left on the device; nothing was changed: free space", path=path)
            environments[to] = environments.pop(path)
            if path in self.state.lost_data:
                self.state.lost_data[to] = self.state.lost_data.pop(path)
        elif to not in environments:
            raise Damaged(f"environment {path} must exist and does not; restore it", path=path)

    def set_aside(self) -> SetAside | None:
        """Nothing: the scenario replaces a failed medium."""
        return None

    def lost_data_dirs(self) -> dict[str, str]:
        """The lost environments: each counts as a directory."""
        return dict(self.state.lost_data)

    def takes_data(self) -> bool:
        """Always: each environment has a disk of its own."""
        return True

    def check_data(self, path: str) -> None:
        if path in self.state.lost_data:
            raise DataDiskFailed(f"the disk of {path} is lost ({self.state.lost_data[path]})", path=path)

    def fail_lost(self, paths: Sequence[str]) -> None:
        for path in paths:
            environment = self._environments.get(path)
            if environment is not None:
                environment.fail(DataDiskFailed(f"the disk of {path} is lost", path=path))

    def expire_snapshots(self) -> int:
        return sum(environment.expire_snapshots() for environment in self._environments.values())

    def size_bytes(self, path: str = "") -> int:
        self.check()
        inside = path and path + "/"
        return sum(
            tables_bytes(tables)
            for name, tables in self.state.environments.items()
            if name == path or name.startswith(inside)
        )

    async def used_bytes(self) -> int:
        return self.size_bytes()

    async def space(self) -> tuple[DiskSpace, ...]:
        self.check()
        return (DiskSpace("/", 0 if self.state.full else self.state.free_bytes, SPACE_BYTES),)

    def place_of(self, path: str) -> str:
        """Each environment under data/ has a disk of its own."""
        self.check()
        return path if path.startswith("data/") else "/"

    async def close(self) -> None:
        for environment in list(self._environments.values()):
            await environment.close()
        self._end()

    def crash(self) -> None:
        """End the process at once. The module says what the state keeps."""
        if not self.gone:
            if self.state.failed is None:
                for environment in self._environments.values():
                    environment.crash()
            self._end()

    def poison(self, reason: str) -> None:
        self.state.failed = reason
        for environment in self._environments.values():
            environment.fail(DiskFailed(f"{reason}; nothing on this disk is believed", path=environment.path))

    def _check_free(self, path: str) -> None:
        self.check()
        if path in self._environments or path in self._receivers:
            raise StorageError(f"environment {path} is open already", path=path)

    def _check_closed(self, path: str, act: str) -> None:
        if path in self._environments or path in self._receivers:
            raise StorageError(f"environment {path} is open; close it before {act} it", path=path)

    def check_room(self, path: str) -> None:
        if self.state.full:
            self.state.seen["full"] += 1
            raise DiskFull("no space left on the device; nothing was changed: free space", path=path)

    async def sync(self, path: str) -> None:
        await self._sync()
        self.check()
        self.check_data(path)
        if self.state.takes_failure(path):
            self.poison(f"sync of {path} failed: Input/output error")
            self.check()

    def forget_receiver(self, path: str) -> None:
        self._receivers.pop(path, None)

    def forget(self, path: str) -> None:
        self._environments.pop(path, None)

    def _end(self) -> None:
        self.gone = True
        if self.state.holder is self:
            self.state.holder = None

    async def _sync(self) -> None:
        await asyncio.sleep(self.state.sync_s(self.random))
