"""Read all data of a directory as the roles do: each answer under a name, or the reason why there is none.

Two surveys are compared: of a directory as it was written, and of the same one with damage. Each answer of the second must equal
that of the first, or be a refusal.

    superblock, vote, log, entries   of each tablet, as a start loads them
    row               single reads of every key that was ever written, and of keys that never were
    scan, digest      the whole tablet; the digest that `ebla check --checksum` compares
    answer            the answer to a retry
    later             the rows again, after writes and a flush of every tablet; of a follower, after a leader has sent it the
                      commit index
    catalog, edits    the master's
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from ebla.actors import messages as m
from ebla.actors.deadlines import timeout
from ebla.actors.errors import outcomes
from ebla.actors.tablet.engine.replica import RUNNING, Replica
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.server import TabletServer
from ebla.chaos.powercut.life.client import Nonsense, get, scan, write
from ebla.chaos.powercut.life.ghosts import Ghosts
from ebla.chaos.powercut.life.machine import SERVER, Machine
from ebla.chaos.powercut.recording.events import Answered, Asked, Plan, RoleEvent
from ebla.chaos.powercut.recording.facts import Facts, Group, Lane
from ebla.chaos.powercut.recording.lanes import LANE_KEYS, bulk_keys, random_batch
from ebla.storage.errors import EblaError

READ_KEYS = 16  # in one request: one bad row causes a refusal of all
LED_S = 1.0
ANSWER_S = 10.0
TRIES_MAX = 3

Answers = dict[str, Any]


class _Instead(msgspec.Struct, frozen=True):
    """The base of all that stands instead of an answer."""

    why: str


class Refused(_Instead, frozen=True):
    """A refusal."""


class Ended(_Instead, frozen=True):
    """The role's process ended."""


class Hung(_Instead, frozen=True):
    """The role's process neither answers nor ends."""


class Wrong(_Instead, frozen=True):
    """An answer that contradicts itself."""


class Survey:
    """`note` gets every answer at once, because the process may end before the last. A name that it does not get was not
    reached."""

    def __init__(
        self, base: Path, facts: Facts, plan: Plan, note: Callable[[str, Any], None], *, master: bool
    ) -> None:
        self._note = note
        self.facts = facts
        self.master = master
        self.machine = Machine(base, data_dirs=plan.data_dirs, say=self._follow)
        self._replicated: dict[int, None] = {}  # calls to followers
        self.machine.timeout_s = ANSWER_S

    async def everything(self) -> None:
        try:
            with self._answer("start"):
                if self.master:
                    await self.machine.start_master()
                    self._catalog()
                else:
                    with self._noting_loaded():
                        server = await self.machine.start_server()
                    self._not_loaded(server)
                    await self._rows()
        finally:
            with contextlib.suppress(EblaError, TimeoutError):  # a failed disk may not even close
                async with timeout(ANSWER_S):
                    await self.machine.stop_all()
        if self.machine.defects:
            self._note("role", Ended(repr(self.machine.defects[0])))  # the shell ends the process

    def _follow(self, said: RoleEvent) -> None:
        """Note the entries that followers acknowledge: the played leader must know them."""
        if isinstance(said, Asked) and said.method == "replicate":
            self._replicated[said.call] = None
            self.facts.take(said)
        elif isinstance(said, Answered) and said.call in self._replicated:
            self.facts.take(said)

    @contextlib.contextmanager
    def _answer(self, *names: str) -> Iterator[None]:
        try:
            yield
        except Nonsense as error:
            for name in names:
                self._note(name, Wrong(str(error)))
        except EblaError as error:
            for name in names:
                self._note(name, Refused(f"{type(error).__name__}: {error}"))

    # -- after a start, before the first request

    def _catalog(self) -> None:
        image = self.machine.master.catalog.image()
        self._note("catalog", msgspec.json.encode(image, order="sorted"))
        self._note("edits", self.machine.master.log.last_txid)

    @contextlib.contextmanager
    def _noting_loaded(self) -> Iterator[None]:
        """Note each replica as it is loaded: soon after that it elects a leader, whose log is longer."""
        add = Lifecycle.add

        def noting(lifecycle: Lifecycle, replica: Replica) -> None:
            add(lifecycle, replica)
            if replica.tablet in self.facts.tablets:
                self._loaded(replica)

        Lifecycle.add = noting  # type: ignore[method-assign,assignment]
        try:
            yield
        finally:
            Lifecycle.add = add  # type: ignore[method-assign]

    def _loaded(self, replica: Replica) -> None:
        tablet = replica.tablet
        self._note(f"superblock {tablet}", replica.superblock)
        self._note(f"vote {tablet}", (replica.core.hard_state, replica.core.committed_configuration))
        self._note(f"log {tablet}", replica.log.last)
        with self._answer(f"entries {tablet}"):
            # Entries that the rows include may be dropped from the log, damaged or not.
            first = max(replica.log.first_index, replica.store.flushed.index + 1)
            entries = replica.log.load(first, replica.log.last_index)
            self._note(f"entries {tablet}", {entry.index: entry for entry in entries})

    def _not_loaded(self, server: TabletServer) -> None:
        for tablet in sorted(self.facts.tablets):
            if tablet in server.lifecycle.broken:
                self._note(f"superblock {tablet}", Refused(server.lifecycle.broken[tablet].error))
            elif tablet not in server.replicas:
                self._note(f"superblock {tablet}", None)

    # -- over the network

    async def _rows(self) -> None:
        server = self.machine.server
        known = self.facts.tablets
        tablets = sorted(tablet for tablet in known if not (known[tablet].deleted or known[tablet].leaving))
        led = [tablet for tablet in tablets if tablet not in self.facts.groups and tablet in server.replicas]
        with contextlib.suppress(EblaError):  # replicas that do not lead refuse later requests
            await self.machine.until(lambda: all(map(self._settled, led)), "tablets lead", LED_S)
        await asyncio.gather(*(self._tablet(tablet) for tablet in tablets))
        for tablet in tablets:
            with self._answer(f"later {tablet}"):
                await self._later(tablet)

    def _settled(self, tablet: str) -> bool:
        replica = self.machine.server.replicas.get(tablet)
        return replica is None or replica.state != RUNNING or self.machine.leads(tablet)

    async def _tablet(self, tablet: str) -> None:
        if tablet in self.facts.groups:
            return  # a follower does not know the commit index
        lanes = self.facts.lanes_of(tablet)
        keys = sorted({key for lane in lanes for key in _keys(lane)})
        for start in range(0, len(keys), READ_KEYS):
            some = keys[start : start + READ_KEYS]
            names = [f"row {tablet} {key}" for key in some]
            with self._answer(*names):
                found = await get(self.machine, tablet, some)
                for name, key in zip(names, some, strict=True):
                    self._note(name, found.get(key))
        with self._answer(f"scan {tablet}"):
            self._note(f"scan {tablet}", await scan(self.machine, tablet))
        with self._answer(f"digest {tablet}"):
            self._note(f"digest {tablet}", await self._digest(tablet))
        for lane in lanes:
            if lane.last is not None:
                name = f"answer {tablet} {lane.client.decode()}"
                with self._answer(name):
                    again = await write(self.machine, tablet, lane.last[0], tries_max=TRIES_MAX)
                    self._note(name, again)

    async def _digest(self, tablet: str) -> tuple[int, str]:
        request = m.ChecksumStart((tablet,))
        started = await self.machine.ask(SERVER, "checksum_start", request, m.ChecksumStarted)
        (index,) = outcomes(started.indexes, started.errors)
        if isinstance(index, EblaError):
            raise index
        query = m.ChecksumQuery(((tablet, index),))
        reply = await self.machine.ask(SERVER, "checksum", query, m.ChecksumReply)
        (digest,) = outcomes(reply.digests, reply.errors)
        if isinstance(digest, EblaError):
            raise digest
        return digest.rows, digest.digest

    async def _later(self, tablet: str) -> None:
        if tablet in self.facts.groups:
            await self._lead(self.facts.groups[tablet])
        for lane in self.facts.lanes_of(tablet):
            rng = random.Random(f"later/{lane.client.decode()}")
            batch = random_batch(rng, tablet, lane.client, lane.sequence + 1, lane.first_key)
            await write(self.machine, tablet, batch, tries_max=TRIES_MAX)
        await self.machine.ask(SERVER, "flush", m.FlushRequest(tablet), m.FlushReply)
        at_leader = tablet not in self.facts.groups
        self._note(f"later {tablet}", await scan(self.machine, tablet, at_leader=at_leader))

    async def _lead(self, group: Group) -> None:
        ghosts = Ghosts(self.machine, group, random.Random(f"later/{group.tablet}"))
        await ghosts.append()
        await ghosts.commit()
        replica = self.machine.server.replicas[group.tablet]
        await self.machine.until(
            lambda: replica.state != RUNNING or replica.store.applied.index >= len(group.entries),
            f"{group.tablet} is applied",
            ANSWER_S,
        )


def _keys(lane: Lane) -> list[int]:
    """Every key that the lane may have written, and some that it never wrote."""
    keys = [*range(lane.first_key, lane.first_key + LANE_KEYS), lane.first_key + LANE_KEYS - 1 - (1 << 40)]
    if any(key in lane.rows for key in bulk_keys(lane.first_key)):
        keys += bulk_keys(lane.first_key)
    return keys
