"""Settings of a ledger store."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import require_positive
from ebla.storage.space import LOW_BYTES


class LedgerStoreOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`low_bytes`: below this free space the store takes no entries of writers; those of recoveries and repairs it takes, and it
    is read. `answer_bytes`: of one answer to a reader. `poll_s_max`: the longest wait of a reader for a next entry."""

    masters: tuple[str, ...] = ("master/0",)
    host: str = ""
    low_bytes: int = LOW_BYTES
    space_s: float = 1.0  # between two looks at the free space
    answer_bytes: int = 1 << 20
    poll_s_max: float = 30.0
    delete_entries: int = 10_000  # of a deleted ledger, in one commit
    deleted_heads: int = 1000  # kept of deleted ledgers, see forgotten.py
    direct_bytes: int = 16 << 10  # an entry that large is written where it stays, see arrivals.py
    arrivals_bytes_max: int = 32 << 20  # kept in memory, and read at a start; what is beyond is moved at once
    move_bytes: int = 1 << 20  # in one commit, which delays others
    move_s: float = 5.0  # between two moves, as long as there is something to move
    copy_s: float = 1.0  # for one request of a replication worker, until its last step begins
    list_ledgers: int = 1000  # in one answer

    def validate(self) -> None:
        require_positive(self, self.__struct_fields__)
