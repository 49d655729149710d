"""Drives the processes of clients (chaos/ray/clients.py): all at the same time, verb by verb."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec
import psutil

from ebla.actors.deadlines import timeout
from ebla.chaos.ray.orders import ORDER_BYTES_MAX, Order, Reply
from ebla.storage.errors import EblaError

END_S = 10.0


class ClientsFailed(EblaError):
    """A process of clients failed; the message says which and why."""


@dataclass
class _Group:
    order: Order
    process: asyncio.subprocess.Process

    @property
    def lives(self) -> bool:
        return self.process.returncode != -signal.SIGKILL

    async def send(self, line: bytes) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.process.stdin.write(line + b"\n")
            await self.process.stdin.drain()

    async def receive(self, what: str, within_s: float) -> Reply:
        assert self.process.stdout is not None
        name = f"the process of clients {self.order.group}"
        try:
            async with timeout(within_s):
                line = await self.process.stdout.readline()
        except TimeoutError:
            raise ClientsFailed(f"{name} has not {what} within {within_s:g} s") from None
        if not line:
            status = await self.process.wait()
            raise ClientsFailed(f"{name} ended with status {status} before it had {what}")
        reply = msgspec.json.decode(line, type=Reply)
        if reply.what != what:
            raise ClientsFailed(f"{name} failed before it had {what}: {'; '.join(reply.problems)}")
        return reply


class ClientGroups:
    """Ends its processes when the block ends. `killed_s`: when groups were killed on purpose."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = {**os.environ, **(environment or {})}
        self.killed_s: dict[int, float] = {}
        self._groups: list[_Group] = []

    async def __aenter__(self) -> ClientGroups:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for group in self._groups:
            if group.process.stdin is not None:
                group.process.stdin.close()
        for group in self._groups:
            try:
                async with timeout(END_S if error is None else 0.0):
                    await group.process.wait()
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    group.process.kill()
                await group.process.wait()

    async def start(self, order: Order) -> None:
        with open(Path(order.results) / f"clients-{order.group}.err", "wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ebla.chaos.ray.clients",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                env=self._environment,
                start_new_session=True,
                limit=ORDER_BYTES_MAX * 16,
            )
        group = _Group(order, process)
        self._groups.append(group)
        await group.send(msgspec.json.encode(order))

    def other(self) -> psutil.Process | None:
        """A living process, except the one with the pulse."""
        found = self._other()
        return None if found is None else psutil.Process(found.process.pid)

    def victim(self) -> psutil.Process | None:
        """The same, to be killed."""
        found = self._other()
        if found is not None:
            self.killed_s[found.order.group] = time.monotonic() - found.order.epoch_s
        return self.other()

    def _other(self) -> _Group | None:
        living = [group for group in self._living() if group.order.group > 1]
        return living[-1] if living else None

    async def await_prepared(self, within_s: float) -> list[Reply]:
        return list(await asyncio.gather(*(group.receive("prepared", within_s) for group in self._groups)))

    async def run(self) -> None:
        await self._all(b"run", "running", END_S)

    async def stop(self, within_s: float) -> list[Reply]:
        return await self._all(b"stop", "answered", within_s)

    async def conclude(self, within_s: float) -> list[Reply]:
        """Let the living processes conclude, and then the first one for those that were killed."""
        replies = await self._all(b"conclude", "concluded", within_s)
        first = self._groups[0]
        for group in self._groups:
            if not group.lives:
                await first.send(f"adopt {group.order.group}".encode())
                replies.append(await first.receive("adopted", within_s))
        return replies

    async def _all(self, verb: bytes, what: str, within_s: float) -> list[Reply]:
        living = self._living()
        for group in living:
            await group.send(verb)
        return list(await asyncio.gather(*(group.receive(what, within_s) for group in living)))

    def _living(self) -> list[_Group]:
        """All groups except those killed on purpose: any other end is a failure, which `receive` raises."""
        return [group for group in self._groups if group.lives]
