"""Settings of journal nodes and of a journal's writer and readers. Times are in seconds, sizes in bytes.

The defaults are those of the Quorum Journal Manager where it has such a setting.
"""

from __future__ import annotations

import re

import msgspec

from ebla.actors.journal.messages import JournalId
from ebla.storage.errors import InvalidArgument, require_positive

_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")


class JournalNodeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`sync_s`: how often a node asks one of its peers for segments that it lacks; after a start at once.
    `admit_s`: how often a node repeats its request that admits a joining node. `masters`: those to which a node reports the end
    of a tablet server on its host."""

    masters: tuple[str, ...] = ()
    sync_s: float = 120.0
    admit_s: float = 0.25
    rpc_timeout_s: float = 20.0
    page_bytes: int = 1 << 20  # of a download, of each of its commits, and of an answer to a reader

    def validate(self) -> None:
        require_positive(self, self.__struct_fields__)


class LeaseLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The times of the lease.

    The holder uses its lease for `lease_s` of its own clock after it *sent* the request that a majority
    granted. A node that granted the request promises no other an epoch for `held_s` of its clock after
    the request *arrived*. So two never hold the lease at once, as long as no node's clock runs faster
    than the holder's by held_s / lease_s or more: 1.25, as for tablets.

    A holder that is gone is superseded after at most held_s plus the time of a recovery. The times are
    1.5 times those of a tablet, since the renewals share an event loop with the catalog.
    """

    lease_s: float = 1.2
    held_s: float = 1.5
    renew_s: float = 0.3

    def validate(self) -> None:
        require_positive(self, self.__struct_fields__)
        if not self.lease_s < self.held_s:
            raise InvalidArgument(f"lease_s must be below held_s ({self.held_s}), or reads go stale")
        if not self.renew_s <= self.lease_s / 2:
            raise InvalidArgument(f"renew_s must be at most half of lease_s ({self.lease_s})")


class JournalOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`journal` names the journal, `nodes` are the addresses of its journal nodes.

    A flush is one batch, so at `buffer_bytes` further edits begin to wait for the flush before. The queue
    of a slow node at the writer is bounded by `queue_bytes_max` and `queue_txns_max`; beyond, the node is
    left out until the next segment. A segment ends at any of the `segment_` limits.
    """

    journal: JournalId
    nodes: tuple[str, ...]

    buffer_bytes: int = 512 << 10
    queue_bytes_max: int = 10 << 20
    queue_txns_max: int = 100_000
    segment_bytes: int = 16 << 20
    segment_txns: int = 100_000
    segment_s: float = 120.0
    heartbeat_s: float = 1.0  # to a node that is left out or does not know the newest committed txid
    return_s: float = 10.0  # minimum age of a segment that ends because a left-out node is back
    quiet_s: float = 3.0  # after this long without writes, ask each node whether it still takes this segment
    read_bytes: int = 1 << 20

    write_timeout_s: float = 20.0
    read_timeout_s: float = 20.0
    format_timeout_s: float = 60.0
    recovery_timeout_s: float = 120.0  # of the acceptance of a recovery, which may be a large download

    def validate(self) -> None:
        valid_name(self.journal.name)
        valid_nodes(self.nodes)
        require_positive(self, self.__struct_fields__)

    @property
    def majority(self) -> int:
        return majority(len(self.nodes))


def majority(count: int) -> int:
    return count // 2 + 1


def valid_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"a journal's name is 1 to 64 of a-z, 0-9, '.', '_', '-', not beginning with a sign; got {name!r}"
        )


def valid_nodes(nodes: tuple[str, ...]) -> None:
    count = len(nodes)
    if len(dict.fromkeys(nodes)) < count:
        raise InvalidArgument(f"a journal node counts once: {', '.join(nodes)}")
    if count == 0:
        raise InvalidArgument("a journal needs at least one journal node")
    if count % 2 == 0:
        raise InvalidArgument(
            f"a journal has an odd number of nodes, not {count}: {count} bear the loss of {(count - 1) // 2}, as "
            f"{count - 1} do, and a majority is one node more; add or leave out one"
        )
