"""What planted defects swap where hosts are lost for good: forced configurations, and servers that are forgotten; chaos/defects/planted.py
names them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from ebla.actors.master.repair.members import Members
from ebla.actors.messages.raft import (
    Answer,
    AppendRequest,
    Request,
    VoteRequest,
)
from ebla.actors.replication.configuration import Configuration
from ebla.actors.tablet.raft import forced as marks
from ebla.actors.tablet.raft import membership
from ebla.actors.tablet.raft.core import RaftCore
from ebla.chaos.defects.replication import Swap


def take_what_the_given_up_send() -> list[Swap]:
    def receive(self: RaftCore, now: float, sender: str, request: Request) -> Any:
        self._pass_time(now)
        if isinstance(request, AppendRequest):
            return self._receive_append(request)
        if isinstance(request, VoteRequest):
            return self._receive_vote(request)
        return self._receive_timeout_now(sender, request)

    return [(RaftCore, "receive", receive)]


def force_without_a_mark() -> list[Swap]:
    honest = membership.forced

    def forced(
        committed: Configuration,
        active: Configuration,
        keep: Sequence[str],
        survivor: str,
        *,
        above: int = 0,
    ) -> Configuration:
        made = honest(committed, active, keep, survivor, above=above)
        return replace(made, unsafe=max(committed.unsafe, active.unsafe))

    return [(membership, "forced", forced)]


def force_on_what_is_committed() -> list[Swap]:
    honest = RaftCore.force_configuration

    def force(self: RaftCore, now: float, keep: Sequence[str], reason: str, *, above_term: int = 0) -> None:
        if self.commit_index < self.log.last_index:
            self._truncate(self.commit_index + 1)
            self._adopt_configuration()
        honest(self, now, keep, reason, above_term=above_term)

    return [(RaftCore, "force_configuration", force)]


def lead_the_next_term() -> list[Swap]:
    return [(marks, "forced_term", lambda known, random: known + 1)]


def lead_on_when_given_up() -> list[Swap]:
    def refused(self: RaftCore, peer: str, sent: Any, answer: Answer) -> None:
        self.failed(self._now, peer, sent, True)

    return [(RaftCore, "_refused_as_forced", refused)]


def forget_whoever_is_named() -> list[Swap]:
    return [(Members, "_require_gone", lambda self, address, uuids: None)]
