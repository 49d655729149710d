"""The messages of Raft peers, and the hard state that a replica keeps on disk.

Source: the Raft paper and thesis (pre-vote 9.6, leadership transfer 3.10, leases 6.4.1), Kudu's
consensus (a follower answers with its committed index on a mismatch; status-only first contact;
votes withheld from a live leader's challengers), seed 000 for member types.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec

from ebla.actors.messages.stream import AppendReply, AppendRequest


class HardState(msgspec.Struct, frozen=True, tag="raft"):
    """The record that a replica must never lose: it is durable before any message that depends on
    it leaves."""

    term: int = 0
    vote: str | None = None


class RaftView(msgspec.Struct, frozen=True, tag="raft"):
    """A replica's view of its group, in reports. `role`: leader, follower or candidate. `leader`:
    uuid or None. `reads_from`, `verified`, `asks`: see PacificaView."""

    era: ClassVar[str] = "term"
    leased: ClassVar[bool] = False
    reads_from: ClassVar[int] = 0
    verified: ClassVar[bool] = False
    asks: ClassVar[bool] = False

    role: str = "follower"
    term: int = 0
    leader: str | None = None
    last_index: int = 0
    commit_index: int = 0

    @property
    def leads(self) -> bool:
        return self.role == "leader"


class VoteRequest(msgspec.Struct, frozen=True, tag="raft.vote"):
    """Candidate to voter. `pre_vote`: neither side persists anything; `term` is then the term that
    the candidate would use. `ignore_live_leader`: the leader itself asked for this election
    (graceful step-down), or its process has ended for certain. `unsafe`: the forced epoch of the candidate's configuration."""

    term: int
    candidate: str
    last_index: int
    last_term: int
    pre_vote: bool = False
    ignore_live_leader: bool = False
    unsafe: int = 0


class VoteReply(msgspec.Struct, frozen=True, tag="raft.vote_reply"):
    """Voter to candidate. `term` is the voter's; `reason` is one of granted, leader_alive,
    old_term, voted, log_behind, forced. With forced, `unsafe` is the greatest forced epoch that is
    known to be committed."""

    term: int
    granted: bool
    pre_vote: bool
    reason: str
    unsafe: int = 0


class TimeoutNow(msgspec.Struct, frozen=True, tag="raft.timeout_now"):
    """The leader abdicates in favour of the receiver, which starts an election at once. `unsafe`:
    the forced epoch of the leader's configuration."""

    term: int
    leader: str
    unsafe: int = 0


class TimeoutNowReply(msgspec.Struct, frozen=True, tag="raft.timeout_now_reply"):
    term: int


Request = AppendRequest | VoteRequest | TimeoutNow
Answer = AppendReply | VoteReply | TimeoutNowReply
