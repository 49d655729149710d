"""Defects of forced configurations and forgotten servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ebla.actors.master.repair.hosts import Hosts
from ebla.actors.messages.raft import Answer, Request, VoteRequest
from ebla.actors.messages.stream import AppendRequest
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.raft import forced as marks
from ebla.actors.tablet.raft import membership
from ebla.actors.tablet.raft.core import RaftCore
from ebla.chaos.defects.defect import GIVEN_UP_AND_BACK, defect


@defect("disasters", 20, RaftCore, "receive", seed=3, faults=GIVEN_UP_AND_BACK)
def mark_ignored(self: RaftCore, now: float, sender: str, request: Request, *, knows_us: bool = True) -> Any:
    """A survivor accepts messages of replicas that a forced configuration gave up."""
    self._pass_time(now)
    if isinstance(request, AppendRequest):
        return self._receive_append(request)
    if isinstance(request, VoteRequest):
        return self._receive_vote(request)
    return self._receive_timeout_now(sender, request)


@defect("disasters", 40, membership, "forced", seed=12)
def forced_without_mark(
    original: Any,
    committed: Configuration,
    active: Configuration,
    keep: Sequence[str],
    survivor: str,
    *,
    above: int = 0,
) -> Any:
    """A forced configuration is not newer than those before it."""
    made = original(committed, active, keep, survivor, above=above)
    return replace(made, unsafe=max(committed.unsafe, active.unsafe))


@defect("disasters", 20, RaftCore, "force_configuration", seed=3)
def forced_without_its_tail(
    original: Any, self: RaftCore, now: float, keep: Sequence[str], reason: str, *, above_term: int = 0
) -> None:
    """A forced leader drops the entries that it does not know to be committed."""
    if self.commit_index < self.log.last_index:
        self._truncate(self.commit_index + 1)
        self._adopt_configuration()
    original(self, now, keep, reason, above_term=above_term)


@defect("disasters", 40, marks, "forced_term", seed=21, faults=GIVEN_UP_AND_BACK)
def forced_in_the_next_term(known: int, random: object) -> int:
    """A forced leader takes the term after the last that it knows, in which the other side may also
    lead."""
    return known + 1


@defect("disasters", 20, RaftCore, "_refused_as_forced", seed=5, faults=GIVEN_UP_AND_BACK)
def given_up_leads_on(self: RaftCore, peer: str, sent: Any, answer: Answer) -> None:
    """A replica leads on after it learned that it was given up."""
    self.failed(self._now, peer, sent, True)


@defect("disasters", 20, Hosts, "_require_gone", seed=1)
def living_forgotten(self: Hosts, address: object, uuids: object) -> None:
    """A living server is forgotten."""
