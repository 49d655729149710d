"""Which incarnations of the servers were heard, so that one that runs on an older copy of its directory is recognised.

A server shows its uuid, a number and a token with everything it says. The number is on its disk before anybody is shown
it, grows with every start and while the server runs, and therefore never falls; the token is drawn anew at every start.
Against what was heard last of the same uuid:

    the same token                   the same incarnation; a lower number is a message that was late
    another token, a higher number   it was started again
    another token, any other number  it has forgotten numbers that it has shown, so what it promised, too: OldCopy

What was heard counts at once and is on disk soon after: no vote and no heartbeat waits for that. So an old copy is
recognised if it was made before the last number that a role has on disk, or has heard and still remembers. Since a number
is only raised now and then, that is a commit per server and minute.
"""

from __future__ import annotations

import asyncio

from ebla.actors.messages import ServerInstance
from ebla.actors.world import World
from ebla.storage.directories.records import RecordStore
from ebla.storage.errors import Corruption, DiskFull, Forgotten, OldCopy

DATABASE = "incarnations"
# A number grows by one with a start and by this much while its server runs and is heard. A copy would have to be
# started as often, unheard, to catch up with what it lacks.
RAISED_BY = 1000
DISK_FULL_PAUSE_S = 0.5


def is_old(shown: ServerInstance, known: ServerInstance) -> bool:
    return shown.start != known.start and shown.seqno <= known.seqno


def old_copy(shown: ServerInstance, known: ServerInstance, heard_by: str) -> OldCopy:
    """The beginning is what an operator sees where there is little space."""
    return OldCopy(
        f"older copy of its directory, set it aside and start again: server {shown.uuid} shows number {shown.seqno}, "
        f"and {heard_by} has heard {known.seqno} of another incarnation of it; it will come back as a new server",
        server=shown.uuid,
        shown=shown.seqno,
        known=known.seqno,
    )


def forgotten(uuid: str) -> Forgotten:
    return Forgotten(
        f"server {uuid} was gone for good, as an operator told by `ebla nodes forget`; its directory is set aside, and it will "
        "come back as a new server",
        server=uuid,
    )


class Incarnations:
    """The last incarnation that was heard of each server. `role` is whose memory it is: master or tablet."""

    def __init__(self, world: World, role: str, store: RecordStore[ServerInstance]) -> None:
        self.world = world
        self.role = role
        self.store = store
        self._known: dict[str, ServerInstance] = {}
        self._unsaved: dict[str, ServerInstance] = {}
        self._wake = asyncio.Event()

    def start(self) -> None:
        """A record that fails its check is as good as none, until the server it is about is heard again."""
        for uuid, record in self.store.all():
            if not isinstance(record, Corruption):
                self._known[uuid] = record
        self.world.spawn(self._save(), "incarnations")

    def known(self, uuid: str) -> ServerInstance:
        """What to tell the server itself; of one that was never heard nothing that it could come after."""
        return self._known.get(uuid) or ServerInstance(uuid, 0, "")

    def all(self) -> tuple[ServerInstance, ...]:
        return tuple(self._known.values())

    def meet(self, shown: ServerInstance) -> bool:
        """Whether it shows more than was known. Raises OldCopy, and whatever came with it must not count."""
        known = self.known(shown.uuid)
        if is_old(shown, known):
            raise old_copy(shown, known, self.world.address)
        if shown.seqno <= known.seqno:
            return False
        self._known[shown.uuid] = self._unsaved[shown.uuid] = shown
        self._wake.set()
        return True

    def learn(self, others: tuple[ServerInstance, ...]) -> None:
        """What somebody else has heard: it may be news, and if it is old, so is only the news."""
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
