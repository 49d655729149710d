"""Both sides of a forced configuration, seen from outside: the commits and the answers of each.

A side has a mark, its forced epoch (actors/tablet/raft/forced.py); a tablet without forced configurations has one side, of mark
0. A side begins with the log of the survivor that leads it. Entries that the survivor knew to be committed are the same on the
side before. Entries that it did not have are lost on this side; the other side keeps them until it learns that it was given up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ebla.actors import messages as m
from ebla.actors.messages import peers
from ebla.actors.messages.raft import VoteReply
from ebla.actors.messages.repair import UnsafeChangeRequest
from ebla.actors.messages.stream import AppendReply
from ebla.actors.tablet.engine.batches import decode_batch, packed
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.options import TabletServerOptions
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import World, rpc
from ebla.chaos.simulation.observers.votes import Votes, WatchedServer
from ebla.storage.logs.entries import Position
from ebla.storage.rows.codecs import codec_of

NOTICES_MIN, LATE_S = 8, 1.5  # fewer notices in a row may be lost, and none takes longer


class Entry(NamedTuple):
    term: int
    chain: int
    seen_in: int  # the term in which it was first seen to be committed


def newest_mark(replica: Replica) -> int:
    """The mark of the newest configuration in the replica's log, committed or not."""
    return replica.core.configuration.unsafe


@dataclass
class Committed:
    """Committed entries by tablet and mark, and the last entries of replicas when they were asked to force a configuration."""

    sides: dict[tuple[str, int], dict[int, Entry]] = field(default_factory=dict)
    _had: dict[tuple[str, str], Position] = field(default_factory=dict)  # by tablet and uuid

    def listen(self, deployment: Any) -> None:
        def note(request: UnsafeChangeRequest) -> None:
            for address in deployment.servers:
                server = deployment.cluster.role(address) if deployment.cluster.alive(address) else None
                if isinstance(server, TabletServer) and server.running:
                    replica = server.replicas.get(request.tablet)
                    if replica is not None and replica.core.me == request.dest_uuid:
                        self._had[request.tablet, request.dest_uuid] = replica.log.last

        deployment.cluster.network.tap("unsafe_change", UnsafeChangeRequest, note)

    def of(self, tablet: str, mark: int) -> dict[int, Entry]:
        return self.sides.setdefault((tablet, mark), {})

    def begins(self, tablet: str, mark: int) -> bool:
        return mark > 0 and not self.sides.get((tablet, mark))

    def begin(self, tablet: str, mark: int, shared: int) -> None:
        """Begin a new side, equal to the one before up to index `shared`."""
        before = self.of(tablet, max(each for of, each in self.sides if of == tablet and each < mark))
        self.sides[tablet, mark] = {index: entry for index, entry in before.items() if index <= shared}

    def had_when_forced(self, replica: Replica) -> Position | None:
        """The last entry of the replica when it was asked, if it was and leads."""
        return self._had.get((replica.tablet, replica.core.me)) if replica.core.role == "leader" else None


@dataclass
class Answers:
    """The answers about `tables` whose configurations may be forced. Values identify writes."""

    tables: tuple[str, ...] = ()
    tablets: dict[Hashable, str] = field(default_factory=dict)  # by key
    # By value: mark and index, as acknowledged; by key and value: time_us and mark.
    written: dict[Hashable, list[tuple[int, int]]] = field(default_factory=dict)
    read: dict[tuple[Hashable, Hashable], list[tuple[int, int]]] = field(default_factory=dict)
    # By start of a server and tablet: the times and marks of notices that it was given up.
    notices: dict[tuple[str, str], list[tuple[float, int]]] = field(default_factory=dict)
    broken: str = ""  # a server that serves although it knows that it was given up

    def note_write(self, replica: Replica, batch: bytes, index: int) -> None:
        codec, rows = codec_of(replica.superblock.schema), decode_batch(batch)
        for key, row in zip(*packed(codec, rows, replica.rows.seed), strict=True):
            found = codec.decode_row(key, row, None)
            self.tablets[found["k"]] = replica.tablet
            self.written.setdefault(found["v"], []).append((_side(replica), index))

    def note_read(self, replica: Replica, keys: list[bytes], values: list[bytes | None], at_s: float) -> None:
        codec = codec_of(replica.superblock.schema)
        for key, row in zip(keys, values, strict=True):
            (name,) = codec.keys.decode_row(key, ())
            value = None if row is None else codec.decode_row(key, row, None)["v"]
            self.tablets[name] = replica.tablet
            self.read.setdefault((name, value), []).append((int(at_s * 1e6), _side(replica)))

    def note_service(self, start: str, replica: Replica, now_s: float) -> None:
        """Check that the server was not given up. The first notice that arrives must end its service; some are lost or late."""
        mark = _side(replica)
        notices = self.notices.get((start, replica.tablet), ())
        sent = [by for at_s, by in notices if at_s <= now_s - LATE_S and by > mark]
        if len(sent) >= NOTICES_MIN and not self.broken:
            self.broken = (
                f"{replica.core.me} serves tablet {replica.tablet} on side {mark}, after {len(sent)} notices that a "
                f"configuration of mark {max(sent)} gave it up"
            )


def _side(replica: Replica) -> int:
    return replica.core.committed_configuration.unsafe


class SidedServer(WatchedServer):
    """A tablet server that notes its answers to clients."""

    def __init__(
        self,
        world: World,
        options: TabletServerOptions,
        votes: Votes,
        is_copy: Callable[[str], bool],
        answers: Answers,
        now_s: Callable[[], float],
    ) -> None:
        super().__init__(world, options, votes, is_copy)
        self.answers = answers
        self.now_s = now_s

    @rpc
    async def write(self, request: m.WriteRequest) -> m.WriteReply:
        replicas = [self._watched(each.tablet) for each in request.writes]
        reply = await super().write(request)
        for replica, asked, result in zip(replicas, request.writes, reply.results, strict=True):
            if replica is not None and result is not None:
                self.answers.note_service(self.instance.start, replica, self.now_s())
                self.answers.note_write(replica, asked.batch, result.index)
        return reply

    @rpc
    async def read(self, request: m.ReadRequest) -> m.ReadReply:
        replicas = [self._watched(each.tablet) for each in request.reads]
        reply = await super().read(request)
        for replica, asked, values in zip(replicas, request.reads, reply.values, strict=True):
            if replica is not None and values is not None:
                self.answers.note_service(self.instance.start, replica, self.now_s())
                self.answers.note_read(replica, asked.keys, values, self.now_s())
        return reply

    @rpc
    async def replicate(self, envelope: peers.Envelope) -> peers.EnvelopeReply:
        reply = await super().replicate(envelope)
        for (tablet, request), answer in zip(envelope.requests, reply.answers, strict=True):
            if isinstance(answer, AppendReply | VoteReply) and answer.unsafe > request.unsafe:
                notices = self.answers.notices.setdefault((envelope.source.start, tablet), [])
                notices.append((self.now_s(), answer.unsafe))
        return reply

    def _watched(self, tablet: str) -> Replica | None:
        replica = self.replicas.get(tablet)
        return replica if replica and replica.superblock.table_name in self.answers.tables else None
