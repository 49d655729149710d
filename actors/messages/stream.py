"""The messages by which a leader's log reaches the other members, in every replication protocol.

Source: the Raft paper, 5.3; Kudu's consensus (a follower answers with its committed index on a
mismatch; status-only first contact).
"""

from __future__ import annotations

import msgspec

from ebla.storage.logs.entries import Entry

# Reasons to refuse a request from the other side of a forced configuration (raft/forced.py).
# FORCED: the sender does not know of that configuration. STRANDED: the receiver did not, and holds
# as committed entries that were given up.
FORCED, STRANDED = "forced", "stranded"
# The sender lacks entries that are committed here: its directory is an older copy (PacificA).
LACKING = "lacking"


class AppendRequest(msgspec.Struct, frozen=True, tag="append"):
    """Leader to follower; without entries it is a heartbeat or a status probe.

    `all_replicated` is the greatest index that every peer holds durably: followers may drop their
    log up to it. `unsafe`: the forced epoch of the sender's configuration. `quiesce`: the group has no writes; a follower that
    holds all of the leader's log may become quiescent.
    """

    term: int
    leader: str
    previous_index: int
    previous_term: int
    entries: tuple[Entry, ...]
    commit_index: int
    all_replicated: int = 0
    unsafe: int = 0
    quiesce: bool = False


class AppendReply(msgspec.Struct, frozen=True, tag="append_reply"):
    """Follower to leader. `match`: with `success`, the index up to which this log equals the
    leader's and is durable.

    Without success: `hint` is the index after which the leader should try next (the follower's
    commit index or last index, the one that is lower than the refused predecessor), so that backing
    up takes few exchanges. `last_index` and `last_term` are of the follower's last durable entry.
    `reason`: FORCED, STRANDED, LACKING or "". With FORCED, `unsafe` is the greatest forced epoch that is
    known to be committed. `quiescent`: the follower is quiescent on the leader's word.
    """

    term: int
    success: bool
    match: int
    hint: int
    last_index: int
    last_term: int
    reason: str = ""
    unsafe: int = 0
    quiescent: bool = False
