"""The known incarnations of the servers, so that a server on an older copy of its directory is recognised.

A server sends its uuid, a number and a token with every message. The number is on its disk before it is sent, and grows
with every start and while the server runs; the token is new at every start. A received pair is compared with the last
known one of the same uuid:

    the same token                   the same incarnation; a lower number is a message that was late
    another token, a higher number   it was started again
    another token, any other number  it has forgotten numbers that it has sent, and so its promises: OldCopy

A received number counts at once and is on disk soon after: no vote and no heartbeat waits for that. So an old copy is
recognised if it was made before the last number that a role has on disk or in memory. Numbers are raised rarely: this
costs about one commit per server and minute.
"""

from __future__ import annotations

import asyncio

from ebla.actors.messages import ServerInstance
from ebla.actors.world import World
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import Corruption, DiskFull, Forgotten, OldCopy

DATABASE = "incarnations"
# A number grows by one at a start and by this much while its server runs. To reach the known number an old copy would
# need as many starts without contact.
RAISED_BY = 1000
DISK_FULL_PAUSE_S = 0.5


def is_old(shown: ServerInstance, known: ServerInstance) -> bool:
    return shown.start != known.start and shown.seqno <= known.seqno


def old_copy(shown: ServerInstance, known: ServerInstance, observer: str) -> OldCopy:
    """The remedy comes first, because some views show only the start of a message."""
    return OldCopy(
        f"older copy of its directory, set it aside and start again: server {shown.uuid} shows number {shown.seqno}, "
        f"and {observer} has seen {known.seqno} of another incarnation of it; it will come back as a new server",
        server=shown.uuid,
        shown=shown.seqno,
        known=known.seqno,
    )


def forgotten(uuid: str) -> Forgotten:
    return Forgotten(
        f"server {uuid} was declared gone for good by `ebla nodes forget`; its directory is set aside, and it will come back "
        "as a new server",
        server=uuid,
    )


class Incarnations:
    """The last known incarnation of each server. `role`: the kind of role that keeps it, master or tablet."""

    def __init__(self, world: World, role: str, store: RecordStore[ServerInstance]) -> None:
        self.world = world
        self.role = role
        self.store = store
        self._known: dict[str, ServerInstance] = {}
        self._unsaved: dict[str, ServerInstance] = {}
        self._wake = asyncio.Event()

    def start(self) -> None:
        """Load the records. A damaged one counts as absent, until its server sends a message again."""
        for uuid, record in self.store.all():
            if not isinstance(record, Corruption):
                self._known[uuid] = record
        self.world.spawn(self._save(), "incarnations")

    def known(self, uuid: str) -> ServerInstance:
        return self._known.get(uuid) or ServerInstance(uuid, 0, "")

    def all(self) -> tuple[ServerInstance, ...]:
        return tuple(self._known.values())

    def meet(self, shown: ServerInstance) -> bool:
        """Take an incarnation and return whether it is news. Raises OldCopy: the message must then be ignored."""
        known = self.known(shown.uuid)
        if is_old(shown, known):
            raise old_copy(shown, known, self.world.address)
        if shown.seqno <= known.seqno:
            return False
        self._known[shown.uuid] = self._unsaved[shown.uuid] = shown
        self._wake.set()
        return True

    def learn(self, others: tuple[ServerInstance, ...]) -> None:
        """Take what another role knows; old incarnations there are ignored."""
        for other in others:
            if not is_old(other, self.known(other.uuid)):
                self.meet(other)

    async def _save(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            news, self._unsaved = self._unsaved, {}
            await self.world.faults.here(f"{self.role}.incarnations.before_commit")
            await self._commit(news)
            await self.world.faults.here(f"{self.role}.incarnations.after_commit")

    async def _commit(self, news: dict[str, ServerInstance]) -> None:
        batch = [self.store.put(uuid, instance) for uuid, instance in news.items()]
        while True:
            try:
                return await self.store.environment.commit(batch)
            except DiskFull:
                await self.world.clock.sleep(DISK_FULL_PAUSE_S)
