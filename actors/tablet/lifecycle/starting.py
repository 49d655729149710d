"""The start of a tablet server's replicas: first the facts about all of them, then the rows of one after another.

read   superblocks name the replicas; interrupted transitions are completed:

           ready      is loaded
           deleted    becomes a tombstone; its data moves to quarantine, if it has not yet
           copying    becomes a tombstone again, which votes with the state that the replica had before
           deleting   is deleted completely
           failed     is failed

       A full disk postpones these writes: a server that starts with a full disk serves the replicas that it has
load   each alone; a damaged one starts as failed, and so does one whose schema this version cannot use. First those
       that clients wait for, then the last written. A disk that is full, or hangs, delays the replicas on it

The server serves the replicas that are loaded, while it loads the others. It trims no shared log, reports to no master, and changes
no set of replicas before all are loaded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from ebla.actors import errors
from ebla.actors import messages as m
from ebla.actors.tablet.engine.records import Superblock
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.engine.space import postponed
from ebla.actors.tablet.lifecycle import bootstrap
from ebla.actors.tablet.lifecycle.bootstrap import Unloaded
from ebla.actors.tablet.lifecycle.failed import Broken
from ebla.actors.tablet.lifecycle.lifecycle import Lifecycle
from ebla.actors.tablet.lifecycle.tombstones import MARKED
from ebla.actors.world import World
from ebla.storage.errors import Corruption, Damaged, DiskFull, EblaError, InvalidArgument, TooManyFiles
from ebla.storage.tablets import tablet_store

RETRY_S = 1.0  # after a full disk, or too many open files


@dataclass(eq=False)
class Starting:
    world: World
    lifecycle: Lifecycle
    _wanted: dict[str, None] = field(default_factory=dict)  # replicas that clients wait for

    def require_loaded(self, tablet: str) -> None:
        """Raise NotRunning if the replica is not loaded yet, and load it as the next one of its disk."""
        if tablet in self.lifecycle.unloaded:
            self._wanted[tablet] = None
            self.world.faults.reached("tablet.start.wanted")
            raise errors.NotRunning(
                f"{self.world.address} loads tablet {tablet}; try again", tablet=tablet, state="starting"
            )

    async def read(self) -> None:
        """Find all replicas, and read the entries of each in both logs."""
        lifecycle, ready = self.lifecycle, list[Superblock]()
        for name, superblock in lifecycle.superblocks.all():
            if isinstance(superblock, Corruption):
                self._break(name, superblock)
            elif superblock.state == "deleting":
                with postponed():
                    await lifecycle.remove(name)
            elif superblock.state == "failed":
                self._break(name, Damaged(superblock.reason))
            elif superblock.state in (m.DELETED, m.COPYING):
                await self._read_tombstone(superblock)
            else:
                ready.append(superblock)
        with postponed():
            tombstones = lifecycle.tombstones.values()
            await lifecycle.quarantine.keep_only(dict.fromkeys(t.superblock.quarantine for t in tombstones))
        await self._read_logs(ready)

    async def _read_logs(self, ready: Iterable[Superblock]) -> None:
        tails: dict[str, bootstrap.Tail] = {}
        unloaded: list[Unloaded] = []
        for block in ready:
            tail = bootstrap.Tail(block.tablet, block.since_seq)
            try:
                private = await bootstrap.open_private(self.world.disk, tail)
            except (Corruption, Damaged) as error:
                self._break(block.tablet, error)
            else:
                tails[block.tablet] = tail
                unloaded.append(Unloaded(block, private, tail))
        bootstrap.gather(self.lifecycle.shared.recover(), tails)
        unloaded.sort(key=lambda each: each.tail.last_seq(), reverse=True)
        self.lifecycle.unloaded = {each.superblock.tablet: each for each in unloaded}

    async def _read_tombstone(self, superblock: Superblock) -> None:
        lifecycle, tablet = self.lifecycle, superblock.tablet
        try:
            consensus = lifecycle.consensus.get(tablet)
        except Corruption as error:
            self._break(tablet, error)
            return
        if superblock.state == m.COPYING:
            superblock = msgspec.structs.replace(superblock, state=m.DELETED)
            await self.world.faults.here("tablet.start.before_undo")
            with postponed():
                await lifecycle.superblocks.save(tablet, superblock)
        tombstone = lifecycle.tombstones[tablet] = lifecycle.tombstone(superblock, consensus, consensus)
        tombstone.move(MARKED)
        with postponed():
            await lifecycle.finish(tombstone)

    def _break(self, tablet: str, error: EblaError) -> None:
        consensus = self.lifecycle.consensus_of(tablet)
        known = consensus.configuration if consensus else None
        self.lifecycle.broken[tablet] = Broken(tablet, str(error), known, forgetful=consensus is None)

    async def load(self) -> None:
        """Load all replicas that were found, those of different disks beside each other."""
        disks: dict[str, dict[str, None]] = {}
        for tablet in self.lifecycle.unloaded:
            place = self.world.disk.place_of(tablet_store.path_of(tablet))
            disks.setdefault(place, {})[tablet] = None
        await asyncio.gather(*map(self._load_disk, disks.values()))
        assert not self.lifecycle.unloaded, ("all are loaded", list(self.lifecycle.unloaded))
        self._wanted.clear()

    async def _load_disk(self, tablets: dict[str, None]) -> None:
        while tablets:
            tablet = next((wanted for wanted in self._wanted if wanted in tablets), None)
            tablet = next(iter(tablets)) if tablet is None else tablet
            self._wanted.pop(tablet, None)
            del tablets[tablet]
            unloaded = self.lifecycle.unloaded[tablet]
            try:
                replica = await self._load(unloaded)
            except (Corruption, Damaged, InvalidArgument) as error:
                if unloaded.private is not None:
                    await unloaded.private.environment.close()
                del self.lifecycle.unloaded[tablet]
                self._break(tablet, error)
            except (DiskFull, TooManyFiles):
                tablets[tablet] = None
                await self.world.clock.sleep(RETRY_S)
            else:
                del self.lifecycle.unloaded[tablet]
                self.lifecycle.add(replica)

    async def _load(self, unloaded: Unloaded) -> Replica:
        superblock, private = unloaded.superblock, unloaded.private
        tablet = superblock.tablet
        consensus = self.lifecycle.consensus.get(tablet)
        if consensus is None:
            raise Damaged(f"the consensus metadata of tablet {tablet} is missing: its votes are forgotten")
        superblock = await self._match(superblock, private)
        parts = await self.lifecycle.put_together(superblock, private, unloaded.tail)
        return self.lifecycle.replica(superblock, consensus, parts)

    async def _match(self, superblock: Superblock, private: object | None) -> Superblock:
        """Compare the superblock with the private log. Raises Damaged if that log is missing: it
        held acknowledged entries."""
        if private is None and superblock.private_log:
            raise Damaged(f"the log of tablet {superblock.tablet} is gone; rebuild the replica from a peer")
        if private is None or superblock.private_log:
            return superblock
        noted = msgspec.structs.replace(superblock, private_log=True)
        with postponed():  # the creation of the private log was interrupted
            await self.lifecycle.superblocks.save(superblock.tablet, noted)
        return noted
