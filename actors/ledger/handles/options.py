"""Settings of writers, readers and recoveries. Times are in seconds, sizes in bytes."""

from __future__ import annotations

import msgspec

from ebla.storage.errors import require_positive


class LedgerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`replace_s`: how long a store may fail before the writer replaces it. `backlog_bytes_max`: of entries that are acknowledged
    by others, and that a slow store still gets; what is beyond, repairs copy later. `confirm_s`: after how long without a further entry stores learn
    that the last one is acknowledged. `ping_s`: an idle writer asks each store so often whether it runs, and replaces one that does not,
    before a repair fences the writer."""

    call_bytes: int = 1 << 20
    call_entries: int = 2_000
    timeout_s: float = 3.0
    replace_s: float = 2.0
    retry_s: float = 0.1
    confirm_s: float = 0.02
    ping_s: float = 10.0
    backlog_bytes_max: int = 16 << 20
    recovery_entries: int = 64  # read ahead by a recovery

    def validate(self) -> None:
        require_positive(self, self.__struct_fields__)
