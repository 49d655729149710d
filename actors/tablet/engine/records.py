"""The records that a tablet server stores of each replica, besides its log and its rows."""

from __future__ import annotations

import msgspec

from ebla.actors.messages import CreateTabletRequest
from ebla.actors.messages.protocols import HardState
from ebla.actors.replication.configuration import Configuration
from ebla.storage.logs.entries import Position
from ebla.storage.schema import TableSchema


class Superblock(msgspec.Struct, frozen=True):
    """The identity and state of a replica. `schema`: as the table was created; alterations are kept
    with the rows.

    `state`: ready; copying (deleted at start) or deleted, which vote as if their log ended at
    `last`, if that is known; deleting, for good (finished at start); failed: parts of its log were
    dropped, for the `reason`, and it must not return as if it had them. `since_seq`: earlier
    entries of the tablet in the shared log are of a former replica. `private_log`: there is one,
    without which the replica must not serve. `quarantine`: where a deleted replica's data is, or is
    being moved to. `unsafe`: the forced epoch that a deleted replica knows (raft/forced.py).
    """

    tablet: str
    table: str
    table_name: str
    schema: TableSchema
    bucket: int
    state: str = "ready"
    reason: str = ""
    last: Position | None = None
    since_seq: int = 0
    quarantine: str = ""
    unsafe: int = 0
    private_log: bool = False

    @staticmethod
    def of(request: CreateTabletRequest, since_seq: int) -> Superblock:
        return Superblock(
            request.tablet,
            request.table,
            request.table_name,
            request.schema,
            request.bucket,
            since_seq=since_seq,
        )


class ConsensusState(msgspec.Struct, frozen=True):
    """Term, vote and committed configuration: never forgotten while the replica, or its tombstone, exists."""

    hard_state: HardState = msgspec.field(name="record")
    configuration: Configuration
