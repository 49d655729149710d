"""An operator raises the number of masters: the catalog of the only one moves into a journal, which several masters then share.

`ebla down` and `ebla up` are bound to Ray, so the order of their steps is copied here (placement/launch.py, catalog.py); how the journal
is made, and the mover, are those of production (placement/journal/format.py, actors/master/leadership/mover.py):

    down      every role ends, and is not started again
    remember  that there is a journal: before any of its nodes is told
    nodes     the journal's nodes come up
    make      the journal, on all of them; that it was made is remembered, and it is never made again
    move      the mover opens the only master's directory, is asked once, and ends; that it is done is remembered
    up        the masters that share the journal, and all other roles

Whatever ends an `ebla up` before its last step, which may be the operator himself (who presses Ctrl-C, or whose machine fails, and then nobody
dismisses the mover), the next one begins with what is remembered. What is remembered is on every host, and no fault destroys it.

From the moment at which the mover has begun somebody starts the old master again now and then, which must be refused: otherwise
there would be two catalogs.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.errors import Unavailable
from ebla.actors.master.catalog.directory import MOVED
from ebla.actors.master.leadership.mover import CatalogMover, Moved
from ebla.chaos.simulation.deployment import JOURNAL, MOVER, Deployment, address_of
from ebla.chaos.simulation.world import MakeRole, NodeCrashed
from ebla.options import MASTER
from ebla.placement.journal.format import made
from ebla.placement.state import JournalMemory
from ebla.storage.errors import EblaError, InvalidArgument

BEGINS_S = (1.0, 5.0)  # after act one has begun
DOWN_S = 3.0
MOVE_S = 10.0  # in production longer: large catalogs, and no message is lost
PAUSE_S = (0.05, 0.6)  # between two tries
TRIES_MAX = 1000
PATIENCE = 0.4  # of the tries are ended by the operator, after so long at most:
PATIENCE_S = 2.5
KILLED = 0.5  # of these leave a mover behind
LEFT = 0.15  # of the moments between two steps, at which he ends a try
AGAIN = 0.5  # of the moments at which the old master may be started, by mistake


class Interrupted(Exception):
    """The operator, between two steps."""


class Raising:
    """`refused`: how often the old master was started again, and was refused; of `revived` times."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.cluster = deployment.cluster
        self.chance = self.cluster.loop.derive("raising")
        self.world = self.cluster.client_world("client/operator-up")
        self.memory: JournalMemory | None = None
        self.revived = self.refused = 0

    async def run(self) -> None:
        """Returns when the roles that share the journal have been started."""
        await asyncio.sleep(self.chance.uniform(*BEGINS_S))
        await self._down()
        for _ in range(TRIES_MAX):
            try:
                await self._try()
            except (EblaError, NodeCrashed, Interrupted, TimeoutError) as error:
                self.cluster.loop.trace("up ended", type(error).__name__)
            else:
                return
            await asyncio.sleep(self.chance.uniform(*PAUSE_S))
            await self._start_the_old_master()
        raise AssertionError(f"the catalog did not move in {TRIES_MAX} tries")

    # -- down

    async def _down(self) -> None:
        self.deployment.kept_up = ()
        await asyncio.gather(*map(self._end, (MASTER, *self.deployment.servers)))

    async def _end(self, address: str) -> None:
        """Gracefully; who does not end in time is killed."""
        if self.cluster.alive(address) and not self.cluster.paused(address):
            with suppress(NodeCrashed, TimeoutError):
                async with asyncio.timeout(DOWN_S):
                    await self.cluster.stop(address)
        if self.cluster.alive(address):
            self.cluster.crash(address)

    # -- up

    async def _try(self) -> None:
        impatient = self.chance.random() < PATIENCE
        limit_s = self.chance.uniform(0.0, PATIENCE_S) if impatient else None
        async with asyncio.timeout(limit_s):
            await self._up(dismisses=not impatient or self.chance.random() >= KILLED)

    async def _up(self, dismisses: bool) -> None:
        memory = self.memory or JournalMemory(id=JOURNAL.id, slots=self.deployment.journals, moving=True)
        self._remember(memory)
        if not memory.formatted:
            self._bring_nodes()
            found = await made(self.world, self.deployment.journal_options())
            memory = replace(memory, id=found, formatted=True)
            self._remember(memory)
        if memory.moving:
            self._bring_nodes()
            await self._move(dismisses)
            memory = replace(memory, moving=False)
            self._remember(memory)
            await self._start_the_old_master()
        self.deployment.moved = True
        self._bring(dict.fromkeys(self.deployment.masters, self.deployment.make_master))
        self._bring({address_of(host): self.deployment.maker(host) for host in self.deployment.hosts})
        self._bring_nodes()

    def _remember(self, memory: JournalMemory) -> None:
        self._may_leave()
        self.memory = memory
        self._may_leave()

    def _may_leave(self) -> None:
        if self.chance.random() < LEFT:
            raise Interrupted

    def _bring_nodes(self) -> None:
        self._bring(dict.fromkeys(self.deployment.journals, self.deployment.make_node))

    def _bring(self, makers: dict[str, MakeRole]) -> None:
        """Those that run are adopted; whose host is down comes up with it. Who answers is asked later."""
        for address, make in makers.items():
            if self.cluster.alive(address):
                continue
            self.cluster.will_be(address, make)
            if not self.deployment.is_held_down(address):
                self.cluster.launch(address, make)
        self.deployment.kept_up = tuple(dict.fromkeys([*self.deployment.kept_up, *makers]))

    # -- the move

    async def _move(self, dismisses: bool) -> None:
        """One that an earlier try left behind is adopted."""
        try:
            if not self.cluster.alive(MOVER):
                await self._launch_mover()
            await self.world.network.call(MOVER, "move", m.Empty(), Moved, MOVE_S)
        except BaseException:
            if dismisses:
                await self._end(MOVER)
            raise
        await self._end(MOVER)

    async def _launch_mover(self) -> None:
        """In the master's directory, on its host."""
        if self.deployment.is_held_down(MOVER) or self.deployment.is_held_down(MASTER):
            raise Unavailable("the host of the catalog is down")
        self.cluster.put_disk(MOVER, self.cluster.state(MASTER))
        options = self.deployment.journal_options()
        await self.cluster.start(MOVER, lambda world: CatalogMover(world, options))

    async def _start_the_old_master(self) -> None:
        """By mistake: in its place, over its directory."""
        marked = MOVED in self.cluster.state(MASTER).environments
        there = self.cluster.alive(MASTER) or self.deployment.is_held_down(MASTER)
        if there or not marked or self.chance.random() >= AGAIN:
            return
        self.revived += 1
        began: Any = None
        try:
            began = await self.cluster.start(MASTER, self.deployment.make_only_master)
        except InvalidArgument:
            self.refused += 1
        except (EblaError, NodeCrashed):
            return  # the mover is still there, or its host failed
        assert began is None, f"{MASTER} serves from a directory whose catalog moves into a journal, or has"
