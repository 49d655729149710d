"""Two disks between which environments are copied."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from ebla.storage.environment import Put
from ebla.storage.lmdb.disk import LmdbDisk
from tests.storage.disks import Scenario, given_by

TABLET = "a" * 32
PATH = f"data/{TABLET}"
LARGE = [(b"%05d" % number, bytes(3000)) for number in range(2000)]  # with pages of their own


class Two:
    """The source disk and the target disk."""

    def __init__(self, place: Path, *data_dirs: Path) -> None:
        self.place = place
        self.data_dirs = data_dirs

    async def open(self) -> None:
        self.source = LmdbDisk(self.place / "source", growth_grace_s=0.0)
        self.target = LmdbDisk(self.place / "target", self.data_dirs)
        await self.source.open_instance("source")
        await self.target.open_instance("target")

    async def environment(self, items: list[tuple[bytes, bytes]] = LARGE) -> Any:
        made = await self.source.open_environment(PATH, ["t"], create=True, map_bytes=1 << 20)
        await made.commit([Put("t", items)])
        return made

    async def bytes_of(self, environment: Any) -> bytes:
        stream = await environment.stream()
        data = b""
        while piece := await stream.read(1 << 20):
            data += piece
        assert stream.size_bytes * 0.9 <= len(data) <= stream.size_bytes * 1.1 + 1000
        stream.close()
        return data

    async def arrive(
        self, data: bytes, databases: tuple[str, ...] = ("t",), sealed: dict[str, int] | None = None
    ) -> None:
        receiver = await self.target.receive(PATH, sealed)
        try:
            await receiver.write(data)
            await receiver.finish(databases)
        finally:
            await receiver.abort()


def copying(scenario: Scenario, two: Two) -> None:
    async def run() -> None:
        await two.open()
        try:
            await scenario(two)
        finally:
            await two.source.close()
            await two.target.close()

    asyncio.run(run())


between_disks = given_by(copying, "two")


async def ended(stream: Any) -> None:
    """Wait until the stream's thread has ended."""
    await asyncio.get_running_loop().run_in_executor(None, stream._thread.shutdown)
