"""One of several masters: the active one, or a standby that follows it and takes over when it is gone.

    one at a time    nobody answers from a catalog unless it holds the lease at the journal nodes (journal/writer/holder.py)
    nothing lost     what the active one acknowledged is in the journal, and so in its successor's catalog
    exactly once     a repeated create or drop gets the first answer, from whoever is the active one by then
    patience         after a take-over no server counts as dead before a whole `unresponsive_s`

A life: follow the journal (standby.py); when the lease is free, or the predecessor says so, begin an epoch, recover, catch
up, start a segment; then serve (active_term.py) until the lease is lost; then follow again, from this directory's checkpoint. A
standby answers with NotActive, which names the active one if it is known. A heartbeat tells a standby who the server is,
so that old copies are recognised after a take-over, too.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.coordination.service import Coordination
from ebla.actors.coordination.verbs import CoordinationVerbs
from ebla.actors.errors import NotActive, NotRunning, OutcomeUnknown, Unavailable
from ebla.actors.figures import Figure
from ebla.actors.journal.errors import EditsGone, QuorumFailed
from ebla.actors.journal.writer.holder import Holder, lease_states
from ebla.actors.master.catalog import edit_log
from ebla.actors.master.catalog.directory import Directory, open_directory
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.leadership.active_term import Reign
from ebla.actors.master.leadership.standby import Standby
from ebla.actors.master.measures import measure_active, measure_lease, measure_standby
from ebla.actors.master.messages import (
    CheckpointChunk,
    CheckpointRequest,
    HandOverReply,
    HandOverRequest,
    JournalWriterStatus,
)
from ebla.actors.master.options import GroupOptions
from ebla.actors.master.repair.members import Members
from ebla.actors.master.repair.verbs import MembershipVerbs
from ebla.actors.master.server import Master
from ebla.actors.world import Role, Task, World, rpc
from ebla.storage.errors import EblaError, InvalidArgument

log = logging.getLogger(__name__)

Answer = TypeVar("Answer")

STANDBY = "standby"


class GroupMaster(CoordinationVerbs, MembershipVerbs, Role):
    directory: Directory
    standby: Standby

    def __init__(self, world: World, options: GroupOptions) -> None:
        self.world = world
        self.options = options
        options.validate()
        if world.address not in options.masters:
            raise InvalidArgument(f"{world.address} is none of the masters {', '.join(options.masters)}")
        self.reign: Reign | None = None
        self.active: str | None = None
        self._running = False
        self._following: Task | None = None

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self.directory = await open_directory(self.world)
        if self.directory.environment.count(edit_log.DATABASE):
            raise InvalidArgument(
                f"the directory of {self.world.address} has a catalog of its own, from when it was the only master; "
                "give a master of several an empty directory"
            )
        self.directory.heard.start()
        self._follow()
        self._running = True
        self.world.spawn(self._live(), "leading and following")

    async def stop(self) -> None:
        self._running = False
        if self.reign is not None:
            await self.reign.retire()

    def measure(self) -> Iterable[Figure]:
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")
        reign, standby = self.reign, self.standby
        if reign is None or not reign.serves():
            return measure_standby(standby.catalog, standby.txid, standby.checkpointed)
        held, nodes = reign.holder.holds(), reign.writer_status().nodes
        return chain(measure_active(reign.master), measure_lease(reign.holder.epoch, held, nodes))

    def _follow(self) -> None:
        self.standby = Standby(self.world, self.options, self.directory.checkpoints)
        self._go_on_following()

    def _go_on_following(self) -> None:
        self._following = self.world.spawn(self.standby.follow(), "following the journal")

    async def _live(self) -> None:
        while True:
            await self._turn()
            reign = await self._take_over()
            if reign is None:
                self._go_on_following()
                continue
            why = await reign.over()
            log.warning("%s is the active master no more: %s", self.world.address, why)
            self.reign = None
            self._follow()

    # -- taking over -----------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Returns when this master should try: nobody holds the lease, or its holder has left it to this one."""
        while True:
            jitter = self.world.random.uniform(0.5, 1.5)  # so that two do not move in step
            await self.world.clock.sleep(self.options.look_s * jitter)
            try:
                states = await lease_states(self.world, self.options.journal, self.options.rpc_timeout_s)
            except QuorumFailed:
                continue
            latest = max(states.values(), key=lambda state: state.epoch)
            free = all(state.is_free(self.world.address) for state in states.values())
            self.active = None if free else latest.holder
            if free and self.standby.caught_up and self._running:
                return

    async def _take_over(self) -> Reign | None:
        """A reign, or None if it could not be begun now."""
        assert self._following is not None
        self._following.cancel()
        holder = Holder(self.world, self.options.journal, self.options.lease)
        edits = QuorumEditLog(self.world, self.options.journal, holder)
        self.world.spawn(self._bound(holder, edits), "bounds of a reign")
        await self.world.faults.here("master.take_over.before_epoch")
        try:
            found = await edits.recover(self.standby.position)
        except (QuorumFailed, Unavailable, EditsGone) as error:
            log.info("%s could not take over: %s", self.world.address, error)
            self.standby.caught_up = False  # it tries again when it has read on
            await holder.release()
            return None
        await self.world.faults.here("master.take_over.after_epoch")
        self.standby.catalog.apply(found)
        self.standby.catalog.check()
        log.warning("%s is the active master from epoch %d on", self.world.address, holder.epoch)
        reign = Reign(self.world, self.options, holder, edits, self.standby)
        await reign.begin(self.directory)
        self.reign = reign
        self.active = self.world.address
        return reign

    async def _bound(self, holder: Holder, edits: QuorumEditLog) -> None:
        """A recovery waits for nobody when its lease was not won in time, or is lost."""
        await self.world.clock.sleep(self.options.lease.held_s)
        if holder.epoch:
            await holder.ended()
        edits.writer.close()

    # -- answering -------------------------------------------------------------------------------------------

    async def _serve(self, act: Callable[[Master], Awaitable[Answer]]) -> Answer:
        """Also a refusal is an answer: whatever came out counts only if nobody else can have begun meanwhile."""
        reign = self._serving()
        try:
            answer = await act(reign.master)
        except EblaError:
            self._require(reign)
            raise
        self._require(reign)
        return answer

    def _serving(self) -> Reign:
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")
        if self.reign is None:
            raise self._not_active("is a standby")
        self._require(self.reign)
        return self.reign

    def _require(self, reign: Reign) -> None:
        if not reign.serves():
            raise self._not_active("is not sure to be the active master any more")

    def _not_active(self, what: str) -> NotActive:
        active = self.active if self.active != self.world.address else None
        return NotActive(f"{self.world.address} {what}; ask {active or 'another master'}", active=active)

    @rpc
    async def create_table(self, request: m.CreateTableRequest) -> m.TableInfo:
        return await self._serve(lambda master: master.create_table(request))

    @rpc
    async def alter_table(self, request: m.AlterTableRequest) -> m.TableInfo:
        return await self._serve(lambda master: master.alter_table(request))

    @rpc
    async def drop_table(self, request: m.DropTableRequest) -> m.Empty:
        return await self._serve(lambda master: master.drop_table(request))

    @rpc
    async def recall_table(self, request: m.RecallTableRequest) -> m.TableInfo:
        return await self._serve(lambda master: master.recall_table(request))

    @rpc
    async def get_table(self, request: m.TableName) -> m.TableInfo:
        return await self._serve(lambda master: master.get_table(request))

    @rpc
    async def list_tables(self, request: m.ListTablesRequest) -> m.ListTablesReply:
        return await self._serve(lambda master: master.list_tables(request))

    @rpc
    async def get_tablet(self, request: m.TabletRequest) -> m.TabletLocation:
        return await self._serve(lambda master: master.get_tablet(request))

    @rpc
    async def list_servers(self, request: m.Empty) -> m.ListServersReply:
        return await self._serve(lambda master: master.list_servers(request))

    async def _coordinate(self, act: Callable[[Coordination], Awaitable[Answer]]) -> Answer:
        return await self._serve(lambda master: act(master.coordination))

    async def _govern(self, act: Callable[[Members], Awaitable[Answer]]) -> Answer:
        return await self._serve(lambda master: act(master.members))

    @rpc
    async def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        if self._running and self.reign is None:
            self.directory.heard.meet(request.instance)
        return await self._serve(lambda master: master.heartbeat(request))

    @rpc
    async def status(self, request: m.Empty) -> m.MasterStatus:
        """Of the active one, or of a standby."""
        reign = self.reign
        if reign is not None and reign.serves():
            told = await self._serve(lambda master: master.status(request))
            return replace(
                told,
                active=self.world.address,
                epoch=reign.holder.epoch,
                checkpointed=reign.master.scribe.checkpointed,
                masters=self.options.masters,
                journals=self.options.journal.nodes,
            )
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")
        catalog = self.standby.catalog
        return m.MasterStatus(
            instance=self.directory.instance,
            address=self.world.address,
            tables=len(catalog.names),
            tablets=len(catalog.tablets) - len(catalog.ended),
            tablets_not_running=len(catalog.preparing) + len(catalog.creating),
            edits=self.standby.txid,
            tablets_ending=len(catalog.ended),
            role=STANDBY,
            active=self.active,
            checkpointed=self.standby.checkpointed,
            masters=self.options.masters,
            journals=self.options.journal.nodes,
            tables_kept=len(catalog.kept),
            caught_up=self.standby.caught_up and not self.standby.read_error,
            read_error=self.standby.read_error,
        )

    @rpc
    async def journal_writer(self, request: m.Empty) -> JournalWriterStatus:
        """The journal's nodes as the active master sees them."""
        reign = self._serving()
        return reign.writer_status()

    # -- between masters -------------------------------------------------------------------------------------

    @rpc
    async def hand_over(self, request: HandOverRequest) -> HandOverReply:
        """Nothing has changed if this raises before the successor was asked. When it answers, the successor serves."""
        reign = self._serving()
        successor = await self._successor(request.to, reign.writer_status().committed)
        self._require(reign)
        log.warning("%s hands over to %s", self.world.address, successor)
        self.active = successor
        await reign.retire(successor)
        timeout_s = self.options.hand_over_s + self.options.rpc_timeout_s  # its own sentence comes first
        return await self.world.network.call(successor, "await_reign", m.Empty(), HandOverReply, timeout_s)

    async def _successor(self, wanted: str | None, edits: int) -> str:
        """Who knows most of those that have followed so far, which is waited for a little: one that cannot read the
        journal could not take over."""
        others = [master for master in self.options.masters if master != self.world.address]
        if wanted is not None and wanted not in others:
            raise InvalidArgument(f"{wanted} is none of the standbys {', '.join(others)}; name one of them")
        clock = self.world.clock
        until = clock.monotonic() + self.options.rpc_timeout_s
        while True:
            known = await self._standbys(others if wanted is None else [wanted])
            able = [each for each in known if each.caught_up and each.edits >= edits]
            if able:
                return max(able, key=lambda each: each.edits).address
            if not known:
                raise Unavailable(f"{wanted or 'no standby'} answers; start it, then hand over")
            if clock.monotonic() >= until:
                told = [
                    f"{each.address} has read {each.edits} of {edits} edits"
                    + (f" ({each.read_error})" if each.read_error else "")
                    for each in known
                ]
                raise Unavailable(
                    f"{f'{wanted} could not' if wanted else 'no standby could'} take over now: {'; '.join(told)}; see that "
                    "it reaches the journal nodes, then hand over"
                )
            await clock.sleep(self.options.look_s)

    async def _standbys(self, masters: Sequence[str]) -> list[m.MasterStatus]:
        """Of those that answer."""
        found: list[m.MasterStatus] = []
        for master in masters:
            try:
                status = await self.world.network.call(
                    master, "status", m.Empty(), m.MasterStatus, self.options.rpc_timeout_s
                )
            except EblaError as error:
                log.info("%s is no successor: %s", master, error)
            else:
                found.append(status)
        return found

    @rpc
    async def await_reign(self, request: m.Empty) -> HandOverReply:
        """Answers when this master serves."""
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")
        clock = self.world.clock
        until = clock.monotonic() + self.options.hand_over_s
        while self.reign is None or not self.reign.serves():
            if clock.monotonic() >= until:
                raise OutcomeUnknown(
                    f"{self.world.address} has not taken over within {self.options.hand_over_s:g} s, and may yet; see the log of it",
                    address=self.world.address,
                )
            await clock.sleep(self.options.look_s / 4)
        return HandOverReply(self.world.address)

    @rpc
    async def read_checkpoint(self, request: CheckpointRequest) -> CheckpointChunk:
        """For a master that was away for so long that the edits it lacks are gone."""
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")
        return self.directory.checkpoints.chunk(request.chunk)
