"""A writer's network that fails at counted requests.

drop      the request is not delivered
lost      the request is delivered, and its answer is lost
late      the request is delivered after the next two requests to the node; the writer gave it up at once
later     the request is delivered after the end of the writer
restart   the node restarts before the request
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec

from ebla.actors.errors import NotDelivered, OutcomeUnknown
from ebla.chaos.simulation.world import NodeCrashed
from ebla.storage.errors import EblaError

T = TypeVar("T")

DROP, LOST, LATE, LATER, RESTART = "drop", "lost", "late", "later", "restart"
MODES = (DROP, LOST, LATE, LATER, RESTART)
LATE_AFTER = 2


@dataclass
class Held:
    """A request on its way."""

    mode: str
    deliver: Callable[[], Awaitable[Any]]
    overtaken: int = 0


@dataclass
class Line:
    """`faults` by (node, number of the request to it); `delays_s` by node, to order answers; `trace` names the requests
    to each node; `before` is called with every request before its fate is decided."""

    faults: dict[tuple[str, int], str] = field(default_factory=dict)
    delays_s: dict[str, float] = field(default_factory=dict)
    before: Callable[[str, str], Awaitable[None]] | None = None
    trace: dict[str, list[str]] = field(default_factory=dict)
    held: dict[str, list[Held]] = field(default_factory=dict)
    inner: Any = None
    restart: Any = None

    async def call(
        self, address: str, method: str, message: msgspec.Struct, reply: type[T], timeout_s: float
    ) -> T:
        trace = self.trace.setdefault(address, [])
        trace.append(method)
        number = len(trace)
        if self.before is not None:
            await self.before(address, method)
        mode = self.faults.get((address, number))
        await self._overtake(address)
        await asyncio.sleep(self.delays_s.get(address, 0.0))
        send = partial(self.inner.call, address, method, message, reply, timeout_s)
        if mode == DROP:
            raise NotDelivered("injected: dropped", address=address)
        if mode in (LATE, LATER):
            self.held.setdefault(address, []).append(Held(mode, send))
            raise OutcomeUnknown("injected: late", address=address)
        if mode == RESTART:
            with suppress(NodeCrashed):  # another caller restarts the node at the same moment
                await self.restart(address)
        answer: T = await send()
        if mode == LOST:
            raise OutcomeUnknown("injected: the answer is lost", address=address)
        return answer

    async def _overtake(self, address: str) -> None:
        for held in list(self.held.get(address, ())):
            held.overtaken += 1
            if held.mode == LATE and held.overtaken > LATE_AFTER:
                self.held[address].remove(held)
                await arrive(held)

    async def release(self) -> None:
        """After the end of the writer, its requests under way arrive."""
        for address in sorted(self.held):
            for held in self.held.pop(address):
                await arrive(held)


async def arrive(held: Held) -> None:
    try:
        await held.deliver()
    except EblaError:
        return  # refused: no caller waits for it


def without(*nodes: str) -> Line:
    """A network that reaches only the other nodes."""
    return Line(faults={(node, number): DROP for node in nodes for number in range(1, 100)})


class Shaky(Line):
    """Before each request, with probability `flip`, the link of its node fails or returns."""

    def __init__(self, chance: random.Random, flip: float) -> None:
        super().__init__(before=self.meddle)
        self.chance = chance
        self.flip = flip
        self.down: dict[str, None] = {}

    async def meddle(self, node: str, method: str) -> None:
        if self.chance.random() < self.flip:
            if node in self.down:
                del self.down[node]
            else:
                self.down[node] = None
        if node in self.down:
            raise NotDelivered("injected: the line is down", address=node)
