"""The messages of Raft peers, and the hard state that a replica keeps on disk.

Source: the Raft paper and thesis (pre-vote 9.6, leadership transfer 3.10, leases 6.4.1), Kudu's
consensus (a follower answers with its committed index on a mismatch; status-only first contact;
votes withheld from a live leader's challengers), seed 000 for member types.
"""

from __future__ import annotations

import msgspec

from ebla.storage.logs.entries import Entry


class HardState(msgspec.Struct, frozen=True, tag="raft"):
    """The record that a replica must never lose: it is durable before any message that depends on
    it leaves."""

    term: int = 0
    vote: str | None = None


class RaftView(msgspec.Struct, frozen=True, tag="raft"):
    """A replica's view of its group, in reports. `role`: leader, follower or candidate. `leader`:
    uuid or None."""

    role: str = "follower"
    term: int = 0
    leader: str | None = None
    last_index: int = 0
    commit_index: int = 0


# Reasons to refuse a request from the other side of a forced configuration (raft/forced.py).
# FORCED: the sender does not know of that configuration. STRANDED: the receiver did not, and holds
# as committed entries that were given up.
FORCED, STRANDED = "forced", "stranded"


class AppendRequest(msgspec.Struct, frozen=True, tag="raft.append"):
    """Leader to follower; without entries it is a heartbeat or a status probe.

    `all_replicated` is the greatest index that every peer holds durably: followers may drop their
    log up to it. `unsafe`: the forced epoch of the sender's configuration.
    """

    term: int
    leader: str
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    all_replicated: int = 0
    unsafe: int = 0


class AppendReply(msgspec.Struct, frozen=True, tag="raft.append_reply"):
    """Follower to leader. `match`: with `success`, the index up to which this log equals the
    leader's and is durable.

    Without success: `hint` is the index after which the leader should try next (the follower's
    commit index or last index, the one that is lower than the refused predecessor), so that backing
    up takes few exchanges. `last_index` and `last_term` are of the follower's last durable entry.
    `reason`: FORCED, STRANDED or "". With FORCED, `unsafe` is the greatest forced epoch that is
    known to be committed.
    """

    term: int
    success: bool
    match: int
    hint: int
    last_index: int
    last_term: int
    reason: str = ""
    unsafe: int = 0


class VoteRequest(msgspec.Struct, frozen=True, tag="raft.vote"):
    """Candidate to voter. `pre_vote`: neither side persists anything; `term` is then the term that
    the candidate would use. `ignore_live_leader`: the leader itself asked for this election
    (graceful step-down). `unsafe`: the forced epoch of the candidate's configuration."""

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
