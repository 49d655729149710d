"""The durable state of a simulated disk: its bytes outlive crashes of the process; disk.py has the fault model."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Protocol

Tables = dict[str, Any]  # database -> SortedDict[bytes, bytes]


def tables_bytes(tables: Tables) -> int:
    """The size of keys and values. The views of `dict` are fast; those of SortedDict take a step of Python per record."""
    return sum(
        sum(map(len, dict.keys(table))) + sum(map(len, dict.values(table))) for table in tables.values()
    )


SPACE_BYTES = 1 << 40
COMMIT_S = (0.0001, 0.004)  # one sync of an SSD, idle to busy


class Keeper(Protocol):
    """The disk, as its durable state, environments and receivers see it."""

    state: DurableState
    random: random.Random
    loop: asyncio.AbstractEventLoop

    def check(self) -> None:
        """Raise once the disk is poisoned or closed."""

    def check_data(self, path: str) -> None:
        """Raise if the data disk of this environment is lost."""

    def check_room(self, path: str) -> None:
        """Raise DiskFull while the disk is full."""

    def fail_lost(self, paths: Sequence[str]) -> None: ...

    def expire_snapshots(self) -> int: ...

    def later(self, delay_s: float, act: Callable[..., None], *arguments: Any) -> None: ...

    def poison(self, reason: str) -> None: ...

    async def sync(self, path: str) -> None: ...

    def forget(self, path: str) -> None: ...

    def forget_receiver(self, path: str) -> None: ...


class DurableState:
    """The medium under one role directory. Its bytes survive any crash of the process."""

    def __init__(self) -> None:
        self.uuid: str | None = None
        self.seqno = 0
        self.failed: str | None = None
        self.given_up: str | None = None
        self.is_copy = False
        self.full = False
        self.free_bytes = SPACE_BYTES
        self.commit_s = COMMIT_S
        self.hangs_until = 0.0
        self.environments: dict[str, Tables] = {}
        self.outside: dict[str, bytes] = {}  # files of the host, by path
        self.lost_data: dict[str, str] = {}  # environments on data disks that are lost, and why
        self.hung: dict[str, None] = {}  # environments on data disks that hang
        self.holder: Keeper | None = None
        self.seen: Counter[str] = Counter()  # syncs that were slow or hung, commits that met a full disk
        self._fail_next: list[str | None] = []

    def fail_next_commit(self, path: str | None = None) -> None:
        """Let the next sync (of environment `path`, or of any) fail for good, as a device does."""
        self._fail_next.append(path)

    def sync_s(self, random: random.Random) -> float:
        """The duration of the next sync."""
        least_s, most_s = self.commit_s
        taken_s = least_s + (most_s - least_s) * random.random()
        self.seen["slow"] += taken_s > COMMIT_S[1]
        hangs_s = max(0.0, self.hangs_until - asyncio.get_running_loop().time())
        self.seen["hanging"] += hangs_s > 0
        return taken_s + hangs_s

    def hang(self, for_s: float) -> None:
        self.hangs_until = max(self.hangs_until, asyncio.get_running_loop().time() + for_s)

    def takes_failure(self, path: str) -> bool:
        for wanted in (path, None) if self._fail_next else ():
            if wanted in self._fail_next:
                self._fail_next.remove(wanted)
                self.seen["failed"] += 1
                return True
        return False

    def fill(self) -> None:
        self.full = True

    def free(self) -> None:
        self.full = False

    def hang_data(self, *paths: str) -> None:
        self.hung.update(dict.fromkeys(paths))

    def unhang_data(self, *paths: str) -> None:
        for path in paths:
            self.hung.pop(path, None)

    def rot(self, path: str, database: str, key: bytes) -> None:
        """Flip one bit of a stored value, as a bad sector does."""
        table = self.environments[path][database]
        value = table[key]
        middle = len(value) // 2
        table[key] = value[:middle] + bytes([value[middle] ^ 1]) + value[middle + 1 :] if value else b"\x00"

    def misdirect(self, path: str, database: str, key: bytes, other: bytes) -> None:
        """Store under `key` the value that was written under `other`."""
        table = self.environments[path][database]
        table[key] = table[other]

    def make_stale(self, path: str, database: str, key: bytes, old: DurableState) -> bool:
        """Restore the value that an old copy has under `key`. False if there is none, or it is the same."""
        was = old.environments.get(path, {}).get(database, {}).get(key)
        table = self.environments[path][database]
        if was is None or was == table[key]:
            return False
        table[key] = was
        return True

    def lose_environment(self, path: str) -> None:
        del self.environments[path]

    def lose_data(self, *paths: str) -> None:
        self.lost_data.update(dict.fromkeys(paths, "Input/output error"))
        if self.holder is not None:
            self.holder.fail_lost(paths)

    def copy(self) -> DurableState:
        """A backup of the bytes, without a holder and without armed failures."""
        made = DurableState()
        made.uuid, made.seqno, made.is_copy = self.uuid, self.seqno, True
        made.lost_data = dict(self.lost_data)
        made.environments = {
            path: {name: table.copy() for name, table in tables.items()}
            for path, tables in self.environments.items()
        }
        return made
