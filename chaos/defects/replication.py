"""What planted defects swap in the production classes: each a known way to get a replicated database wrong.

chaos/defects/planted.py names them and says which scenario finds them.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from ebla.actors import errors, incarnations
from ebla.actors.coordination import paths, requests
from ebla.actors.coordination.edits import NodeSet, SessionEnded
from ebla.actors.coordination.messages import Create, Result
from ebla.actors.coordination.namespace import Namespace
from ebla.actors.coordination.timers import Timers
from ebla.actors.journal.node import rules
from ebla.actors.journal.writer.holder import Holder
from ebla.actors.master.catalog import edit_log
from ebla.actors.master.catalog.edit_log import LocalEditLog
from ebla.actors.master.catalog.edits import encode as encode_edits
from ebla.actors.master.catalog.quorum_edit_log import QuorumEditLog
from ebla.actors.messages import ReadIndexReply, TabletRequest
from ebla.actors.messages.raft import AppendReply, AppendRequest, HardState, TimeoutNow
from ebla.actors.tablet.engine import identity
from ebla.actors.tablet.engine.apply import Rows
from ebla.actors.tablet.engine.core import Send
from ebla.actors.tablet.engine.log import TabletLog
from ebla.actors.tablet.engine.log_index import LogIndex
from ebla.actors.tablet.engine.replica import Replica
from ebla.actors.tablet.raft import core as raft_core
from ebla.actors.tablet.raft import election
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.election import ElectionTimer
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.raft.matching import Agreement, Disagreement, compare
from ebla.actors.tablet.raft.progress import Progress, majority_least
from ebla.actors.tablet.raft.state import RaftState
from ebla.actors.tablet.server import TabletServer
from ebla.actors.world import rpc
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.coordination import locks
from ebla.storage.environment import Put
from ebla.storage.rows import checksum
from ebla.storage.tablets import tablet_store
from ebla.storage.tablets.results import Results
from ebla.storage.tablets.tablet_store import TabletSnapshot, TabletStore

Swap = tuple[Any, str, Any]  # where, which name, what instead


# -- consensus -----------------------------------------------------------------------------------------------


def acknowledge_before_commit() -> list[Swap]:
    def replicated_index(self: Leadership, own_durable: int) -> int:
        return own_durable

    return [(Leadership, "replicated_index", replicated_index)]


def count_a_follower_twice() -> list[Swap]:
    def replicated_index(self: Leadership, own_durable: int) -> int:
        held = [own_durable if uuid == self.me else self.peers[uuid].match for uuid in self._voters]
        best = sorted(held)[-1]
        return int(majority_least([*sorted(held)[1:], best], self._majority))

    return [(Leadership, "replicated_index", replicated_index)]


def commit_an_older_term_by_counting() -> list[Swap]:
    def advance(self: RaftCore) -> None:
        if self._lead is not None:
            self._commit_to(max(self.commit_index, self._lead.replicated_index(self.durable_index)))

    return [(RaftCore, "_advance_commit", advance)]


def commit_what_was_not_compared() -> list[Swap]:
    honest = RaftCore._receive_append

    def receive(self: RaftCore, request: AppendRequest) -> Any:
        outcome = honest(self, request)
        if not isinstance(outcome, AppendReply):
            self._commit_to(max(self.commit_index, min(request.commit_index, self.log.last_index)))
        return outcome

    return [(RaftCore, "_receive_append", receive)]


def forget_the_vote() -> list[Swap]:
    honest = RaftState.__init__

    def begin(self: RaftState, tablet: str, me: str, hard_state: HardState, *rest: Any, **more: Any) -> None:
        honest(self, tablet, me, HardState(hard_state.term), *rest, **more)

    return [(RaftState, "__init__", begin)]


def vote_before_it_is_durable() -> list[Swap]:
    def durable(self: Replica) -> None:
        return None

    return [(Replica, "hard_state_durable", durable)]


def acknowledge_before_the_sync() -> list[Swap]:
    def durable(self: Replica, index: int) -> None:
        return None

    def answer(self: RaftCore, pending: Any) -> AppendReply:
        if pending.term != self.term:
            return self._refuse_append(hint=0)
        return self._append_reply(True, pending.until, pending.until)

    return [(Replica, "entries_durable", durable), (RaftCore, "answer", answer)]


def vote_for_an_older_log() -> list[Swap]:
    honest = election.judge

    def judge(*arguments: Any, **more: Any) -> str:
        reason = honest(*arguments, **more)
        return election.GRANTED if reason == election.LOG_BEHIND else reason

    return [(election, "judge", judge)]


def vote_twice() -> list[Swap]:
    honest = election.judge

    def judge(request: Any, state: HardState, log: LogIndex, *, leader_alive: bool) -> str:
        return honest(request, HardState(state.term), log, leader_alive=leader_alive)

    return [(election, "judge", judge)]


def truncate_without_a_conflict() -> list[Swap]:
    def careless(log: LogIndex, commit_index: int, request: AppendRequest) -> Agreement | Disagreement:
        outcome = compare(log, commit_index, request)
        after = request.previous_index + len(request.entries) + 1
        if isinstance(outcome, Disagreement) or outcome.first_new is not None or not request.entries:
            return outcome
        if log.dropped_index < after - 1 < log.last_index:
            return Agreement(outcome.until, after - 1, after - 1)
        return outcome

    return [(raft_core, "compare", careless)]


def believe_an_old_notice_of_durability() -> list[Swap]:
    def durable(self: RaftCore, index: int, term: int, log_epoch: int | None = None) -> None:
        if self.durable_index < index <= self.log.last_index:
            self.durable_index = index
            self._advance_commit()

    return [(RaftCore, "durable", durable)]


def vote_right_after_a_restart() -> list[Swap]:
    honest = vars(ElectionTimer)["__init__"]

    def forgetful(self: ElectionTimer, limits: Any, random: Any, now: float, **which: bool) -> None:
        honest(self, limits, random, now, **which)
        self.withheld_until = now

    return [(ElectionTimer, "__init__", forgetful)]


# -- reads ---------------------------------------------------------------------------------------------------


def ignore_the_lease() -> list[Swap]:
    def read_index(self: RaftCore, now: float) -> int:
        if self._lead is None:
            raise self._not_leader("serves no linearizable reads", leader=self.leader)
        return self.commit_index

    return [(RaftCore, "read_index", read_index)]


def read_before_the_own_term_commits() -> list[Swap]:
    def read_index(self: RaftCore, now: float) -> int:
        self._pass_time(now)
        lead = self._lead
        if lead is None:
            raise self._not_leader("serves no linearizable reads", leader=self.leader)
        if now >= lead.lease_until(now):
            raise errors.Unavailable("no lease")
        return self.commit_index

    return [(RaftCore, "read_index", read_index)]


def tell_local_readers_no_index() -> list[Swap]:
    honest = TabletServer.read_index

    async def read_index(self: TabletServer, request: TabletRequest) -> ReadIndexReply:
        return replace(await honest(self, request), index=0)

    del read_index.__annotations__["self"]  # what is left names request and answer
    return [(TabletServer, "read_index", rpc(read_index))]


def count_the_lease_from_the_answer() -> list[Swap]:
    honest = Progress.answered

    def answered(self: Progress, now: float, sent_at: float, plan: Any, answer: AppendReply) -> None:
        honest(self, now, now, plan, answer)

    return [(Progress, "answered", answered)]


def trust_the_lease_as_long_as_votes_are_withheld() -> list[Swap]:
    def lease_until(self: Leadership, now: float) -> float:
        acked = [now if uuid == self.me else self.peers[uuid].acked_at for uuid in self._voters]
        return majority_least(acked, self._majority) + self._limits.election_s_min

    return [(Leadership, "lease_until", lease_until)]


def lead_on_after_abdicating() -> list[Swap]:
    def carry_on(self: RaftCore) -> None:
        lead = self._lead
        if lead is None or lead.transfer is None or not lead.successor_ready(self._now):
            return
        successor, lead.transfer = lead.transfer.successor, None
        self._letters.append(Send(successor, TimeoutNow(self.term, self.me, self.configuration.unsafe)))

    return [(RaftCore, "_continue_transfer", carry_on)]


def scan_what_changes() -> list[Swap]:
    honest = TabletStore.snapshot

    class Unpinned:
        def __init__(self, environment: Any) -> None:
            self._environment = environment

        def __getattr__(self, name: str) -> Any:
            return getattr(self._environment, name)

        def close(self) -> None: ...

    def snapshot(self: TabletStore) -> TabletSnapshot:
        made = honest(self)
        made.base.close()
        unpinned: Any = Unpinned(self.environment)
        return TabletSnapshot(self.environment, unpinned, made.tables, made.position, self.seed)

    return [(TabletStore, "snapshot", snapshot)]


# -- exactly once, and storage -------------------------------------------------------------------------------


def apply_a_retry_again() -> list[Swap]:
    return [(Rows, "known_answer", lambda self, batch: None)]


def apply_what_is_forgotten() -> list[Swap]:
    return [(Results, "forgotten", lambda self, client, sequence: False)]


def store_rows_without_their_answers() -> list[Swap]:
    return [(Results, "changes", lambda self, pending: [])]


def trim_the_shared_log_early() -> list[Swap]:
    async def move(self: TabletLog, below_seq: int) -> None:
        return None

    return [(TabletLog, "oldest_shared_seq", lambda self: None), (TabletLog, "move", move)]


def flush_claims_what_came_meanwhile() -> list[Swap]:
    honest = TabletStore.flush

    async def flush(self: TabletStore) -> Any:
        before = self.applied
        await self.environment.run(lambda: None)
        await honest(self)
        if self.applied != before:
            await self.environment.commit([tablet_store._put_position(self.applied)])
            self.flushed = self.applied
        return self.flushed

    return [(TabletStore, "flush", flush)]


def believe_every_checksum() -> list[Swap]:
    return [
        (checksum, "verify", lambda joined, seed, path=None: None),
        (checksum, "verify_row", lambda key, value, seed, path=None: 0),
        (
            checksum,
            "verified_block",
            lambda joined, seed, path=None, layout=0: bytes(checksum.BRIDGE_BYTES).join(joined),
        ),
    ]


def two_incarnations_write_one_directory() -> list[Swap]:
    honest = MemoryDisk.open_instance

    async def open_instance(self: MemoryDisk, new_uuid: str) -> Any:
        self.state.holder = None
        return await honest(self, new_uuid)

    return [(MemoryDisk, "open_instance", open_instance), (MemoryDisk, "_check_not_gone", lambda self: None)]


def believe_an_old_copy() -> list[Swap]:
    def is_old(shown: Any, known: Any) -> bool:
        return False

    return [(incarnations, "is_old", is_old), (identity, "is_old", is_old)]


# -- several masters ----------------------------------------------------------------------------------------


def skip_the_fence_of_journal_nodes() -> list[Swap]:
    return [(rules, "fence", lambda view, epoch: None)]


def promise_an_epoch_again() -> list[Swap]:
    """Of two who want the same number both may get a majority."""
    return [(rules, "is_new", lambda state, epoch: epoch >= state.promised)]


def believe_in_a_lease_for_ever() -> list[Swap]:
    def holds(self: Holder) -> bool:
        return self.lost is None and self.epoch > 0

    return [(Holder, "holds", holds)]


def follow_and_read_no_further() -> list[Swap]:
    """The successor begins with what it has followed; what its predecessor acknowledged last is in the journal only."""

    async def catch_up(self: QuorumEditLog, after: int, last: int, digest: int) -> list[Any]:
        return []

    return [(QuorumEditLog, "_catch_up", catch_up)]


# -- coordination --------------------------------------------------------------------------------------------


def count_sequences_in_memory() -> list[Swap]:
    honest = requests._Draft._create

    def create(self: requests._Draft, operation: Create) -> Any:
        if not operation.sequential:
            return honest(self, operation)
        memory = vars(self._base)
        number = memory.get("counted", 0) + 1
        while self._node(paths.numbered(operation.path, number)) is not None:
            number += 1
        memory["counted"] = number
        path = paths.numbered(operation.path, number)
        return honest(self, replace(operation, path=path, sequential=False))

    return [(requests._Draft, "_create", create)]


def carry_out_the_first_of_a_change() -> list[Swap]:
    honest = requests.decide

    def decide(namespace: Namespace, request: Any, limits: Any) -> Any:
        return honest(namespace, replace(request, operations=request.operations[:1]), limits)

    return [(requests, "decide", decide)]


def tell_nobody_who_watches() -> list[Swap]:
    """He hears of it when he looks again."""
    honest = Namespace._set

    def set_quietly(self: Namespace, change: NodeSet) -> None:
        notify, self.notify = self.notify, lambda path: None
        honest(self, change)
        self.notify = notify

    return [(Namespace, "_set", set_quietly)]


def tell_nobody_of_deletions() -> list[Swap]:
    """He who watches finds nothing when he looks again, either."""
    honest = Namespace.changed_since

    def changed_since(self: Namespace, path: str, seen: int, children: bool) -> bool:
        return path in self.nodes and honest(self, path, seen, children)

    return [(Namespace, "changed_since", changed_since)]


def expire_what_a_predecessor_heard() -> list[Swap]:
    honest = Timers.begin

    def begin(self: Timers, sessions: Any) -> None:
        honest(self, known := list(sessions))
        self._renewed_at.update(dict.fromkeys(known, float("-inf")))

    return [(Timers, "begin", begin)]


def let_go_of_the_session_and_not_of_its_nodes() -> list[Swap]:
    def ended(self: Namespace, edit: SessionEnded) -> None:
        for path in self.owned(edit.session):
            self.nodes[path] = replace(self.nodes[path], owner="")
        self._owned.pop(edit.session, None)
        del self.opened[self.sessions.pop(edit.session).request]

    return [(Namespace, "_session_ended", ended)]


def take_the_turn_of_whoever_was_before() -> list[Swap]:
    """It does not look again whether that one was the holder, or one that gave up."""
    honest = locks._before
    waited: dict[str, None] = {}

    def before(names: tuple[str, ...], made: Result) -> str | None:
        if made.path in waited:
            return None
        waited[made.path] = None
        return honest(names, made)

    return [(locks, "_before", before)]


# -- the master ----------------------------------------------------------------------------------------------


def acknowledge_edits_before_they_are_durable() -> list[Swap]:
    async def append(self: LocalEditLog, edits: Any) -> None:
        payload = encode_edits(edits)
        txid = self._txid + 1
        chain = edit_log.chained(self._chain, txid, payload)
        record = [(edit_log._u64(txid), edit_log._u64(chain) + payload)]
        head = [(edit_log._HEAD, edit_log._sealed(edit_log._HEAD, txid, chain))]
        changes = [Put(edit_log.DATABASE, record), Put(edit_log.DATABASE, head)]
        self._txid, self._chain = txid, chain
        self._committing = asyncio.ensure_future(self._environment.commit(changes))  # type: ignore[attr-defined]

    return [(LocalEditLog, "append", append)]
