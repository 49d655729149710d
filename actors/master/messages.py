"""The messages between masters, and from operators to masters; see leadership/group.py and standby.py."""

from __future__ import annotations

import msgspec

from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.writer.channel import ChannelStatus


class HandOverRequest(msgspec.Struct, frozen=True):
    """The request to the active master to hand over to `to` (None: the standby with the most edits)."""

    to: str | None = None


class HandOverReply(msgspec.Struct, frozen=True):
    active: str


class GrowJournalRequest(msgspec.Struct, frozen=True):
    """The request to grow the journal to `nodes`, of which the first is the receiver's.

    The receiver is the active master, whose process hosts the journal's only node.
    """

    nodes: tuple[str, ...]


class GrowJournalReply(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]


class CheckpointRequest(msgspec.Struct, frozen=True):
    """The request for one chunk of the catalog's last checkpoint, counted from 0."""

    chunk: int


class CheckpointChunk(msgspec.Struct, frozen=True):
    """One chunk of a checkpoint.

    The checkpoint reflects transaction `txid` and has `chunks` chunks; `digest` covers the whole
    checkpoint. All zero: this master has no checkpoint. `journal` and `history` are the checkpoint's Mark
    (catalog/checkpoint.py).
    """

    txid: int
    chunks: int
    digest: int
    data: bytes
    journal: str = ""
    history: int = 0


class JournalWriterStatus(msgspec.Struct, frozen=True):
    """The active master's writer. The segment in progress starts at `segment`; `nodes` shows the lags."""

    journal: JournalId
    epoch: int
    committed: int
    segment: int
    nodes: tuple[ChannelStatus, ...]


class AddReplicaRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `role`: voter or pre_voter, which mean the same (the replica
    votes as soon as it has caught up), or non_voter. Idempotent: a replica that the server already has
    stays."""

    tablet: str
    server: str
    role: str = "voter"


class RemoveReplicaRequest(msgspec.Struct, frozen=True):
    """Remove a replica.

    A healthy voter that the table needs gets the replace flag, and is removed when another has taken its
    place. `at_once`: remove it without a replacement. A leader hands over leadership first; the request is
    refused with Unavailable until another leads.
    """

    tablet: str
    server: str
    at_once: bool = False


class MoveReplicaRequest(msgspec.Struct, frozen=True):
    """Move a replica: in one configuration `source` gets the replace flag and `target` becomes a pre-voter.

    The remaining steps follow by themselves. The move is complete when `source` is no longer a member.
    """

    tablet: str
    source: str
    target: str


class DrainRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `on`: None only asks."""

    server: str
    on: bool | None = True


class Drained(msgspec.Struct, frozen=True):
    """The state of a drain.

    `replicas`: those still there. `blocked`: of these, those that no other server could take now.
    `non_voters`: the tablets that an operator gave a non-voter there; it is removed without a replacement.
    `waits_for`: the silent servers in maintenance that have members of the same tablets; the replicas of
    these tablets do not move before those servers send heartbeats. `leaderless`: of `replicas`, those of
    tablets without a leader now; only a leader can remove a replica.
    """

    address: str
    draining: bool
    replicas: int
    blocked: int
    non_voters: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    leaderless: int = 0


class DrainReply(msgspec.Struct, frozen=True):
    """`frozen`: why no replica moves now (LevelReply)."""

    servers: tuple[Drained, ...]
    frozen: str = ""


class MaintainRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `on`: None only asks."""

    server: str
    on: bool | None = True


class Maintained(msgspec.Struct, frozen=True):
    """`alive`: the server sends heartbeats. `replicas`: the tablets of which it is a member."""

    address: str
    maintained: bool
    alive: bool
    replicas: int


class MaintainReply(msgspec.Struct, frozen=True):
    servers: tuple[Maintained, ...]


class SuspendRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `on`: None only asks."""

    server: str
    on: bool | None = True


class Suspended(msgspec.Struct, frozen=True):
    """`primaries`: the PacificA tablets that the server leads by the catalog; others lead them when its lease is over."""

    address: str
    suspended: bool
    primaries: int


class SuspendReply(msgspec.Struct, frozen=True):
    servers: tuple[Suspended, ...]


class AllowRequest(msgspec.Struct, frozen=True):
    """`servers`: all that shall be on the allow list, each a uuid, an address or a host; () ends the list, None only asks."""

    servers: tuple[str, ...] | None


class AllowReply(msgspec.Struct, frozen=True):
    """`allowed`: the addresses on the list, none if there is no list; `unknown`: those of them where no server is known.
    `unlisted`: the known servers that are not on it."""

    allowed: tuple[str, ...]
    unknown: tuple[str, ...]
    unlisted: tuple[Suspended, ...]


class LevelRequest(msgspec.Struct, frozen=True):
    """The request to set the level of the cluster. `level`: None only asks."""

    level: str | None = None


class LevelReply(msgspec.Struct, frozen=True):
    """`level`: set by an operator at `since_us` (0: never). `present`: the level in force. `frozen`: since when and why nothing is
    cured, and how that ends; "" if the cluster is cured. `live`: of the `expected` servers, those that send heartbeats; with
    fewer than `needed` the cluster is frozen."""

    level: str
    since_us: int
    present: str
    frozen: str
    live: int
    expected: int
    needed: int


class ForgetRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `dry`: only refuse what would be refused. Idempotent."""

    server: str
    dry: bool = False


class ForgetReply(msgspec.Struct, frozen=True):
    """`uuids`: all forgotten servers at the address, including those of earlier requests."""

    address: str
    uuids: tuple[str, ...]
