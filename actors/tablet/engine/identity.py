"""The identity of this tablet server among the others, and whether they believe it.

The server's number is raised as soon as a server or master has believed it, and then in every
`seqno_s` in which one did: see actors/incarnations.py. Otherwise it stays, so that an old copy that
was cut off for long does not catch up with the number.

Every message to another server also carries the receiver's incarnation as the sender knows it. So an old copy
is recognised by the first message, before it answers anything; and each receiver checks what the
sender shows.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import msgspec

from ebla.actors.catalog_versions import SeenCatalog
from ebla.actors.incarnations import RAISED_BY, Incarnations, is_old, old_copy
from ebla.actors.messages import HeartbeatReply, ServerInstance
from ebla.actors.messages.peers import Envelope, EnvelopeReply, LivenessReply, LivenessRequest
from ebla.actors.messages.protocols import Request
from ebla.actors.world import World
from ebla.storage.errors import DiskFull, EblaError, OldCopy


@dataclass(eq=False)
class Identity:
    """The identity of this server. `instance`: the incarnation that others see; `refused`: why this
    server must not take part any more, if it must not."""

    world: World
    instance: ServerInstance
    others: Incarnations
    catalog: SeenCatalog
    seqno_s: float

    def __post_init__(self) -> None:
        self.refused: OldCopy | None = None
        self._raising_since: float | None = None
        self._believed = asyncio.Event()

    @property
    def uuid(self) -> str:
        return self.instance.uuid

    def start(self) -> None:
        self.others.start()
        self.catalog.start()
        self.world.spawn(self._raise(), "identity")

    # -- messages

    def envelope(self, dest_uuid: str, requests: tuple[tuple[str, Request], ...]) -> Envelope:
        assert dest_uuid != self.uuid, ("a server sends itself nothing", dest_uuid)
        return Envelope(self.instance, self.others.known(dest_uuid), requests)

    def receive(self, envelope: Envelope | LivenessRequest) -> None:
        """Check a server's message. Raises OldCopy if this server or the sender is one: then no part of
        the message counts."""
        if is_old(self.instance, envelope.dest):
            self.refuse(old_copy(self.instance, envelope.dest, envelope.source.uuid))
        self.require_believed()
        self.others.meet(envelope.source)
        if envelope.dest.start == self.instance.start:
            self.believed()

    def answered(self, reply: EnvelopeReply | LivenessReply) -> bool:
        """Whether the answers count. They prove that the receiver believed us."""
        try:
            self.others.meet(reply.source)
        except OldCopy:
            return False
        self.believed()
        return True

    def heartbeat_answered(self, reply: HeartbeatReply) -> None:
        """A master has believed us, and reports the incarnations that it knows."""
        self.believed()
        self.catalog.see(reply.catalog)
        self.others.learn(tuple(other for other in reply.others if other.uuid != self.uuid))

    # -- whether we are believed

    def believed(self) -> None:
        """Note that another role has recorded our incarnation."""
        self._believed.set()

    def failed(self, error: EblaError) -> None:
        """Handle the error of a call of ours, which may be about our identity."""
        if isinstance(error, OldCopy) and error.server == self.uuid:
            self.refuse(error)

    def refuse(self, error: OldCopy) -> None:
        if self.refused is None:
            self.refused = error
            self.world.spawn(self._end(error), "end of an old copy")

    def require_believed(self) -> None:
        if self.refused is not None:
            raise OldCopy(self.refused.message, **self.refused.values())

    async def _end(self, error: OldCopy) -> None:
        """End this server for good; only this incarnation, if a successor already has the directory."""
        await self.world.faults.here("tablet.old_copy.before_mark")
        try:
            await self.world.disk.give_up(error.message)
        except DiskFull:
            pass  # other servers refuse the next start like this one
        await self.world.faults.here("tablet.old_copy.after_mark")
        self.world.fail(error)

    def stalled_s(self, now: float) -> float:
        """How long a new number has been waiting for its sync; 0 if none waits. So an idle server, too, notices a disk that hangs."""
        return 0.0 if self._raising_since is None else now - self._raising_since

    async def _raise(self) -> None:
        while True:
            await self._believed.wait()
            await self.world.faults.here("tablet.seqno.before_raise")
            self._raising_since = self.world.now()
            try:
                seqno = await self.world.disk.raise_seqno(RAISED_BY)
            except DiskFull:
                seqno = self.instance.seqno
            self._raising_since = None
            await self.world.faults.here("tablet.seqno.after_raise")
            shown = self.instance.seqno
            assert seqno >= shown, ("an incarnation's number never goes back", seqno, shown)
            self.instance = msgspec.structs.replace(self.instance, seqno=seqno)
            await self.world.clock.sleep(self.seqno_s)
            self._believed.clear()
