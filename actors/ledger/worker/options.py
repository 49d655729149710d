"""Settings of a replication worker. Times are in seconds, sizes in bytes."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import InvalidArgument, require_positive


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`store`: the address of this host's store. `tasks_max`: ledgers that are repaired at the same time. `bytes_per_s`: of the copies
    of all of them; 0: as fast as possible. `grace_s`: how long a writer may
    replace a lost store itself, before its ledger is recovered. `backoff_s`: the pause after a repair that failed; it doubles up
    to `backoff_max_s`. `verify_percentage`: of the entries of stores that the mark does not name. `garbage_s`: between two looks
    for entries that the store need not keep; a ledger is deleted at the second look that does not find it."""

    masters: tuple[str, ...] = ("master/0",)
    store: str = ""
    batch_entries: int = 500
    batch_bytes: int = 8 << 20
    tasks_max: int = 2
    bytes_per_s: int = 0
    grace_s: float = 30.0
    backoff_s: float = 5.0
    backoff_max_s: float = 300.0
    look_s: float = 2.0  # between two looks at ledgers that wait
    verify_percentage: float = 0.0
    garbage_s: float = 600.0

    def validate(self) -> None:
        may_be_zero = ("bytes_per_s", "verify_percentage", "grace_s")
        require_positive(self, tuple(name for name in self.__struct_fields__ if name not in may_be_zero))
        if self.bytes_per_s < 0 or self.grace_s < 0 or not 0 <= self.verify_percentage <= 100:
            raise InvalidArgument(
                "bytes_per_s and grace_s must not be negative, and verify_percentage must be from 0 to 100"
            )
