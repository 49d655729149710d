"""A master: the active one, or a standby that follows it and takes over when it is gone.

A deployment may have a single master.

    one at a time    a master answers from its catalog only while it holds the lease at the journal nodes
                     (journal/writer/holder.py)
    nothing lost     each change that the active master acknowledged is in the journal, and so in its
                     successor's catalog
    exactly once     a repeated create or drop gets the first answer, also from a later active master
    patience         after a take-over no server counts as dead before a whole `unresponsive_s`

A master follows the journal (standby.py). When the lease is free, or the predecessor hands over to it, it
begins an epoch, recovers, catches up and starts a segment. Then it serves (active_term.py) until the lease
is lost. Then it follows again, from its directory's checkpoint. A standby answers with NotActive, which
names the active master if it is known. A standby notes the incarnation in each heartbeat, so that old
copies are also recognised after a take-over.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from itertools import chain
from typing import Any

from msgspec.structs import replace

from ebla.actors import messages as m
from ebla.actors.asking.ends import report_ends
from ebla.actors.errors import NotActive, NotRunning, OutcomeUnknown, Unavailable
from ebla.actors.figures import Figure
from ebla.actors.journal.errors import EditsGone, NodesMoved, QuorumFailed
from ebla.actors.journal.node.node import JournalNode
from ebla.actors.journal.options import JournalNodeOptions
from ebla.actors.journal.writer.holder import Holder, lease_states
from ebla.actors.master.catalog.directory import Directory, open_directory
from ebla.actors.master.catalog.invariants import require_sound
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.master.leadership.active_term import ActiveTerm, statuses_of
from ebla.actors.master.leadership.growth import grow
from ebla.actors.master.leadership.standby import Standby
from ebla.actors.master.measures import measure_active, measure_lease, measure_standby
from ebla.actors.master.messages import (
    CheckpointChunk,
    CheckpointRequest,
    GrowJournalReply,
    GrowJournalRequest,
    HandOverReply,
    HandOverRequest,
    JournalWriterStatus,
)
from ebla.actors.master.options import GroupOptions
from ebla.actors.master.server import ActiveMaster, status_of
from ebla.actors.world import Dispatcher, NearNetwork, Role, Task, World, methods, rpc
from ebla.storage.errors import DiskFull, EblaError, InvalidArgument

log = logging.getLogger(__name__)

STANDBY = "standby"


class Master(Role):
    """A master, active or standby. `node`: the journal node that this process hosts, if there is one."""

    parts = (JournalNode, ActiveMaster)
    directory: Directory
    standby: Standby

    def __init__(self, world: World, options: GroupOptions) -> None:
        self.options = options
        options.validate()
        if world.address not in options.masters:
            raise InvalidArgument(f"{world.address} is not one of the masters {', '.join(options.masters)}")
        self.node: JournalNode | None = None
        if world.address in options.journal.nodes:
            self.node = self.make_node(world, options.node)
            near = Dispatcher(self.node, lambda method, error: world.fail(error))
            world = dataclasses.replace(world, network=NearNetwork(world, near))
        self.world = world
        self.active_term: ActiveTerm | None = None
        self.active: str | None = None
        self._running = False
        self._grows = False
        self._following: Task | None = None

    def make_node(self, world: World, options: JournalNodeOptions) -> JournalNode:
        return JournalNode(world, options, in_master=self._is_single)

    # -- life ------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start as a standby. A master with the whole journal in its directory serves when this returns.

        No other master can have held the lease since it stopped, because there is none.
        """
        self.directory = await open_directory(self.world, accepts=bool(self.options.master.accepts))
        if self.node is not None:
            await self.node.begin(self.directory.instance)
        self.directory.incarnations.start()
        self._make_standby()
        if self._has_whole_journal():
            await self._take_over(at_start=True)
        else:
            self._go_on_following()
        self._running = True
        self.world.spawn(self._live(), "leading and following")
        self.world.spawn(report_ends(self.world, self.options.masters), "ends of neighbours")

    @property
    def _is_single(self) -> bool:
        return len(self.options.masters) == 1

    def _has_whole_journal(self) -> bool:
        journal = self.options.journal
        if self.node is None or journal.nodes != (self.world.address,) or not self._is_single:
            return False
        if (failed := self.node.failed.get(journal.journal.name)) is not None:
            raise failed
        here = self.node.journals.get(journal.journal.name)
        return here is not None and here.form.journal == journal.journal

    async def stop(self) -> None:
        self._running = False
        if self.active_term is not None:
            await self.active_term.retire()
        if self.node is not None:
            await self.node.stop()

    async def perform(self, method: str, request: Any) -> Any:
        """Carry out a call of this class, of the journal node here, or of the active master."""
        if method in _OWN:
            return await getattr(self, method)(request)
        if method not in _OF_NODE:
            return await self._serve(method, request)
        if self.node is None:
            raise InvalidArgument(f"{self.world.address} hosts no journal node")
        return await getattr(self.node, method)(request)

    def measure(self) -> Iterable[Figure]:
        self._require_running()
        of_node = () if self.node is None else self.node.measure()
        active_term, standby = self.active_term, self.standby
        if active_term is None or not active_term.serves():
            return chain(measure_standby(standby.catalog, standby.txid, standby.checkpointed), of_node)
        held, nodes = active_term.holder.holds(), active_term.writer_status().nodes
        return chain(
            measure_active(active_term.master), measure_lease(active_term.holder.epoch, held, nodes), of_node
        )

    def _make_standby(self) -> None:
        self.standby = Standby(self.world, self.options, self.directory.checkpoints)

    def _follow(self) -> None:
        self._make_standby()
        self._go_on_following()

    def _go_on_following(self) -> None:
        self._following = self.world.spawn(self.standby.follow(), "following the journal")

    async def _live(self) -> None:
        while True:
            if self.active_term is None:
                await self._turn()
                await self._take_over()
                continue
            why = await self.active_term.over()
            log.warning("%s is no longer the active master: %s", self.world.address, why)
            self.active_term = None
            self._follow()

    # -- taking over -----------------------------------------------------------------------------------------

    async def _turn(self) -> None:
        """Wait until this master should take over: the lease is free, or was released to this master."""
        while True:
            jitter = self.world.random.uniform(0.5, 1.5)  # so that two masters do not try at the same time
            await self.world.clock.sleep(self.options.look_s * jitter)
            try:
                states = await lease_states(self.world, self.options.journal, self.options.rpc_timeout_s)
            except QuorumFailed:
                continue
            except NodesMoved as moved:
                self._know_nodes(moved)
                continue
            latest = max(states.values(), key=lambda state: state.epoch)
            free = all(state.is_free(self.world.address) for state in states.values())
            self.active = None if free else latest.holder
            if free and self.standby.caught_up and self._running:
                return

    def _know_nodes(self, moved: NodesMoved) -> None:
        """Follow the journal at its new nodes."""
        assert moved.version is not None and moved.nodes is not None
        log.warning("%s: %s", self.world.address, moved)
        journal = self.options.journal
        if moved.version <= journal.journal.version:
            return
        known = replace(
            journal, journal=replace(journal.journal, version=moved.version), nodes=tuple(moved.nodes)
        )
        self.options = replace(self.options, journal=known)
        if self._following is not None:
            self._following.cancel()
        self._follow()

    async def _take_over(self, *, at_start: bool = False) -> None:
        """Begin an active term; if that fails, follow the journal again.

        `at_start`: raise DiskFull and EditsGone, which keep this master from serving.
        """
        if self._following is not None:
            self._following.cancel()
        holder = Holder(self.world, self.options.journal, self.options.lease)
        edits = QuorumEditLog(self.world, self.options.journal, holder)
        self.world.spawn(self._bound(holder, edits), "bounds of an active term")
        await self.world.faults.here("master.take_over.before_epoch")
        try:
            found = await edits.recover(self.standby.position)
        except (QuorumFailed, Unavailable, EditsGone, NodesMoved, DiskFull) as error:
            log.info("%s could not take over: %s", self.world.address, error)
            self.standby.caught_up = False  # the next try is after it has caught up again
            await holder.release()
            if at_start and isinstance(error, DiskFull | EditsGone):
                raise
            self._go_on_following()
            return
        await self.world.faults.here("master.take_over.after_epoch")
        self.standby.catalog.apply(found)
        require_sound(self.standby.catalog)
        log.warning("%s is the active master from epoch %d on", self.world.address, holder.epoch)
        active_term = ActiveTerm(self.world, self.options, self.directory, holder, edits, self.standby)
        await active_term.begin()
        self.active_term = active_term
        self.active = self.world.address

    async def _bound(self, holder: Holder, edits: QuorumEditLog) -> None:
        """Close the writer when its lease was not won in time or is lost, which also ends its recovery."""
        await self.world.clock.sleep(self.options.lease.held_s)
        if holder.epoch:
            await holder.ended()
        edits.writer.close()

    # -- answering -------------------------------------------------------------------------------------------

    async def _serve(self, method: str, request: Any) -> Any:
        """Answer a request. An answer, also a refusal, counts only if no other master can have begun."""
        active_term = self._serving()
        try:
            answer = await active_term.master.perform(method, request)
        except EblaError:
            self._require(active_term)
            raise
        self._require(active_term)
        return answer

    def _serving(self) -> ActiveTerm:
        self._require_running()
        if self.active_term is None:
            raise self._not_active("is a standby")
        self._require(self.active_term)
        return self.active_term

    def _require_running(self) -> None:
        if not self._running:
            raise NotRunning(f"{self.world.address} is starting or stopping", state="starting")

    def _require(self, active_term: ActiveTerm) -> None:
        if not active_term.serves():
            raise self._not_active("no longer knows that it is the active master")

    def _not_active(self, what: str) -> NotActive:
        active = self.active if self.active != self.world.address else None
        return NotActive(f"{self.world.address} {what}; ask {active or 'another master'}", active=active)

    @rpc
    async def heartbeat(self, request: m.HeartbeatRequest) -> m.HeartbeatReply:
        if self._running and self.active_term is None:
            self.directory.incarnations.meet(request.instance)
        reply: m.HeartbeatReply = await self._serve("heartbeat", request)
        return reply

    @rpc
    async def status(self, request: m.Empty) -> m.MasterStatus:
        """Return the status of this master, active or standby."""
        self._require_running()
        disks = tuple(await self.world.disk.space())
        active_term = self.active_term
        if active_term is not None and active_term.serves():
            status: m.MasterStatus = await self._serve("status", request)
            return replace(
                status,
                active=self.world.address,
                epoch=active_term.holder.epoch,
                checkpointed=active_term.master.scribe.checkpointed,
                masters=self.options.masters,
                journals=self.options.journal.nodes,
                disks=disks,
            )
        self._require_running()
        return status_of(
            self.standby.catalog,
            instance=self.directory.instance,
            address=self.world.address,
            edits=self.standby.txid,
            role=STANDBY,
            active=self.active,
            checkpointed=self.standby.checkpointed,
            masters=self.options.masters,
            journals=self.options.journal.nodes,
            caught_up=self.standby.caught_up and not self.standby.read_error,
            read_error=self.standby.read_error,
            disks=disks,
        )

    @rpc
    async def journal_writer(self, request: m.Empty) -> JournalWriterStatus:
        """Return the state of the active master's writer, with its lag at each journal node."""
        active_term = self._serving()
        return active_term.writer_status()

    # -- between masters -------------------------------------------------------------------------------------

    @rpc
    async def hand_over(self, request: HandOverRequest) -> HandOverReply:
        """Hand over to a standby. When this answers, the successor serves.

        If this raises before the successor was called, nothing has changed.
        """
        active_term = self._serving()
        successor = await self._successor(request.to, active_term.writer_status().committed)
        self._require(active_term)
        log.warning("%s hands over to %s", self.world.address, successor)
        self.active = successor
        await active_term.retire(successor)
        timeout_s = self.options.hand_over_s + self.options.rpc_timeout_s  # the successor's error comes first
        return await self.world.network.call(
            successor, "await_active_term", m.Empty(), HandOverReply, timeout_s
        )

    async def _successor(self, wanted: str | None, edits: int) -> str:
        """Choose the standby with the most edits among those that have caught up to `edits`.

        Wait a little for such a standby: one that cannot read the journal could not take over.
        """
        others = [master for master in self.options.masters if master != self.world.address]
        if wanted is not None and wanted not in others:
            raise InvalidArgument(
                f"{wanted} is not one of the standbys {', '.join(others)}; name one of them"
            )
        clock = self.world.clock
        until = clock.monotonic() + self.options.rpc_timeout_s
        while True:
            known = await statuses_of(self.world, [wanted] if wanted else others, self.options.rpc_timeout_s)
            able = [each for each in known if each.caught_up and each.edits >= edits]
            if able:
                return max(able, key=lambda each: each.edits).address
            if not known:
                raise Unavailable(f"{wanted or 'no standby'} answers; start it, then hand over")
            if clock.monotonic() >= until:
                progress = [
                    f"{each.address} has read {each.edits} of {edits} edits"
                    + (f" ({each.read_error})" if each.read_error else "")
                    for each in known
                ]
                raise Unavailable(
                    f"{f'{wanted} could not' if wanted else 'no standby could'} take over now: {'; '.join(progress)}; check that "
                    "it reaches the journal nodes, then hand over"
                )
            await clock.sleep(self.options.look_s)

    @rpc
    async def grow_journal(self, request: GrowJournalRequest) -> GrowJournalReply:
        """Grow the journal from its only node, in this process, to several.

        Answers when this master serves with these nodes; repeat the request until then.
        """
        active_term = self._serving()
        if self.options.journal.nodes != request.nodes:
            if self._grows:
                raise Unavailable(f"{self.world.address} already grows its journal; ask again")
            self._grows = True
            try:
                await grow(self.world, self.options, active_term, request.nodes)
            finally:
                self._grows = False
        await self.await_active_term(m.Empty())
        if self.options.journal.nodes != request.nodes:
            raise Unavailable(
                f"the journal still has the nodes {', '.join(self.options.journal.nodes)}; ask again"
            )
        return GrowJournalReply(self.options.journal.nodes)

    @rpc
    async def await_active_term(self, request: m.Empty) -> HandOverReply:
        """Wait until this master serves."""
        self._require_running()
        clock = self.world.clock
        until = clock.monotonic() + self.options.hand_over_s
        while self.active_term is None or not self.active_term.serves():
            if clock.monotonic() >= until:
                raise OutcomeUnknown(
                    f"{self.world.address} has not taken over within {self.options.hand_over_s:g} s and may do so later; see its log",
                    address=self.world.address,
                )
            await clock.sleep(self.options.look_s / 4)
        return HandOverReply(self.world.address)

    @rpc
    async def read_checkpoint(self, request: CheckpointRequest) -> CheckpointChunk:
        """Send a chunk of the checkpoint to a master that was away so long that its next edits are gone."""
        self._require_running()
        return self.directory.checkpoints.chunk(request.chunk)


_OWN = {name for name in methods(Master) if name in vars(Master) or name in vars(Role)}
_OF_NODE = set(methods(JournalNode))
assert not (_OF_NODE & set(methods(ActiveMaster))) - _OWN, "two parts answer to one name"
