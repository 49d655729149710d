"""Read everything that a directory holds, the way the roles read it: each answer under a name, or why there is none.

Two surveys can be compared: of a directory as it was written, and of the same one with damage in it. What the second
answers must be what the first answers, or a refusal.

    superblock, vote, log, entries   of each tablet, as a start brings them up
    row               single reads of every key that was ever written, and of keys that never were
    scan, digest      the whole tablet; what `ebla check --checksum` compares
    answer            that a retry gets
    later             the rows again, after writes and a flush of every tablet have gone over the same files; of a
                      follower, once a leader has told it what is committed
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
from ebla.actors.tablet.engine.replica import RUNNING
from ebla.chaos.powercut.life.client import Nonsense, get, scan, write
from ebla.chaos.powercut.life.ghosts import Ghosts
from ebla.chaos.powercut.life.machine import SERVER, Machine
from ebla.chaos.powercut.recording.events import Answered, Asked, Plan, Said
from ebla.chaos.powercut.recording.facts import Facts, Group, Lane
from ebla.chaos.powercut.recording.lanes import LANE_KEYS, bulk_keys, random_batch
from ebla.storage.errors import EblaError

READ_KEYS = 16  # in one request: one bad row refuses those beside it
LED_S = 1.0
ANSWER_S = 2.0
TRIES_MAX = 3

Answers = dict[str, Any]


class Refused(msgspec.Struct, frozen=True):
    """Instead of an answer."""

    why: str


class Ended(msgspec.Struct, frozen=True):
    """The role's process ends."""

    why: str


class Hung(msgspec.Struct, frozen=True):
    """The role's process neither answers nor ends."""

    why: str


class Wrong(msgspec.Struct, frozen=True):
    """An answer that contradicts itself."""

    why: str


class Survey:
    """`tell` hears every answer as it is given: the process may end before the last. One that it does not hear of was
    not reached."""

    def __init__(
        self, base: Path, facts: Facts, plan: Plan, tell: Callable[[str, Any], None], *, master: bool
    ) -> None:
        self._tell = tell
        self.facts = facts
        self.master = master
        self.machine = Machine(base, data_dirs=plan.data_dirs, say=self._hear)
        self._heard: dict[int, None] = {}
        self.machine.timeout_s = ANSWER_S

    async def everything(self) -> None:
        try:
            with self._answer("start"):
                if self.master:
                    await self.machine.start_master()
                    self._catalog()
                else:
                    await self.machine.start_server()
                    self._brought_up()
                    await self._rows()
        finally:
            with contextlib.suppress(EblaError, TimeoutError):  # a failed disk may not even close
                async with asyncio.timeout(ANSWER_S):
                    await self.machine.stop_all()
        if self.machine.defects:
            self._tell("role", Ended(repr(self.machine.defects[0])))  # the shell ends the process

    def _hear(self, said: Said) -> None:
        """Whoever plays a leader must know what its follower has acknowledged."""
        if isinstance(said, Asked) and said.method == "replicate":
            self._heard[said.call] = None
            self.facts.take(said)
        elif isinstance(said, Answered) and said.call in self._heard:
            self.facts.take(said)

    @contextlib.contextmanager
    def _answer(self, *names: str) -> Iterator[None]:
        """What is refused is refused under these names."""
        try:
            yield
        except Nonsense as error:
            for name in names:
                self._tell(name, Wrong(str(error)))
        except EblaError as error:
            for name in names:
                self._tell(name, Refused(f"{type(error).__name__}: {error}"))

    # -- as a start brings it up, before anything is asked

    def _catalog(self) -> None:
        image = self.machine.master.catalog.image()
        self._tell("catalog", msgspec.json.encode(image, order="sorted"))
        self._tell("edits", self.machine.master.log.last_txid)

    def _brought_up(self) -> None:
        server = self.machine.server
        for tablet in sorted(self.facts.tablets):
            if tablet in server.lifecycle.broken:
                self._tell(f"superblock {tablet}", Refused(server.lifecycle.broken[tablet].error))
                continue
            replica = server.replicas.get(tablet)
            self._tell(f"superblock {tablet}", replica and replica.superblock)
            if replica is None:
                continue
            self._tell(f"vote {tablet}", (replica.core.hard_state, replica.core.committed_configuration))
            self._tell(f"log {tablet}", replica.log.last)
            with self._answer(f"entries {tablet}"):
                # What the rows hold already may be dropped from the log, be it damaged or not.
                first = max(replica.log.first_index, replica.store.flushed.index + 1)
                entries = replica.log.load(first, replica.log.last_index)
                self._tell(f"entries {tablet}", {entry.index: entry for entry in entries})

    # -- over the network

    async def _rows(self) -> None:
        server = self.machine.server
        known = self.facts.tablets
        tablets = sorted(tablet for tablet in known if not (known[tablet].deleted or known[tablet].leaving))
        led = [tablet for tablet in tablets if tablet not in self.facts.groups and tablet in server.replicas]
        with contextlib.suppress(EblaError):  # those that do not lead say so when they are asked
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
            return  # a follower does not know what is committed
        lanes = self.facts.lanes_of(tablet)
        keys = sorted({key for lane in lanes for key in _keys(lane)})
        for start in range(0, len(keys), READ_KEYS):
            some = keys[start : start + READ_KEYS]
            names = [f"row {tablet} {key}" for key in some]
            with self._answer(*names):
                found = await get(self.machine, tablet, some)
                for name, key in zip(names, some, strict=True):
                    self._tell(name, found.get(key))
        with self._answer(f"scan {tablet}"):
            self._tell(f"scan {tablet}", await scan(self.machine, tablet))
        with self._answer(f"digest {tablet}"):
            self._tell(f"digest {tablet}", await self._digest(tablet))
        for lane in lanes:
            if lane.last is not None:
                name = f"answer {tablet} {lane.client.decode()}"
                with self._answer(name):
                    again = await write(self.machine, tablet, lane.last[0], tries_max=TRIES_MAX)
                    self._tell(name, again)

    async def _digest(self, tablet: str) -> tuple[int, str]:
        started = await self.machine.ask(SERVER, "checksum_start", m.ChecksumStart(tablet), m.ChecksumStarted)
        reply = await self.machine.ask(
            SERVER, "checksum", m.ChecksumQuery(tablet, started.index), m.ChecksumReply
        )
        return reply.rows, reply.digest

    async def _later(self, tablet: str) -> None:
        if tablet in self.facts.groups:
            await self._lead(self.facts.groups[tablet])
        for lane in self.facts.lanes_of(tablet):
            rng = random.Random(f"later/{lane.client.decode()}")
            batch = random_batch(rng, tablet, lane.client, lane.sequence + 1, lane.first_key)
            await write(self.machine, tablet, batch, tries_max=TRIES_MAX)
        await self.machine.ask(SERVER, "flush", m.FlushRequest(tablet), m.FlushReply)
        at_leader = tablet not in self.facts.groups
        self._tell(f"later {tablet}", await scan(self.machine, tablet, at_leader=at_leader))

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
    """Every key that the lane may have written, and some that it never did."""
    keys = [*range(lane.first_key, lane.first_key + LANE_KEYS), lane.first_key + LANE_KEYS - 1 - (1 << 40)]
    if any(key in lane.rows for key in bulk_keys(lane.first_key)):
        keys += bulk_keys(lane.first_key)
    return keys
