"""Defects that the simulation must find: each one a known way to get a replicated database wrong.

A simulator that finds nothing may be one that cannot. `planted(name)` puts a defect into the production classes of this
process for as long as the block lasts; runs inside it must end in a violation within `seeds_max` seeds of `scenario`
(docs/testing.md has the table with the seeds that were needed, tests/chaos/test_planted.py holds us to it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from ebla.actors import errors
from ebla.actors.master import edit_log
from ebla.actors.master.edit_log import LocalEditLog
from ebla.actors.master.edits import encode as encode_edits
from ebla.actors.tablet.apply import Rows
from ebla.actors.tablet.log import TabletLog
from ebla.actors.tablet.raft import core as raft_core
from ebla.actors.tablet.raft import election
from ebla.actors.tablet.raft.core import RaftCore
from ebla.actors.tablet.raft.events import Send
from ebla.actors.tablet.raft.leadership import Leadership
from ebla.actors.tablet.raft.log_index import LogIndex
from ebla.actors.tablet.raft.matching import Agreement, Disagreement, compare
from ebla.actors.tablet.raft.messages import AppendReply, AppendRequest, HardState, TimeoutNow
from ebla.actors.tablet.raft.progress import Progress, majority_least
from ebla.actors.tablet.raft.state import RaftState
from ebla.actors.tablet.replica import Replica
from ebla.chaos.simulation.disk import MemoryDisk
from ebla.storage import checksum, tablet_store
from ebla.storage.environment import Put
from ebla.storage.errors import InvalidArgument
from ebla.storage.results import Results
from ebla.storage.tablet_store import TabletSnapshot, TabletStore

Swap = tuple[Any, str, Any]  # where, which name, what instead


@dataclass(frozen=True)
class Defect:
    """`what` is wrong, and the scenario that shows it within `seeds_max` seeds; `seed` is one that did."""

    name: str
    what: str
    scenario: str
    seeds_max: int
    swaps: Callable[[], list[Swap]]
    seed: int = 0


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Everything in this process has the defect until the block ends. "" plants nothing."""
    with ExitStack() as stack:
        for where, attribute, instead in defect(name).swaps() if name else ():
            stack.callback(setattr, where, attribute, vars(where)[attribute])
            setattr(where, attribute, instead)
        yield


# -- consensus -----------------------------------------------------------------------------------------------


def _acknowledge_before_commit() -> list[Swap]:
    def replicated_index(self: Leadership, own_durable: int) -> int:
        return own_durable

    return [(Leadership, "replicated_index", replicated_index)]


def _count_a_follower_twice() -> list[Swap]:
    def replicated_index(self: Leadership, own_durable: int) -> int:
        held = [own_durable if uuid == self.me else self.peers[uuid].match for uuid in self._voters]
        best = sorted(held)[-1]
        return int(majority_least([*sorted(held)[1:], best], self._majority))

    return [(Leadership, "replicated_index", replicated_index)]


def _commit_an_older_term_by_counting() -> list[Swap]:
    def advance(self: RaftCore) -> None:
        if self._lead is not None:
            self._commit_to(max(self.commit_index, self._lead.replicated_index(self.durable_index)))

    return [(RaftCore, "_advance_commit", advance)]


def _commit_what_was_not_compared() -> list[Swap]:
    honest = RaftCore._receive_append

    def receive(self: RaftCore, request: AppendRequest) -> Any:
        outcome = honest(self, request)
        if not isinstance(outcome, AppendReply):
            self._commit_to(max(self.commit_index, min(request.commit_index, self.log.last_index)))
        return outcome

    return [(RaftCore, "_receive_append", receive)]


def _forget_the_vote() -> list[Swap]:
    honest = RaftState.__init__

    def begin(self: RaftState, tablet: str, me: str, hard_state: HardState, *rest: Any, **more: Any) -> None:
        honest(self, tablet, me, HardState(hard_state.term), *rest, **more)

    return [(RaftState, "__init__", begin)]


def _vote_before_it_is_durable() -> list[Swap]:
    def durable(self: Replica) -> None:
        return None

    return [(Replica, "hard_state_durable", durable)]


def _acknowledge_before_the_sync() -> list[Swap]:
    def durable(self: Replica, index: int) -> None:
        return None

    def answer(self: RaftCore, pending: Any) -> AppendReply:
        if pending.term != self.term:
            return self._refuse_append(hint=0)
        return AppendReply(self.term, True, pending.until, pending.until, self.durable_index)

    return [(Replica, "entries_durable", durable), (RaftCore, "answer", answer)]


def _vote_for_an_older_log() -> list[Swap]:
    honest = election.judge

    def judge(*arguments: Any, **more: Any) -> str:
        reason = honest(*arguments, **more)
        return election.GRANTED if reason == election.LOG_BEHIND else reason

    return [(election, "judge", judge)]


def _vote_twice() -> list[Swap]:
    honest = election.judge

    def judge(request: Any, state: HardState, log: LogIndex, *, leader_alive: bool) -> str:
        return honest(request, HardState(state.term), log, leader_alive=leader_alive)

    return [(election, "judge", judge)]


def _truncate_without_a_conflict() -> list[Swap]:
    def careless(log: LogIndex, commit_index: int, request: AppendRequest) -> Agreement | Disagreement:
        outcome = compare(log, commit_index, request)
        after = request.previous_index + len(request.entries) + 1
        if isinstance(outcome, Disagreement) or outcome.first_new is not None or not request.entries:
            return outcome
        if log.dropped_index < after - 1 < log.last_index:
            return Agreement(outcome.until, after - 1, after - 1)
        return outcome

    return [(raft_core, "compare", careless)]


def _believe_an_old_notice_of_durability() -> list[Swap]:
    def durable(self: RaftCore, index: int, term: int, log_epoch: int | None = None) -> None:
        self.durable_index = max(self.durable_index, min(index, self.log.last_index))
        self._advance_commit()

    return [(RaftCore, "durable", durable)]


# -- reads ---------------------------------------------------------------------------------------------------


def _ignore_the_lease() -> list[Swap]:
    def read_index(self: RaftCore, now: float) -> int:
        if self._lead is None:
            raise self._not_leader("serves no linearizable reads", leader=self.leader)
        return self.commit_index

    return [(RaftCore, "read_index", read_index)]


def _read_before_the_own_term_commits() -> list[Swap]:
    def read_index(self: RaftCore, now: float) -> int:
        self._pass_time(now)
        lead = self._lead
        if lead is None:
            raise self._not_leader("serves no linearizable reads", leader=self.leader)
        if now >= lead.lease_until(now):
            raise errors.Unavailable("no lease")
        return self.commit_index

    return [(RaftCore, "read_index", read_index)]


def _count_the_lease_from_the_answer() -> list[Swap]:
    honest = Progress.answered

    def answered(self: Progress, now: float, sent_at: float, plan: Any, answer: AppendReply) -> None:
        honest(self, now, now, plan, answer)

    return [(Progress, "answered", answered)]


def _lead_on_after_abdicating() -> list[Swap]:
    def carry_on(self: RaftCore) -> None:
        lead = self._lead
        if lead is None or lead.transfer is None or not lead.successor_ready(self._now):
            return
        successor, lead.transfer = lead.transfer.successor, None
        self._letters.append(Send(successor, TimeoutNow(self.term, self.me)))

    return [(RaftCore, "_continue_transfer", carry_on)]


def _scan_what_changes() -> list[Swap]:
    honest = TabletStore.snapshot

    class Unpinned:
        def __init__(self, environment: Any) -> None:
            self.items, self.joined = environment.items, environment.joined

        def close(self) -> None: ...

    def snapshot(self: TabletStore) -> TabletSnapshot:
        made = honest(self)
        made.base.close()
        return TabletSnapshot(self.environment, Unpinned(self.environment), made.tables, made.position)  # type: ignore[arg-type]

    return [(TabletStore, "snapshot", snapshot)]


# -- exactly once, and storage -------------------------------------------------------------------------------


def _apply_a_retry_again() -> list[Swap]:
    return [(Rows, "known_answer", lambda self, batch: None)]


def _store_rows_without_their_answers() -> list[Swap]:
    return [(Results, "changes", lambda self, pending: [])]


def _trim_the_shared_log_early() -> list[Swap]:
    async def move(self: TabletLog, below_seq: int) -> None:
        return None

    return [(TabletLog, "oldest_shared_seq", lambda self: None), (TabletLog, "move", move)]


def _flush_claims_what_came_meanwhile() -> list[Swap]:
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


def _believe_every_checksum() -> list[Swap]:
    return [
        (checksum, "verify", lambda joined, seed, path=None: None),
        (checksum, "verify_row", lambda key, value, seed, path=None: None),
        (checksum, "verified_block", lambda joined, seed, path=None: b"".join(joined)),
    ]


def _two_incarnations_write_one_directory() -> list[Swap]:
    honest = MemoryDisk.open_instance

    async def open_instance(self: MemoryDisk, new_uuid: str) -> Any:
        self.state.holder = None
        return await honest(self, new_uuid)

    return [(MemoryDisk, "open_instance", open_instance), (MemoryDisk, "_check_not_gone", lambda self: None)]


# -- the master ----------------------------------------------------------------------------------------------


def _acknowledge_edits_before_they_are_durable() -> list[Swap]:
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


_ALL = (
    Defect(
        "acknowledge-before-commit",
        "a write is answered when it is on the leader's own disk",
        "chains",
        20,
        _acknowledge_before_commit,
        seed=6,
    ),
    Defect(
        "follower-counts-twice",
        "one follower's acknowledgement is counted for two",
        "five",
        60,
        _count_a_follower_twice,
        seed=1,
    ),
    Defect(
        "older-term-by-counting",
        "an entry of an older term is committed by counting its copies",
        "five",
        400,
        _commit_an_older_term_by_counting,
        seed=17,
    ),
    Defect(
        "commit-uncompared",
        "a follower commits entries that it has not compared with the leader's",
        "registers",
        60,
        _commit_what_was_not_compared,
        seed=7,
    ),
    Defect(
        "forget-the-vote", "a restart forgets whom it voted for", "elections", 200, _forget_the_vote, seed=37
    ),
    Defect(
        "vote-not-durable",
        "a vote is answered before it is on disk",
        "votes",
        400,
        _vote_before_it_is_durable,
    ),
    Defect(
        "acknowledge-before-sync",
        "a follower acknowledges entries before they are on disk",
        "elections",
        100,
        _acknowledge_before_the_sync,
        seed=7,
    ),
    Defect(
        "vote-for-older-log",
        "a vote for a candidate that lacks entries",
        "registers",
        60,
        _vote_for_an_older_log,
        seed=1,
    ),
    Defect("vote-twice", "two votes in one term", "elections", 60, _vote_twice, seed=10),
    Defect(
        "truncate-without-conflict",
        "a late, shorter message truncates what a later one brought",
        "registers",
        60,
        _truncate_without_a_conflict,
        seed=1,
    ),
    Defect(
        "stale-durability",
        "a sync that ended before a truncation counts for what came after it",
        "truncations",
        200,
        _believe_an_old_notice_of_durability,
        seed=39,
    ),
    Defect("no-lease", "a leader reads without a lease", "registers", 60, _ignore_the_lease),
    Defect(
        "read-before-own-term",
        "a new leader reads before it has committed in its term",
        "reads",
        200,
        _read_before_the_own_term_commits,
        seed=33,
    ),
    Defect(
        "lease-from-answer",
        "the lease counts from the answer, not from the question",
        "leases",
        400,
        _count_the_lease_from_the_answer,
        seed=52,
    ),
    Defect(
        "lead-after-abdicating",
        "a leader that ordered its successor to take over reads on",
        "churn",
        200,
        _lead_on_after_abdicating,
        seed=10,
    ),
    Defect(
        "unpinned-scan",
        "a scan reads rows that are flushed meanwhile",
        "bank",
        60,
        _scan_what_changes,
        seed=2,
    ),
    Defect("apply-twice", "a retry is applied again", "tokens", 20, _apply_a_retry_again, seed=2),
    Defect(
        "answers-not-stored",
        "a flush stores rows without the answers that belong to them",
        "retries",
        100,
        _store_rows_without_their_answers,
        seed=35,
    ),
    Defect(
        "log-trimmed-early",
        "the shared log lets go of what a tablet still needs",
        "logs",
        60,
        _trim_the_shared_log_early,
    ),
    Defect(
        "flush-claims-too-much",
        "a flush claims the position at its end for the rows of its beginning",
        "chains",
        60,
        _flush_claims_what_came_meanwhile,
        seed=2,
    ),
    Defect("no-checksums", "records are believed as they are read", "disks", 60, _believe_every_checksum),
    Defect(
        "no-directory-lock",
        "two incarnations write one directory",
        "registers",
        60,
        _two_incarnations_write_one_directory,
        seed=7,
    ),
    Defect(
        "edit-not-durable",
        "the master answers before its edit is on disk",
        "churn",
        200,
        _acknowledge_edits_before_they_are_durable,
        seed=15,
    ),
)

DEFECTS = {defect.name: defect for defect in _ALL}


def defect(name: str) -> Defect:
    if name not in DEFECTS:
        raise InvalidArgument(f"there is no planted defect {name!r}; there are {', '.join(DEFECTS)}")
    return DEFECTS[name]
