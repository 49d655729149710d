"""What masters, and whoever operates them, say to each other; see leadership/group.py and leadership/standby.py."""

from __future__ import annotations

import msgspec

from ebla.actors.journal.messages import JournalId
from ebla.actors.journal.writer.channel import ChannelStatus


class HandOverRequest(msgspec.Struct, frozen=True):
    """Asked of the active master: another one shall be it, `to` or whoever knows most of the catalog."""

    to: str | None = None


class HandOverReply(msgspec.Struct, frozen=True):
    active: str


class GrowJournalRequest(msgspec.Struct, frozen=True):
    """Asked of the active master, whose process has the journal's only node: the journal shall have these nodes, this master's
    first."""

    nodes: tuple[str, ...]


class GrowJournalReply(msgspec.Struct, frozen=True):
    nodes: tuple[str, ...]


class CheckpointRequest(msgspec.Struct, frozen=True):
    """One chunk of the catalog's last checkpoint, counted from 0."""

    chunk: int


class CheckpointChunk(msgspec.Struct, frozen=True):
    """The checkpoint reflects transaction `txid` and has so many chunks; `digest` is of the whole of it. All zero: this
    master has none. The last two are its Mark (catalog/checkpoint.py)."""

    txid: int
    chunks: int
    digest: int
    data: bytes
    journal: str = ""
    history: int = 0


class JournalWriterStatus(msgspec.Struct, frozen=True):
    """The journal as the active master writes it: the segment in progress starts at `segment`, and of each node is told how
    far it is behind."""

    journal: JournalId
    epoch: int
    committed: int
    segment: int
    nodes: tuple[ChannelStatus, ...]


class AddReplicaRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `role`: voter or pre_voter, which mean the same (it votes as soon as it has caught up),
    or non_voter. Idempotent: of a server that has a replica it says that the replica shall stay."""

    tablet: str
    server: str
    role: str = "voter"


class RemoveReplicaRequest(msgspec.Struct, frozen=True):
    """A voter that is well and that the table needs is marked, and goes when another has taken its place. `at_once`: without
    one; of a leader that hands the leadership over first, and is refused with Unavailable until another leads."""

    tablet: str
    server: str
    at_once: bool = False


class MoveReplicaRequest(msgspec.Struct, frozen=True):
    """In one configuration `source` is marked to be replaced and `target` becomes a pre-voter; the rest follows by itself.
    Done when `source` is a member no more."""

    tablet: str
    source: str
    target: str


class DrainRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `on`: None only asks."""

    server: str
    on: bool | None = True


class Drained(msgspec.Struct, frozen=True):
    """`replicas`: still there. `blocked`: of these, which no other server could take now. `non_voters`: the tablets that an operator
    gave a non-voter there; it goes without another in its place. `waits_for`: the servers in maintenance that are silent, and have
    members of the same tablets: these do not go before they are heard. `leaderless`: of `replicas`, whose tablets nobody leads now;
    only a leader can let one go."""

    address: str
    draining: bool
    replicas: int
    blocked: int
    non_voters: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    leaderless: int = 0


class DrainReply(msgspec.Struct, frozen=True):
    servers: tuple[Drained, ...]


class MaintainRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. `on`: None only asks."""

    server: str
    on: bool | None = True


class Maintained(msgspec.Struct, frozen=True):
    """`alive`: heartbeats come from there. `replicas`: of which it is a member."""

    address: str
    maintained: bool
    alive: bool
    replicas: int


class MaintainReply(msgspec.Struct, frozen=True):
    servers: tuple[Maintained, ...]


class ForgetRequest(msgspec.Struct, frozen=True):
    """`server`: a uuid, an address or a host. Idempotent."""

    server: str


class ForgetReply(msgspec.Struct, frozen=True):
    """`uuids`: all that are forgotten there, those of earlier requests too."""

    address: str
    uuids: tuple[str, ...]
