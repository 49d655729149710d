"""Simulated peers: they act as leaders and candidates of a follower's group, by the rules.

The follower is a real replica. It gets entries, replaces uncommitted ones, and votes. It learns late which entries are committed
and which all peers have, so that it must keep its log for long.
"""

from __future__ import annotations

import random

from ebla.actors import messages as m
from ebla.actors.errors import Unavailable
from ebla.actors.messages import peers
from ebla.actors.messages.raft import Request, VoteRequest
from ebla.actors.messages.stream import AppendReply, AppendRequest
from ebla.actors.replication.configuration import Configuration, Peer
from ebla.chaos.powercut.life.machine import SERVER, Machine
from ebla.chaos.powercut.recording.facts import Group
from ebla.chaos.powercut.recording.lanes import CODEC, random_batch
from ebla.storage.errors import EblaError
from ebla.storage.logs.entries import WRITE, Entry, Position, make_entry

GHOSTS = ("ghost-1", "ghost-2")
ENTRIES_MAX = 5
TRIES = 20
EVICTED_AT = 1 << 40  # the index of a configuration without the server, newer than any that the server has


def creation(tablet: str, server: str) -> m.CreateTabletRequest:
    """A tablet whose other two voters are ghosts."""
    peers = (Peer(server, SERVER), *(Peer(ghost, f"tablet-server/{ghost}") for ghost in GHOSTS))
    return m.CreateTabletRequest(
        server, tablet, "followed", "followed", CODEC.schema, 0, Configuration(peers)
    )


def eviction(tablet: str, server: str) -> m.DeleteTabletRequest:
    """An eviction: the ghosts continue without the server, which keeps a tombstone."""
    return m.DeleteTabletRequest(server, tablet, "it left", tombstone=True, configuration_index=EVICTED_AT)


class Ghosts:
    """`group`: the follower's acknowledged state."""

    def __init__(self, machine: Machine, group: Group, rng: random.Random) -> None:
        self.machine = machine
        self.group = group
        self.rng = rng
        # A new term: a term has one leader and one history, and the entries of the last leader's term are unknown.
        self.term = max(group.term, group.request.term if group.request else 0) + 1
        self.leader = self.rng.choice(GHOSTS)
        self.sequence = self.term * 100_000  # never used before
        self.written = group.commit  # nothing at or before this index is ever replaced
        self.everywhere = 0

    async def step(self) -> None:
        if self.rng.random() < 0.12:
            await self.elect()
        else:
            await self.append()

    async def elect(self) -> None:
        """Elect a leader of the next term. The other two voters suffice, with or without this one's vote."""
        self.term += 1
        self.leader = self.rng.choice(GHOSTS)
        last = self.group.position(len(self.group.entries))
        request = VoteRequest(
            self.term, self.leader, last.index, last.term if self.rng.random() < 0.7 else 0, False, True
        )
        if self.rng.random() < 0.8:
            await self._send(request)
        # The winner's log may lack uncommitted entries.
        self.written = self.rng.randint(self.group.commit, len(self.group.entries))

    async def append(self) -> None:
        """Append entries to the log of this term's leader."""
        group, rng = self.group, self.rng
        previous = group.position(self.written)
        committed = rng.randint(group.commit, previous.index)
        if rng.random() < 0.3:
            self.everywhere = rng.randint(self.everywhere, max(self.everywhere, group.commit))
        entries = self._entries(rng.randint(1, ENTRIES_MAX))
        await self._append(previous, entries, committed)
        self.written = entries[-1].index

    async def commit(self) -> None:
        await self._append(self.group.position(self.written), (), self.written)

    async def _append(self, previous: Position, entries: tuple[Entry, ...], committed: int) -> None:
        reply = await self._send(
            AppendRequest(
                self.term, self.leader, previous.index, previous.term, entries, committed, self.everywhere
            )
        )
        if not isinstance(reply, AppendReply) or not reply.success:
            raise EblaError(f"the follower of {self.group.tablet} refused entries after {previous}: {reply}")

    def _entries(self, count: int) -> tuple[Entry, ...]:
        """The next entries of the leader's log."""
        tablet, made = self.group.tablet, []
        previous = self.group.position(self.written)
        for _ in range(count):
            self.sequence += 1
            payload = random_batch(self.rng, tablet, b"ghostly client 1", self.sequence, 0)
            entry = make_entry(tablet, previous, self.term, WRITE, previous.time_us + 1, payload)
            previous = entry.position
            made.append(entry)
        return tuple(made)

    async def _send(self, request: Request) -> object:
        source = m.ServerInstance(self.leader, 1, self.leader)
        envelope = peers.Envelope(source, self.machine.server.instance, ((self.group.tablet, request),))
        for left in reversed(range(TRIES)):  # as a leader does while the follower's disk is slow
            try:
                reply = await self.machine.ask(SERVER, "replicate", envelope, peers.EnvelopeReply)
                break
            except Unavailable:
                if not left:
                    raise
        if reply.answers[0] is None:
            replica = self.machine.server.replicas.get(self.group.tablet)
            raise EblaError(
                f"the follower of {self.group.tablet} failed: {reply.refusals[0]} ({replica and replica.error})"
            )
        return reply.answers[0]
